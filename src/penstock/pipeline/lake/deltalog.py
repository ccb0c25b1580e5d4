"""The log of a Delta table, through delta-rs: its columns, its files, and what a commit says.

Owns the way between delta-rs's values and ours. Knows nothing of batches or of what lies beside the table. Invariant:
a path of ours is what the file system has; the log has it as a URL.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.pipeline.lake import columns
from penstock.pipeline.lake.home import synced
from penstock.pipeline.lake.staged import Staged, partition_of

LOG = "_delta_log"
#: Reader features whose files are plain Parquet all the same.
READABLE = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
#: What a column says of itself that a writer must heed, row by row.
_COMPUTED = ('"delta.generationExpression"', '"delta.identity.', '"delta.invariants"')
#: Delta's own default; a table may set another.
CHECKPOINT_EVERY = "100"

Partition = dict[str, str | None]


class Entry(NamedTuple):
    """A file that is in a table."""

    path: str
    bytes: int
    rows: int
    partition: Partition

    @property
    def misplaced(self) -> bool:
        """Whether it lies elsewhere than in the directories that Spark takes its partition from."""
        return partition_of(self.path) != self.partition


def exists(path: str) -> bool:
    """Return whether a Delta table is at a path."""
    return os.path.isdir(os.path.join(path, LOG))


def opened(path: str) -> DeltaTable:
    """Return the table at a path, whose files must be plain Parquet."""
    try:
        table = DeltaTable(path)
    except DeltaError as error:
        damaged = _damaged(os.path.join(path, LOG))
        named = f"{damaged} is damaged: " if damaged else ""
        raise ConfigError(
            f"table {path} cannot be opened as Delta: {named}{first(error)}; repair it, or name another path"
        ) from error
    features = set(table.protocol().reader_features or ()) - READABLE
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")
    if features:
        raise ConfigError(
            f"table {path} uses {' and '.join(sorted(features))} of Delta, which is not supported here: "
            f"copy it to a table without that, or name another path"
        )
    if any(each in table.schema().to_json() for each in _COMPUTED) or any(
        name.startswith("delta.constraints.") for name in table.metadata().configuration
    ):
        raise ConfigError(
            f"table {path} has columns that Delta computes or conditions that it checks, which is not supported here: "
            f"drop them, or name another path"
        )
    return table


def struct(table: DeltaTable) -> StructType:
    """Return a table's columns as Spark's; either writes them down in the same way."""
    return StructType.fromJson(json.loads(table.schema().to_json()))


def schema(path: str, given: StructType) -> Schema:
    """Return columns of Spark's as a table's."""
    try:
        return Schema.from_json(columns.nullable(given).json())
    except (DeltaError, ValueError) as error:
        raise ConfigError(f"table {path} cannot be Delta with these columns: {first(error)}") from error


def entries(table: DeltaTable) -> list[Entry]:
    """Return the files of a table, by their paths."""
    actions: Any = pa.table(table.get_add_actions(flatten=True))
    names = table.metadata().partition_columns
    values = [
        [None if cell is None else str(cell) for cell in actions[f"partition.{name}"].to_pylist()] for name in names
    ]
    partitions = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)] if names else None
    rows = actions["num_records"].to_pylist() if "num_records" in actions.column_names else [0] * len(actions)
    found = [
        Entry(unquote(path), size, count or 0, partitions[number] if partitions else {})
        for number, (path, size, count) in enumerate(
            zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), rows, strict=True)
        )
    ]
    return sorted(found, key=lambda entry: entry.path)


def add(path: str, staged: Staged, partition: Partition, *, new: bool) -> AddAction:
    """Return what a commit says of a file that comes; `new` rows are told from those that were only moved."""
    return AddAction(path, staged.bytes, partition, int(time.time() * 1000), new, stats(staged))


def remove(entry: Entry) -> RemoveAction:
    """Return what a commit says of a file whose rows are in another one now."""
    return RemoveAction(entry.path, False, int(time.time() * 1000), entry.bytes, entry.partition)


def stats(staged: Staged) -> str:
    """Return what readers skip a file by."""
    known = staged.ranges.items()
    return json.dumps(
        {
            "numRecords": staged.rows,
            "minValues": {name: _plain(low) for name, (low, _) in known},
            "maxValues": {name: _plain(high) for name, (_, high) in known},
            "nullCount": staged.nulls,
        }
    )


def commit(path: str, table: DeltaTable, actions: Sequence[AddAction | RemoveAction], transaction: Transaction) -> None:
    """Commit, and have it on disk; CommitFailedError if somebody else's commit does not go with it."""
    table.create_write_transaction(
        list(actions),
        "append",
        table.schema(),
        list(table.metadata().partition_columns),
        commit_properties=CommitProperties(app_transactions=[transaction]),
        # They come below, when what was committed is known to be so.
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )
    table.update_incremental()
    log = os.path.join(path, LOG)
    version = table.version()
    synced(os.path.join(log, f"{version:020d}.json"))
    synced(log)
    if version and version % int(table.metadata().configuration.get("delta.checkpointInterval", CHECKPOINT_EVERY)) == 0:
        table.create_checkpoint()
        table.cleanup_metadata()


def vacuumed(path: str, table: DeltaTable, keep_hours: float) -> list[str]:
    """Remove files that are not in the table for so long, or never were, and return them."""
    hours = math.ceil(keep_hours)
    named = table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
    # It names those that went long ago as well, and a vacuum leaves two commits, whether it removes anything or not.
    there = [name for name in named if any(os.path.exists(os.path.join(path, each)) for each in (name, unquote(name)))]
    if there:
        table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
    return there


def travel(table: DeltaTable, version: int, path: str) -> None:
    """Go to another version of a table."""
    last = table.version()
    try:
        table.load_as_version(version)
    except DeltaError as error:
        raise ConfigError(f"table {path} has no version {version}; its last is {last}") from error


def first(error: BaseException) -> str:
    """Return the first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _damaged(log: str) -> str | None:
    """Return the file of a log that is no JSON or no Parquet, which delta-rs does not tell."""
    for name in sorted(os.listdir(log)):
        path = os.path.join(log, name)
        try:
            if name.endswith(".parquet"):
                pq.read_metadata(path)
            elif name.endswith(".json"):
                with open(path, "rb") as file:
                    for line in file:
                        json.loads(line)
        except (OSError, ValueError):
            return path
    return None


def _plain(value: object) -> object:
    if isinstance(value, datetime.datetime):
        text = value.strftime("%Y-%m-%dT%H:%M:%S.%f")
        return f"{text}Z" if value.tzinfo is not None else text
    return value.isoformat() if isinstance(value, datetime.date) else value
