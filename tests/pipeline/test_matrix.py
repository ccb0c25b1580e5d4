"""A message published in any dialect is read in any other, with every column that both can say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.columns import COLUMNS, OPTIONAL_COLUMNS
from tests.flight.parts import Flown
from tests.nsq.parts import Extended, pub_ext
from tests.proofs.client import MESSAGE, Client

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
#: What a message carries that was published in a dialect.
SAID: dict[str, Values] = {
    "nsq": {
        **{name: VALUES[name] for name in ("body", "key", "tag", "due", "event_time", "traffic", "dedup", "trace")},
        "headers": NSQ_HEADER,
    },
    "flight": VALUES,
    "spark": VALUES,
}
#: What a consumer sees in a dialect.
SEEN = {"nsq": ("body", "headers", "trace", "tag"), "flight": EVERYTHING, "spark": EVERYTHING}


class Site:
    """A node and its clients in every dialect."""

    def __init__(self, node: Flown, spark: SparkSession) -> None:
        self._node = node
        self._spark = spark
        self._url = f"grpc://127.0.0.1:{node.flight.port}"

    def publish_nsq(self) -> None:
        client = Client(self._node.tcp_port)
        client.send(pub_ext("t", NSQ_HEADER, VALUES["body"]))
        assert client.reply()[:2] == b"OK"
        client.close()

    def publish_flight(self) -> None:
        self._node.put("t", pa.record_batch({name: pa.array([VALUES[name]], COLUMNS[name]) for name in EVERYTHING}))

    def publish_spark(self) -> None:
        table = pa.table({name: pa.array([VALUES[name]], COLUMNS[name]) for name in EVERYTHING})
        frame = self._spark.createDataFrame(table)
        frame.write.format("penstock").options(url=self._url, topic="t").mode("append").save()

    def read_nsq(self) -> Values:
        # Its tag is told by whom it comes to.
        client = Client(self._node.tcp_port)
        client.identify(extend_support=True, desired_tag="red", client_id="c", hostname="h")
        client.subscribe("t", "c", 1)
        kind, data = client.frame()
        assert kind == MESSAGE
        message = Extended(data)
        client.close()
        return {"body": message.body, "headers": message.header, "trace": message.trace, "tag": "red"}

    def read_flight(self) -> Values:
        (row,) = self._node.read("t").to_pylist()
        return {name: row[name] for name in EVERYTHING}

    def read_spark(self) -> Values:
        reader = self._spark.read.format("penstock").options(url=self._url, subscribe="t", columns="*")
        table = reader.load().toArrow()
        return {name: value_of(name, table[name]) for name in EVERYTHING}


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
    with Flown(tmp_path / "data") as node:
        yield Site(node, spark)
        assert node.do(lambda: node.node.bugs) == 0


@pytest.mark.parametrize("reader", SEEN)
@pytest.mark.parametrize("publisher", SAID)
def test_what_one_dialect_says_another_sees(site: Site, publisher: str, reader: str) -> None:
    publish: Callable[[], None] = getattr(site, f"publish_{publisher}")
    read: Callable[[], Values] = getattr(site, f"read_{reader}")
    publish()
    said = SAID[publisher]
    assert read() == {name: said.get(name) for name in SEEN[reader]}


def test_the_matrix_leaves_no_column_out() -> None:
    assert set(VALUES) == set(EVERYTHING)
