"""Topics in a data directory that this process can read, whether its node runs or not.

Owns how names become directories, and what is looked at again for every micro-batch. Takes no lock and writes nothing.
Invariant: what it tells of a topic and what it reads of it are one incarnation's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.client.wire import Hold, Read, ShardRange, TopicInfo
from penstock.errors import ConfigError, CorruptionError, PenstockError, Refusal
from penstock.filters.pick import asked, picked
from penstock.log import label as labels
from penstock.log.label import Label
from penstock.log.reader import Reader
from penstock.pipeline.store import Piece

if TYPE_CHECKING:
    from penstock.client.connection import Access
    from penstock.pipeline.remote import Remote

_log = logging.getLogger(__name__)


class Files:
    """Topics below one data directory."""

    def __init__(self, path: str, access: Access | None = None) -> None:
        self._path = path
        self._access = access
        self._labels: dict[str, tuple[str, int, Label]] = {}
        self._readers: dict[str, Reader] = {}
        self._node: Remote | None = None

    def topic(self, name: str) -> TopicInfo | None:
        """Return a topic, None if there is none of this name."""
        found = self._label(name)
        if found is None:
            return None
        directory, label = found
        if label.durability == "memory":
            raise Refusal(
                "bad_request", f"topic {name} is kept in memory, so there are no files: read it with option url"
            )
        shards = [self._range(directory, number) for number in range(label.shards)]
        return TopicInfo(
            name=name, incarnation=label.incarnation, shards=shards, path=directory, durability=label.durability
        )

    def names(self) -> list[str]:
        """Return the names of all topics with files."""
        self._list()
        return sorted(name for name, (_, _, label) in self._labels.items() if label.durability != "memory")

    def offsets_at(self, topic: TopicInfo, time_ns: int) -> list[int]:
        """Return for each shard the first offset whose row was taken at or after a time, or its end."""
        return [self._reader(topic.path or "", shard.shard).offset_at(time_ns) for shard in topic.shards]

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield rows straight from segments."""
        read, reader = piece.read, Reader(os.path.join(piece.place, str(piece.read.shard)))
        columns = list(read.columns or ())
        looked_at = asked(read.tags, read.traffic, read.buckets)
        needed = [*columns, *(name for name in looked_at if name not in columns)]
        try:
            for batch in reader.batches(
                read.start or 0,
                read.end,
                needed,
                from_ns=read.from_ns,
                until_ns=read.until_ns,
                strict=not read.skip_lost,
            ):
                if looked_at:
                    batch = picked(batch, read.tags, read.traffic, read.buckets).select(columns)
                if len(batch):
                    yield batch
                if reader.damaged and not read.skip_lost:
                    raise _damage(read, reader)
        except FileNotFoundError:
            raise Refusal("gone", f"topic {read.topic} was deleted while it was read") from None
        except Refusal as refusal:
            raise Refusal(refusal.code, f"shard {read.shard} of topic {read.topic}: {refusal}") from None
        if reader.damaged and not read.skip_lost:
            raise _damage(read, reader)
        _tell(read, reader)

    def hold(self, hold: Hold) -> str:
        """Ask the node for rows to be kept, if one runs; without a node nothing is ever removed."""
        if self._node is None:
            from penstock.client.connection import Access
            from penstock.pipeline.remote import Remote
            from penstock.pipeline.target import running

            access = self._access
            if access is None:
                address = running(self._path)
                if address is None:
                    return ""
                access = Access(address)
            self._node = Remote(access, patience_s=0)
        failed = self._node.hold(hold)
        if failed:
            self._node = None  # it may come back somewhere else
        return failed

    def _label(self, name: str) -> tuple[str, Label] | None:
        """Return a topic's directory and label, from memory while the label's file is the same."""
        known = self._labels.get(name)
        if known is not None and _changed(known[0]) == known[1]:
            return known[0], known[2]
        self._list()
        known = self._labels.get(name)
        return None if known is None else (known[0], known[2])

    def _list(self) -> None:
        try:
            found = labels.labels(self._path)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise ConfigError(f"option path: {error}") from None
        # Of two directories with one name the newer is meant: the other is being removed.
        found.sort(key=lambda each: each[1].number)
        self._labels = {label.name: (directory, _changed(directory), label) for directory, label in found}

    def _reader(self, directory: str, shard: int) -> Reader:
        path = os.path.join(directory, str(shard))
        reader = self._readers.get(path)
        if reader is None:
            reader = self._readers[path] = Reader(path)
        return reader

    def _range(self, directory: str, shard: int) -> ShardRange:
        try:
            start, stretches = self._reader(directory, shard).view()
        except FileNotFoundError:
            start, stretches = 0, []  # just made
        except CorruptionError as error:
            raise PenstockError(f"{directory}/{shard} cannot be read: {error}") from error
        return ShardRange(
            shard=shard,
            start=start,
            end=max([start, *(stretch.end for stretch in stretches)]),
            rows=sum(stretch.rows for stretch in stretches),
            bytes=sum(stretch.bytes for stretch in stretches),
            stretches=[list(stretch) for stretch in stretches],
        )


def _changed(directory: str) -> int:
    """Return when a label was written, 0 if it is not there."""
    try:
        return os.stat(os.path.join(directory, labels.FILE)).st_mtime_ns
    except OSError:
        return 0


def _tell(read: Read, reader: Reader) -> None:
    """Count in the log what was left out."""
    gone = [(first, end, "are not kept any more") for first, end in reader.lost]
    where = f"are damaged, in {' and '.join(reader.damaged_files)}"
    gone += [(each.first, each.end, where) for each in reader.damaged]
    for first, end, why in gone:
        _log.warning(
            "shard %d of topic %s: skipped %d offsets, %d to %d, which %s",
            read.shard, read.topic, end - first, first, end - 1, why,
        )  # fmt: skip


def _damage(read: Read, reader: Reader) -> Refusal:
    worst = reader.damaged[0]
    return Refusal(
        "bad_offset",
        f"offsets {worst.first} to {worst.end - 1} of shard {read.shard} of topic {read.topic} are damaged "
        f"({worst.reason}, in {reader.damaged_files[0]}); restore them, or set failOnDataLoss to false to go on "
        "without them",
    )
