"""The plan of a replay: which rows each step writes, settled once and kept in a file.

Owns the cutting of rows into steps, and the files of a replay. Knows nothing of Spark.
Invariant: a plan that was written is never written again, so a replay that is repeated, by however many processes and
whatever happened to its topics meanwhile, has the same steps under the same numbers.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from penstock.disk import LocalDisk, private
from penstock.errors import ConfigError
from penstock.pipeline.jobs.replay.options import name_of
from penstock.units.times import shown

PLAN, DONE = "plan.json", "done.json"
PREFIX = "replay-"
#: So many replays that are done are kept, for so long, of those that nobody can mean a second time: as long as the node
#: remembers their last steps.
KEPT_MAX, KEPT_NS = 100, 30 * 24 * 3600 * 1_000_000_000


class Bucket(NamedTuple):
    """Neighbouring rows of one shard, counted."""

    topic: str
    shard: int
    first: int
    last: int
    rows: int
    bytes: int
    first_us: int
    last_us: int


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Offsets of one shard, `end` not included, all of whose chosen rows are written together."""

    topic: str
    shard: int
    start: int
    end: int


class Step(msgspec.Struct, frozen=True):
    """What is written at once."""

    stretches: tuple[Stretch, ...]
    rows: int
    first_us: int
    last_us: int


class Share(msgspec.Struct, frozen=True):
    """What of one shard is replayed."""

    topic: str
    shard: int
    to: str
    rows: int
    bytes: int
    first_us: int
    last_us: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A replay, settled."""

    #: Unique for ever: what was written under it is known by it.
    id: str
    name: str
    made_ns: int
    words: dict[str, Any]
    #: The same as they were given, where a time may be a duration back from then.
    said: dict[str, Any] = {}
    #: Of each topic; empty for a table.
    incarnations: dict[str, int]
    shards: dict[str, int]
    #: Of the table.
    version: int | None
    shift_us: int
    shares: tuple[Share, ...]
    steps: tuple[Step, ...]
    #: About how many rows are read to find those that are written; 0 where an older version made the plan.
    read: int = 0

    @property
    def relative(self) -> bool:
        """Whether the same words mean other messages later."""
        return bool(self.said) and self.said != self.words

    @property
    def passing(self) -> bool:
        """Whether nobody means it again: its times were counted back from then, and so was its name made."""
        return self.relative and self.name == name_of(self.words)

    @property
    def window(self) -> str:
        """Which messages these are, for people: what was asked for, and when those that were found were taken."""
        said = f"from {_bound(self.words['from'])} until {_bound(self.words['until'])}"
        if not self.shares:
            return said
        first_us = min(share.first_us for share in self.shares)
        last_us = max(share.last_us for share in self.shares)
        return f"{said}, taken {_second(first_us)} to {_second(last_us)}"

    @property
    def rows(self) -> int:
        """How many messages are written in all."""
        return sum(share.rows for share in self.shares)

    @property
    def bytes(self) -> int:
        """How many bytes they have, in keys, headers and bodies."""
        return sum(share.bytes for share in self.shares)


def _bound(bound: Any) -> str:
    return f"offset {bound}" if isinstance(bound, int) else str(bound)


def _second(time_us: int) -> str:
    return shown(time_us * 1000)[:19] + "Z"


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replay came."""

    steps: int = 0
    rows: int = 0
    finished_ns: int = 0
    #: As the plan has it, to be known without reading that.
    passing: bool = False


