"""A node that stops ends every Flight call, whatever the client is doing, and does not wait for it for long."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.wire import Notice
from penstock.dialects.flight import server
from tests.cli.program import Node
from tests.flight.parts import Flown, Held, ids, limited, many

#: The grace for clients, and room for a slow machine; nothing like the minute a call may last.
SECONDS_MAX = 15


def test_idle_streams_and_exchanges_do_not_keep_a_node_from_stopping(tmp_path: Path) -> None:
    with Flown(tmp_path / "data") as flown:
        idle, answers = flown.connect().do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
        idle.write_batch(many(1))
        answers.read()
        held = [flown.subscribe("t", "s", client=flown.connect()) for _ in range(3)]
        for each in held:
            each.ping()
        began = time.monotonic()
        flown.run(flown.flight.close())
        assert time.monotonic() - began < SECONDS_MAX
        for each in held:
            said = each.next()
            assert isinstance(said, Notice)
            assert (said.end or "").startswith("stopping: ")
        with pytest.raises(pa.ArrowException):
            idle.close()
        assert flown.do(lambda: flown.node.held()) == 0


def test_client_that_closes_when_told_ends_the_node_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GRACE_S", 4.0 * SECONDS_MAX)
    with Flown(tmp_path / "data") as flown:
        held = flown.subscribe("t", "s")
        held.ping()
        flown.do(flown.flight.service.end_exchanges)
        assert isinstance(held.next(), Notice)
        held.close()
        began = time.monotonic()
        flown.run(flown.flight.close())
        assert time.monotonic() - began < SECONDS_MAX


def test_calls_after_the_end_are_refused(tmp_path: Path) -> None:
    with Flown(tmp_path / "data") as flown:
        flown.put("t", many(1))
        flown.flight.service.closing = True
        for call in (lambda: flown.read("t"), lambda: flown.act("topics"), lambda: flown.put("t", many(1))):
            with pytest.raises(flight.FlightUnavailableError, match="stopping: the node is stopping"):
                call()
        assert flown.faults() == {}


def test_whoever_waits_for_the_loop_is_told_when_it_ends(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from penstock.errors import Refusal

    with Flown(tmp_path / "data") as flown, ThreadPoolExecutor(1) as pool:
        bridge = flown.flight.service.bridge
        never = pool.submit(bridge.ask, lambda settle: None)
        flown.until(lambda: bool(bridge._waiting))
        bridge.stop()
        with pytest.raises(Refusal, match="the node is stopping"):
            never.result(SECONDS_MAX)
        with pytest.raises(Refusal, match="the node is stopping"):
            bridge.call(lambda: None)
        flown.flight.service.bridge.stopped = False


def test_sync_that_never_comes_back_does_not_keep_a_node_from_stopping(tmp_path: Path) -> None:
    with Flown(tmp_path / "data") as flown:
        flown.act("create-topic", name="t", settings={"durability": "fsync"})
        disk = flown.node.disk
        real = disk.submit

        stuck: list[tuple[str, Any, Any]] = []

        def submit(pool: str, work: Any, done: Any) -> None:
            if pool == "sync":
                stuck.append((pool, work, done))
            else:
                real(pool, work, done)

        flown.do(lambda: setattr(disk, "submit", submit))
        writer, answers = flown.connect().do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
        writer.write_batch(many(1))
        flown.until(lambda: flown.node.topics["t"].shards[0].end == 1)
        began = time.monotonic()
        flown.run(flown.flight.close())
        assert time.monotonic() - began < SECONDS_MAX
        while (answer := answers.read()) is not None:
            assert answer.to_pybytes() == b""
        with pytest.raises(pa.ArrowException):
            writer.close()
        flown.do(lambda: setattr(disk, "submit", real))
        flown.do(lambda: [real(*job) for job in stuck])  # the node itself waits longer for its disk


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_process_that_ends_keeps_what_was_answered_and_acked(tmp_path: Path, number: signal.Signals) -> None:
    with Node(tmp_path, "--set", "node.drain_timeout=100ms") as node:
        client = flight.connect(f"grpc://127.0.0.1:{node.port('flight.port')}")
        writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, limited())
        writer.write_batch(many(5000))
        answers.read()
        held = Held(client, {"topic": "t", "subscription": "s"})
        held.order(credit=5000)
        rows = held.rows(5000)
        held.order(credit=0, ack=ids(rows[:3000]))
        held.ping()
        node.process.send_signal(number)
        assert node.process.wait(SECONDS_MAX) == (0 if number == signal.SIGTERM else -number)
        if number == signal.SIGTERM:
            said = held.next()
            assert isinstance(said, Notice)
            assert (said.end or "").startswith("stopping: ")
        with pytest.raises(pa.ArrowException):
            writer.close()
        held.close()
        client.close()
    with Node(tmp_path) as node, flight.connect(f"grpc://127.0.0.1:{node.port('flight.port')}") as client:
        held = Held(client, {"topic": "t", "subscription": "s"})
        held.order(credit=5000)
        assert sorted(row["offset"] for row in held.rows(2000)) == list(range(3000, 5000))
        held.close()
