"""A Delta table: Spark's tasks write Parquet, delta-rs in the driver commits what they wrote; no jar is needed.

Owns how a batch and a merge get in. Invariant: a file is in the table by its log alone, a batch by the one commit that
also names its app and version; so it is there once, whoever died, and whatever lies about beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from penstock.errors import ConfigError, Refusal
from penstock.pipeline.lake import columns, deltalog, directory, merge, past, rows
from penstock.pipeline.lake.faults import found, told
from penstock.pipeline.lake.home import Home, Identity, Move, Note, key
from penstock.pipeline.lake.staged import Staged, described, moved, stage
from penstock.pipeline.lake.table import KEEP_HOURS, TARGET_BYTES, Compacted, Facts, silent

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: How often a commit is tried against others who change the table; appends of theirs do not count.
TRIES = 10
#: Merges are batches of this app.
MERGES = "penstock merges"


@dataclass(frozen=True)
class Delta:
    """A Delta table at a path."""

    path: str
    partition_by: tuple[str, ...]
    compression: str
    format: str = "delta"

    def check(self, schema: StructType) -> None:
        """Refuse a frame that cannot go in, and a directory that cannot hold the table."""
        with told(self.path):
            self._checked(Home(self.path), schema)

    def append(self, frame: DataFrame, app: str, version: int, *, any_rows: bool = False) -> int:
        """Add a frame once and return its rows; 0 if this version of the app is in already."""
        home = Home(self.path)
        with told(self.path):
            table = self._checked(home, frame.schema)
            if any_rows and _last(table, app) == version:
                with home.locked():
                    self._tidy(home, app)
                return 0
            home.made()
            directory = home.fresh(app, version)
            staged = stage(frame, os.path.join(home.staging, directory), self.partition_by, self.compression, self.path)
            if not staged and table is not None:
                home.swept(app)
                return 0
            with home.locked():
                return self._added(home, frame.schema, app, version, directory, staged)

    def read(self, spark: SparkSession, *, version: int | None = None) -> DataFrame:
        """Return what is in it, or what was in it at a version; without any jar."""
        with told(self.path):
            table = self._at(version)
            schema = deltalog.struct(table)
            entries = deltalog.entries(table)
            if any(entry.misplaced for entry in entries):
                raise ConfigError(
                    f"table {self.path} has files outside the directories of their partitions, which Spark cannot "
                    f"read without Delta's own jar: compact the table, which moves their rows there"
                )
            if not entries:
                return spark.createDataFrame([], schema)
            paths = [os.path.join(self.path, entry.path) for entry in entries]
            for path in paths:
                found(path)
            frame = spark.read.schema(schema).option("basePath", self.path).parquet(*paths)
            # Spark puts the columns that directories stand for at the end.
            return frame.select(*schema.fieldNames())

    def rows(self, *, version: int | None = None) -> pa.Table:
        """Return what is in it, or was at a version, by this process."""
        with told(self.path):
            table = self._at(version)
            files = [(entry.path, entry.partition) for entry in deltalog.entries(table)]
            return rows.read(self.path, files, deltalog.struct(table))

    def compact(
        self, target_bytes: int = TARGET_BYTES, *, keep_hours: float = KEEP_HOURS, log: Callable[[str], None] = silent
    ) -> Compacted:
        """Merge small files, and remove merged ones that are older than `keep_hours`."""
        home = Home(self.path)
        with told(self.path), home.compacting() as mine:
            entries = deltalog.entries(self._there())
            before = len(entries)
            if not mine:
                log(f"{self.path}: another process compacts it already")
                return Compacted(before, before)
            known = {entry.path: entry for entry in entries}
            forced = {entry.path for entry in entries if entry.misplaced}
            files = [merge.File(str(entry.partition), entry.path, entry.bytes) for entry in entries]
            merged = 0
            damaged: list[str] = []
            for group in merge.groups(files, target_bytes, forced):
                gone, bad = merge.without_damaged(
                    group, self.path, lambda paths: self._swapped(home, [known[path] for path in paths]), forced
                )
                merged += gone > 0
                damaged += map(str, bad)
            home.swept(MERGES)
            # Beside a writer, a file that is in place and not yet in the log would look like one that nobody wants.
            with home.locked():
                table = self._there()
                home.aged()
                removed = deltalog.vacuumed(self.path, table, keep_hours)
            after = len(deltalog.entries(table))
            for line in damaged:
                log(line)
            log(f"{self.path}: {before} files are {after}, {len(removed)} old ones removed")
            return Compacted(before, after, merged, len(removed), tuple(damaged))

    def facts(self) -> Facts:
        """Return how large it is."""
        with told(self.path):
            table = self._opened(Home(self.path))
            if table is None:
                return Facts(0, 0, 0, -1)
            entries = deltalog.entries(table)
            rows, sizes = sum(entry.rows for entry in entries), sum(entry.bytes for entry in entries)
            return Facts(rows, len(entries), sizes, table.version())

    def partitions(self) -> tuple[str, ...] | None:
        """Return what the table that is there is partitioned by."""
        return tuple(deltalog.opened(self.path).metadata().partition_columns) if deltalog.exists(self.path) else None

    def _checked(self, home: Home, schema: StructType) -> DeltaTable | None:
        """Return the table, if there is one yet, after a frame with these columns was found to fit."""
        columns.checked(self.path, schema, self.partition_by)
        directory.checked(self.path)
        table = self._opened(home)
        if table is None:
            deltalog.schema(self.path, schema)
        else:
            columns.added(self.path, deltalog.struct(table), schema)
        return table

    def _added(
        self, home: Home, schema: StructType, app: str, version: int, directory: str, staged: list[Staged]
    ) -> int:
        """Place files and commit them; only one process is here at a time."""
        table = self._grown(home, schema)
        self._withdraw(home, app)
        last = _last(table, app)
        if last >= version:
            home.swept(app)
            past.check(home, app, version, last, staged)
            return 0
        past.remember(home, app, version, staged)
        # With the try's own name in it: a file that a commit names is never written again.
        moves = moved(directory, staged, f"{key(app)}-{version:012d}-{directory.rpartition('-')[2]}")
        adds = [
            deltalog.add(move.final, each, each.partition, new=True)
            for move, each in zip(moves, staged, strict=True)
        ]  # fmt: skip
        added = self._placed(home, moves, adds, schema, app, version)
        return sum(each.rows for each in staged) if added else 0

    def _swapped(self, home: Home, group: list[deltalog.Entry]) -> None:
        """Merge files into one, which takes their place."""
        home.made()
        table = self._there()
        directory, name = os.path.split(group[0].path)
        if group[0].misplaced:
            directory = merge.directory(group[0].partition)
        last = table.transaction_version(MERGES)
        version = 0 if last is None else last + 1
        staged = home.fresh(MERGES, version)
        full = os.path.join(home.staging, staged)
        schema = deltalog.struct(table)
        paths = [os.path.join(self.path, entry.path) for entry in group]
        merge.merged(paths, full, schema, self.partition_by, self.compression)
        # In the place of the first of them, so that a later merge finds rows in their order.
        final = os.path.join(directory, merge.renamed(name, staged.rpartition("-")[2]))
        made = described(home.staging, staged)
        actions: list[AddAction | RemoveAction] = [
            deltalog.add(final, made, group[0].partition, new=False),
            *map(deltalog.remove, group),
        ]
        with home.locked():
            self._withdraw(home, MERGES)
            self._placed(home, [Move(staged, final)], actions, StructType([]), MERGES, version)

    def _placed(
        self,
        home: Home,
        moves: list[Move],
        actions: Sequence[AddAction | RemoveAction],
        schema: StructType,
        app: str,
        version: int,
    ) -> bool:
        """Move files to where their commit says they are, and commit; False if the batch is in already."""
        home.write(Note(app=app, version=version, done=False, moves=moves))
        home.place(moves)
        added = self._committed(home, list(actions), schema, Transaction(app, version))
        self._tidy(home, app)
        return added

    def _committed(
        self, home: Home, actions: list[AddAction | RemoveAction], schema: StructType, transaction: Transaction
    ) -> bool:
        """Commit, against whoever commits meanwhile."""
        for _ in range(TRIES):
            table = self._grown(home, schema)
            if _last(table, transaction.app_id) >= transaction.version:
                return False
            if any(isinstance(each, RemoveAction) for each in actions):
                known = {entry.path for entry in deltalog.entries(table)}
                if not all(each.path in known for each in actions if isinstance(each, RemoveAction)):
                    raise Refusal("conflict", f"table {self.path} was changed during its compaction: compact it again")
            try:
                deltalog.commit(self.path, table, actions, transaction)
            except CommitFailedError:
                continue
            return True
        raise Refusal(
            "conflict", f"table {self.path}: others changed it during each of {TRIES} tries to commit; start again"
        )

    def _tidy(self, home: Home, app: str) -> None:
        """Remove what an earlier try of an app left."""
        self._withdraw(home, app)
        home.swept(app)

    def _withdraw(self, home: Home, app: str) -> None:
        """Remove files that were placed and never committed."""
        note = home.note(app)
        if note is None:
            return
        table = self._opened(home)
        if _last(table, app) < note.version:
            known = set() if table is None else {entry.path for entry in deltalog.entries(table)}
            for move in note.moves:
                path = os.path.join(self.path, move.final)
                if move.final not in known and os.path.exists(path):
                    os.unlink(path)
        home.forget(app)

    def _grown(self, home: Home, schema: StructType) -> DeltaTable:
        """Return the table, made if there is none, with all columns of a schema."""
        for _ in range(TRIES):
            table = self._opened(home)
            if table is None:
                DeltaTable.create(self.path, deltalog.schema(self.path, schema), "ignore", list(self.partition_by))
                table = self._there()
            if home.identity() is None:
                home.identify(Identity(format=self.format, id=str(table.metadata().id), partition_by=self.partition_by))
            fields = columns.added(self.path, deltalog.struct(table), schema)
            if not fields:
                return table
            try:
                table.alter.add_columns(deltalog.schema(self.path, StructType(fields)).fields)
            except CommitFailedError:
                continue
        raise Refusal("conflict", f"table {self.path}: others change its columns all the time; start again")

    def _there(self) -> DeltaTable:
        table = self._opened(Home(self.path))
        if table is None:
            raise ConfigError(f"there is no table at {self.path}: name another, or archive into it first")
        return table

    def _at(self, version: int | None) -> DeltaTable:
        table = self._there()
        if version is not None:
            deltalog.travel(table, version, self.path)
        return table

    def _opened(self, home: Home) -> DeltaTable | None:
        """Return the table, which is the one we know and can read, or None if there is none yet."""
        identity = home.identity()
        if identity is not None and identity.format != self.format:
            raise ConfigError(f"table {self.path} is {identity.format}, not {self.format}: set format so")
        if not deltalog.exists(self.path):
            if identity is not None:
                raise directory.lost(home.table, home.directory, "is gone")
            directory.empty(self.path)
            return None
        table = deltalog.opened(self.path)
        if identity is not None and identity.id != str(table.metadata().id):
            raise directory.lost(home.table, home.directory, "was made anew by somebody else")
        directory.same_partitions(self.path, tuple(table.metadata().partition_columns), self.partition_by)
        return table


def _last(table: DeltaTable | None, app: str) -> int:
    """Return the last version of an app that is in, -1 if there is none."""
    last = None if table is None else table.transaction_version(app)
    return -1 if last is None else last
