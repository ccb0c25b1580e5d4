"""What another dialect offers goes over Flight: its actions, and exchanges with room, an end, rights and a bound."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.callers import Caller
from penstock.clock import SECOND
from penstock.config import CallersConfig
from penstock.dialects.flight import outlet
from penstock.dialects.flight.config import FlightConfig
from penstock.errors import Refusal
from penstock.offers import Offer, Opening, Stream
from penstock.registry.answer import Answer
from tests.callers.parts import TOKEN, user, users_in
from tests.flight.parts import Flown, body_batch, limited

SCHEMA = pa.schema([("body", pa.binary())])


class Echo:
    """Sends back what it hears, or does what it is told."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.heard: list[Any] = []
        self.wait: Answer[None] | None = None

    def received(self, batch: pa.RecordBatch | None, metadata: bytes) -> Answer[None] | None:
        self.heard.append(batch.num_rows if batch is not None else metadata)
        if metadata == b"refuse":
            raise Refusal("bad_request", "as you wish")
        if metadata == b"wait":
            self.wait = Answer()
            return self.wait
        self.stream.send(batch, metadata)
        return None

    def drained(self) -> None:
        self.heard.append("drained")

    def closed(self) -> None:
        self.heard.append("closed")


class Echoes:
    """An offer made for a test."""

    def __init__(self, flown: Flown, needs: str = "") -> None:
        self.talks: list[Echo] = []
        self.needs = needs
        offer = Offer({"say": self.say, "later": self.later}, {"talk": Opening(SCHEMA, self.open)})
        self.clock = flown.node.clock
        flown.do(lambda: flown.node.offers.update(echo=offer))

    def say(self, caller: Caller, content: bytes) -> Answer[bytes]:
        """Say it again."""
        return Answer.of(json.dumps({"said": json.loads(content), "as": caller.doing}).encode())

    def later(self, caller: Caller, content: bytes) -> Answer[bytes]:
        """Refuse after a while."""
        answer: Answer[bytes] = Answer()
        self.clock.call_soon(lambda: answer.refuse(Refusal("not_found", "there is no such thing")))
        return answer

    def open(self, caller: Caller, document: bytes, stream: Stream) -> Echo:
        if self.needs:
            stream.needs("receive", self.needs)
        self.talks.append(Echo(stream))
        stream.send(None, document)
        return self.talks[-1]


@contextmanager
def talking(flown: Flown, token: str = "", what: str = '{"echo.talk":{"a":1}}') -> Iterator[tuple[Any, Any]]:
    options = limited()
    if token:
        options = flight.FlightCallOptions(timeout=60, headers=[(b"authorization", b"Bearer " + token.encode())])
    writer, reader = flown.connect().do_exchange(flight.FlightDescriptor.for_command(what), options)
    try:
        yield writer, reader
    finally:
        with suppress(pa.ArrowException):
            writer.close()


def test_actions_of_another_dialect_are_carried_out_and_listed(flown: Flown) -> None:
    Echoes(flown)
    assert flown.act("echo.say", word="x") == {"said": {"word": "x"}, "as": "echo.say"}
    with pytest.raises(flight.FlightServerError, match="not_found: there is no such thing"):
        flown.act("echo.later")
    with pytest.raises(flight.FlightServerError, match=r"there is no action 'echo.sey'; did you mean 'echo.say'\?"):
        flown.act("echo.sey")
    listed = {action.type: action.description for action in flown.client.list_actions()}
    assert listed["echo.say"] == "Say it again."
    flown.do(flown.node.offers.clear)
    with pytest.raises(flight.FlightServerError, match=r"there is no action 'echo.say'; is its dialect on\?"):
        flown.act("echo.say")


def test_an_exchange_carries_rows_and_words_both_ways_in_order(flown: Flown) -> None:
    echoes = Echoes(flown)
    with talking(flown) as (writer, reader):
        assert reader.read_chunk().app_metadata.to_pybytes() == b'{"a": 1}'
        writer.begin(SCHEMA)
        for number in range(20):
            writer.write_with_metadata(body_batch(b"row %d" % number), b"word %d" % number)
        writer.write_batch(body_batch(b"alone"))
        for number in range(20):
            chunk = reader.read_chunk()
            assert chunk.data.to_pylist() == [{"body": b"row %d" % number}]
            assert chunk.app_metadata.to_pybytes() == b"word %d" % number
        assert reader.read_chunk().data.to_pylist() == [{"body": b"alone"}]
        peers = flown.do(lambda: list(flown.flight.peers()))
        assert [peer.name for peer in peers] == ["echo.talk"]
    flown.until(lambda: echoes.talks[0].heard[-1] == "closed")
    flown.until(lambda: not flown.flight.service.exchanges)
    assert echoes.talks[0].heard.count("closed") == 1


