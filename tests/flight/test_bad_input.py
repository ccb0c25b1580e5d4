"""Whatever a client sends, it gets one clear error; what others do goes on, and the node finds no bug in itself."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.clock import SECOND
from penstock.config import LimitsConfig, NodeConfig
from penstock.dialects.flight import places
from penstock.dialects.flight.config import FlightConfig
from tests.flight.parts import Flown, Held, body_batch, limited, many
from tests.served import PATIENCE_S

Error = flight.FlightServerError


@contextmanager
def refused(flown: Flown, text: str) -> Iterator[None]:
    """Expect this error, and see that a neighbour's stream and the topic stay whole."""
    neighbour = flown.connect()
    writer, answers = neighbour.do_put(flight.FlightDescriptor.for_path("neighbour"), many(1).schema, limited())
    writer.write_batch(many(1))
    answers.read()
    before = len(flown.bodies("neighbour"))
    with pytest.raises(flight.FlightError, match=text):
        yield
    writer.write_batch(many(2))
    answers.read()
    writer.close()
    assert len(flown.bodies("neighbour")) == before + 2


def put(flown: Flown, batch: pa.RecordBatch, command: bytes | None = None, metadata: bytes | None = None) -> None:
    descriptor = flight.FlightDescriptor.for_path("t") if command is None else None
    descriptor = descriptor or flight.FlightDescriptor.for_command(command)
    writer, answers = flown.client.do_put(descriptor, batch.schema, limited())
    try:
        if metadata is None:
            writer.write_batch(batch)
        else:
            writer.write_with_metadata(batch, metadata)
        writer.done_writing()
        answers.read()
    finally:
        writer.close()


BODY = pa.array([b"x", b"y"], pa.binary())


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ({"key": BODY}, "bad_column: the batches need a column 'body'; they have key"),
        ({}, "bad_column: the batches need a column 'body'; they have no columns at all"),
        ({"body": BODY, "tags": BODY}, "bad_column: a message has no column 'tags'; did you mean 'tag'?"),
        ({"body": BODY, "zzzz": BODY}, "bad_column: a message has no column 'zzzz'; there are body, due, "),
        ({"body": BODY, "offset": pa.array([1, 2])}, "bad_column: column 'offset' is given by the node; leave it out"),
        ({"body": BODY, "topic": pa.array(["a", "b"])}, "bad_column: the stream names its topic"),
        ({"body": pa.array([1, 2])}, "bad_column: column 'body' is int64; it must be binary"),
        ({"body": pa.nulls(2)}, "bad_column: column 'body' is null throughout"),
        ({"body": pa.array([b"x", None])}, "bad_column: row 1 has no body: it is null"),
        ({"body": BODY, "due": pa.array(["now", "then"])}, "'due' is string; it must be nanoseconds as int64, or a"),
        ({"body": BODY, "due": pa.array([1.5, 2])}, "'due' is double; it must be nanoseconds as int64"),
        ({"body": BODY, "tag": pa.array([b"x", b"\xff"])}, "bad_column: the batch cannot be used: Invalid UTF8"),
        ({"body": BODY, "route": pa.array([1, 1 << 63], pa.uint64())}, "bad_column: the batch cannot be used: .*range"),
        ({"body": BODY, "bucket": pa.array([1, 70_000])}, "bad_column: bucket 70000 is outside 0 to 65535"),
        ({"body": BODY, "bucket": pa.array([-1, 7])}, "bad_column: bucket -1 is outside 0 to 65535"),
        ({"body": BODY, "headers": pa.array([b"{}", b"[]"])}, "bad_column: row 1: headers are no JSON object"),
        ({"body": BODY, "headers": pa.array([b"{", b"{}"])}, "bad_column: row 0: headers are no JSON object"),
        (
            {"body": BODY, "headers": pa.array([b"{}", b'{"a":"\xff"}'])},
            "bad_column: row 1: headers are no JSON object",
        ),
        (
            {"body": BODY, "headers": pa.array([b'{"a":"%b"}' % (b"x" * 70_000), None])},
            "row 0: headers has 70008 bytes",
        ),
        ({"body": BODY, "key": pa.array([None, b"k" * 5000])}, "bad_column: row 1: key has 5000 bytes, at most 4096"),
        ({"body": BODY, "expires": pa.array([1 << 62, 0], pa.timestamp("s"))}, "bad_column: the batch cannot be used"),
    ],
)
def test_columns_that_cannot_be_taken(flown: Flown, batch: dict[str, pa.Array], error: str) -> None:
    sent = pa.record_batch(batch) if batch else pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    with refused(flown, error):
        put(flown, sent)
    assert "t" not in flown.do(lambda: flown.node.topics) or flown.bodies("t") == []


