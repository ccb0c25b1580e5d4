"""Data directories as a node leaves them, written by the log's own classes, and ways to read them without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition

from penstock.columns import Column
from penstock.log import label
from penstock.log.shard import Shard, open_shard
from penstock.message import Rows
from penstock.pipeline.batch import FilteringReader
from penstock.pipeline.options import parsed
from penstock.pipeline.scan import Task
from penstock.pipeline.schema import struct
from penstock.pipeline.stream import StreamReader
from penstock.settings import TopicSettings
from tests.fakes import START_NS, FakeClock
from tests.log.disks import InlineDisk

SECOND_NS = 1_000_000_000


class Topic:
    """A topic in a data directory, with the shards that its node would have open."""

    def __init__(self, data: Path, name: str, number: int, incarnation: int, **settings: Any) -> None:
        self.name = name
        self.clock = FakeClock()
        self.directory = data / label.TOPICS / str(number)
        self.directory.mkdir(parents=True)
        self.settings = TopicSettings(**settings)
        self._number, self._incarnation = number, incarnation
        self.shards: list[Shard] = []
        self.grow(self.settings.shards)

    def grow(self, count: int) -> None:
        """Have so many shards, as a node makes them: directories, then the label."""
        self.shards += [self._opened(shard) for shard in range(len(self.shards), count)]
        written = label.Label(
            name=self.name,
            incarnation=self._incarnation,
            number=self._number,
            shards=count,
            durability=self.settings.durability,
        )
        label.write(InlineDisk(), str(self.directory), written)

    def _opened(self, shard: int) -> Shard:
        path = str(self.directory / str(shard))
        return open_shard(InlineDisk(), self.clock, path, shard, self.settings)

    def append(self, *bodies: bytes, shard: int = 0, time_ns: int = START_NS, **columns: Column) -> None:
        """Store rows and have them indexed."""
        self.shards[shard].append(Rows.of(bodies, "nsq", columns), time_ns)
        self.shards[shard].tick(time_ns)

    def fill(self, count: int, *, shard: int = 0, batch: int = 1000, time_ns: int = START_NS) -> None:
        """Store bodies that say their number, in batches."""
        end = self.shards[shard].end
        for first in range(end, end + count, batch):
            self.append(
                *(b"%d" % number for number in range(first, min(first + batch, end + count))),
                shard=shard,
                time_ns=time_ns,
            )

    def delete(self) -> None:
        """Remove the topic as a node does."""
        for shard in self.shards:
            shard.close()
        shutil.rmtree(self.directory)


class Data:
    """A data directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / label.TOPICS).mkdir(parents=True)
        self._made = 0

    def topic(self, name: str, **settings: Any) -> Topic:
        """Make a topic."""
        self._made += 1
        return Topic(self.path, name, self._made, self._made, **settings)

    def options(self, **options: object) -> dict[str, str]:
        """Return options of the source for this directory."""
        return {"path": str(self.path), **{name: str(value) for name, value in options.items()}}

    def batch(self, **options: object) -> FilteringReader:
        """Return a batch reader."""
        return batch_reader(self.options(**options))

    def stream(self, **options: object) -> StreamReader:
        """Return a streaming reader."""
        return stream_reader(self.options(**options))


def batch_reader(given: Mapping[str, str]) -> FilteringReader:
    options = parsed(given)
    return FilteringReader(options, struct(options.columns, headers=options.headers))


def stream_reader(given: Mapping[str, str]) -> StreamReader:
    options = parsed(given)
    return StreamReader(options, struct(options.columns, headers=options.headers))


def rows(reader: FilteringReader, *filters: Filter) -> list[dict[str, Any]]:
    """Return what a batch read gives, with its filters taken on by the source alone."""
    assert list(reader.pushFilters(list(filters))) == []
    return gathered(reader, reader.partitions())


def gathered(reader: FilteringReader | StreamReader, tasks: list[InputPartition]) -> list[dict[str, Any]]:
    """Return the rows of tasks."""
    batches = [batch for task in tasks for batch in reader.read(task)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def stretches(tasks: list[InputPartition]) -> list[list[tuple[str, int, int | None, int | None]]]:
    """Return what each task reads: topic, shard, start, end."""
    return [
        [(piece.read.topic, piece.read.shard, piece.read.start, piece.read.end) for piece in task.pieces]
        for task in tasks
        if isinstance(task, Task)
    ]


def bodies(found: list[dict[str, Any]]) -> list[bytes]:
    return [row["body"] for row in found]
