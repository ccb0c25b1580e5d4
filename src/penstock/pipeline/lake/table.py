"""Tables in a lake: what each of them can do, whatever its format.

Owns the interface, and `table`, which makes one. A table is a value: a path and how to write there, so it can be sent
to wherever a query runs. Invariant: a batch is in a table once, however often it is appended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: What archives are partitioned by.
PARTITION_BY = ("topic", "day")
FORMATS = ("delta", "parquet")
#: What Spark, DuckDB, Polars and delta-rs all have.
COMPRESSIONS = ("zstd", "snappy", "gzip", "none")
#: Files of this size are read well by every engine and written within a task's memory.
TARGET_BYTES = 128 << 20
#: How long a Delta table keeps files that were merged, for those who still read them.
KEEP_HOURS = 7 * 24


class Facts(NamedTuple):
    """How large a table is."""

    rows: int
    files: int
    bytes: int
    version: int


class Compacted(NamedTuple):
    """What a compaction did."""

    files_before: int
    files_after: int
    #: Files that merges made.
    merged: int = 0
    #: Old files that were removed from disk.
    removed: int = 0
    #: What is wrong with files that could not be read and stay as they are; each names its file.
    damaged: tuple[str, ...] = ()


def silent(line: str) -> None:
    """Say nothing."""


class Table(Protocol):
    """A table in a lake."""

    @property
    def path(self) -> str:
        """Where it is."""

    @property
    def format(self) -> str:
        """What it is: `delta` or `parquet`."""

    def check(self, schema: StructType) -> None:
        """Refuse, as a ConfigError, a frame that cannot go in, and a directory that cannot hold the table."""

    def append(self, frame: DataFrame, app: str, version: int, *, any_rows: bool = False) -> int:
        """Add a frame once and return its rows; 0 if this version of the app is in already.

        Refused if what is in under this version are other rows; with `any_rows`, the app's last one may have others.
        """

    def read(self, spark: SparkSession, *, version: int | None = None) -> DataFrame:
        """Return what is in it, or what was in it at a version."""

    def rows(self, *, version: int | None = None) -> pa.Table:
        """Return the same by this process, without Spark; for a table that fits into its memory."""

    def compact(
        self, target_bytes: int = TARGET_BYTES, *, keep_hours: float = KEEP_HOURS, log: Callable[[str], None] = silent
    ) -> Compacted:
        """Merge small files, beside whoever reads and writes; one that cannot be read is told and stays."""

    def facts(self) -> Facts:
        """Return how large it is."""


def table(
    path: str, *, format: str = "delta", partition_by: Sequence[str] | None = PARTITION_BY, compression: str = "zstd"
) -> Table:
    """Return the table at a path, which need not exist yet; with `partition_by=None`, partitioned as it is."""
    # Here, because either one needs this module.
    from penstock.pipeline.lake.delta import Delta
    from penstock.pipeline.lake.parquet import Parquet

    if format not in FORMATS:
        raise ConfigError(f"format is {format}, and tables are {' or '.join(FORMATS)}")
    if compression not in COMPRESSIONS:
        raise ConfigError(f"compression is {compression}, and there are {', '.join(COMPRESSIONS)}")
    kind = Delta if format == "delta" else Parquet
    where = _absolute(path)
    if partition_by is None:
        found = kind(where, (), compression).partitions()
        partition_by = PARTITION_BY if found is None else found
    if len(set(partition_by)) < len(partition_by):
        raise ConfigError("partition_by names a column twice: name each once")
    return kind(where, tuple(partition_by), compression)


def format_of(path: str) -> str:
    """Return what a table that is there is."""
    return "delta" if os.path.isdir(os.path.join(path, "_delta_log")) else "parquet"


def _absolute(path: str) -> str:
    """Return a path as it is for every process; Spark takes some characters for patterns, delta-rs some for a URL's."""
    plain = path.removeprefix("file://") if path.startswith("file:///") else path
    if not plain.strip():
        raise ConfigError("the path of a table is empty: name a directory")
    if "://" in plain:
        raise ConfigError(f"table {path} is not on a file system: name a directory that driver and executors see")
    if any(character in plain for character in "*?[]{}\\,:%#\n\0"):
        raise ConfigError(
            f"table {path} has one of * ? [ ] {{ }} \\ , : % # in its path, which readers take for something else: "
            f"rename it"
        )
    found = os.path.realpath(plain)
    if found == os.path.dirname(found):
        raise ConfigError(f"table {path} is the root of the file system: name a directory below it")
    return found
