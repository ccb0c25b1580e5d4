"""A message published in any dialect is read in any other, with every column that both can say."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.columns import COLUMNS, OPTIONAL_COLUMNS, TIMES
from penstock.dialects.dory.config import DoryConfig
from penstock.dialects.m3msg.config import M3MsgConfig
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.timeline.config import TimelineConfig
from penstock.dory import Sender
from tests.flight.parts import Flown
from tests.m3msg.producer import Producer, metric
from tests.nsq.parts import Extended, pub_ext
from tests.proofs.client import MESSAGE, Client, fin
from tests.served import PATIENCE_S, Answer

Values = dict[str, Any]

SECOND_NS = 1_000_000_000
#: What is said in each column. Times are in the past, or far ahead, and in milliseconds, which all dialects have.
VALUES: Values = {
    "body": b"\x00hello\xff",
    "due": 1_700_000_000_123 * 1_000_000,
    "expires": 4_000_000_000 * SECOND_NS,
    "event_time": 1_600_000_000_456 * 1_000_000,
    "key": b"customer 7",
    "tag": "red",
    "headers": b'{"mine":"x"}',
    "traffic": 5,
    "bucket": 3,
    "route": 4,
    "message_id": b"id",
    "dedup": b"once",
    "trace": 77,
    "group": b"group",
}
#: An NSQ client says columns in its header, which is kept as it was sent.
NSQ_HEADER = json.dumps(
    {
        "mine": "x",
        "##key": "customer 7",
        "##client_dispatch_tag": "red",
        "##due_ms": str(VALUES["due"] // 1_000_000),
        "##event_ms": str(VALUES["event_time"] // 1_000_000),
        "##traffic_types": "5",
        "##dedup": "once",
        "##trace_id": "77",
    }
).encode()
EVERYTHING = ("body", *OPTIONAL_COLUMNS)
#: What SQS and SNS say, in attributes and beside them; a body is text there, and a due time a delay.
ATTRIBUTES = {"mine": ("String", "x"), "tag": ("String", "red"), "traffic_types": ("Number", "5")}
DELAY_S = 5
DELAYED = object()
AWS: Values = {
    "body": b"hello",
    "key": b"customer-7",
    "tag": "red",
    "traffic": 5,
    "headers": json.dumps(
        {name: {"type": kind, "value": text} for name, (kind, text) in ATTRIBUTES.items()}, separators=(",", ":")
    ).encode(),
}
#: What a message carries that was published in a dialect.
SAID: dict[str, Values] = {
    "nsq": {
        **{name: VALUES[name] for name in ("body", "key", "tag", "due", "event_time", "traffic", "dedup", "trace")},
        "headers": NSQ_HEADER,
    },
    "flight": VALUES,
    "spark": VALUES,
    "sqs": {**AWS, "due": DELAYED},
    "fifo": {**AWS, "dedup": b"once"},
    "sns": AWS,
    "dynamiq": {"body": VALUES["body"]},
    "v2": VALUES,
    "dory": {name: VALUES[name] for name in ("body", "key", "event_time", "route")},
    "m3msg": {
        "body": metric(VALUES["key"], VALUES["traffic"]),
        "event_time": 1_700_000_010 * SECOND_NS,
        "headers": b'{"m3-storage-policy":"10s:2d"}',
        **{name: VALUES[name] for name in ("key", "traffic", "route")},
    },
}
SAID["timeline"] = {name: VALUES[name] for name in ("body", "due", "message_id", "group", "trace")}
#: What a consumer sees in a dialect.
SEEN = {
    "nsq": ("body", "headers", "trace", "tag"),
    "flight": EVERYTHING,
    "spark": EVERYTHING,
    "sqs": ("body", "headers", "key"),
    "dynamiq": ("body",),
    "v2": EVERYTHING,
    "timeline": ("body", "due", "message_id", "group"),
}
#: Partitions keep no order of groups. Of queues one is enough for Spark each way, which reads what Flight does.
NONE = {("fifo", "dynamiq"), ("fifo", "v2"), ("spark", "dynamiq"), ("spark", "v2")}
NONE |= {(publisher, "spark") for publisher in ("fifo", "sns", "dynamiq", "v2", "m3msg")}
#: Of feeders of queues one is enough for timelines.
NONE |= {(publisher, "timeline") for publisher in ("fifo", "sns", "dynamiq", "v2", "m3msg")}
#: Of timelines.
BUCKETS = 8
PAIRS = [(publisher, reader) for publisher in SAID for reader in SEEN if (publisher, reader) not in NONE]


class Site:
    """A node and its clients in every dialect."""

    def __init__(self, node: Flown, spark: SparkSession) -> None:
        self._node = node
        self._spark = spark
        self._url = f"grpc://127.0.0.1:{node.flight.port}"
        self._topic = "t"
        self._consumer: Client | None = None
        self._tag = ""

    def prepare(self, publisher: str, reader: str) -> None:
        """Let there be whoever reads, and the queue that either of them needs, before anything is published."""
        self._topic = "t.fifo" if publisher == "fifo" else "t"
        if {"dynamiq", "v2"} & {publisher, reader}:
            assert self._queue("PUT", "").status == 201
        elif {"sqs", "fifo", "sns"} & {publisher, reader}:
            attributes = {"FifoQueue": "true"} if publisher == "fifo" else {}
            self._sqs("CreateQueue", QueueName=self._topic, Attributes=attributes)
        if reader == "nsq":
            # A message's tag is told by whom it comes to.
            self._consumer = Client(self._node.tcp_port)
            self._tag = SAID[publisher].get("tag", "")
            self._consumer.identify(extend_support=True, desired_tag=self._tag, client_id="c", hostname="h")
            self._consumer.subscribe(self._topic, "c", 1)

        if "timeline" in (publisher, reader):
            self._timeline("PUT", "topics/" + self._topic, bucket_count=BUCKETS)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def now_ns(self) -> int:
        return self._node.do(self._node.clock.now)

    def pass_time(self) -> None:
        self._node.advance(DELAY_S + 1)

    # --- in -------------------------------------------------------------------------------------------------------

    def publish_nsq(self) -> None:
        client = Client(self._node.tcp_port)
        client.send(pub_ext("t", NSQ_HEADER, VALUES["body"]))
        assert client.reply()[:2] == b"OK"
        client.close()

    def publish_dory(self) -> None:
        with Sender(self._node.ports["dory.tcp_port"], "tcp") as sender:
            time_ms = VALUES["event_time"] // 1_000_000
            sender.send("t", VALUES["body"], VALUES["key"], partition_key=VALUES["route"], timestamp_ms=time_ms)
        topics = self._node.node.topics
        self._node.until(lambda: "t" in topics and topics["t"].published == 1)

    def publish_m3msg(self) -> None:
        with Producer(self._node.ports["m3msg.port"]) as producer:
            sent = producer.send(SAID["m3msg"]["body"], shard=VALUES["route"])
            assert producer.until_acked(1) == sent

    def publish_flight(self) -> None:
        self._node.put("t", pa.record_batch({name: pa.array([VALUES[name]], COLUMNS[name]) for name in EVERYTHING}))

    def publish_spark(self) -> None:
        table = pa.table({name: pa.array([VALUES[name]], COLUMNS[name]) for name in EVERYTHING})
        frame = self._spark.createDataFrame(table)
        frame.write.format("penstock").options(url=self._url, topic="t").mode("append").save()

    def publish_sqs(self) -> None:
        self._send(DelaySeconds=DELAY_S)

    def publish_fifo(self) -> None:
        self._send(MessageDeduplicationId="once")

    def _send(self, **more: object) -> None:
        attributes = {name: {"DataType": kind, "StringValue": text} for name, (kind, text) in ATTRIBUTES.items()}
        group = AWS["key"].decode()
        self._sqs("SendMessage", MessageBody="hello", MessageGroupId=group, MessageAttributes=attributes, **more)

    def publish_sns(self) -> None:
        arn = "arn:aws:{}:us-east-1:000000000000:{}"
        self._sns("CreateTopic", Name="news")
        self._sns(
            "Subscribe",
            **{"TopicArn": arn.format("sns", "news"), "Protocol": "sqs", "Endpoint": arn.format("sqs", "t")},
            **{"Attributes.entry.1.key": "RawMessageDelivery", "Attributes.entry.1.value": "true"},
        )
        said = {"TopicArn": arn.format("sns", "news"), "Message": "hello", "MessageGroupId": AWS["key"].decode()}
        for number, (name, (kind, text)) in enumerate(ATTRIBUTES.items(), 1):
            entry = f"MessageAttributes.entry.{number}"
            said |= {f"{entry}.Name": name, f"{entry}.Value.DataType": kind, f"{entry}.Value.StringValue": text}
        self._sns("Publish", **said)

    def publish_dynamiq(self) -> None:
        assert self._queue("PUT", "/message", VALUES["body"]).content.isdigit()

    def publish_v2(self) -> None:
        texts = {name: value for name, value in VALUES.items() if not isinstance(value, bytes)}
        for name in ("body", "key", "message_id", "dedup", "group"):
            texts[f"{name}_base64"] = base64.b64encode(VALUES[name]).decode()
        texts |= {name: f"{np.datetime64(VALUES[name], 'ns')}Z" for name in TIMES if name in VALUES}
        message = json.dumps(texts)[:-1].encode() + b',"headers":' + VALUES["headers"] + b"}"
        assert self._v2("messages", b'{"messages":[' + message + b"]}")["stored"] == 1

    def publish_timeline(self) -> None:
        greeting = {"topic_id": self._topic, "producer_group_id": VALUES["group"].decode(), "producer_id": "p"}
        session = self._timeline("POST", "producer-handshake", **greeting)["session_id"]
        body = base64.b64encode(VALUES["body"]).decode()
        message = {"id": VALUES["message_id"].decode(), "due_ms": VALUES["due"] // 1_000_000, "body_base64": body}
        told = self._timeline("POST", "messages", session_id=session, messages=[message], trace_id=str(VALUES["trace"]))
        assert told["messages"] == [{"id": message["id"], "version": 1}]

    # --- out ------------------------------------------------------------------------------------------------------

    def read_nsq(self) -> Values:
        assert self._consumer is not None
        kind, data = self._consumer.frame()
        assert kind == MESSAGE
        message = Extended(data)
        return {
            "body": message.body,
            "headers": message.header or None,
            "trace": message.trace or None,
            "tag": self._tag or None,
        }

    def read_sqs(self) -> Values:
        asked = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"], "WaitTimeSeconds": 20}
        (message,) = self._sqs("ReceiveMessage", **asked)["Messages"]
        texts = {name: value["StringValue"] for name, value in message.get("MessageAttributes", {}).items()}
        is_text = texts.pop("penstock.encoding", None) is None
        body = message["Body"].encode()
        group = message["Attributes"].get("MessageGroupId")
        return {
            "body": body if is_text else base64.b64decode(body),
            "headers": texts,
            "key": group.encode() if group is not None else None,
        }

    def read_dynamiq(self) -> Values:
        found: list[dict[str, str]] = []
        end = time.monotonic() + PATIENCE_S
        while not found and time.monotonic() < end:  # a receive does not wait
            found = self._queue("GET", "/messages/10").json
        (element,) = found
        body = element["body"].encode()
        return {"body": base64.b64decode(body) if element.get("encoding") == "base64" else body}

    def read_v2(self) -> Values:
        answer = self._v2("leases", b'{"wait":20}')
        (message,) = answer["messages"]
        found: Values = {}
        for name in EVERYTHING:
            value, coded = message.get(name), message.get(f"{name}_base64")
            if COLUMNS[name] == pa.binary() and name != "headers":
                value = base64.b64decode(coded) if coded is not None else value.encode() if value is not None else None
            elif name in TIMES and value is not None:
                value = int(np.datetime64(value.removesuffix("Z"), "ns").astype(np.int64))
            found[name] = value
        return found

    def read_timeline(self) -> Values:
        session = self._timeline("POST", "consumer-handshake", topic_id=self._topic, consumer_id="c")["session_id"]
        (lease,) = self._timeline("POST", "lease", session_id=session, wait_ms=20_000)["messages"]
        coded = lease.get("body_base64")
        return {
            "body": base64.b64decode(coded) if coded is not None else lease["body"].encode(),
            "due": lease["timestamp_ms"] * 1_000_000,
            "message_id": lease["message_id"].encode(),
            "group": lease["producer_group_id"].encode() or None,
        }

    def read_flight(self) -> Values:
        (row,) = self._node.read(self._topic).to_pylist()
        return {name: row[name] for name in EVERYTHING}

    def read_spark(self) -> Values:
        reader = self._spark.read.format("penstock").options(url=self._url, subscribe=self._topic, columns="*")
        table = reader.load().toArrow()
        return {name: value_of(name, table[name]) for name in EVERYTHING}

    # --- in words -------------------------------------------------------------------------------------------------

    def subscribe(self, name: str, **settings: object) -> None:
        said = {"name": name, "settings": settings}
        answer = self._node.post(f"topics/{self._topic}/subscriptions", said)
        assert answer.status == 201, answer

    def route(self, traffic_types: dict[str, int]) -> None:
        assert self._node.ask("PUT", "routing", {"traffic_types": traffic_types}).status == 200

    def send(self, text: str, **more: object) -> None:
        self._sqs("SendMessage", MessageBody=text, **more)

    def publish_header(self, header: dict[str, str], body: bytes) -> None:
        client = Client(self._node.tcp_port)
        client.send(pub_ext(self._topic, header, body))
        assert client.reply()[:2] == b"OK"
        client.close()

    def received(self) -> list[str]:
        found = self._sqs("ReceiveMessage", MaxNumberOfMessages=10).get("Messages") or []
        return [message["Body"] for message in found]

    def finished(self, channel: str, count: int) -> list[bytes]:
        """Take so many messages of a channel, each as soon as it comes."""
        client, bodies = Client(self._node.tcp_port), []
        client.identify(extend_support=True, client_id="c", hostname="h")
        client.subscribe(self._topic, channel, 10)
        for _ in range(count):
            _, data = client.frame()
            message = Extended(data)
            bodies.append(message.body)
            client.send(fin(message.id))
        client.close()
        return bodies

    # --- over HTTP ------------------------------------------------------------------------------------------------

    def _sqs(self, operation: str, **said: object) -> Values:
        said["QueueUrl"] = f"http://localhost/000000000000/{self._topic}"
        headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        answer = self._node.ask("POST", "/", said, headers=headers, port=self._node.ports["sqs.port"])
        assert answer.status == 200, answer
        found: Values = answer.json
        return found

    def _sns(self, action: str, **said: str) -> None:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        form = urlencode({"Action": action, **said})
        answer = self._node.ask("POST", "/", raw=form, headers=headers, port=self._node.ports["sqs.port"])
        assert answer.status == 200, answer

    def _queue(self, method: str, path: str, body: bytes | None = None) -> Answer:
        port = self._node.ports["dynamiq.port"]
        return self._node.ask(method, f"/v1/queues/{self._topic}{path}", raw=body, port=port)

    def _timeline(self, method: str, path: str, **said: object) -> Values:
        answer = self._node.ask(method, f"/v1/{path}", said, port=self._node.ports["timeline.port"])
        assert answer.status == 200, answer
        found: Values = answer.json
        return found

    def _v2(self, path: str, body: bytes) -> Values:
        port = self._node.ports["dynamiq.port"]
        answer = self._node.ask("POST", f"/v2/queues/{self._topic}/{path}", raw=body, port=port)
        assert answer.status < 300, answer
        found: Values = answer.json["data"]
        return found


def texts_of(headers: bytes | None) -> dict[str, str]:
    """Return headers as attributes of SQS show them."""
    members = json.loads(headers or b"{}")
    return {name: each["value"] if isinstance(each, dict) else each for name, each in members.items()}


def value_of(name: str, column: pa.ChunkedArray) -> object:
    """Return the one value of a column of Spark's as the record has it."""
    timed = pa.types.is_timestamp(column.type)
    (value,) = (column.cast(pa.int64()) if timed else column).to_pylist()
    if value is None:
        return None
    if timed:
        return value * 1000
    return value.encode() if name == "headers" else value


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Iterator[Site]:
    dory = DoryConfig(tcp=True, tcp_port=0, http=False)
    m3msg = M3MsgConfig(port=0, topic="t")
    timeline = TimelineConfig(port=0)
    with Flown(tmp_path / "data", sqs=SqsConfig(port=0), dory=dory, m3msg=m3msg, timeline=timeline) as node:
        made = Site(node, spark)
        yield made
        made.close()
        assert node.do(lambda: node.node.bugs) == 0


