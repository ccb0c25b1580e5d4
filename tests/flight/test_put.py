"""Batches put are stored as they were sent, answered in order, and once only where they say who they are."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.wire import Stored, decoded
from penstock.columns import COLUMNS, OPTIONAL_COLUMNS, SMALL
from penstock.dialects.flight import columns as flight_columns
from penstock.keyed import shard_of
from tests.flight.parts import Flown, body_batch, limited, many
from tests.served import PATIENCE_S

EVERYTHING: dict[str, list[Any]] = {
    "body": [b"one", b"", b"\x00\xff three"],
    "due": [1, None, 3],
    "expires": [None, (1 << 63) - 1, 2**40],
    "event_time": [-5, 0, None],
    "key": [b"k", None, b""],
    "tag": ["blue", "", None],
    "headers": [b'{"a":"b"}', None, b'{ "n" : 1 }'],
    "traffic": [-1, 0, None],
    "bucket": [0, 65535, None],
    "route": [-(1 << 63), None, 7],
    "message_id": [b"id", None, b"\xff"],
    "dedup": [b"d1", b"d2", None],
    "trace": [None, -1, 1],
    "group": [b"g", None, b"h"],
}


def everything(times: int) -> pa.RecordBatch:
    columns = {name: pa.array(values * times, COLUMNS[name]) for name, values in EVERYTHING.items()}
    columns["dedup"] = pa.array([b"%d" % row for row in range(3 * times)], pa.binary())
    return pa.record_batch(columns)


@pytest.mark.parametrize("times", [1, 5, 3000])
@pytest.mark.parametrize("durability", ["os", "memory", "fsync"])
def test_every_column_comes_back_as_it_was_sent(flown: Flown, times: int, durability: str) -> None:
    flown.act("create-topic", name="t", settings={"durability": durability})
    batch = everything(times)
    (stored,) = flown.put("t", batch)
    table = flown.read("t")
    assert table.schema == pa.schema(list(COLUMNS.items()))
    start = stored.places[0][2]
    assert stored.places == [["t", 0, start, 3 * times]]
    assert table["offset"].to_pylist() == list(range(start, start + 3 * times))
    assert set(table["source"].to_pylist()) == {"flight"}
    assert set(EVERYTHING) == {"body", *OPTIONAL_COLUMNS}
    for name in EVERYTHING:
        assert table[name].combine_chunks().equals(pa.chunked_array([batch[name]]).combine_chunks()), name


def test_answers_tell_the_offsets_in_the_order_of_the_batches(flown: Flown) -> None:
    answers = flown.put("t", many(3), many(SMALL + 4), many(1), many(0), many(2000))
    assert [answer.places for answer in answers] == [
        [["t", 0, 0, 3]],
        [["t", 0, 3, SMALL + 4]],
        [["t", 0, 7 + SMALL, 1]],
        [],
        [["t", 0, 8 + SMALL, 2000]],
    ]
    expected = [b"body %d" % number for count in (3, SMALL + 4, 1, 2000) for number in range(count)]
    assert flown.bodies("t") == expected


def test_path_descriptor_publishes_too(flown: Flown) -> None:
    batch = body_batch(b"hello")
    writer, answers = flown.client.do_put(flight.FlightDescriptor.for_path("größe"), batch.schema, limited())
    with writer:
        writer.write_batch(batch)
        assert decoded(answers.read().to_pybytes(), Stored).places == [["größe", 0, 0, 1]]
    assert flown.bodies("größe") == [b"hello"]


def test_batches_sent_without_waiting_are_answered_one_by_one(flown: Flown) -> None:
    for durability in ("os", "fsync"):
        flown.act("create-topic", name=durability, settings={"durability": durability})
        batches = [many(5, 5 * number) for number in range(60)]
        descriptor = flight.FlightDescriptor.for_path(durability)
        writer, answers = flown.client.do_put(descriptor, batches[0].schema, limited())
        with writer:
            for batch in batches:
                writer.write_batch(batch)
            found = [decoded(answers.read().to_pybytes(), Stored).places for _ in batches]
        assert found == [[[durability, 0, 5 * number, 5]] for number in range(60)]
        assert flown.bodies(durability) == [b"body %d" % number for number in range(300)]


def test_other_types_of_the_same_meaning_are_taken(flown: Flown) -> None:
    moment = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
    moment_ns = 1772368200123456000
    batch = pa.record_batch(
        {
            "body": pa.array(["one", "zwei ü"], pa.large_string()),
            "key": pa.array([b"abcd", None], pa.binary(4)),
            "tag": pa.array(["x", "x"]).dictionary_encode(),
            "headers": pa.array(['{"a":1}', None], pa.string_view()),
            "due": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "expires": pa.array([moment_ns, None], pa.timestamp("ns")),
            "event_time": pa.array([1772368200, None], pa.timestamp("s", "Europe/Berlin")),
            "traffic": pa.array([(1 << 64) - 1, None], pa.uint64()),
            "bucket": pa.array([3, None], pa.uint8()),
            "route": pa.array([3, None], pa.int16()),
            "group": pa.nulls(2),
        }
    )
    flown.put("t", batch)
    rows = flown.read("t").to_pylist()
    assert [row["body"] for row in rows] == [b"one", "zwei ü".encode()]
    assert [rows[0][name] for name in ("due", "expires", "event_time")] == [
        moment_ns,
        moment_ns,
        1772368200_000_000_000,
    ]
    assert [rows[0][name] for name in ("key", "tag", "headers", "traffic", "bucket", "route", "group")] == [
        b"abcd",
        "x",
        b'{"a":1}',
        -1,
        3,
        3,
        None,
    ]
    assert {name: value for name, value in rows[1].items() if value is not None}.keys() == {
        "offset",
        "timestamp",
        "body",
        "source",
        "tag",
    }


@pytest.mark.parametrize("count", [SMALL, 500])
def test_slices_are_stored_without_what_lies_around_them(flown: Flown, count: int) -> None:
    keys = pa.array([b"key %d" % row for row in range(3 * count)], pa.binary())
    whole = body_batch(*(b"%d" % row * 3 for row in range(3 * count)), key=keys)
    flown.put("t", whole.slice(count, count))
    table = flown.read("t", columns=["body", "key"])
    assert table["body"].to_pylist() == [b"%d" % row * 3 for row in range(count, 2 * count)]
    assert table["key"].to_pylist() == [b"key %d" % row for row in range(count, 2 * count)]


def test_topic_column_says_where_each_row_goes(flown: Flown) -> None:
    names = ["a", "a", "b", "a", "b", "b"]
    (stored,) = flown.put(None, body_batch(b"0", b"1", b"2", b"3", b"4", b"5", topic=pa.array(names)))
    assert stored.places == [["a", 0, 0, 2], ["b", 0, 0, 1], ["a", 0, 2, 1], ["b", 0, 1, 2]]
    assert flown.bodies("a") == [b"0", b"1", b"3"]
    assert flown.bodies("b") == [b"2", b"4", b"5"]
    (stored,) = flown.put(None, body_batch(b"6", topic=pa.array(["b"])))
    assert stored.places == [["b", 0, 3, 1]]


def test_sequence_is_stored_once_also_after_a_restart(tmp_path: Path) -> None:
    with Flown(tmp_path / "data") as flown:
        first = flown.put("t", many(3), many(3, 3), sequences=["p/1", "p/2"])
        again = flown.put("t", many(3, 3), many(3, 6), sequences=["p/2", "p/3"])
        assert (again[0].places, again[0].repeated) == (first[1].places, 3)
        assert (again[1].places, again[1].repeated) == ([["t", 0, 6, 3]], 0)
    with Flown(tmp_path / "data") as flown:
        (stored,) = flown.put("t", many(3, 6), sequences=["p/3"])
        assert (stored.places, stored.repeated) == ([["t", 0, 6, 3]], 3)
        assert flown.bodies("t") == [b"body %d" % number for number in range(9)]


def test_dedup_column_repeats_nothing(flown: Flown) -> None:
    keys = pa.array([b"k1", b"k2", b"k1"], pa.binary())
    (stored,) = flown.put("t", body_batch(b"a", b"b", b"c", dedup=keys))
    assert (stored.places, stored.repeated) == ([["t", 0, 0, 2], ["t", 0, 0, 1]], 1)
    assert flown.bodies("t") == [b"a", b"b"]


def test_keys_choose_the_shard_and_a_named_shard_wins(flown: Flown) -> None:
    flown.act("create-topic", name="t", settings={"shards": 3})
    keys = [b"key %d" % row for row in range(30)]
    batch = body_batch(*keys, key=pa.array(keys, pa.binary()))
    (stored,) = flown.put("t", batch, sequences=["s"])
    found = {shard: flown.bodies("t", shard=shard) for shard in range(3)}
    assert found == {shard: [key for key in keys if shard_of(key, 3) == shard] for shard in range(3)}
    assert sum(count for _, _, _, count in stored.places) == 30
    (stored,) = flown.put("t", batch, shard=2)
    assert stored.places == [["t", 2, len(found[2]), 30]]


def test_batch_larger_than_one_step_of_the_loop_is_stored_whole_and_once(
    flown: Flown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_columns, "PIECE_BYTES", 1000)
    batch = body_batch(*(b"%d" % row * (row % 300) for row in range(700)))
    (stored,) = flown.put("t", batch, sequences=["s"])
    assert sum(count for _, _, _, count in stored.places) == 700
    (again,) = flown.put("t", batch, sequences=["s"])
    assert (again.places, again.repeated) == (stored.places, 700)
    assert flown.bodies("t") == batch["body"].to_pylist()


def test_source_is_what_the_publisher_says(flown: Flown) -> None:
    flown.put("t", body_batch(b"x"), source="spark")
    assert flown.read("t")["source"].to_pylist() == ["spark"]


def test_fsync_topic_answers_after_the_sync(flown: Flown) -> None:
    """The answer is held back exactly as long as the sync is."""
    flown.act("create-topic", name="t", settings={"durability": "fsync"})
    disk = flown.node.disk
    held: list[Any] = []
    real = disk.submit

    def submit(pool: str, work: Any, done: Any) -> None:
        if pool == "sync":
            held.append((pool, work, done))
        else:
            real(pool, work, done)

    flown.do(lambda: setattr(disk, "submit", submit))
    writer, answers = flown.client.do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
    writer.write_batch(many(1))
    writer.write_batch(many(2))
    flown.until(lambda: flown.node.topics["t"].shards[0].end == 3)
    assert flown.bodies("t") == []

    def let_go() -> None:
        disk.submit = real  # type: ignore[method-assign]
        for pool, work, done in held:
            real(pool, work, done)

    flown.do(let_go)
    assert decoded(answers.read().to_pybytes(), Stored).places == [["t", 0, 0, 1]]
    assert decoded(answers.read().to_pybytes(), Stored).places == [["t", 0, 1, 2]]
    assert flown.bodies("t") == [b"body 0", b"body 0", b"body 1"]
    writer.close()


def test_failed_sync_ends_the_stream_and_wakes_a_client_that_only_waits(flown: Flown) -> None:
    flown.act("create-topic", name="t", settings={"durability": "fsync"})
    disk = flown.node.disk
    real = disk.submit
    is_taken = Event()

    def broken() -> None:
        is_taken.wait(PATIENCE_S)
        raise OSError(5, "Input/output error")

    flown.do(lambda: setattr(disk, "submit", lambda pool, work, done: real(pool, broken, done)))
    writer, answers = flown.client.do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
    writer.write_batch(many(1))
    # From here on the stream waits for the sync: before, it would end without a word to wake anybody with.
    flown.until(lambda: any(each.name == "flight-answers" for each in threading.enumerate()))
    is_taken.set()
    assert answers.read().to_pybytes() == b""
    with pytest.raises(flight.FlightUnavailableError, match="disk_failed: topic t could not be synced"):
        writer.close()
    flown.do(lambda: setattr(disk, "submit", real))
    flown.until(lambda: not flown.node.topics["t"].shards[0].read_only)
    flown.put("t", many(2))
    assert flown.bodies("t") == [b"body 0", b"body 1"]


def test_due_time_beyond_the_limit_is_refused(flown: Flown) -> None:
    far = pa.array([flown.clock.now() + 366 * 86_400 * 1_000_000_000])
    with pytest.raises(flight.FlightServerError, match="due_too_far: a message is due at"):
        flown.put("t", body_batch(b"x", due=far))
    assert flown.bodies("t") == []


def test_full_topic_refuses_for_now(flown: Flown) -> None:
    flown.act("create-topic", name="t", settings={"quota_bytes": 100_000})
    flown.put("t", body_batch(bytes(90_000)))
    with pytest.raises(flight.FlightUnavailableError, match="quota_full: topic t holds its quota_bytes of 100KB"):
        flown.put("t", body_batch(bytes(90_000)))
