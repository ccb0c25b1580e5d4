"""A shared log in memory: it fences earlier writers, and can be slow, away, full of doubt or too small.

What it is told to do wrong it does to the sends that come next. Threads may use it; without any it is deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from penstock.log.kafka.store import (
    AwayError,
    FencedError,
    GoneError,
    Partition,
    Record,
    Stored,
    TooLargeError,
    Writer,
)

#: What a record's headers and frame take beside its value and theirs.
_FRAME_BYTES = 70


class FakeStore:
    """Topics by name; what is written stays until it is cut or dropped."""

    def __init__(self, *, record_bytes_max: int = 1 << 30) -> None:
        self.record_bytes_max = record_bytes_max
        #: Called before a send has any effect: it may wait, or raise (nothing of the send is kept then).
        self.before_send: Callable[[str, Partition, Sequence[Record]], None] = _nothing
        #: Called once a send is kept, before its writer hears: it may wait, or raise.
        self.after_send: Callable[[str, Partition, Sequence[Record]], None] = _nothing
        #: What is sent without waiting is handed to this, to be sent when it likes; without it nobody sends so.
        self.later: Callable[[Callable[[], None]], None] | None = None
        #: Called before any partition is read.
        self.before_read: Callable[[Partition], None] = _all_well
        #: Nothing and nobody gets an answer.
        self.is_away = False
        #: Topics that have fewer copies than there should be.
        self.few_copies: dict[str, int] = {}
        self._torn_after: int | None = None
        self.sends = 0
        self.sent_bytes = 0
        self._lock = threading.RLock()
        self._topics: dict[str, list[_Log]] = {}
        self._writers: dict[str, int] = {}

    # --- what a test does to it -----------------------------------------------------------------------------------

    def lose_next(self, *, kept: bool, sends: int = 1) -> None:
        """Answer one of the next sends with AwayError, whether or not it is kept."""
        left = sends

        def lose(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise AwayError("the store did not answer in time")

        if kept:
            self.after_send = lose
        else:
            self.before_send = lose

    def tear_next(self, records: int) -> None:
        """Keep no more than so many records of the next send, and answer it with AwayError."""
        self._torn_after = records

    def heal(self) -> None:
        """Do nothing wrong any more."""
        self._torn_after = None
        self.before_send = self.after_send = _nothing
        self.before_read = _all_well
        self.is_away = False

    def records(self, partition: Partition) -> list[Stored]:
        """Return all that a partition has."""
        return list(self._log(partition).records)

    def put(self, partition: Partition, record: Record) -> int:
        """Write as a stranger does, who asks nobody."""
        with self._lock:
            return self._log(partition).add(record)

    def damage(self, partition: Partition, offset: int, value: bytes) -> None:
        """Let a record have another value than was sent."""
        log = self._log(partition)
        log.records = [each._replace(value=value) if each.offset == offset else each for each in log.records]

    def few(self) -> dict[str, int]:
        """Return which topics have fewer copies than there should be."""
        return self.few_copies

    # --- the store ------------------------------------------------------------------------------------------------

    def make(self, topic: str, partitions: int) -> None:
        """Make a topic, or give one that is there more partitions; nothing happens where it has as many."""
        self._ask()
        with self._lock:
            logs = self._topics.setdefault(topic, [])
            logs += [_Log() for _ in range(partitions - len(logs))]

    def drop(self, topic: str) -> None:
        """Remove a topic; nothing happens if it is gone already."""
        self._ask()
        with self._lock:
            self._topics.pop(topic, None)

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if there is none."""
        self._ask()
        return len(self._topics.get(topic, ()))

    def topics(self) -> Sequence[str]:
        """Return the names of all topics."""
        self._ask()
        return sorted(self._topics)

    def writer(self, name: str) -> FakeWriter:
        """Return the one writer of a name, and shut every earlier one out first."""
        self._ask()
        with self._lock:
            epoch = self._writers[name] = self._writers.get(name, 0) + 1
            for logs in self._topics.values():  # as a transaction's end does: offsets do not rise one by one
                for log in logs:
                    log.end += 1
        return FakeWriter(self, name, epoch)

    def fence(self, name: str) -> None:
        """Shut the writers of a name out, as somebody else's beginning does."""
        self.writer(name)

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the offset of the first record that is kept, and the one behind the last."""
        self._ask()
        with self._lock:
            log = self._log(partition)
            return log.start, log.end

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Stored]:
        """Yield the records from `start` on, before `end`."""
        self._ask()
        self.before_read(partition)
        with self._lock:
            log = self._log(partition)
            if start < log.start:
                raise GoneError(f"{partition.topic} {partition.number} begins at {log.start}, not at {start}")
            found = [each for each in log.records if start <= each.offset < end]
        yield from found

    def cut(self, partition: Partition, before: int) -> None:
        """Let records before an offset go."""
        self._ask()
        with self._lock:
            log = self._log(partition)
            log.start = max(log.start, min(before, log.end))
            log.records = [each for each in log.records if each.offset >= log.start]

    def close(self) -> None:
        """Hang up."""

    def send(self, name: str, epoch: int, partition: Partition, records: Sequence[Record]) -> Sequence[int]:
        """Keep records of a writer."""
        self._ask()
        self.before_send(name, partition, records)
        with self._lock:
            if self._writers[name] != epoch:
                raise FencedError(f"another {name} has begun")
            log = self._log(partition)
            offsets = []
            for record in records[: self._torn_after]:
                size = weight(record)
                if size > self.record_bytes_max:
                    raise TooLargeError(f"a record of {size} bytes is more than {self.record_bytes_max}")
                offsets.append(log.add(record))
                self.sent_bytes += size
            self.sends += 1
            if self._torn_after is not None:
                raise AwayError("the store did not answer in time")
        self.after_send(name, partition, records)
        return offsets

    def _ask(self) -> None:
        if self.is_away:
            raise AwayError("the store did not answer in time")

    def _log(self, partition: Partition) -> _Log:
        logs = self._topics.get(partition.topic, [])
        if partition.number >= len(logs):
            raise GoneError(f"there is no partition {partition.number} of {partition.topic}")
        return logs[partition.number]


class FakeWriter:
    """The only one who writes under its name, until another does."""

    def __init__(self, store: FakeStore, name: str, epoch: int) -> None:
        self.name = name
        self._store = store
        self._epoch = epoch
        self._closed = False

    def send(self, partition: Partition, records: Sequence[Record]) -> Sequence[int]:
        """Return the offsets of records once all are kept for good, in this order."""
        if self._closed:
            raise FencedError(f"this {self.name} was closed")
        return self._store.send(self.name, self._epoch, partition, records)

    def send_soon(self, partition: Partition, record: Record, told: Callable[[int | OSError], None]) -> bool:
        """Send a record when the store says."""
        if self._store.later is not None:
            self._store.later(lambda: told(outcome(self, partition, record)))
        return self._store.later is not None

    def close(self) -> None:
        """Write nothing more; what was sent stays."""
        self._closed = True


class _Log:
    """One partition."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.records: list[Stored] = []

    def add(self, record: Record) -> int:
        offset = self.end
        self.end += 1
        self.records.append(Stored(offset, bytes(record.value), dict(record.headers)))
        return offset


def outcome(writer: Writer, partition: Partition, record: Record) -> int | OSError:
    """Return what comes of sending a record."""
    try:
        return writer.send(partition, [record])[0]
    except OSError as error:
        return error


def weight(record: Record) -> int:
    """Return about what a record takes."""
    return len(record.value) + sum(len(key) + len(value) for key, value in record.headers.items()) + _FRAME_BYTES


def _nothing(_: str, __: Partition, ___: Sequence[Record]) -> None:
    return


def _all_well(_: Partition) -> None:
    return
