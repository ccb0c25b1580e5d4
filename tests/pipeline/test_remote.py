"""The source over Flight, from a real node: the same rows, the same errors, and a node that goes and comes back."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.client.connection import Access, Connection, Unreachable
from penstock.client.wire import Read
from penstock.columns import COLUMNS
from penstock.dialects.flight.config import FlightConfig
from penstock.errors import Refusal
from penstock.pipeline.hold import RENEW_S
from penstock.pipeline.remote import Remote
from penstock.pipeline.store import Piece
from tests.flight.parts import Flown, lasting_port
from tests.pipeline.data import batch_reader, bodies, gathered, rows, stream_reader

ALL = ReadAllAvailable()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Flown]:
    with Flown(tmp_path / "node") as made:
        yield made


def url(node: Flown) -> str:
    return f"grpc://127.0.0.1:{node.flight.port}"


def options(node: Flown, **more: object) -> dict[str, str]:
    return {"url": url(node), "subscribe": "t", **{name: str(value) for name, value in more.items()}}


def put(node: Flown, *said: bytes, topic: str = "t", **columns: list[Any]) -> None:
    names = ["body", *columns]
    arrays = [pa.array(list(said), pa.binary()), *(pa.array(v, COLUMNS[name]) for name, v in columns.items())]
    node.put(topic, pa.RecordBatch.from_arrays(arrays, names=names))


def test_rows_come_as_they_come_from_files(node: Flown) -> None:
    put(node, b"a", b"b", key=[b"k", None], headers=[b'{"x":1}', None])
    put(node, b"c", tag=["red"])
    remote = rows(batch_reader(options(node)))
    assert bodies(remote) == [b"a", b"b", b"c"]
    local = {"path": str(node.config.data_dir), "subscribe": "t"}
    # The manifest that tells of the second segment, which has one column more, is written by a thread.
    node.until(lambda: len(rows(batch_reader(local))) == 3)
    assert rows(batch_reader(local)) == remote


def test_topics_of_a_node_are_found_by_pattern(node: Flown) -> None:
    put(node, b"1", topic="a1")
    put(node, b"2", topic="a2")
    put(node, b"3", topic="b")
    given = {"url": url(node), "subscribePattern": "a."}
    assert bodies(rows(batch_reader(given))) == [b"1", b"2"]


def test_columns_and_filters_are_the_nodes_work(node: Flown) -> None:
    put(node, b"a", b"b", b"c", tag=["x", "y", None], traffic=[1, 2, 3], bucket=[0, 5, 5])
    assert bodies(rows(batch_reader(options(node, tag="x,y")))) == [b"a", b"b"]
    assert bodies(rows(batch_reader(options(node, traffic=2, buckets="5:6")))) == [b"b", b"c"]
    chosen = batch_reader(options(node, columns="tag,body,offset"))
    assert rows(chosen, EqualTo(("tag",), "y"), GreaterThanOrEqual(("offset",), 1)) == [
        {"tag": "y", "body": b"b", "offset": 1}
    ]
    assert rows(batch_reader(options(node, columns="topic"))) == [{"topic": "t"}] * 3


def test_times_say_where_to_begin(node: Flown) -> None:
    put(node, b"old")
    between = node.do(lambda: node.node.clock.now()) // 1_000_000 + 1
    node.clock.ahead_ns += 10 * 10**9
    put(node, b"new")
    assert bodies(rows(batch_reader(options(node, startingTimestamp=between)))) == [b"new"]
    assert bodies(rows(batch_reader(options(node, endingTimestamp=between)))) == [b"old"]


def test_a_stream_follows_a_node(node: Flown) -> None:
    put(node, b"a")
    reader = stream_reader(options(node, startingOffsets="earliest", maxOffsetsPerTrigger=2))
    stood = reader.initialOffset()
    found: list[bytes] = []
    for said in ([b"b", b"c"], [b"d"], [], [b"e"]):
        if said:
            put(node, *said)
        end = reader.latestOffset(stood, reader.getDefaultReadLimit())
        found += bodies(gathered(reader, reader.partitions(stood, end)))
        stood = end
    assert found == [b"a", b"b", b"c", b"d", b"e"]
    assert reader.reportLatestOffset() == stood


def test_a_stream_over_the_network_finds_new_shards_and_holds_them(node: Flown) -> None:
    put(node, b"old")
    reader = stream_reader(options(node, startingOffsets="latest"))
    stood = reader.initialOffset()
    assert reader.latestOffset(stood, ALL) == stood
    topic = node.node.topic("t")
    node.do(lambda: topic.update(msgspec.structs.replace(topic.settings, shards=2)).now())
    assert node.do(lambda: node.node.holds.floors(topic.record)) == [(1, 0)]
    node.put("t", pa.RecordBatch.from_pydict({"body": [b"new"]}), shard=1)
    end = reader.latestOffset(stood, ALL)
    found = gathered(reader, reader.partitions(stood, end))
    assert [(row["shard"], row["offset"], row["body"]) for row in found] == [(1, 0, b"new")]
    assert sorted(bodies(rows(batch_reader(options(node))))) == [b"new", b"old"]
    local = {"path": str(node.config.data_dir), "subscribe": "t"}
    node.until(lambda: sorted(bodies(rows(batch_reader(local)))) == [b"new", b"old"])  # told by threads


def test_memory_topics_are_read_from_the_node(node: Flown) -> None:
    node.act("create-topic", name="t", settings={"durability": "memory"})
    put(node, b"a", b"b")
    assert bodies(rows(batch_reader(options(node)))) == [b"a", b"b"]


def test_missing_topic_and_topic_made_anew_are_told(node: Flown) -> None:
    put(node, b"a")
    with pytest.raises(Refusal, match="there is no topic u"):
        batch_reader(options(node, subscribe="u")).partitions()
    reader = stream_reader(options(node, startingOffsets="earliest"))
    stood = reader.initialOffset()
    end = reader.latestOffset(stood, ALL)
    tasks = reader.partitions(stood, end)
    node.act("delete-topic", name="t")
    put(node, b"z")
    with pytest.raises(Refusal, match="deleted and made anew"):
        reader.latestOffset(stood, ALL)
    with pytest.raises(Refusal, match="deleted and made anew"):
        gathered(reader, tasks)


def test_a_query_holds_its_offsets_at_the_node(node: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    put(node, b"a", b"b", b"c")
    node.do(lambda: node.node.topic("t").shards[0].view())  # in the files now, and not at the next tick
    (Path(node.config.data_dir) / "node.json").write_text(json.dumps({"pid": os.getpid(), "flight": url(node)}))
    for given in (options(node), {"path": str(node.config.data_dir), "subscribe": "t"}):
        before = node.do(lambda: len(node.node.holds))
        reader = stream_reader({**given, "startingOffsets": "earliest"})
        stood = reader.initialOffset()
        end = reader.latestOffset(stood, ALL)
        reader.partitions(stood, end)
        records = node.do(lambda: list(node.node.holds._records.values()))
        assert len(records) == before + 1
        assert records[-1].offsets == (0,)
        reader.commit(end)
        reader.latestOffset(end, ALL)
        assert node.do(lambda: list(node.node.holds._records.values())) == records
        monkeypatch.setattr("penstock.pipeline.hold.RENEW_S", -RENEW_S)
        reader.latestOffset(end, ALL)
        monkeypatch.undo()
        assert [r.offsets for r in node.do(lambda: list(node.node.holds._records.values()))][-1] == (3,)


def test_a_node_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    port = lasting_port()
    with Flown(tmp_path / "node", flight=FlightConfig(port=port)) as node:
        put(node, b"a", b"b")
        reader = stream_reader(options(node, startingOffsets="earliest"))
        stood = reader.initialOffset()
    returned = threading.Event()

    def back() -> None:
        with Flown(tmp_path / "node", flight=FlightConfig(port=port)):
            returned.wait(60)

    thread = threading.Thread(target=back)
    thread.start()
    try:
        end = reader.latestOffset(stood, ALL)
        assert bodies(gathered(reader, reader.partitions(stood, end))) == [b"a", b"b"]
    finally:
        returned.set()
        thread.join()


def test_a_node_that_stays_away_is_named() -> None:
    with pytest.raises(Unreachable, match=r"no node answers at grpc://127\.0\.0\.1:1"):
        Remote(Access("grpc://127.0.0.1:1"), patience_s=0).topic("t")


def test_an_answer_that_is_cut_off_is_asked_for_again_from_the_next_row(
    node: Flown, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(node, *(b"%d" % number for number in range(20)))
    remote = Remote(Access(url(node)))
    asked: list[int | None] = []
    real = remote._nodes.to("t").read

    def cut(what: Read) -> Iterator[pa.RecordBatch]:
        asked.append(what.start)
        batch = next(iter(real(what)))
        yield batch.slice(0, 8)
        if len(asked) < 4:
            raise Unreachable("cut")

    monkeypatch.setattr(Connection, "read", lambda self, what: cut(what))
    piece = Piece(Read(topic="t", shard=0, start=0, end=20, columns=["body"]))
    found = [row for batch in remote.batches(piece) for row in batch.column("body").to_pylist()]
    assert asked == [0, 8, 16]
    assert found == [b"%d" % number for number in range(20)]


def test_a_token_is_needed_where_the_node_wants_one(tmp_path: Path) -> None:
    with Flown(tmp_path / "node", token="secret") as node:
        with pytest.raises(Refusal, match="token"):
            batch_reader(options(node)).partitions()
        with pytest.raises(Refusal, match="there is no topic t"):
            batch_reader(options(node, token="secret")).partitions()