@pytest.mark.parametrize(("publisher", "reader"), PAIRS)
def test_what_one_dialect_says_another_sees(site: Site, publisher: str, reader: str) -> None:
    publish: Callable[[], None] = getattr(site, f"publish_{publisher}")
    read: Callable[[], Values] = getattr(site, f"read_{reader}")
    site.prepare(publisher, reader)
    before_ns = site.now_ns()
    publish()
    after_ns = site.now_ns()
    said, delay_ns = dict(SAID[publisher]), DELAY_S * SECOND_NS
    if said.get("due") is DELAYED:
        site.pass_time()
    found = read()
    if said.get("due") is DELAYED and "due" in found:
        first_ns = before_ns // 1_000_000 * 1_000_000  # some dialects tell times in milliseconds
        assert first_ns + delay_ns <= (found["due"] or 0) <= after_ns + delay_ns
        said["due"] = found["due"]
    if publisher == "timeline" and "bucket" in found:
        assert 0 <= found["bucket"] < BUCKETS
        said["bucket"] = found["bucket"]
    if reader == "timeline":  # what was not said is known by the row, and was due when it was stored
        said.setdefault("message_id", b"0000000000000001")
        if "due" not in said:
            assert before_ns // 1_000_000 <= found["due"] // 1_000_000 <= after_ns // 1_000_000
            said["due"] = found["due"]
    if reader == "sqs":
        said["headers"] = texts_of(said.get("headers"))
    elif reader == "v2":
        said["headers"] = json.loads(said["headers"]) if "headers" in said else None
    assert found == {name: said.get(name) for name in SEEN[reader]}


