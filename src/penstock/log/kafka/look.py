"""A topic on Kafka, looked at beside its owner or without one: as who takes over would find it, with nothing written.

Owns that: the log runs on a store that keeps nothing it is told to, and brings what is read into a folder of its own.
Invariant: nothing in Kafka changes, and no owner is shut out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from penstock.clock import Clock
from penstock.disk import LocalDisk
from penstock.errors import CorruptionError
from penstock.log import label
from penstock.log.file_shard import FileShard
from penstock.log.kafka.disk import SharedDisk
from penstock.log.kafka.loading import replayed
from penstock.log.kafka.store import Partition, Record, Store, Stored
from penstock.log.label import Label
from penstock.log.reader import LISTINGS_MAX, Reader
from penstock.log.shard import open_shard
from penstock.log.verify import ShardReport, verify_shard
from penstock.settings import TopicSettings

T = TypeVar("T")
U = TypeVar("U")

#: What the topic is called after that holds what is no segment.
STATE = ".state"


def labels(store: Store) -> Iterator[tuple[str, Label | None]]:
    """Yield what each topic in Kafka is called after there, with its label, if that can be read; blocking."""
    for name in store.topics():
        if name.endswith(STATE) and store.partitions(name):
            yield name.removesuffix(STATE), label_in(store, name)


def label_in(store: Store, state: str) -> Label | None:
    """Return the label of a topic in Kafka, None where none can be read; blocking."""
    try:
        files = replayed(store, Partition(state, 0))[0]
        return label.DECODER.decode(files.nodes[files.names[label.FILE]].content)
    except (CorruptionError, KeyError, msgspec.MsgspecError):
        return None


class Look:
    """One topic, as it was when it was opened."""

    def __init__(self, store: Store, topic: str, folder: str, clock: Clock) -> None:
        self._store = _Still(store)
        self._topic = topic
        self._folder = folder
        self._clock = clock
        self._opened = 0
        self._open: list[FileShard] = []
        self._look()

    def _look(self) -> None:
        self._opened += 1
        self.root = f"{self._folder}/{self._opened}"
        log = f"{self._topic}.log"
        self._starts = [self._start(number) for number in range(self._store.partitions(log))]
        self.disk = SharedDisk(LocalDisk(), self._store, _Mute(self._store), self.root, self._topic, _AtOnce())
        self.disk.open_all(made=True)

    def _start(self, number: int) -> int:
        return self._store.bounds(Partition(f"{self._topic}.log", number))[0]

    @property
    def shards(self) -> list[int]:
        """The numbers of its shards."""
        return sorted(int(name) for name in self.disk.list(self.root) if name.isascii() and name.isdigit())

    def report(self, number: int) -> ShardReport:
        """Return what is found where everything of a shard is read; blocking."""
        for _ in range(LISTINGS_MAX):
            report = verify_shard(self.disk, f"{self.root}/{number}")
            if report.good or self._starts[number] == self._start(number):
                break
            self._look()  # what the retention lets go while it is read is no damage
        return report

    def reader(self, number: int) -> Reader:
        """Return a reader of a shard; what it reads comes from Kafka as it goes."""
        settings = TopicSettings(durability="fsync", log="kafka")
        shard = open_shard(self.disk, self._clock, f"{self.root}/{number}", number, settings)
        if not isinstance(shard, FileShard):
            raise TypeError(f"{shard!r} has no files")
        self._open.append(shard)
        return Reader(shard.path, shard.view())

    def close(self) -> None:
        """Look no more."""
        self.disk.close()
        for shard in self._open:
            shard.drop()


class _Still:
    """A store that can be read and does nothing else."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.partitions = store.partitions
        self.topics = store.topics
        self.bounds = store.bounds

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Stored]:
        """Yield records."""
        return self._store.read(partition, start, end)

    def make(self, topic: str, partitions: int) -> None:
        """Make nothing."""

    def drop(self, topic: str) -> None:
        """Remove nothing."""

    def cut(self, partition: Partition, before: int) -> None:
        """Let nothing go."""

    def writer(self, name: str) -> _Mute:
        """Return one that shuts nobody out."""
        return _Mute(self)

    def close(self) -> None:
        """Whoever made the store closes it."""


class _Mute:
    """A writer of nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def send(self, partition: Partition, records: Sequence[Record]) -> Sequence[int]:
        """Keep nothing, and name the offset behind all records."""
        return [self._store.bounds(partition)[1]] * len(records)

    def send_soon(self, partition: Partition, record: Record, told: Callable[[int | OSError], None]) -> bool:
        """Have `send` do it."""
        return False

    def close(self) -> None:
        """Nothing is open."""


class _AtOnce:
    """Threads that are none: whoever looks has time."""

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Do the work and call back."""
        try:
            result = work()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    def map(self, work: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Do one after the other."""
        return [work(item) for item in items]

    def tell(self, what: Callable[[], None]) -> None:
        """Call it."""
        what()
