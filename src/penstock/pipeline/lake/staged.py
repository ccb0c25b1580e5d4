"""The files of one batch, written by Spark's tasks and not yet in the table.

Owns how Spark writes them, and what is known of each: its rows, its partition, its smallest and largest values. Knows
nothing of formats. Invariant: rows of a task keep their order in each file, so offsets of a shard ascend.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.lake import faults
from penstock.pipeline.lake.home import Move, synced

#: How Hive, and everybody after it, names the partition of rows without a value.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
#: Settings under which tasks write. Spark's own default for times is a type that others call obsolete and that has no
#: smallest and largest; and Spark sorts whole batches by partition, unless a task may have several files open.
SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.maxConcurrentOutputFileWriters": "64",
}
#: Files are read back and synced by so many threads: waiting for the disk, not computing.
THREADS = 8

Range = tuple[Any, Any]
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


class Staged(NamedTuple):
    """One file."""

    #: Below the directory it was staged in, `topic=orders/day=2026-01-31/part-…`.
    path: str
    rows: int
    bytes: int
    #: By partition column, as Delta writes values down: text.
    partition: dict[str, str | None]
    #: Smallest and largest value by column, where both are known.
    ranges: dict[str, Range]
    nulls: dict[str, int]


def stage(frame: DataFrame, directory: str, partition_by: Sequence[str], compression: str, table: str) -> list[Staged]:
    """Have a frame written to a new directory, synced, and return its files in the order of their tasks."""
    with _settings(frame.sparkSession):
        writer = frame.write.option("compression", compression)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.parquet(directory)
    found = sorted(files(directory), key=lambda path: (os.path.basename(path), path))
    if any("?" in path for path in found):
        # Spark escapes a question mark; one that is there stands for a character that Java could not write.
        raise faults.mangled(table)
    with ThreadPoolExecutor(THREADS) as pool:
        every = list(pool.map(lambda path: described(directory, path), found))
    return [each for each in every if each.rows]


def moved(directory: str, staged: Sequence[Staged], stem: str) -> list[Move]:
    """Return the way of staged files into the table, under names that begin with `stem` and keep their order."""
    return [
        Move(
            os.path.join(directory, each.path),
            os.path.join(os.path.dirname(each.path), f"{stem}-{number:05d}.parquet"),
        )
        for number, each in enumerate(staged)
    ]


def files(directory: str, below: str = "") -> Iterator[str]:
    """Yield the Parquet files under a directory, by their paths below it."""
    with os.scandir(os.path.join(directory, below)) as entries:
        for entry in entries:
            path = os.path.join(below, entry.name)
            if entry.name.startswith((".", "_")):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from files(directory, path)
            elif entry.name.endswith(".parquet"):
                yield path


def partition_of(path: str) -> dict[str, str | None]:
    """Return the values that the directories of a path stand for."""
    pairs = (part.split("=", 1) for part in os.path.dirname(path).split("/") if "=" in part)
    return {_unescaped(name): None if value == NO_VALUE else _unescaped(value) for name, value in pairs}


def _unescaped(text: str) -> str:
    """Return a name as Spark takes it back: each escape is one character, not a byte of one."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def described(directory: str, path: str) -> Staged:
    """Return what is known of a file, which is on disk then."""
    full = os.path.join(directory, path)
    # Rows count as archived once the table says so, and the topic may drop them then: they must be on disk.
    synced(full)
    footer = pq.read_metadata(full)
    ranges: dict[str, Range] = {}
    nulls: dict[str, int] = {}
    for column in range(footer.num_columns):
        name = footer.schema.column(column).path
        if name != footer.schema.column(column).name:
            continue
        pieces = [footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)]
        if all(piece is not None and piece.has_null_count for piece in pieces):
            nulls[name] = sum(piece.null_count for piece in pieces)
        span = _range([piece for piece in pieces if piece is None or piece.num_values])
        if span is not None:
            ranges[name] = span
    return Staged(path, footer.num_rows, os.path.getsize(full), partition_of(path), ranges, nulls)


def _range(pieces: list[Any]) -> Range | None:
    """Return the smallest and largest whole number or time over row groups; other types do not tell them exactly."""
    if not pieces or any(piece is None or not piece.has_min_max for piece in pieces):
        return None
    try:
        low, high = min(piece.min for piece in pieces), max(piece.max for piece in pieces)
    except (ValueError, OverflowError):
        # A time that Python has no value for, such as one after the year 9999.
        return None
    if isinstance(low, bool) or not isinstance(low, int | datetime.date):
        return None
    return low, high


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """Have the session write as tables want it, and leave it as it was."""
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