def test_two_columns_of_one_name(flown: Flown) -> None:
    with refused(flown, "bad_column: there are two columns 'body'"):
        put(flown, pa.RecordBatch.from_arrays([BODY, BODY], ["body", "body"]))


@pytest.mark.parametrize("cuts", [[0, -5, 3], [0, 900, 3], [0, 3, 2]])
def test_batch_whose_inside_is_broken(flown: Flown, cuts: list[int]) -> None:
    ends = pa.py_buffer(np.array(cuts, np.int32))
    body = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"abc")])
    with refused(flown, "bad_column: the batch cannot be used|bad_request: |IOError|Invalid"):
        put(flown, pa.RecordBatch.from_arrays([body], ["body"]))


def test_topic_names_that_are_not_allowed(flown: Flown) -> None:
    for name in ("", "a\nb", "x" * 1025):
        with refused(flown, "bad_name: "):
            put(flown, many(1), json.dumps({"publish": {"topic": name}}).encode())
    with refused(flown, "bad_name: "):
        put(flown, body_batch(b"x", b"y", topic=pa.array(["fine", "\x00"])), b'{"publish":{}}')
    with refused(flown, "bad_request: name the topic"):
        descriptor = flight.FlightDescriptor.for_path("a", "b")
        writer, answers = flown.client.do_put(descriptor, many(1).schema)
        answers.read()
        writer.close()
    with refused(flown, "not_found: there is no topic 'none'"):
        put(flown, many(1), b'{"publish":{"topic":"none","create":false}}')
    assert flown.bodies("fine") == []
    names = pa.array([f"t{number}" for number in range(1001)])
    with refused(flown, "bad_request: a batch names 1001 topics, more than 1000"):
        put(flown, body_batch(*(b"x" for _ in range(1001)), topic=names), b'{"publish":{}}')


def test_sizes_over_their_limits(tmp_path: Path) -> None:
    own = FlightConfig(port=0, max_batch_size=100_000)
    with Flown(tmp_path / "data", flight=own, node=NodeConfig(message_bytes=1000)) as flown:
        with refused(flown, "message_too_big: a batch of .* bytes is over the limit of 100000 .flight.max_batch_size"):
            put(flown, body_batch(*(b"x" * 900 for _ in range(200))))
        with refused(flown, "message_too_big: row 3: a message of 1001 bytes is over the limit of 1000 .node.message"):
            put(flown, body_batch(b"", b"x", b"x" * 1000, b"x" * 1001))
        # Small on the wire, and large once each row has its own copy.
        _, view, data = pa.array([b"x" * 900], pa.binary_view()).buffers()
        views = pa.py_buffer(view.to_pybytes()[:16] * 2000)
        shared = pa.Array.from_buffers(pa.binary_view(), 2000, [None, views, data])
        for body in (pa.array([b"x" * 900] * 2000).dictionary_encode(), shared):
            with refused(flown, "message_too_big: column 'body' has 1800000 bytes|a batch of"):
                put(flown, pa.record_batch({"body": body}))
        put(flown, body_batch(b"x" * 1000))
        put(flown, pa.record_batch({"body": pa.array([b"x", b"y", b"x"]).dictionary_encode()}))
        assert flown.bodies("t") == [b"x" * 1000, b"x", b"y", b"x"]
        assert flown.faults() == {"message_too_big": 4}


def test_streams_that_publish_have_a_limit(tmp_path: Path) -> None:
    with Flown(tmp_path / "data", flight=FlightConfig(port=0, puts_max=3)) as flown:
        idle = [flown.client.do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited()) for _ in range(3)]
        for writer, answers in idle:
            writer.write_batch(many(1))
            answers.read()
        with pytest.raises(flight.FlightUnavailableError, match="limit_reached: 3 streams publish or stage"):
            put(flown, many(1))
        assert flown.faults() == {"limit_reached": 1}
        for writer, _ in idle:
            writer.close()
        put(flown, many(1))
        assert len(flown.bodies("t")) == 4


