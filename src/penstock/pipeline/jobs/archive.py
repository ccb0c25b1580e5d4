"""Topics into a table: every message as it is, in a partition of its topic and its day.

Owns the column `day` and what an archive may be told. Knows nothing of how a table is written. Invariant: no column of
a message is left out, so that a replay of the table gives the messages back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark.sql import functions as sql

from penstock.errors import ConfigError
from penstock.pipeline.jobs.output import Output
from penstock.pipeline.lake.table import COMPRESSIONS, FORMATS, PARTITION_BY, Table, table
from penstock.units.quantity import parse_duration, parse_size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Where a row's day comes from: a message's own time, or that of an aggregate.
TIMES = ("timestamp", "time")
DAY_S = 86_400
HOUR_NS = 3_600_000_000_000
#: Below this, merged files are as many as unmerged ones.
FILE_BYTES_MIN = 1 << 20


class Archive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an archive may be told."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("*",)

    #: The table's directory.
    table: str
    format: str = "delta"
    compression: str = "zstd"
    #: Small files are merged after so many batches; 0: never.
    compact_every: int = 50
    #: Merged files are about this large.
    file_size: str = "128MiB"
    #: How long a Delta table keeps files that were merged, for those who still read them.
    keep_merged: str = "7d"

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.format not in FORMATS:
            raise ConfigError(f"format is {self.format}, and tables are {' or '.join(FORMATS)}")
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f"compression is {self.compression}, and there are {', '.join(COMPRESSIONS)}")
        if self.compact_every < 0:
            raise ConfigError("compact_every is below 0: say after how many batches, or 0 for never")
        if self.target_bytes < FILE_BYTES_MIN:
            raise ConfigError(f"file_size is {self.file_size}: files below 1MiB are what merging is against")
        parse_duration(self.keep_merged)

    @property
    def target_bytes(self) -> int:
        """The size of merged files."""
        return parse_size(self.file_size)

    @property
    def keep_hours(self) -> float:
        """How long merged files are kept."""
        return parse_duration(self.keep_merged) / HOUR_NS

    def lake(self) -> Table:
        """Return the table."""
        return table(self.table, format=self.format, partition_by=PARTITION_BY, compression=self.compression)


def archived(frame: DataFrame, options: Archive) -> Output:
    """Return messages with the day, in UTC, on which the node took them."""
    for name, kind in (("topic", "string"), ("timestamp", "timestamp")):
        if name not in frame.columns:
            frame = frame.withColumn(name, sql.lit(None).cast(kind))
    return Output(dated(frame))


def dated(frame: DataFrame) -> DataFrame:
    """Return rows with the day, in UTC, of their time, for tables that are partitioned by it."""
    time = next((name for name in TIMES if name in frame.columns), None)
    if time is None or "day" in frame.columns:
        return frame
    # By seconds since 1970, because a session's own time zone must not move a message to another day.
    day = sql.date_from_unix_date(sql.floor(sql.unix_seconds(time) / DAY_S).cast("int"))
    return frame.withColumn("day", day)
