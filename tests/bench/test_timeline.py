"""The clients of the timeline rows do on both sides what the rows say they do."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import numpy as np
import pytest

from bench import timeline
from bench.generator import LoadFailed
from bench.peers import Penstock, Redis, Server, fleet
from bench.timeline import BATCH, Ours, Theirs

COUNT = 10 * BATCH


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    kinds = (Penstock, Redis) if shutil.which("redis-server") else (Penstock,)
    with fleet(*kinds) as made:
        yield made.servers


def test_a_timeline_creates_leases_and_deletes_every_message(servers: dict[str, Server]) -> None:
    server = servers["penstock"]
    assert isinstance(server, Penstock)
    due = np.full(COUNT, time.time_ns() // 1_000_000, np.uint64)
    batches = [timeline.created(at, due[at : at + BATCH]) for at in range(0, COUNT, BATCH)]
    with Ours(server.flight_port, server.topic(), prefetch_max_ms=0, time_window_ms=100) as ours:
        assert ours.create(batches).messages == COUNT
        run, late = ours.consume(COUNT)
        assert (run.messages, len(late)) == (COUNT, COUNT)
        assert late.min() >= 0
        with pytest.raises(LoadFailed, match="refused"):
            ours.create([batches[0], batches[0]])


def test_redis_creates_leases_and_deletes_every_message(servers: dict[str, Server]) -> None:
    due = np.ones(COUNT, np.uint64)
    with Theirs(servers["redis"].port, "t") as theirs:
        blocks = [theirs.commands(at, due[at : at + BATCH]) for at in range(0, COUNT, BATCH)]
        assert theirs.create(blocks, COUNT).messages == COUNT
        assert theirs.consume(COUNT).messages == COUNT


def test_a_bare_timer_is_late_by_something() -> None:
    assert timeline.timer_p99_ms(0.05) > 0