def test_a_stream_whose_client_is_waited_for_too_long_gives_way_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "GIVE_WAY_S", PATIENCE_S)
    limits = LimitsConfig(body_timeout_ns=60 * SECOND)
    with Flown(tmp_path / "data", flight=FlightConfig(port=0, puts_max=2), limits=limits) as flown:
        flown.connect()  # the one that comes later has a connection of its own
        quiet, first = flown.connect().do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
        quiet.write_batch(many(1))  # the rest of the next one never comes
        first.read()
        flown.until(lambda: any(place.waits_ns is not None for place in flown.flight.service.puts._taken))
        flown.advance(30)
        busy, second = flown.connect().do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
        busy.write_batch(many(1))
        second.read()
        with pytest.raises(flight.FlightUnavailableError, match=r"flight\.puts_max"):
            flown.put("t", many(1))
        flown.advance(31)
        assert len(flown.put("t", many(1))) == 1
        busy.write_batch(many(1))  # sent something since
        second.read()
        busy.close()
        with pytest.raises(pa.ArrowException):
            quiet.close()
        assert len(flown.bodies("t")) == 4


def test_streams_that_read_have_a_limit_and_who_does_not_read_gives_way(tmp_path: Path) -> None:
    limits = LimitsConfig(output_timeout_ns=60 * SECOND)
    with Flown(tmp_path / "data", flight=FlightConfig(port=0, gets_max=2), limits=limits) as flown:
        for _ in range(160):
            flown.put("t", body_batch(b"x" * (1 << 20)))
        asked = flight.Ticket(json.dumps({"topic": "t"}))
        idle = [flown.connect().do_get(asked, limited()) for _ in range(2)]
        for reader in idle:
            reader.read_chunk()

        def is_stuck() -> bool:
            now_ns = flown.node.clock.monotonic()
            waits = [place.waits_ns or now_ns for place in flown.flight.service.gets._taken]
            return len(waits) == 2 and now_ns - max(waits) > SECOND // 2

        flown.until(is_stuck)
        assert flown.node.budget.output.used > 1 << 20
        assert flown.act("topics")["topics"]
        with pytest.raises(flight.FlightUnavailableError, match=r"limit_reached: 2 streams read.*flight\.gets_max"):
            flown.read("t", end=1)
        flown.advance(61)
        assert flown.read("t", end=1).num_rows == 1
        cut = 0
        for reader in idle:  # whoever was stuck first
            try:
                reader.read_all()
            except pa.ArrowException:
                cut += 1
        assert cut == 1
        flown.until(lambda: not flown.flight.service.gets._taken)
        assert flown.do(lambda: flown.node.budget.output.used) == 0


@pytest.mark.parametrize("name", ["connections", "connections_per_address"])
def test_streams_count_as_connections_of_their_address(tmp_path: Path, name: str) -> None:
    with Flown(tmp_path / "data", limits=LimitsConfig(**{name: 2})) as flown:
        put(flown, many(1))
        idle, _ = flown.connect().do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
        with flown.subscribe("t", "s") as consumer:
            consumer.ping()
            flown.until(lambda: flown.flight.service.streams == 2)
            with pytest.raises(flight.FlightUnavailableError, match=rf"too_many_connections: 2 .*limits\.{name}"):
                put(flown, many(1))
            assert flown.faults() == {"too_many_connections": 1}
        idle.close()
        flown.until(lambda: flown.flight.service.streams == 0)
        put(flown, many(1))
        assert len(flown.bodies("t")) == 2


def test_commands_and_metadata_that_mean_nothing(flown: Flown) -> None:
    for command, error in (
        (b"", "bad_request: "),
        (b"publish", "bad_request: the command is not JSON"),
        (b"[" * 50_000, "bad_request: the command is not JSON"),
        (b"{}", "bad_request: a command is a JSON object with one key"),
        (b'{"publish":{},"stage":{}}', "bad_request: a command is a JSON object with one key"),
        (b'{"publish":[]}', "bad_request: a publish is a JSON object"),
        (b'{"publish":{"topik":"t"}}', "bad_request: a publish has no 'topik'; did you mean 'topic'"),
        (b'{"publish":{"topic":"t","shard":1}}', "bad_offset: there is no shard 1; topic t has 0 to 0"),
        (b'{"publish":{"topic":"t","shard":-1}}', "bad_offset: there is no shard -1"),
        (b'{"publish":{"topic":"t","source":""}}', "bad_request: source is 1 to 64 bytes"),
        (b'{"publish":{"topic":"t","source":"\\ud800"}}', "bad_request: source is"),
        (b'{"subscribe":{"topic":"t","subscription":"s"}}', "bad_request: a DoPut publishes or stages"),
        (b'{"stage":{"query":"q","batch":1}}', "bad_request: a stage needs 'attempt'"),
    ):
        with refused(flown, error):
            put(flown, many(1), command)
    for metadata, error in (
        (b"seven", "bad_request: this is not JSON"),
        (b'{"sequence":7}', "bad_request: 'sequence' of a sequence is a str"),
        (b'{"sequence":""}', "bad_request: a sequence has 1 to 256 bytes, not 0"),
        (json.dumps({"sequence": "x" * 257}).encode(), "bad_request: a sequence has 1 to 256 bytes, not 257"),
    ):
        with refused(flown, error):
            put(flown, many(1), metadata=metadata)
    assert flown.bodies("t") == []


