"""What one process of a cluster has around it: a clock that may stand still, threads, a way to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import TypeVar

from penstock.clock import MILLISECOND, SECOND
from penstock.log.kafka.store import AwayError, Partition, Record, Stored, Writer
from tests.cluster.fake_store import FakeStore, outcome
from tests.cluster.nodes import NodeClock
from tests.simulation.clock import Call, Scheduler, SimClock
from tests.simulation.disk import Died, Platter, SimDisk

T = TypeVar("T")
U = TypeVar("U")

#: A store that cannot be reached is given up after this time.
PATIENCE_NS = SECOND


class ProcessClock(NodeClock):
    """A clock whose process may be paused; as it sees it, time may have stood still meanwhile."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        super().__init__(scheduler, 0, random)
        self._stood_ns = 0
        self._paused_ns = 0

    def monotonic(self) -> int:
        """Return nanoseconds, without those that it did not see."""
        return super().monotonic() - self._stood_ns

    def pause(self) -> None:
        """Call nothing."""
        self._paused_ns = self._scheduler.time_ns
        super().pause()

    def go_on(self, *, stood_still: bool) -> None:
        """Call what should have been called meanwhile."""
        if stood_still:
            self._stood_ns += self._scheduler.time_ns - self._paused_ns
        self.wake()

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> Call:
        """Call once the clock, as the process sees it, has reached this time."""
        made: Call = SimClock.call_at(self, monotonic_ns + self._stood_ns, lambda: self._due(made, monotonic_ns, call))
        return made

    def _due(self, made: Call, monotonic_ns: int, call: Callable[[], None]) -> None:
        if made.cancelled:
            return
        if not self.paused and self.monotonic() < monotonic_ns:  # it was set before the clock stood still
            again = lambda: self._due(made, monotonic_ns, call)  # noqa: E731
            self._scheduler.at(monotonic_ns + self._stood_ns, again, self)
        else:
            self._run(made, lambda: self._due(made, monotonic_ns, call) if self.monotonic() < monotonic_ns else call())


class Threads:
    """Threads of one process: what they do takes effect at one moment, and is heard of later."""

    def __init__(self, clock: ProcessClock, random: Random, work_ns: int) -> None:
        self._clock = clock
        self._random = random
        self._work_ns = work_ns

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Work in a while, and call back in another."""

        def run() -> None:
            result: T | None = None
            failure: BaseException | None = None
            try:
                result = work()
            except Died:
                return
            except Exception as error:
                failure = error
            self.later(lambda: done(result, failure), PATIENCE_NS if isinstance(failure, AwayError) else 0)

        self.later(run)

    def map(self, work: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Do one after the other."""
        return [work(item) for item in items]

    def tell(self, what: Callable[[], None]) -> None:
        """Call it on the loop."""
        self._clock.call_soon(what)

    def close(self) -> None:
        """Do nothing: nobody waits for threads here."""

    def later(self, call: Callable[[], None], more_ns: int = 0) -> None:
        """Call in a while."""
        draw = self._random.random()
        delay_ns = int(self._work_ns * (draw if draw < 0.97 else 30 * draw))
        self._clock.call_at(self._clock.monotonic() + more_ns + delay_ns, call)


class ProcessDisk(SimDisk):
    """The local disk of a process that may be paused, and its threads with it."""

    def __init__(self, platter: Platter, scheduler: Scheduler, clock: ProcessClock, random: Random) -> None:
        super().__init__(platter, scheduler, clock, 1.0)
        self._process = clock
        self._draw = random

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Work in a while, and call back in another."""

        def run() -> None:
            result: T | None = None
            failure: BaseException | None = None
            try:
                result = work()
            except Exception as error:
                failure = error
            self._later(lambda: done(result, failure))

        self._later(run)

    def _later(self, call: Callable[[], None]) -> None:
        self._process.call_at(self._process.monotonic() + int(self._draw.random() * MILLISECOND), call)


class StoreWay:
    """The way of one process to the store: it may be cut, answers may get lost, the process may die in a send."""

    def __init__(
        self, store: FakeStore, random: Random, lost: float, died: Callable[[], None], threads: Threads
    ) -> None:
        self._store = store
        self._threads = threads
        self._random = random
        self.lost = lost
        self._died = died
        self.is_cut = False
        #: It dies inside the send that brings this to 0.
        self.fuse = 0

    def make(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        self._ask()
        self._store.make(topic, partitions)

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        self._ask()
        return self._store.partitions(topic)

    def drop(self, topic: str) -> None:
        """Remove a topic."""
        self._ask()
        self._store.drop(topic)

    def topics(self) -> Sequence[str]:
        """Return all topics."""
        self._ask()
        return self._store.topics()

    def writer(self, name: str) -> WriterWay:
        """Shut every earlier writer of a name out."""
        self._ask()
        return WriterWay(self, self._store.writer(name))

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return where a partition begins and ends."""
        self._ask()
        return self._store.bounds(partition)

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Stored]:
        """Yield records."""
        self._ask()
        return self._store.read(partition, start, end)

    def cut(self, partition: Partition, before: int) -> None:
        """Let records go."""
        self._ask()
        self._store.cut(partition, before)

    def close(self) -> None:
        """Hang up."""

    def send(self, writer: Writer, partition: Partition, records: Sequence[Record]) -> Sequence[int]:
        """Send, if the way is open."""
        self._ask()
        if self.fuse == 1 and self._random.random() < 0.5:
            self._send_some(writer, partition, records)
            self._burn()
        if self._random.random() < self.lost:
            self._send_some(writer, partition, records)
            raise AwayError("the rest of what was sent got lost")
        offsets = writer.send(partition, records)
        if self.fuse:
            self._burn()
        if self._random.random() < self.lost:
            raise AwayError("the answer got lost")
        return offsets

    def _send_some(self, writer: Writer, partition: Partition, records: Sequence[Record]) -> None:
        """Send the first of them, or none: records go in order, and not in one piece."""
        some = self._random.randrange(len(records))
        if some:
            writer.send(partition, records[:some])

    def send_soon(
        self, writer: Writer, partition: Partition, record: Record, told: Callable[[int | OSError], None]
    ) -> bool:
        """Send in a while, and tell of it in another."""
        if self._random.random() < 0.2:
            return False  # something is in the way

        def run() -> None:
            try:
                answer = outcome(writer, partition, record)
            except Died:
                return
            self._threads.later(lambda: told(answer), PATIENCE_NS if isinstance(answer, AwayError) else 0)

        self._threads.later(run)
        return True

    def _ask(self) -> None:
        if self.is_cut:
            raise AwayError("the store did not answer in time")

    def _burn(self) -> None:
        self.fuse -= 1
        if self.fuse == 0:
            self._died()
            raise Died


class WriterWay:
    """A writer, by that way."""

    def __init__(self, way: StoreWay, writer: Writer) -> None:
        self._way = way
        self._writer = writer

    def send(self, partition: Partition, records: Sequence[Record]) -> Sequence[int]:
        """Return the offsets of records once all are kept."""
        return self._way.send(self._writer, partition, records)

    def send_soon(self, partition: Partition, record: Record, told: Callable[[int | OSError], None]) -> bool:
        """Send a record without waiting."""
        return self._way.send_soon(self, partition, record, told)

    def close(self) -> None:
        """Write nothing more."""
        self._writer.close()