def test_the_matrix_leaves_no_column_out() -> None:
    assert set(VALUES) == set(EVERYTHING)


def test_a_key_set_by_a_queue_orders_a_channel_and_one_set_by_nsq_a_fifo_queue(site: Site) -> None:
    site.prepare("fifo", "sqs")
    site.subscribe("c", order="key")
    for number in range(2):
        site.send(f"from sqs {number}", MessageGroupId="k", MessageDeduplicationId=str(number))
    site.publish_header({"##key": "k", "##dedup": "2"}, b"from nsq")
    # A channel gets one of a key at a time, and a queue several with one receive, which then has the key.
    assert site.finished("c", 3) == [b"from sqs 0", b"from sqs 1", b"from nsq"]
    assert site.received() == ["from sqs 0", "from sqs 1", "from nsq"]
    site.publish_header({"##key": "k"}, b"behind")
    assert site.received() == []


def test_what_was_published_in_one_dialect_is_not_stored_again_by_another(site: Site) -> None:
    site.prepare("fifo", "sqs")
    site.publish_header({"##key": "k", "##dedup": "once"}, b"first")
    site.send("again", MessageGroupId="k", MessageDeduplicationId="once")
    site.send("second", MessageGroupId="k", MessageDeduplicationId="twice")
    site.publish_header({"##key": "k", "##dedup": "twice"}, b"again")
    assert site.received() == ["first", "second"]


def test_a_channel_takes_the_traffic_types_that_a_queue_was_sent(site: Site) -> None:
    site.prepare("sqs", "sqs")
    site.route({"raw": 0, "test": 1})
    site.subscribe("c", traffic={"allowed": ["test"], "is_default": False})
    for bits in (1, 2, 3):
        traffic = {"traffic_types": {"DataType": "Number", "StringValue": str(bits)}}
        site.send(f"traffic {bits}", MessageAttributes=traffic)
    assert site.finished("c", 2) == [b"traffic 2", b"traffic 3"]
    assert site.received() == ["traffic 1", "traffic 2", "traffic 3"]
