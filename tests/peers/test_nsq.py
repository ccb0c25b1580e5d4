"""NSQ clients on the wrong node, and everybody else who publishes there."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import TopicConfig
from penstock.dialects.dory.config import DoryConfig
from penstock.dialects.m3msg.config import M3MsgConfig
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.sqs.config import SqsConfig
from penstock.dory import encode
from tests.m3msg.producer import Producer
from tests.nsq.caller import Caller
from tests.nsq.parts import Message, dpub, pub, sized
from tests.peers.pair import Pair
from tests.peers.test_http import form, queue_service, sqs
from tests.served import Served


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    path = tmp_path_factory.mktemp("nsq")
    dory = DoryConfig(tcp=True, tcp_port=0, http_port=0)
    m3msg = M3MsgConfig(port=0, topic="metrics", payload="opaque")
    with Pair(path, sqs=SqsConfig(port=0), m3msg=m3msg, dory=dory) as found:
        yield found


def bodies(node: Served, topic: str) -> list[str]:
    """Return what a topic holds, asked of the node that has it."""
    found: list[dict[str, Any]] = node.get(f"topics/{topic}/messages?limit=1000").json["messages"]
    return [each["body"] for each in found]


def message(caller: Caller) -> Message:
    kind, data = caller.frame()
    assert kind == 2, data
    return Message(data)


@pytest.mark.parametrize("layers", [{}, {"deflate": True}, {"snappy": True}], ids=["plain", "deflate", "snappy"])
def test_a_consumer_on_the_wrong_node_is_served_as_on_the_right_one(pair: Pair, layers: dict[str, bool]) -> None:
    here, there = pair.n1, pair.n2
    topic = f"sub-{'-'.join(layers) or 'plain'}"
    there.post("topics", {"name": topic})
    with Caller(here.tcp_port) as consumer, Caller(there.tcp_port) as publisher:
        consumer.identify(client_id="far", msg_timeout=60_000, **layers)
        consumer.send(b"SUB %b c\nRDY 2\n" % topic.encode())
        assert consumer.told() == "OK"
        publisher.send(pub(topic, b"one") + pub(topic, b"two") + pub(topic, b"three"))
        first, second = message(consumer), message(consumer)
        assert (first.body, second.body) == (b"one", b"two")
        shown = there.get(f"topics/{topic}/subscriptions/c").json
        assert (shown["in_flight"], len(shown["consumers"])) == (2, 1)
        consumer.send(b"TOUCH %b\nREQ %b 0\nFIN %b\n" % (first.id, second.id, first.id))
        assert {message(consumer).body, message(consumer).body} == {b"two", b"three"}
        # Whatever else is said on the connection is said there, publishes included.
        consumer.send(pub(topic, b"own"))
        assert consumer.told() == "OK"
        consumer.send(b"FIN 0123456789abcdef\n")
        assert consumer.told().startswith("E_FIN_FAILED")
        consumer.send(b"CLS\n")
        assert consumer.told() == "CLOSE_WAIT"
    there.until(lambda: not there.node.topics[topic].subscriptions["c"].seats)
    assert there.get(f"topics/{topic}/subscriptions/c").json["counts"]["acked"] == 1


def test_what_cannot_be_subscribed_to_is_told_by_the_owner(pair: Pair) -> None:
    pair.n2.post("topics", {"name": "ordered", "settings": {"ordered": True}})
    with Caller(pair.n1.tcp_port) as consumer:
        consumer.identify()
        consumer.send(b"SUB ordered c\n")
        assert consumer.told().startswith("E_SUB_ORDER_IS_MUST")
        with pytest.raises((EOFError, ConnectionError)):
            consumer.frame()


def test_publishes_on_the_wrong_node_go_to_the_right_one_in_order(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    there.post("topics", {"name": "pubs"})
    with Caller(here.tcp_port) as publisher:
        publisher.identify()
        wanted = []
        for start in range(0, 900, 100):
            run = [f"m{row}".encode() for row in range(start, start + 90)]
            several = [f"m{row}".encode() for row in range(start + 90, start + 100)]
            many = b"".join(sized(each) for each in several)
            publisher.send(b"".join(pub("pubs", each) for each in run))
            publisher.send(b"MPUB pubs\n" + sized(len(several).to_bytes(4, "big") + many))
            wanted += [each.decode() for each in (*run, *several)]
        assert {publisher.told() for _ in range(9 * 91)} == {"OK"}
        publisher.send(dpub("pubs", 3_600_000, b"later"))
        assert publisher.told() == "OK"
    shown = there.get("topics/pubs/messages?limit=1000").json["messages"]
    assert [each["body"] for each in shown] == [*wanted, "later"]
    assert "due" in shown[-1]
    assert here.do(lambda: here.node.budget.input.used) == 0


def test_a_refusal_of_the_owner_comes_back_as_it_was(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    there.post("topics", {"name": "slow", "settings": {"rate": 1}})
    with Caller(here.tcp_port) as publisher:
        publisher.identify()
        said = []
        for _ in range(20):
            publisher.send(pub("slow", b"x"))
            said.append(publisher.told())
        assert said[0] == "OK"
        refused = [each for each in said if each != "OK"]
        assert refused
        assert all(each.startswith("E_PUB_FAILED PUB failed topic slow") for each in refused)
        publisher.send(b"PUB_TRACE slow\n" + sized(b"\0" * 8 + b"body"))
        assert "tells where a message went" in publisher.told()


def test_an_owner_that_dies_ends_its_consumers_and_says_nothing_was_stored(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        here, there = pair.n1, pair.n2
        there.post("topics", {"name": "doomed"})
        with Caller(here.tcp_port) as consumer, Caller(here.tcp_port) as publisher:
            consumer.identify()
            consumer.send(b"SUB doomed c\nRDY 1\n")
            assert consumer.told() == "OK"
            publisher.identify()
            publisher.send(pub("doomed", b"before"))
            assert publisher.told() == "OK"
            assert message(consumer).body == b"before"
            # What is published from now on is not answered before the owner is gone.
            there.do(lambda: setattr(there.node.topics["doomed"], "publish", lambda *_: None))
            publisher.send(pub("doomed", b"after"))
            here.until(lambda: here.node.budget.input.used > 0)
            pair.kill(there)
            with pytest.raises((EOFError, ConnectionError)):
                consumer.frame()
            said = publisher.told()
            assert said.startswith("E_PUB_FAILED")
            assert "whether it was stored is not known" in said
            publisher.send(pub("doomed", b"again"))
            assert "is not there" in publisher.told()
            publisher.send(pub("mine", b"goes on"))
            assert publisher.told() == "OK"
        assert here.do(lambda: here.node.budget.input.used) == 0


def test_a_consumer_that_does_not_read_stops_the_owner_and_costs_little_memory(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    for _ in range(4):
        there.publish("heavy", *["x" * 100_000] * 100)
    with Caller(here.tcp_port) as consumer:
        consumer.identify()
        consumer.send(b"SUB heavy c\n")
        assert consumer.told() == "OK"
        consumer.send(b"RDY 400\n")
        there.until(lambda: bool(there.node.topics["heavy"].subscriptions["c"].in_flight()))
        there.until(lambda: any(each._blocked_ns for each in there.nsq_running.server.connections))
        held = here.do(lambda: here.node.budget.output.used)
        assert held < 20_000_000
        got = {message(consumer).id for _ in range(400)}
        assert len(got) == 400


def test_m3msg_and_dory_publish_on_the_wrong_node(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    for name in ("metrics", "dory-far"):
        assert there.post("topics", {"name": name}).status == 201
    with Producer(here.ports["m3msg.port"]) as producer:
        producer.send(b"one", b"two")
        producer.until_acked(2)
    assert bodies(there, "metrics") == ["one", "two"]
    with socket.create_connection(("127.0.0.1", here.ports["dory.tcp_port"]), 60) as sender:
        sender.sendall(encode("dory-far", b"hello") + encode("dory-far", b"again"))
        there.until(lambda: there.node.topics["dory-far"].published == 2)
    assert bodies(there, "dory-far") == ["hello", "again"]


def test_a_fan_out_reaches_queues_on_all_nodes(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    queue_service(here, "PUT", "/v1/queues/near")
    queue_service(there, "PUT", "/v1/queues/away")
    queue_service(here, "PUT", "/v1/topics/both")
    for queue in ("near", "away"):
        answer = queue_service(here, "PUT", f"/v1/topics/both/queues/{queue}")
        assert answer.status == 200, answer
    assert queue_service(here, "GET", "/v1/topics/both").json == {"Queues": ["away", "near"]}
    ids = queue_service(here, "PUT", "/v1/topics/both/message", raw="copied").json
    assert sorted(ids) == ["away", "near"]
    for queue in ids:
        (got,) = queue_service(here, "GET", f"/v1/queues/{queue}/messages/10").json
        assert (str(got["id"]), got["body"]) == (ids[queue], "copied")


def test_sns_reaches_queues_on_all_nodes(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    url = sqs(there, "CreateQueue", QueueName="told").json["QueueUrl"]
    arn = sqs(here, "GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"]).json["Attributes"]["QueueArn"]
    made = form(here, Action="CreateTopic", Name="news").content.decode()
    topic = made.partition("<TopicArn>")[2].partition("<")[0]
    joined = form(here, Action="Subscribe", TopicArn=topic, Protocol="sqs", Endpoint=arn)
    assert joined.status == 200, joined
    assert form(here, Action="Publish", TopicArn=topic, Message="hear").status == 200
    (got,) = sqs(here, "ReceiveMessage", QueueUrl=url).json["Messages"]
    assert json.loads(got["Body"])["Message"] == "hear"


def test_dead_letters_go_to_a_topic_on_another_node_and_back(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    there.post("topics", {"name": "letters"})
    here.post("topics", {"name": "fails"})
    here.post("topics/fails/subscriptions", {"name": "s", "settings": {"max_attempts": 1, "dead_letter": "letters"}})
    here.publish("fails", "bad")
    (leased,) = here.lease("fails", "s")
    released = here.post("topics/fails/subscriptions/s/release", {"receipts": [leased["receipt"]]})
    assert released.status == 200, released
    assert here.lease("fails", "s") == []  # it is found when it would be handed out once more
    there.until(lambda: there.node.topics["letters"].published == 1)
    here.until(lambda: here.node.topics["fails"].subscriptions["s"].depth() == 0)
    moved = there.post("topics/letters/redrive", {})
    assert moved.status == 200, moved
    assert moved.json["moved"] == 1
    here.until(lambda: here.node.topics["fails"].published == 2)


def test_lookup_names_the_node_that_has_a_topic(tmp_path: Path) -> None:
    with Pair(tmp_path, lookup=True) as pair:
        here, there = pair.n1, pair.n2
        there.post("topics", {"name": "found"})
        there.post("topics/found/subscriptions", {"name": "c"})

        def asked(path: str) -> Any:
            return here.ask("GET", path, port=here.ports["nsq.lookup_http_port"]).json

        told = asked("/lookup?topic=found")
        assert told["channels"] == ["c"]
        assert [(each["broadcast_address"], each["tcp_port"]) for each in told["producers"]] == [
            ("127.0.0.1", there.tcp_port)
        ]
        assert asked("/topics")["topics"] == ["found"]
        assert asked("/channels?topic=found")["channels"] == ["c"]
        assert list(asked("/lookup?topic=found&metainfo=true")["partitions"]) == ["0"]


def test_topics_on_the_shared_log_are_reached_from_any_node(tmp_path: Path) -> None:
    with Pair(tmp_path, topic=TopicConfig(log="kafka"), nsq=NsqConfig()) as pair:
        here, there = pair.n1, pair.n2
        there.until(lambda: there.node.share is not None and bool(there.node.share.holdings.ready))
        assert there.post("topics", {"name": "shared"}).status == 201
        with Caller(here.tcp_port) as consumer, Caller(here.tcp_port) as publisher:
            publisher.identify()
            publisher.send(pub("shared", b"kept"))
            assert publisher.told() == "OK"
            consumer.identify()
            consumer.send(b"SUB shared c\nRDY 1\n")
            assert consumer.told() == "OK"
            got = message(consumer)
            assert got.body == b"kept"
            consumer.send(b"FIN %b\n" % got.id)
            there.until(lambda: there.node.topics["shared"].subscriptions["c"].depth() == 0)
