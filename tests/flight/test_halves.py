"""Messages that do not come whole: they have a size, a time and a share of the memory, whoever sends them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from confluent_kafka import Producer

from penstock.clock import SECOND
from penstock.config import LimitsConfig
from penstock.config.tree import MIB
from penstock.dialects.flight import halves
from penstock.dialects.flight.config import FlightConfig
from penstock.wire.traffic import traffic
from tests.flight.parts import Flown, body_batch, limited, many
from tests.flight.wire import Call

LARGE = 4 << 30
TOO_LARGE = r"message_too_big: \d+ bytes of JSON"


@pytest.fixture(autouse=True)
def _asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "IDLE_S", 0.02)
    monkeypatch.setattr(halves, "QUIET_S", 0.02)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Flown]:
    """A node that takes batches of 1 MiB."""
    with Flown(tmp_path / "data", flight=FlightConfig(port=0, max_batch_size=MIB)) as flown:
        yield flown


def on_its_way(flown: Flown) -> int:
    """Return what is held of bodies."""
    return flown.node.budget.body.used


def faults(flown: Flown) -> dict[str, int]:
    """Return what was counted, in the node's own thread."""
    return {entry.reason: entry.count for entry in flown.node.ledger.entries()}


@pytest.mark.parametrize("method", ["DoAction", "DoPut", "DoGet"])
def test_a_message_that_is_too_large_is_not_waited_for_whoever_sends_it(small: Flown, method: str) -> None:
    with Call(small.flight.port, method) as call:
        call.say(LARGE - 1)
        assert MIB < call.send(LARGE) < LARGE // 8
    small.until(lambda: faults(small) == {"flight:message_too_big": 1})
    assert small.node.budget.body.used == 0
    assert len(small.put("t", many(1))) == 1


def test_half_a_message_counts_and_is_not_waited_for_without_end(small: Flown) -> None:
    quiet, answers = small.connect().do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
    quiet.write_batch(many(1))
    answers.read()
    with Call(small.flight.port, "DoPut") as call:
        call.say(MIB)
        assert call.send(MIB // 2) == MIB // 2
        small.until(lambda: 0 <= on_its_way(small) - MIB // 2 < 65536)
        small.advance(31)
        assert call.is_hung_up()
    small.until(lambda: faults(small) == {"flight:too_slow": 1})
    small.until(lambda: on_its_way(small) == 0)
    quiet.write_batch(many(1))  # it had sent nothing, and did no harm
    answers.read()
    quiet.close()


def test_a_message_has_a_time_however_it_comes(tmp_path: Path) -> None:
    limits = LimitsConfig(body_timeout_ns=20 * SECOND)
    with Flown(tmp_path / "data", limits=limits) as flown, Call(flown.flight.port, "DoAction") as call:
        call.say(32 * MIB)
        for _ in range(10):
            if call.send(MIB) < MIB:
                break
            flown.advance(4)
            flown.until(lambda: bool(faults(flown)) or on_its_way(flown) > 0)
        assert call.is_hung_up()
        flown.until(lambda: faults(flown) == {"flight:too_slow": 1})


def test_a_connection_of_which_nothing_whole_comes_is_hung_up_on(small: Flown) -> None:
    quiet, answers = small.connect().do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
    quiet.write_batch(many(1))
    answers.read()
    idle = small.connect()
    list(idle.list_flights(b"", limited()))
    with Call(small.flight.port, "DoPut") as call:
        small.until(lambda: len(traffic(small.flight.port)) == 3)
        before_ns = small.clock.ahead_ns

        def is_cut_in_time() -> bool:
            small.clock.ahead_ns += SECOND // 10
            return faults(small) == {"flight:too_slow": 1}

        small.until(is_cut_in_time)
        assert small.clock.ahead_ns - before_ns >= halves.UNHEARD_NS - SECOND
        assert call.is_hung_up()
    quiet.write_batch(many(1))
    answers.read()
    quiet.close()
    list(idle.list_flights(b"", limited()))


def test_calls_that_say_nothing_take_so_many_threads_and_no_more(small: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "UNHEARD_MAX", 20)
    writer, answers = small.connect().do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
    before = len(os.listdir("/proc/self/task"))
    calls = [Call(small.flight.port, "DoPut") for _ in range(60)]
    small.until(lambda: faults(small).get("flight:too_many_connections", 0) >= 30)
    small.until(lambda: len(os.listdir("/proc/self/task")) <= before + 30)
    writer.write_batch(many(1))
    answers.read()
    writer.close()
    for call in calls:
        call.__exit__()


def test_threads_of_other_libraries_are_no_calls_that_say_nothing(
    small: Flown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves, "UNHEARD_MAX", 20)
    idle = small.connect()
    list(idle.list_flights(b"", limited()))
    before = len(os.listdir("/proc/self/task"))
    producers = [Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}) for _ in range(10)]
    small.until(lambda: len(os.listdir("/proc/self/task")) >= before + 30)
    with Call(small.flight.port, "DoPut") as call:
        call.say(MIB)
        call.send(MIB // 2)
        small.until(lambda: on_its_way(small) >= MIB // 2)  # it was looked
    assert faults(small) == {}
    list(idle.list_flights(b"", limited()))
    assert len(producers) == 10


def test_the_largest_of_many_half_messages_gives_way_where_memory_is_full(small: Flown) -> None:
    small.node.budget.body.bytes_max = 2 * MIB
    calls = [Call(small.flight.port, "DoPut") for _ in range(5)]
    for call in calls:
        call.say(MIB)
        call.send(MIB // 2)
    small.until(lambda: faults(small).get("flight:memory_full", 0) >= 1)
    small.until(lambda: on_its_way(small) <= 2 * MIB)
    assert len(small.put("t", many(1))) == 1
    for call in calls:
        call.__exit__()


def test_whoever_publishes_without_a_pause_is_never_late(small: Flown) -> None:
    batch = body_batch(b"x" * 900_000)
    command = flight.FlightDescriptor.for_path("t")
    writer, answers = small.client.do_put(command, batch.schema, limited())
    for number in range(60):
        writer.write_batch(batch if number % 2 else many(10))
        answers.read()
        small.advance(20)
    writer.close()
    assert small.faults() == {}
    assert small.do(lambda: small.node.topics["t"].shards[0].end) == 30 * 11


def test_words_that_take_long_to_read_are_refused(flown: Flown) -> None:
    large = b'{"names":[' + b"1," * (2 * MIB) + b"1]}"
    with pytest.raises(flight.FlightError, match=TOO_LARGE):
        list(flown.client.do_action(flight.Action("topics", large), limited()))
    with pytest.raises(flight.FlightError, match=TOO_LARGE):
        flown.client.do_get(flight.Ticket(large), limited()).read_all()
    writer, reader = flown.client.do_exchange(
        flight.FlightDescriptor.for_command(b'{"subscribe":{"topic":"t","subscription":"s"}}'), limited()
    )
    writer.write_metadata(large)
    with pytest.raises(flight.FlightError, match=TOO_LARGE):
        reader.read_all()
    with pytest.raises(pa.ArrowException):
        writer.close()


def test_the_kernel_tells_what_came_and_was_read(small: Flown) -> None:
    assert traffic(small.flight.port) == {}
    small.put("t", body_batch(b"x" * 100_000))
    (found,) = traffic(small.flight.port).values()
    assert 100_000 < found.taken < 120_000