def test_error_leaves_what_was_answered(flown: Flown) -> None:
    bad = pa.record_batch({"body": pa.array([None], pa.binary())})
    writer, answers = flown.client.do_put(flight.FlightDescriptor.for_path("t"), bad.schema, limited())
    writer.write_batch(many(3))
    assert answers.read() is not None
    writer.write_batch(bad)
    with pytest.raises(Error, match="bad_column: row 0 has no body"):
        writer.close()
    assert flown.bodies("t") == [b"body 0", b"body 1", b"body 2"]


@pytest.mark.parametrize(
    ("ticket", "error"),
    [
        (b"", "bad_request: this is not JSON"),
        (b"\xff\xff", "bad_request: this is not JSON"),
        (b"[]", "bad_request: a read is a JSON object"),
        (b"{}", "bad_request: a read needs 'topic'"),
        (b'{"topic":"none"}', "not_found: there is no topic 'none'"),
        (b'{"topic":"t","shard":3}', "bad_offset: there is no shard 3; topic t has 0 to 0"),
        (b'{"topic":"t","start":99}', "bad_offset: offset 99 of shard 0 is beyond its end, which is 3"),
        (b'{"topic":"t","start":-1}', "bad_offset: .*earliest is 0"),
        (b'{"topic":"t","columns":["bdy"]}', "bad_column: a message has no column 'bdy'; did you mean 'body'?"),
        (b'{"topic":"t","columns":[]}', "bad_column: columns names at least one column"),
        (b'{"topic":"t","columns":["body","body"]}', "bad_column: columns names at least one column, and each once"),
        (b'{"topic":"t","buckets":[1]}', r"bad_request: buckets is \[low, high\), two numbers"),
        (b'{"topic":"t","buckets":[2,1]}', r"bad_request: buckets is \[low, high\)"),
        (b'{"topic":"t","buckets":[1,99999999999]}', r"bad_request: buckets is \[low, high\)"),
        (b'{"topic":"t","tags":"a"}', "bad_request: 'tags' of a read is a"),
        (b'{"topic":"t","traffic":99999999999999999999}', "bad_request: 'traffic' of a read is a int"),
        (b'{"topic":"t","incarnation":5}', "gone: topic t was deleted and made anew"),
    ],
)
def test_tickets_that_mean_nothing(flown: Flown, ticket: bytes, error: str) -> None:
    flown.put("t", many(3))
    with refused(flown, error):
        flown.client.do_get(flight.Ticket(ticket), limited()).read_all()


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"topic": "t"}, "bad_request: a subscribe needs 'subscription'"),
        ({"lease_ms": 0}, "bad_request: lease_ms is 0; this subscription allows 1 to 900000"),
        ({"lease_ms": 10**9}, "bad_request: lease_ms is 1000000000"),
        ({"tag": ""}, "bad_request: a tag has 1 to 100 bytes"),
        ({"filter": {"type": 9, "filter_ext_key": "a", "filter_data": "b"}}, "bad_request: the filter cannot be used"),
        ({"filter": {"type": "x"}}, "bad_request: the filter cannot be used"),
        ({"sample_percent": 0}, "bad_request: sample_percent is 0"),
        ({"shard": 5}, "bad_offset: there is no shard 5"),
        ({"columns": ["nothing"]}, "bad_column: a message has no column 'nothing'"),
        ({"topic": "a\nb"}, "bad_name: "),
        ({"subscription": ""}, "bad_name: "),
    ],
)
def test_subscriptions_that_cannot_be(flown: Flown, document: dict[str, Any], error: str) -> None:
    given = {"topic": "t", "subscription": "s", **document}
    if document == {"topic": "t"}:
        given = document
    with refused(flown, error):
        Held(flown.client, given).next()
    flown.until(lambda: not flown.flight.service.exchanges)


