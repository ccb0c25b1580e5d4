"""The data directory of a stopped nsqd: which topics and channels it has, and which bytes of which files are unread.

Owns the lock on it and the layout of its files: upstream's flat one, and Youzan's with a directory per topic, where
channels are positions in the topic's own files. Reads only. What the records hold is the backlog's business.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from penstock.dialects.nsq.takeover import diskqueue
from penstock.dialects.nsq.takeover.diskqueue import Data, Place
from penstock.errors import ConfigError

LISTING = re.compile(r"nsqd(\.\d+)?\.dat")
#: Youzan's newer releases keep positions in bolt databases of this name.
DATABASE = "meta.db"

Numbered = dict[int, str]


class Problem(NamedTuple):
    """Something that is not as nsqd leaves it, and where."""

    path: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.reason}"


class Piece(NamedTuple):
    """A file of a queue, and the byte from which on it is unread."""

    path: str
    start: int


class Queue(NamedTuple):
    """What one channel has not read, or, without a channel, what a topic gave to none yet."""

    channel: str | None
    pieces: list[Piece]


class Topic:
    """A topic of nsqd's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        #: Whether each channel is paused, by name.
        self.channels: dict[str, bool] = {}
        self.queues: list[Queue] = []


class Queues:
    """Everything a data directory holds."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.problems: list[Problem] = []
        #: What is there and is not brought over, one sentence each.
        self.left_out: list[str] = []
        self._topics: dict[str, Topic] = {}
        try:
            names = sorted(os.listdir(directory))
        except OSError as error:
            raise ConfigError(f"{directory} cannot be read: {error.strerror}. Name nsqd's --data-path.") from error
        listed = [name for name in names if LISTING.fullmatch(name)]
        self._read_listings(listed)
        found = self._read_flat(names)
        found += self._read_nested([name for name in names if os.path.isdir(os.path.join(directory, name))])
        if not listed and not found:
            raise ConfigError(f"{directory} holds no nsqd.dat and no queue files. Name nsqd's --data-path.")

    @property
    def topics(self) -> list[Topic]:
        """The topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def _topic(self, name: str) -> Topic:
        return self._topics.setdefault(name, Topic(name))

    def _path(self, *names: str) -> str:
        return os.path.join(self.directory, *names)

    def _read_listings(self, names: list[str]) -> None:
        for name in names:
            listing = diskqueue.listing(_content(self._path(name)))
            if listing is None:
                self.problems.append(Problem(self._path(name), 0, "it is not the list of topics that nsqd writes"))
                continue
            for listed in listing.topics or ():
                topic = self._topic(listed.name)
                topic.paused = topic.paused or listed.paused
                topic.channels.update({channel.name: channel.paused for channel in listed.channels or ()})

    # --- upstream -------------------------------------------------------------------------------------------------

    def _read_flat(self, names: list[str]) -> int:
        """Take up the queues of upstream's layout and return how many there are."""
        files: dict[tuple[str, str | None], Numbered] = {}
        positions: dict[tuple[str, str | None], str] = {}
        for name in names:
            parsed = diskqueue.file_name(name)
            if parsed is None:
                continue
            owner, number = parsed[:2], parsed[2]
            numbered = files.setdefault(owner, {})
            if number is None:
                positions[owner] = self._path(name)
            else:
                numbered[number] = self._path(name)
        for (name, channel), numbered in files.items():
            topic = self._topic(name)
            if channel is not None:
                topic.channels.setdefault(channel, False)
            start, end = self._positions(positions.get((name, channel)), numbered)
            topic.queues.append(Queue(channel, self._pieces(numbered, start, end)))
        return len(files)

    def _positions(self, path: str | None, numbered: Numbered) -> tuple[Place, Place | None]:
        beginning = Place(min(numbered, default=0), 0)
        if path is None:  # nsqd died before it wrote them: nothing is known to be read
            return beginning, None
        found = diskqueue.positions(_content(path))
        if found is None:
            self.problems.append(Problem(path, 0, "it does not say from where the queue is unread"))
            return beginning, None
        return found

    # --- Youzan's -------------------------------------------------------------------------------------------------

    def _read_nested(self, names: list[str]) -> int:
        """Take up the partitions of Youzan's layout and return how many there are."""
        count = 0
        for name in names:
            inside = sorted(os.listdir(self._path(name)))
            pattern = re.compile(re.escape(name) + r"-(\d+)\.diskqueue\.(\d{6,})\.dat")
            parts: dict[str, Numbered] = {}
            for file in inside:
                found = pattern.fullmatch(file)
                if found is not None:
                    parts.setdefault(found[1], {})[int(found[2])] = self._path(name, file)
            for part, numbered in parts.items():
                self._read_partition(name, part, numbered, inside)
            if parts and any(file.startswith("delayed_queue") or file.endswith(".db") for file in inside):
                self.left_out.append(f"delayed messages in databases under {self._path(name)}")
            count += len(parts)
        if count:
            self._look_for_databases()
        return count

    def _read_partition(self, name: str, part: str, numbered: Numbered, inside: list[str]) -> None:
        topic = self._topic(name)
        base = self._path(name, f"{name}-{part}")
        end = None
        if os.path.exists(base + ".diskqueue.meta.writer.dat"):
            end = diskqueue.writer_end(_content(base + ".diskqueue.meta.writer.dat"))
        beginning = Place(min(numbered), 0)
        channels = self._channels(name, part, inside)
        topic.channels.update(channels)
        if not channels:
            topic.queues.append(Queue(None, self._pieces(numbered, beginning, end)))
        for channel in channels:
            start = self._reader_start(f"{base}:{channel}") or beginning
            topic.queues.append(Queue(channel, self._pieces(numbered, max(start, beginning), end)))

    def _channels(self, name: str, part: str, inside: list[str]) -> dict[str, bool]:
        """Return the channels of a partition: those it lists, and those that have a position."""
        pattern = re.compile(re.escape(f"{name}-{part}") + r"[:;](.+)\.diskqueue\.meta\.(?:v2\.)?reader\.dat")
        channels = {found[1]: False for found in map(pattern.fullmatch, inside) if found is not None}
        path = self._path(name, f"channel_meta{part}")
        if os.path.exists(path):
            listed = diskqueue.channels(_content(path))
            if listed is None:
                self.problems.append(Problem(path, 0, "it is not the list of channels that nsqd writes"))
            channels |= {channel.name: channel.paused for channel in listed or ()}
        return {channel: paused for channel, paused in channels.items() if not channel.endswith("#ephemeral")}

    def _reader_start(self, base: str) -> Place | None:
        for version in ("v2.reader", "reader"):
            path = f"{base}.diskqueue.meta.{version}.dat"
            if os.path.exists(path):
                start = diskqueue.reader_start(_content(path))
                if start is None:
                    self.problems.append(Problem(path, 0, "it does not say up to where the channel is done"))
                return start
        return None

    def _look_for_databases(self) -> None:
        for place, _, files in os.walk(self.directory):
            if DATABASE in files:
                reason = "positions of channels are kept in this database, which is not read; those in files may be old"
                self.problems.append(Problem(os.path.join(place, DATABASE), 0, reason))
                return

    # --- both -----------------------------------------------------------------------------------------------------

    def _pieces(self, numbered: Mapping[int, str], start: Place, end: Place | None) -> list[Piece]:
        """Return the files from one place to another, and note those that are missing or too short.

        What lies behind the end is taken as well: nsqd was killed then, and wrote its positions before.
        """
        last = max(numbered, default=start.file) if end is None else end.file
        present = sorted(number for number in numbered if start.file <= number <= last)
        if end is not None and start < end:
            self._look_for_holes(present, numbered, start, end)
        pieces = []
        for number in present:
            path, at = numbered[number], start.position if number == start.file else 0
            size = os.path.getsize(path)
            if at > size:
                self.problems.append(Problem(path, size, f"it ends here, and byte {at} is the first unread one"))
            elif end is not None and number == end.file and size < end.position:
                self.problems.append(Problem(path, size, f"it ends here, and should reach to byte {end.position}"))
            if at < size:
                pieces.append(Piece(path, at))
        return pieces

    def _look_for_holes(self, present: list[int], numbered: Mapping[int, str], start: Place, end: Place) -> None:
        wanted = end.file - start.file + (1 if end.position else 0)
        if len([number for number in present if number < end.file or end.position]) < wanted:
            last = end.file if end.position else end.file - 1
            missing = next(number for number in range(start.file, last + 1) if number not in numbered)
            near = next(iter(numbered.values()), self.directory)
            self.problems.append(Problem(os.path.dirname(near), 0, f"file {missing:06} of a queue is missing there"))


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """Hold nsqd's own lock on its data directory, so that it neither runs nor starts meanwhile."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be read: {error.strerror}. Name nsqd's --data-path.") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise ConfigError(
            f"an nsqd still runs on {directory}. Stop it first: it writes the rest to disk then."
        ) from error
    try:
        yield
    finally:
        os.close(fd)


def mapped(path: str) -> Data:
    """Return the bytes of a file without reading them all."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)) if size else b""


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