class Book:
    """The directory of one replay."""

    def __init__(self, home: str, name: str) -> None:
        self.path = os.path.join(os.path.abspath(home), PREFIX + name)
        self.name = name

    def another(self) -> str:
        """Return a name that no replay beside this one has."""
        number = 2
        while os.path.exists(f"{self.path}-{number}"):
            number += 1
        return f"{self.name}-{number}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from running the same replay."""
        try:
            LocalDisk().make(self.path)
            directory = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot hold the plan of a replay: {error.strerror}") from None
        try:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"replay {self.name} is under way in another process: wait for it") from None
            yield
        finally:
            os.close(directory)

    def drop(self) -> None:
        """Remove what is here; a directory that holds anything else stays."""
        with suppress(OSError):
            for name in (PLAN, DONE):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.path, name))
            os.rmdir(self.path)

    def plan(self) -> Plan | None:
        """Return the plan, None if there is none yet."""
        content = self._read(PLAN)
        return None if content is None else self._decoded(content, Plan, PLAN)

    def settle(self, plan: Plan) -> None:
        """Write the plan down; it counts once it is whole and on disk."""
        self._write(PLAN, plan)

    def done(self) -> Done:
        """Return how far the replay came."""
        content = self._read(DONE)
        return Done() if content is None else self._decoded(content, Done, DONE)

    def note(self, done: Done) -> None:
        """Write down how far it came."""
        self._write(DONE, done)

    def _read(self, name: str) -> bytes | None:
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{os.path.join(self.path, name)} cannot be read: {error.strerror}") from None

    def _decoded(self, content: bytes, kind: type[Any], name: str) -> Any:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ConfigError(f"{os.path.join(self.path, name)} is damaged: {error}") from None

    def _write(self, name: str, value: msgspec.Struct) -> None:
        path = os.path.join(self.path, name)
        try:
            with open(path + ".new", "wb", opener=private) as file:
                file.write(msgspec.json.encode(value))
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + ".new", path)
            directory = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            with suppress(OSError):
                os.unlink(path + ".new")
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def sweep(home: str, now_ns: int) -> None:
    """Remove replays that are done and that nobody means again, the oldest beyond a number and those beyond an age."""
    finished = []
    for name in os.listdir(home):
        if name.startswith(PREFIX):
            book = Book(home, name.removeprefix(PREFIX))
            with suppress(ConfigError):  # damaged, or somebody else's: whoever runs it is told
                done = book.done()
                if done.finished_ns and done.passing:
                    finished.append((done.finished_ns, book))
    finished.sort(key=lambda each: -each[0])
    for number, (ended_ns, book) in enumerate(finished):
        if number >= KEPT_MAX or now_ns - ended_ns >= KEPT_NS:
            book.drop()


def steps_of(buckets: Sequence[Bucket], rows_max: int, bytes_max: int) -> list[Step]:
    """Return buckets as steps in the order of time; the rows of a shard keep theirs, whatever their clocks said."""
    ordered = []
    reached: dict[tuple[str, int], int] = {}
    for bucket in sorted(buckets):  # by topic, shard and first offset
        place = (bucket.topic, bucket.shard)
        reached[place] = max(reached.get(place, bucket.first_us), bucket.first_us)
        ordered.append((reached[place], bucket))
    ordered.sort()
    steps: list[Step] = []
    taken: list[Bucket] = []
    rows = size = 0
    for _, bucket in ordered:
        if taken and (rows + bucket.rows > rows_max or size + bucket.bytes > bytes_max):
            steps.append(_step(taken))
            taken, rows, size = [], 0, 0
        taken.append(bucket)
        rows += bucket.rows
        size += bucket.bytes
    if taken:
        steps.append(_step(taken))
    return steps


def _step(buckets: list[Bucket]) -> Step:
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for bucket in buckets:
        place = (bucket.topic, bucket.shard)
        ranges[place] = (ranges.get(place, (bucket.first, 0))[0], bucket.last + 1)
    return Step(
        tuple(Stretch(*place, *ends) for place, ends in sorted(ranges.items())),
        sum(bucket.rows for bucket in buckets),
        min(bucket.first_us for bucket in buckets),
        max(bucket.last_us for bucket in buckets),
    )


def shares_of(buckets: Sequence[Bucket], targets: dict[str, str]) -> list[Share]:
    """Return what of each shard is replayed, given where each topic goes."""
    found: dict[tuple[str, int], list[Bucket]] = {}
    for bucket in sorted(buckets):
        found.setdefault((bucket.topic, bucket.shard), []).append(bucket)
    return [
        Share(
            topic,
            shard,
            targets[topic],
            sum(bucket.rows for bucket in some),
            sum(bucket.bytes for bucket in some),
            min(bucket.first_us for bucket in some),
            max(bucket.last_us for bucket in some),
        )
        for (topic, shard), some in found.items()
    ]