@pytest.mark.parametrize(
    ("order", "error"),
    [
        (b"now", "bad_request: this is not JSON"),
        (b'{"ack":[[0,1]]}', "bad_request: 'ack' of a order is"),
        (b'{"ack":[[1,2000000]]}', "bad_request: ack names more than 1000000 ids"),
        (b'{"release":[[9223372036854775807,2]]}', "bad_request: release names ids beyond 63 bits"),
        (b'{"credit":-1}', "bad_request: credit is -1"),
        (b'{"credit":1000001}', "bad_request: credit is 1000001"),
        (b'{"delay_ms":-1}', "bad_request: delay_ms is -1"),
        (b'{"extend":[[1,1]],"lease_ms":0}', "bad_request: lease_ms is 0"),
    ],
)
def test_orders_that_mean_nothing_end_the_exchange_and_give_its_leases_back(
    flown: Flown, order: bytes, error: str
) -> None:
    flown.put("t", many(2))
    held = flown.subscribe("t", "s", client=flown.connect())
    held.order(credit=10)
    assert len(held.rows(2)) == 2
    with refused(flown, error):
        held.writer.write_metadata(order)
        held.next()
    with flown.subscribe("t", "s") as other:
        other.order(credit=10)
        assert [row["attempts"] for row in other.rows(2)] == [2, 2]


def test_batch_in_an_exchange_is_refused(flown: Flown) -> None:
    held = flown.subscribe("t", "s", client=flown.connect())
    held.ping()
    with refused(flown, "bad_request: an exchange takes orders as metadata"):
        held.writer.begin(many(1).schema)
        held.writer.write_batch(many(1))
        held.next()


DYING = """
import os, sys
import pyarrow as pa, pyarrow.flight as flight
client = flight.connect(sys.argv[1])
batch = pa.record_batch({"body": pa.array([b"a", b"b"], pa.binary())})
writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), batch.schema)
writer.write_batch(batch)
answers.read()
exchange, reader = client.do_exchange(
    flight.FlightDescriptor.for_command(b'{"subscribe":{"topic":"t","subscription":"s"}}')
)
exchange.write_metadata(b'{"credit":10}')
assert len(reader.read_chunk().data) == 2
print("done", flush=True)
os.kill(os.getpid(), 9)
"""


def test_client_that_is_killed_leaves_what_was_answered_and_no_leases(flown: Flown) -> None:
    place = f"grpc://127.0.0.1:{flown.flight.port}"
    done = subprocess.run(
        [sys.executable, "-c", DYING, place], capture_output=True, timeout=PATIENCE_S, check=False, text=True
    )
    assert (done.stdout, done.returncode) == ("done\n", -9)
    flown.until(lambda: not flown.flight.service.exchanges)
    assert flown.bodies("t") == [b"a", b"b"]
    with flown.subscribe("t", "s") as held:
        held.order(credit=10)
        assert len(held.rows(2)) == 2


def test_stream_that_ends_in_the_middle_of_its_time_leaves_what_was_answered(flown: Flown) -> None:
    client = flown.connect()
    writer, answers = client.do_put(
        flight.FlightDescriptor.for_path("t"), many(1).schema, flight.FlightCallOptions(timeout=2.0)
    )
    writer.write_batch(many(2))
    assert answers.read() is not None
    assert answers.read() is None  # its time is up
    with pytest.raises(pa.ArrowException):
        writer.close()
    flown.put("t", many(1))
    assert flown.bodies("t") == [b"body 0", b"body 1", b"body 0"]


def test_six_hundred_exchanges_at_once(flown: Flown) -> None:
    """The first 500 work; the others hear why they may not."""
    clients = [flown.connect() for _ in range(6)]
    outcomes: list[list[Held | str]] = [[] for _ in clients]

    def open_some(client: flight.FlightClient, outcome: list[Held | str]) -> None:
        for _ in range(100):
            held = flown.subscribe("t", "s", client=client)
            try:
                held.ping()
                outcome.append(held)
            except flight.FlightUnavailableError as error:
                outcome.append(str(error))

    threads = [threading.Thread(target=open_some, args=pair) for pair in zip(clients, outcomes, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened = [each for outcome in outcomes for each in outcome if isinstance(each, Held)]
    told = [each for outcome in outcomes for each in outcome if isinstance(each, str)]
    assert (len(opened), len(told)) == (500, 100)
    assert all(text.startswith("rate_limited: 500 exchanges are open") for text in told)
    assert flown.faults() == {"rate_limited": 100}
    flown.put("t", many(500))
    for held in opened:
        held.order(credit=1)
    rows = [held.rows(1)[0] for held in opened]
    assert sorted(row["offset"] for row in rows) == list(range(500))
    for held, row in zip(opened, rows, strict=True):
        held.order(ack=[[row["id"], 1]])
        held.close()
    flown.until(lambda: not flown.flight.service.exchanges)
    assert flown.do(lambda: flown.node.topics["t"].subscriptions["s"].counts()["acked"]) == 500
    with flown.subscribe("t", "s") as held:
        held.ping()