def test_nothing_is_read_while_a_talk_is_not_ready_for_more(flown: Flown) -> None:
    echoes = Echoes(flown)
    with talking(flown) as (writer, reader):
        reader.read_chunk()
        writer.write_metadata(b"wait")
        writer.write_metadata(b"next")
        (talk,) = echoes.talks
        flown.until(lambda: talk.wait is not None)
        assert flown.do(lambda: list(talk.heard)) == [b"wait"]
        waits = talk.wait
        assert waits is not None
        flown.do(lambda: waits.give(None))
        assert reader.read_chunk().app_metadata.to_pybytes() == b"next"


def test_a_refusal_ends_the_exchange_with_its_text(flown: Flown) -> None:
    echoes = Echoes(flown)
    with talking(flown) as (writer, reader):
        reader.read_chunk()
        writer.write_metadata(b"refuse")
        with pytest.raises(flight.FlightServerError, match="bad_request: as you wish"):
            reader.read_chunk()
    flown.until(lambda: echoes.talks[0].heard == [b"refuse", "closed"])
    meant = pytest.raises(flight.FlightServerError, match=r"no exchange 'echo.tolk'; did you mean 'echo.talk'\?")
    with talking(flown, what='{"echo.tolk":{}}') as (_, reader), meant:
        reader.read_chunk()


def test_a_client_that_does_not_read_fills_its_stream_and_the_talk_hears_when_there_is_room(
    flown: Flown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet, "UNREAD_BYTES_MAX", 1 << 20)
    echoes = Echoes(flown)
    batch = body_batch(b"x" * 100_000)
    with talking(flown) as (_, reader):
        reader.read_chunk()
        (talk,) = echoes.talks

        def fill() -> tuple[int, int]:
            count = 0
            while not talk.stream.is_full:
                talk.stream.send(batch)
                count += 1
            return count, flown.node.budget.output.used

        sent = held = 0
        while not held:  # the network takes some
            more, held = flown.do(fill)
            sent += more
        for _ in range(sent):
            assert reader.read_chunk().data.num_rows == 1
        flown.until(lambda: "drained" in talk.heard)
        flown.until(lambda: flown.node.budget.output.used == 0)


def test_a_client_that_reads_nothing_for_long_is_ended_and_what_it_left_is_dropped(flown: Flown) -> None:
    echoes = Echoes(flown)
    with talking(flown) as (_, reader):
        reader.read_chunk()
        (talk,) = echoes.talks

        def fill() -> None:
            while not talk.stream.is_full:
                talk.stream.send(body_batch(b"x" * 1_000_000))

        while flown.do(lambda: not talk.stream.is_full):
            flown.do(fill)

        def ended() -> bool:
            flown.clock.ahead_ns += SECOND  # on and on: the network may take a little more after any moment
            return talk.heard[-1:] == ["closed"]

        flown.until(ended)
        assert flown.do(lambda: flown.node.budget.output.used) == 0
        said = b""
        while not said:
            chunk = reader.read_chunk()
            said = chunk.app_metadata.to_pybytes() if chunk.app_metadata is not None else b""
        assert json.loads(said)["end"].startswith("too_slow: ")


def test_exchanges_of_all_kinds_share_one_bound(tmp_path: Path) -> None:
    with Flown(tmp_path / "data", flight=FlightConfig(port=0, exchanges_max=1)) as flown:
        echoes = Echoes(flown)
        with talking(flown) as (_, reader):
            reader.read_chunk()
            full = pytest.raises(flight.FlightUnavailableError, match=r"flight\.exchanges_max")
            with talking(flown) as (_, other), full:
                other.read_chunk()
        assert len(echoes.talks) == 1


def test_a_stopping_node_tells_the_client_and_the_talk(tmp_path: Path) -> None:
    with Flown(tmp_path / "data") as flown:
        echoes = Echoes(flown)
        with talking(flown) as (_, reader):
            reader.read_chunk()
            flown.do(flown.flight.service.end_exchanges)
            assert json.loads(reader.read_chunk().app_metadata.to_pybytes())["end"].startswith("stopping: ")
            assert echoes.talks[0].heard == ["closed"]


def test_a_caller_that_loses_its_right_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "data"
    users_in(path, [user("bob", ("consume", "t*"), token=TOKEN)])
    with Flown(path, callers=CallersConfig(anonymous="off")) as flown:
        echoes = Echoes(flown, needs="t1")
        with talking(flown, TOKEN) as (_, reader):
            reader.read_chunk()
            users_in(path, [user("bob", ("consume", "other"), token=TOKEN)])
            flown.do(flown.node.gate.reload)
            said = json.loads(reader.read_chunk().app_metadata.to_pybytes())["end"]
            assert said.startswith("forbidden: bob at ")
            assert said.endswith("may not receive topic t1 any more")
            assert echoes.talks[0].heard == ["closed"]
        with talking(flown, TOKEN) as (_, reader), pytest.raises(flight.FlightUnauthorizedError, match="forbidden: "):
            reader.read_chunk()
