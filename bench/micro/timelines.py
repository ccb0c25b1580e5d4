"""What messages of a timeline cost inside the process: python -m bench.micro.timelines [profile]

Creates so many, lets them fall due together, and deletes what was pushed; without sockets, and on a clock in the hand,
so that a push is all that a due time brings. Prints the lower quartile of many rounds, and how many calls of Python
and of C one round takes. With `profile` it prints where the time goes instead.
"""

from __future__ import annotations

import cProfile
import gc
import heapq
import pstats
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from bench.timeline import MANY_REQUESTS, created
from penstock.callers import Caller
from penstock.client.timeline import wire
from penstock.client.wire import encoded
from penstock.clock import MILLISECOND
from penstock.config import Config
from penstock.dialects import DIALECTS
from penstock.dialects.timeline.running import Timelines
from penstock.disk import LocalDisk
from penstock.node.node import Node

T = TypeVar("T")

ROUNDS = 300
SIZES = (10, 100, 1_000)
TOPIC = "micro"


class Later:
    """A call that may still be cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Make it not happen."""
        self.call = None


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self._ahead_ns = time.time_ns() - time.monotonic_ns()
        self._now_ns = time.monotonic_ns()
        self._soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[int, int, Later]] = []
        self._count = 0

    def now(self) -> int:
        """Return wall-clock time."""
        return self._now_ns + self._ahead_ns

    def monotonic(self) -> int:
        """Return monotonic time."""
        return self._now_ns

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call in the next turn."""
        self._soon.append(call)

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> Later:
        """Call at a time."""
        self._count += 1
        later = Later(call)
        heapq.heappush(self._later, (monotonic_ns, self._count, later))
        return later

    def run(self) -> None:
        """Make the calls of this moment, and those they ask for."""
        while self._soon:
            self._soon.popleft()()

    def move(self, to_ns: int) -> None:
        """Let time pass, with a stop at every call on the way."""
        self.run()
        while self._later and self._later[0][0] <= to_ns:
            at_ns, _, later = heapq.heappop(self._later)
            self._now_ns = max(self._now_ns, at_ns)
            if later.call is not None:
                later.call()
            self.run()
        self._now_ns = max(self._now_ns, to_ns)


class HandDisk(LocalDisk):
    """Real files; what threads would do is done in the next turn."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self._clock = clock

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Do a piece of work, and tell."""

        def do() -> None:
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self._clock.call_soon(do)


class Down:
    """The far end of an exchange."""

    is_full = False
    unsent_bytes = 0

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def send(self, batch: pa.RecordBatch | None, metadata: bytes = b"") -> None:
        """Keep what is sent."""
        if batch is not None:
            self.batches.append(batch)

    def end(self, why: str = "") -> None:
        """Hear that it is over, which it should not be."""
        raise RuntimeError(why)

    def needs(self, right: object, topic: str) -> None:
        """Let everybody in."""


class Desk:
    """A node with one producer and one consumer of a topic."""

    def __init__(self, path: str, prefetch_ms: int) -> None:
        self.clock = HandClock()
        config = Config(data_dir=path)
        self.node = Node(config, self.clock, HandDisk(self.clock), Random(1), dialects=DIALECTS)
        self._service = Timelines(self.node, config).service
        self._caller = Caller(self.node.gate, "127.0.0.1:1", "flight.port")
        settings = {"rqs_limit_per_client": MANY_REQUESTS, "prefetch_max_ms": prefetch_ms, "time_window_ms": 100}
        self._act("create", id=TOPIC, **settings)
        self._producer = self._greet("producer-handshake", producer_group_id="g", producer_id="p")
        self._consumer = self._greet("consumer-handshake", consumer_id="c")
        self._up = Down()
        self._talk: Any = self._exchange("create-messages", self._up)
        self._changes = Down()
        self._change: Any = self._exchange("change", self._changes)
        self.down = Down()
        self._consume: Any = self._exchange("consume", self.down)
        self._made = 0
        self.room()
        self.clock.move(self.clock.monotonic() + 1_000 * MILLISECOND)

    def _act(self, command: str, **document: object) -> Any:
        answer = self._service.act(command, self._caller, encoded(wire.ACTIONS[command][0](**document)))
        self.clock.run()
        told: Any = answer.now()
        if told.error is not None:
            raise RuntimeError(told.error)
        return told

    def _greet(self, command: str, **document: object) -> str:
        return str(self._act(command, topic_id=TOPIC, **document).session_id)

    def _exchange(self, name: str, down: Down) -> object:
        return self._service.offer().exchanges[name].open(self._caller, b"{}", cast(Any, down))

    def room(self) -> None:
        """Say that there is room for more than a round brings."""
        status = wire.ConsumerStatus(session_id=self._consumer, max_buffer_size=20_000, available_buffer_size=20_000)
        self._consume.received(None, encoded(wire.Up(status=status)))
        self.clock.run()

    def rows(self, count: int, due_ms: int) -> pa.RecordBatch:
        """Return messages that nobody created yet."""
        self._made += count
        return created(self._made, np.full(count, due_ms, np.uint64))

    def create(self, rows: pa.RecordBatch) -> None:
        """Create messages."""
        self._talk.received(rows, encoded(wire.CreateMessages(session_id=self._producer)))
        self.clock.run()

    def fall_due(self, at_ns: int) -> None:
        """Let messages be due."""
        self.clock.move(at_ns)

    def delete(self, pushed: list[pa.RecordBatch]) -> None:
        """Delete what was pushed, each push by itself."""
        for each in pushed:
            columns = [each.column(name) for name in ("message_id", "version", "bucket_id")]
            batch = pa.record_batch([*columns, pa.nulls(len(each), pa.uint64())], schema=wire.CHANGED)
            self._change.received(batch, encoded(wire.Change(session_id=self._consumer, command="delete")))
        self.clock.run()

    def round(self, count: int, act: Callable[[str, Callable[[], None]], None]) -> None:
        """Let so many messages go their whole way, each step of it through `act`."""
        self.clock.move(self.clock.monotonic() + 20 * MILLISECOND)
        self.room()
        due_ms = self.clock.now() // MILLISECOND + 5
        rows = self.rows(count, due_ms)
        act("create", lambda: self.create(rows))
        at_ns = self.clock.monotonic() + due_ms * MILLISECOND - self.clock.now()
        act("push", lambda: self.fall_due(at_ns))
        pushed, self.down.batches = self.down.batches, []
        if sum(map(len, pushed)) != count:
            raise RuntimeError(f"{count} messages were due, {sum(map(len, pushed))} came")
        act("delete", lambda: self.delete(pushed))
        self._up.batches.clear()
        if pa.compute.max(self._changes.batches.pop().column("kind")).as_py():
            raise RuntimeError("something was not deleted")
        self._changes.batches.clear()


def main(*, profile: bool, prefetch_ms: int = 0) -> None:
    """Measure and print."""
    for count in SIZES:
        with tempfile.TemporaryDirectory() as path:
            desk = Desk(path, prefetch_ms)
            for _ in range(30):
                desk.round(count, lambda _, step: step())
            gc.collect()
            gc.freeze()
            gc.set_threshold(100_000, 50, 100)
            if profile:
                _profile(desk, count)
            else:
                _measure(desk, count)


def _measure(desk: Desk, count: int) -> None:
    spent: dict[str, list[float]] = {"create": [], "push": [], "delete": []}
    calls: dict[str, int] = {}

    def timed(name: str, step: Callable[[], None]) -> None:
        began = time.perf_counter_ns()
        step()
        spent[name].append((time.perf_counter_ns() - began) / 1000)

    def counted(name: str, step: Callable[[], None]) -> None:
        found = 0

        def hear(frame: FrameType, event: str, arg: object) -> None:
            nonlocal found
            found += event in ("call", "c_call")

        sys.setprofile(hear)
        try:
            step()
        finally:
            sys.setprofile(None)
        calls[name] = found

    for _ in range(ROUNDS):
        desk.round(count, timed)
    desk.round(count, counted)
    for name, found in spent.items():
        low = sorted(found)[len(found) // 4]
        print(f"{count:>5} rows, {name:<7} {low:8.1f} us {low / count:7.2f} us a row {calls[name]:6} calls", flush=True)


def _profile(desk: Desk, count: int) -> None:
    profilers = {name: cProfile.Profile() for name in ("create", "push", "delete")}

    def profiled(name: str, step: Callable[[], None]) -> None:
        profilers[name].enable()
        step()
        profilers[name].disable()

    for _ in range(ROUNDS):
        desk.round(count, profiled)
    for name, profiler in profilers.items():
        print(f"--- {count} rows, {name}")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main(profile="profile" in sys.argv[1:], prefetch_ms=1200 if "prefetch" in sys.argv[1:] else 0)
