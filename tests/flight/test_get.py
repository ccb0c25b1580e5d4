"""Tickets read what they name: a range by offset or time, some columns, what a filter lets through."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.wire import Read, TopicInfo, decoded
from penstock.config import Config
from penstock.dialects.flight.config import FlightConfig, endpoints
from penstock.log.reader import JOINED_ROWS
from tests.flight.parts import Flown, body_batch, ids, in_chunks, many
from tests.log.samples import in_files

DURABILITIES = pytest.mark.parametrize("durability", ["os", "memory", "fsync"])


def offsets(table: pa.Table) -> list[int]:
    found: list[int] = table["offset"].to_pylist()
    return found


@DURABILITIES
def test_range_of_offsets_over_batches_of_all_sizes(flown: Flown, durability: str) -> None:
    info = flown.act("create-topic", name="t", settings={"durability": durability})
    base = info["shards"][0]["start"]
    flown.put("t", many(3), many(50), many(1), many(3000), many(2))
    for start, end in ((0, 3056), (1, 5), (52, 54), (53, 54), (54, 3054), (3055, 3056), (3056, 3056), (10, 10)):
        table = flown.read("t", start=base + start, end=base + end)
        assert offsets(table) == list(range(base + start, base + end))
    assert offsets(flown.read("t", start=base + 3000)) == list(range(base + 3000, base + 3056))
    assert len(flown.read("t", end=base + 10**9)) == 3056


def test_what_was_acknowledged_is_there_at_once(flown: Flown) -> None:
    for number in range(30):
        flown.put("t", many(1, number))
        assert flown.bodies("t") == [b"body %d" % each for each in range(number + 1)]


def test_what_was_acknowledged_is_there_while_segments_change(flown: Flown) -> None:
    flown.act("create-topic", name="t", settings={"segment_bytes": 65536})
    for number in range(40):
        flown.put("t", many(300, 300 * number))
        assert len(flown.read("t", columns=["offset"])) == 300 * (number + 1)
    assert flown.bodies("t") == [b"body %d" % number for number in range(12000)]


def test_rows_can_be_read_while_the_disk_is_full(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.log.segment import Segment

    def full(segment: Segment, end: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "write_index", full)
        flown.put("t", many(5), many(100))
        assert len(flown.bodies("t")) == 105
        assert flown.act("offsets-at", topic="t", time_ns=0) == {"offsets": [0]}


def test_small_batches_are_sent_joined(flown: Flown) -> None:
    for number in range(400):
        flown.put("t", many(20, 20 * number))
    table = flown.read("t")
    assert table["body"].to_pylist() == [b"body %d" % number for number in range(8000)]
    assert max(in_chunks(table)) == 8000
    for _ in range(12):
        flown.put("t", many(1500))
    sizes = list(in_chunks(flown.read("t")))
    assert sum(sizes) == 26000
    assert len(sizes) <= 1 + 26000 // (JOINED_ROWS // 2)


def test_small_batches_with_sequences_are_sent_joined(flown: Flown) -> None:
    flown.put("t", *(many(20, 20 * number) for number in range(100)), sequences=map(str, range(100)))
    table = flown.read("t")
    assert table["body"].to_pylist() == [b"body %d" % number for number in range(2000)]
    assert list(in_chunks(table)) == [2000]


def test_columns_come_in_the_order_they_are_asked_for(flown: Flown) -> None:
    flown.put("t", body_batch(b"x", tag=pa.array(["blue"])))
    table = flown.read("t", columns=["tag", "route", "body"])
    assert table.schema == pa.schema([("tag", pa.string()), ("route", pa.int64()), ("body", pa.binary())])
    assert table.to_pylist() == [{"tag": "blue", "route": None, "body": b"x"}]


@pytest.mark.parametrize("durability", ["os", "memory"])
@pytest.mark.parametrize("times", [1, 2000])
def test_filters_let_through_what_they_name(flown: Flown, durability: str, times: int) -> None:
    flown.act("create-topic", name="t", settings={"durability": durability})
    rows: dict[str, list[Any]] = {
        "tag": ["a", "b", None, "c", "a"],
        "traffic": [1, 2, None, -1, 0],
        "bucket": [0, 10, None, 20, 65535],
    }
    types = {"tag": pa.string(), "traffic": pa.int64(), "bucket": pa.int32()}
    columns = {name: pa.array(values * times, types[name]) for name, values in rows.items()}
    flown.put("t", many(7))
    flown.put("t", body_batch(*(b"%d" % (row % 5) for row in range(5 * times)), **columns))
    flown.put("t", many(7))

    def passed(**filters: Any) -> list[int]:
        bodies = flown.bodies("t", **filters)
        count = len(bodies) // times
        assert bodies == bodies[:count] * times
        return [int(body) for body in bodies[:count]]

    assert passed(tags=["a"]) == [0, 4]
    assert passed(tags=["b", "c", "nobody"]) == [1, 3]
    assert passed(tags=[]) == []
    assert passed(traffic=3) == [0, 1, 3]
    assert passed(traffic=-(1 << 63)) == [3]
    assert passed(buckets=[0, 20]) == [0, 1]
    assert passed(buckets=[20, 65536]) == [3, 4]
    assert passed(tags=["a", "b"], traffic=1) == [0]
    assert passed(tags=["a"], traffic=3, buckets=[1, 99]) == []


@DURABILITIES
def test_range_by_time(flown: Flown, durability: str) -> None:
    flown.act("create-topic", name="t", settings={"durability": durability})
    flown.put("t", many(5), many(40, 5))
    start = flown.read("t")["offset"][0].as_py()
    flown.advance(60)
    middle_ns = flown.do(flown.clock.now)
    flown.put("t", many(30, 45), many(2, 75))
    flown.advance(60)
    end_ns = flown.do(flown.clock.now)
    assert len(flown.bodies("t", until_ns=middle_ns)) == 45
    assert flown.bodies("t", from_ns=middle_ns) == [b"body %d" % number for number in range(45, 77)]
    assert flown.bodies("t", from_ns=middle_ns, start=start + 76) == [b"body 76"]
    assert flown.bodies("t", from_ns=end_ns) == []
    assert flown.bodies("t", from_ns=end_ns, until_ns=middle_ns) == []
    for time_ns, offset in ((0, 0), (middle_ns, 45), (end_ns, 77)):
        assert flown.act("offsets-at", topic="t", time_ns=time_ns) == {"offsets": [start + offset]}


def test_rows_of_a_sealed_segment_found_by_time(flown: Flown) -> None:
    flown.put("t", many(100))
    flown.advance(5)
    middle_ns = flown.do(flown.clock.now)
    flown.put("t", many(100, 100))
    flown.do(lambda: flown.node.topics["t"].shards[0].roll())
    flown.put("t", many(1, 200))
    assert flown.act("offsets-at", topic="t", time_ns=middle_ns) == {"offsets": [100]}
    assert len(flown.bodies("t", from_ns=middle_ns)) == 101


def test_offset_that_is_not_kept_is_refused_and_the_earliest_named(flown: Flown) -> None:
    flown.act("create-topic", name="t", settings={"segment_bytes": 65536, "retention_bytes": 1})
    for _ in range(4):
        flown.put("t", body_batch(*(b"x" * 1000 for _ in range(100))))
        flown.do(lambda: flown.node.topics["t"].shards[0].roll())
    flown.put("t", body_batch(b"in the segment that stays"))
    flown.until(lambda: flown.node.topics["t"].shards[0].retain(None, flown.clock.now()) > 0)
    earliest = flown.act("topic", name="t")["shards"][0]["start"]
    assert earliest > 0
    with pytest.raises(flight.FlightServerError, match=f"bad_offset: .*earliest is {earliest}"):
        flown.read("t", start=0)
    assert offsets(flown.read("t", start=0, skip_lost=True))[0] == earliest


def test_rows_a_memory_topic_dropped_are_refused_or_skipped(flown: Flown) -> None:
    flown.act("create-topic", name="t", settings={"durability": "memory", "memory_rows": 100})
    for _ in range(4):
        flown.put("t", many(50))
    start = flown.act("topic", name="t")["shards"][0]["start"]
    with pytest.raises(flight.FlightServerError, match=f"bad_offset: .*earliest is {start}"):
        flown.read("t", start=start - 1)
    assert len(flown.read("t", start=start - 1, skip_lost=True)) == 100


def test_ticket_of_another_incarnation_is_refused(flown: Flown) -> None:
    flown.put("t", many(1))
    (endpoint,) = flown.client.get_flight_info(flight.FlightDescriptor.for_path("t")).endpoints
    assert len(flown.client.do_get(endpoint.ticket).read_all()) == 1
    flown.act("delete-topic", name="t")
    with pytest.raises(flight.FlightServerError, match="not_found: there is no topic 't'"):
        flown.client.do_get(endpoint.ticket).read_all()
    flown.put("t", many(1))
    with pytest.raises(flight.FlightServerError, match="gone: topic t was deleted and made anew"):
        flown.client.do_get(endpoint.ticket).read_all()


def test_flights_tell_topics_shards_rows_and_tickets(flown: Flown) -> None:
    flown.act("create-topic", name="wide", settings={"shards": 3})
    flown.put("wide", many(4), shard=1)
    flown.put("narrow", many(2))
    found = {bytes(info.descriptor.path[0]).decode(): info for info in flown.client.list_flights()}
    assert {name: (len(info.endpoints), info.total_records) for name, info in found.items()} == {
        "wide": (3, 4),
        "narrow": (1, 2),
    }
    assert [bytes(info.descriptor.path[0]) for info in flown.client.list_flights(b"wi")] == [b"wide"]
    info = flown.client.get_flight_info(flight.FlightDescriptor.for_path("wide"))
    told = decoded(info.app_metadata, TopicInfo)
    assert (told.name, told.durability, [shard.rows for shard in told.shards]) == ("wide", "os", [0, 4, 0])
    assert told.path is not None
    assert Path(told.path, "1", "manifest").exists()
    tickets = [decoded(endpoint.ticket.ticket, Read) for endpoint in info.endpoints]
    assert [(ticket.shard, ticket.start, ticket.end) for ticket in tickets] == [(0, 0, 0), (1, 0, 4), (2, 0, 0)]
    rows = [len(flown.client.do_get(endpoint.ticket).read_all()) for endpoint in info.endpoints]
    assert rows == [0, 4, 0]
    assert flown.client.get_schema(flight.FlightDescriptor.for_path("wide")).schema == info.schema


def test_node_that_stops_ends_a_reader_that_does_not_read(tmp_path: Path) -> None:
    with Flown(tmp_path / "data") as flown:
        for _ in range(30):
            flown.put("t", body_batch(*(b"x" * 1000 for _ in range(2000))))
        reader = flown.connect().do_get(flight.Ticket(b'{"topic":"t"}'))
        reader.read_chunk()
        began = time.monotonic()
        flown.run(flown.flight.close())
        assert time.monotonic() - began < 20
        with pytest.raises(flight.FlightError):
            reader.read_all()


def test_flight_may_be_off(tmp_path: Path) -> None:
    assert endpoints(Config(parts=(FlightConfig(enabled=False),))) == []
    assert [endpoint.place(endpoint.port) for endpoint in endpoints(Config())] == ["grpc://127.0.0.1:7071"]


def test_rows_kept_for_a_subscription_alone_are_lost_to_readers(flown: Flown) -> None:
    settings = {"retention_bytes": 0, "retention_age_ns": 0, "segment_bytes": 1 << 16}
    flown.act("create-topic", name="t", settings=settings)
    topic = flown.node.topics["t"]
    flown.do(lambda: topic.create_subscription("s").now())
    flown.put("t", body_batch(b"later", due=pa.array([flown.clock.now() + 3600 * 10**9])))
    for _ in range(10):
        flown.put("t", many(1000))
    with flown.subscribe("t", "s") as held:
        held.order(credit=20_000)
        held.order(ack=ids(held.rows(10_000)))
        held.ping()
    flown.until(lambda: all(segment.sealed for segment in in_files(topic.shards[0])._segments.closed))
    flown.do(topic.storage.retain)
    shard = topic.shards[0]
    assert shard.start > shard.kept_from == 0
    with pytest.raises(flight.FlightServerError, match=f"bad_offset: .*earliest is {shard.start}"):
        flown.read("t", start=0)
    assert offsets(flown.read("t", start=0, skip_lost=True)) == list(range(shard.start, 10_001))
    info = flown.act("topic", name="t")["shards"][0]
    assert (info["start"], info["end"], info["rows"]) == (shard.start, 10_001, 10_001 - shard.start)
