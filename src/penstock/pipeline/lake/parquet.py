"""A directory of Parquet files and nothing else, which any reader takes as it is.

Owns what makes such a directory a table: a note beside it that says which files of a batch belong in it. Invariant:
once that note is written, the batch is in, and whoever opens the table next finishes what the note says; before it,
nothing of the batch is there. Files come in whole, by rename, and readers that list the directory meanwhile may see a
part of a batch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.pipeline.lake import columns, directory, faults, merge, past, rows
from penstock.pipeline.lake.faults import told
from penstock.pipeline.lake.home import Home, Identity, Move, Note, Swap, key, synced
from penstock.pipeline.lake.staged import Staged, files, moved, partition_of, stage
from penstock.pipeline.lake.table import KEEP_HOURS, TARGET_BYTES, Compacted, Facts, silent

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

#: Merges are staged under this name.
MERGES = "penstock merges"


@dataclass(frozen=True)
class Parquet:
    """A table of plain Parquet files at a path."""

    path: str
    partition_by: tuple[str, ...]
    compression: str
    format: str = "parquet"

    def check(self, schema: StructType) -> None:
        """Refuse a frame that cannot go in, and a directory that cannot hold the table."""
        with told(self.path):
            self._checked(Home(self.path), schema)

    def append(self, frame: DataFrame, app: str, version: int, *, any_rows: bool = False) -> int:
        """Add a frame once and return its rows; 0 if this version of the app is in already."""
        home = Home(self.path)
        with told(self.path):
            self._checked(home, frame.schema)
            if any_rows and _last(home, app) == version:
                with self._finished(home):
                    home.swept(app)
                return 0
            home.made()
            # An unfinished batch of this app has its files where the next ones are to be staged.
            with self._finished(home):
                directory = home.fresh(app, version)
            staged = stage(frame, os.path.join(home.staging, directory), self.partition_by, self.compression, self.path)
            with self._finished(home):
                try:
                    last = _last(home, app)
                    if last >= version:
                        past.check(home, app, version, last, staged)
                        return 0
                    return self._added(home, frame.schema, app, version, directory, staged)
                finally:
                    home.swept(app)

    def read(self, spark: SparkSession, *, version: int | None = None) -> DataFrame:
        """Return what is in it; plain Parquet knows no versions."""
        self._unversioned(version)
        home = Home(self.path)
        with told(self.path):
            schema = _struct(self._there(home))
            with self._finished(home):
                paths = [os.path.join(self.path, path) for path in files(self.path)]
                if not paths:
                    return spark.createDataFrame([], schema)
                for path in paths:
                    faults.found(path)
                frame = spark.read.schema(schema).parquet(self.path)
            return frame.select(*schema.fieldNames())

    def rows(self, *, version: int | None = None) -> pa.Table:
        """Return what is in it, by this process."""
        self._unversioned(version)
        home = Home(self.path)
        with told(self.path):
            schema = _struct(self._there(home))
            with self._finished(home):
                return rows.read(self.path, [(path, partition_of(path)) for path in sorted(files(self.path))], schema)

    def compact(
        self, target_bytes: int = TARGET_BYTES, *, keep_hours: float = KEEP_HOURS, log: Callable[[str], None] = silent
    ) -> Compacted:
        """Merge small files; the old ones go at once, because readers take what they see: `keep_hours` says nothing."""
        home = Home(self.path)
        with told(self.path), home.compacting() as mine:
            self._there(home)
            with self._finished(home):
                home.aged()
                found = sorted(files(self.path))
            if not mine:
                log(f"{self.path}: another process compacts it already")
                return Compacted(len(found), len(found))
            gone = merged = 0
            sizes = [os.path.getsize(os.path.join(self.path, path)) for path in found]
            every = [merge.File(os.path.dirname(path), path, size) for path, size in zip(found, sizes, strict=True)]
            damaged: list[str] = []
            for group in merge.groups(every, target_bytes):
                went, bad = merge.without_damaged(group, self.path, lambda paths: self._swapped(home, paths))
                gone += went
                merged += went > 0
                damaged += map(str, bad)
            home.swept(MERGES)
            after = len(found) - gone + merged
            for line in damaged:
                log(line)
            log(f"{self.path}: {len(found)} files are {after}")
            return Compacted(len(found), after, merged, gone, tuple(damaged))

    def facts(self) -> Facts:
        """Return how large it is."""
        home = Home(self.path)
        with told(self.path):
            identity = self._opened(home)
            if identity is None:
                return Facts(0, 0, 0, -1)
            with self._finished(home):
                paths = [os.path.join(self.path, path) for path in files(self.path)]
                rows = sum(map(_rows, paths))
                sizes = sum(os.path.getsize(path) for path in paths)
            return Facts(rows, len(paths), sizes, identity.version)

    def partitions(self) -> tuple[str, ...] | None:
        """Return what the table that is there is partitioned by."""
        identity = Home(self.path).identity()
        return None if identity is None else identity.partition_by

    def _unversioned(self, version: int | None) -> None:
        if version is not None:
            raise ConfigError(f"table {self.path} is plain Parquet, which keeps no versions: leave version out")

    def _checked(self, home: Home, schema: StructType) -> None:
        columns.checked(self.path, schema, self.partition_by)
        directory.checked(self.path)
        identity = self._opened(home)
        if identity is not None:
            columns.added(self.path, _struct(identity), schema)

    def _added(
        self, home: Home, schema: StructType, app: str, version: int, directory: str, staged: list[Staged]
    ) -> int:
        """Write down what belongs in, and bring it in."""
        before = self._opened(home)
        identity = before or Identity(
            format=self.format, version=-1, partition_by=self.partition_by, schema=columns.nullable(schema).jsonValue()
        )
        grown = columns.grown(_struct(identity), schema, self.path)
        # The same names whenever the batch is written, so that it could only ever replace itself.
        moves = moved(directory, staged, f"{key(app)}-{version:012d}")
        os.makedirs(self.path, exist_ok=True)
        home.identify(msgspec.structs.replace(identity, version=identity.version + 1, schema=grown.jsonValue()))
        past.remember(home, app, version, staged)
        note = Note(app=app, version=version, done=False, moves=moves)
        home.write(note)
        _finish(home, note)
        return sum(each.rows for each in staged)

    def _swapped(self, home: Home, group: list[str]) -> None:
        """Merge files into one, which takes their place."""
        staged = home.fresh(MERGES, 0)
        full = os.path.join(home.staging, staged)
        schema = _struct(self._there(home))
        merge.merged(
            [os.path.join(self.path, path) for path in group], full, schema, self.partition_by, self.compression
        )
        synced(full)
        # In the place of the first of them, so that a later merge finds rows in their order.
        directory, name = os.path.split(group[0])
        final = os.path.join(directory, merge.renamed(name, staged.rpartition("-")[2]))
        with self._finished(home):
            swap = Swap(move=Move(staged, final), removed=group)
            home.begin(swap)
            _swap(home, swap)
            home.swept(MERGES)

    @contextmanager
    def _finished(self, home: Home) -> Iterator[None]:
        """Hold the lock, after whatever was begun before is finished."""
        with home.locked():
            if (swap := home.swap()) is not None:
                _swap(home, swap)
            for note in home.notes():
                if not note.done:
                    _finish(home, note)
            yield

    def _there(self, home: Home) -> Identity:
        identity = self._opened(home)
        if identity is None:
            raise ConfigError(f"there is no table at {self.path}: name another, or archive into it first")
        return identity

    def _opened(self, home: Home) -> Identity | None:
        """Return which table this is, or None if there is none yet."""
        identity = home.identity()
        if identity is None:
            directory.empty(self.path)
            return None
        if identity.format != self.format:
            raise ConfigError(f"table {self.path} is {identity.format}, not {self.format}: set format so")
        if not os.path.isdir(self.path):
            raise directory.lost(self.path, home.directory, "is gone")
        directory.same_partitions(self.path, identity.partition_by, self.partition_by)
        self._ours(home)
        return identity

    def _ours(self, home: Home) -> None:
        """Refuse a directory that somebody else has put something into."""
        start = f"{self.partition_by[0]}=" if self.partition_by else ""
        with os.scandir(self.path) as entries:
            for entry in entries:
                if not (entry.name.startswith(start) if start else entry.name.endswith(".parquet")):
                    raise ConfigError(
                        f"table {self.path} holds {entry.name}, which Penstock did not write: move it away and start "
                        f"again, or name another path; if the table was made anew, remove {home.directory}, too"
                    )


def _last(home: Home, app: str) -> int:
    """Return the last version of an app that is in, -1 if there is none."""
    note = home.note(app)
    return -1 if note is None else note.version


def _finish(home: Home, note: Note) -> None:
    """Bring the files of a batch in."""
    home.place(note.moves)
    home.write(msgspec.structs.replace(note, done=True, moves=[]))


def _swap(home: Home, swap: Swap) -> None:
    """Bring a merged file in and remove those it was made of."""
    home.place([swap.move])
    for path in swap.removed:
        try:
            os.unlink(os.path.join(home.table, path))
        except FileNotFoundError:
            pass
    synced(os.path.dirname(os.path.join(home.table, swap.move.final)))
    home.end()


def _rows(path: str) -> int:
    """Return how many rows a file has; one that cannot be read has none, and is told."""
    try:
        with faults.reading(path):
            return int(pq.read_metadata(path).num_rows)
    except faults.Damaged as error:
        _log.warning("%s", error)
        return 0


def _struct(identity: Identity) -> StructType:
    return StructType.fromJson(identity.schema)
