"""Garbage in every place where a client may write: an error, or a plain answer, and a node that lives on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.client.wire import Commit, Hold, Order, Publish, Read, Stage, Subscribe
from penstock.columns import COLUMNS
from penstock.dialects.flight.actions import ACTIONS
from tests.flight.parts import Flown, limited, many

#: Answers that say whose fault it was; anything else is ours.
CODES = ("bad_request", "bad_name", "bad_column", "bad_offset", "message_too_big", "not_found", "conflict", "gone")

some = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flown]:
    with Flown(Path(tmp_path_factory.mktemp("fuzz")) / "data") as node:
        node.put("t", many(3))
        yield node
        assert node.do(lambda: node.node.bugs) == 0
        assert b"body 0" in node.bodies("t")


def told(error: pa.ArrowException) -> None:
    """See that an error is one a client can act on."""
    assert isinstance(error, flight.FlightError)
    assert str(error).startswith(CODES), str(error)


names = st.sampled_from(["t", "u", "s", "a\nb", "", "x" * 2000, "\ud800", "größe"])
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 65), 1 << 65),
    st.floats(),
    names,
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-3, 9), names, st.lists(st.integers(-1, 1 << 64), max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def documents(kind: type) -> st.SearchStrategy[bytes]:
    """Return JSON that is near to a document, and bytes that are far from it."""
    fields = list(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    near = st.dictionaries(st.sampled_from([*fields, "other"]), values, max_size=len(fields))
    named = st.builds(lambda rest: {"topic": "t", "subscription": "s", "name": "t", **rest}, near).map(
        lambda found: {name: value for name, value in found.items() if name in [*fields, "other"]}
    )
    return st.one_of(st.binary(max_size=40), st.one_of(near, named).map(lambda found: json.dumps(found).encode()))


@some
@given(documents(Read))
def test_tickets(flown: Flown, ticket: bytes) -> None:
    try:
        flown.client.do_get(flight.Ticket(ticket), limited()).read_all()
    except pa.ArrowException as error:
        told(error)


@some
@given(
    st.one_of(
        st.binary(max_size=40),
        *(
            documents(kind).map(lambda inside, word=word: b'{"%s":%s}' % (word, inside))  # type: ignore[misc]
            for word, kind in ((b"publish", Publish), (b"stage", Stage), (b"subscribe", Subscribe))
        ),
    ),
    st.one_of(st.none(), st.binary(max_size=20), values.map(lambda value: json.dumps({"sequence": value}).encode())),
)
def test_commands_and_metadata_of_puts(flown: Flown, command: bytes, metadata: bytes | None) -> None:
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, answers = flown.client.do_put(descriptor, many(1).schema, limited())
    try:
        writer.write_with_metadata(many(1), metadata) if metadata is not None else writer.write_batch(many(1))
        writer.done_writing()
        answers.read()
        writer.close()
    except pa.ArrowException as error:
        told(error)


@some
@given(documents(Subscribe), st.lists(documents(Order), max_size=4))
def test_exchanges_and_orders(flown: Flown, document: bytes, orders: list[bytes]) -> None:
    descriptor = flight.FlightDescriptor.for_command(b'{"subscribe":%s}' % document)
    writer, reader = flown.client.do_exchange(descriptor, limited())
    try:
        for order in orders:
            writer.write_metadata(order)
        writer.done_writing()
        for _ in reader:
            pass
        writer.close()
    except pa.ArrowException as error:
        if "Could not write" not in str(error) and "Cannot write" not in str(error):
            told(error)
    flown.until(lambda: not flown.flight.service.exchanges)


@some
@given(
    st.one_of(
        st.tuples(st.text(max_size=8), st.binary(max_size=30)),
        *(
            st.tuples(st.just(name), documents(kind.document))
            for name, kind in ACTIONS.items()
            if name != "delete-topic"
        ),
        st.tuples(st.just("commit"), documents(Commit)),
        st.tuples(st.just("hold"), documents(Hold)),
    )
)
def test_actions(flown: Flown, action: tuple[str, bytes]) -> None:
    try:
        list(flown.client.do_action(flight.Action(*action), limited()))
    except UnicodeEncodeError:
        return  # pyarrow itself does not send that
    except pa.ArrowException as error:
        told(error)


types: dict[str, list[Any]] = {
    "binary": [pa.binary(), pa.string(), pa.large_binary(), pa.binary_view(), pa.binary(2)],
    "other": [
        pa.int64(),
        pa.uint64(),
        pa.int8(),
        pa.float64(),
        pa.bool_(),
        pa.timestamp("s"),
        pa.timestamp("ns", "UTC"),
    ],
    "nested": [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.null(), pa.dictionary(pa.int8(), pa.string())],
}
cells: dict[str, st.SearchStrategy[Any]] = {
    "binary": st.one_of(st.none(), st.binary(min_size=2, max_size=2)),
    "other": st.one_of(st.none(), st.integers(0, 1)),
    "nested": st.none(),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 40))
    columns = {}
    chosen = draw(st.lists(st.sampled_from([*COLUMNS, "topic", "x"]), max_size=5, unique=True))
    for name in [*chosen, *(["body"] if draw(st.booleans()) and "body" not in chosen else [])]:
        kind = draw(st.sampled_from(list(types)))
        found = draw(st.lists(cells[kind], min_size=rows, max_size=rows))
        type_ = draw(st.sampled_from(types[kind]))
        if pa.types.is_string(type_):
            found = [None if cell is None else "é" for cell in found]
        columns[name] = pa.array([True] * rows) if type_ == pa.bool_() else pa.array(found, type_)
    return pa.record_batch(columns) if columns else pa.RecordBatch.from_arrays([], schema=pa.schema([]))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches(), st.sampled_from([b'{"publish":{"topic":"f"}}', b'{"publish":{}}']), st.data())
def test_batches_of_any_shape_are_stored_whole_or_refused(
    flown: Flown, batch: pa.RecordBatch, command: bytes, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(batch)))
    sent = batch.slice(start, data.draw(st.integers(0, len(batch) - start)))
    writer, answers = flown.client.do_put(flight.FlightDescriptor.for_command(command), sent.schema, limited())
    try:
        writer.write_batch(sent)
        writer.done_writing()
        answer = answers.read()
        writer.close()
        places = json.loads(answer.to_pybytes())["places"]
        assert sum(count for _, _, _, count in places) == len(sent)
    except pa.ArrowException as error:
        told(error)


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"  V2PUB t\n", bytes(range(256)) * 64, b"PRI * HTTP/2.0\r\n\r\nSM"]
)
def test_bytes_that_are_no_flight_at_all(flown: Flown, sent: bytes) -> None:
    # It may hang up before it has read all.
    with socket.create_connection(("127.0.0.1", flown.flight.port), 30) as sock, suppress(OSError):
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):
            pass
    assert flown.act("topic", name="t")["name"] == "t"
