"""Small Parquet files of one partition made one.

Owns which files are merged, and the merge. Knows nothing of tables. Invariant: rows keep their order, and a merge holds
a few megabytes of them at a time, however large the files are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from penstock.pipeline.lake.faults import Damaged
from penstock.pipeline.lake.rows import arrow, batches
from penstock.pipeline.lake.staged import NO_VALUE

#: A row group ends at this much of Arrow's memory, or this many rows.
GROUP_BYTES = 64 << 20
GROUP_ROWS = 1 << 20
#: What Spark and Hive escape in the names of directories.
_SPECIAL = "\"#%'*/:=?\\\x7f{[]^"


class File(NamedTuple):
    """A file that might be merged with others of its partition."""

    partition: str
    path: str
    bytes: int


def groups(files: Iterable[File], target_bytes: int, forced: AbstractSet[str] = frozenset()) -> Iterator[list[str]]:
    """Yield files to be merged: of one partition, each below half the target, together not above it.

    A group has two files at least, or one that is `forced` to be written anew.
    """
    for _, partition in groupby(sorted(files), lambda file: file.partition):
        for group in _packed(partition, target_bytes, forced):
            if len(group) > 1 or not forced.isdisjoint(group):
                yield group


def _packed(files: Iterable[File], target_bytes: int, forced: AbstractSet[str]) -> Iterator[list[str]]:
    group: list[str] = []
    total = 0
    for file in files:
        if file.bytes * 2 >= target_bytes and file.path not in forced:
            continue
        if group and total + file.bytes > target_bytes:
            yield group
            group, total = [], 0
        group.append(file.path)
        total += file.bytes
    if group:
        yield group


def without_damaged(
    group: Sequence[str], table: str, swap: Callable[[list[str]], None], forced: AbstractSet[str] = frozenset()
) -> tuple[int, list[Damaged]]:
    """Have a group swapped, without those of its files that cannot be read; return (files that went, those)."""
    left = list(group)
    damaged: list[Damaged] = []
    while len(left) > 1 or not forced.isdisjoint(left):
        try:
            swap(left)
        except Damaged as error:
            damaged.append(error)
            left.remove(os.path.relpath(error.path, table))
        else:
            return len(left), damaged
    return 0, damaged


def renamed(name: str, token: str) -> str:
    """Return the name of a merged file, which sorts where the first of those it is made of did."""
    return f"{name.split('.')[0]}.{token}.parquet"


def directory(partition: Mapping[str, str | None]) -> str:
    """Return where Spark looks for the files of a partition."""
    return "/".join(f"{name}={_escaped(value)}" for name, value in partition.items())


def _escaped(value: str | None) -> str:
    if value is None:
        return NO_VALUE
    return "".join(f"%{ord(each):02X}" if each in _SPECIAL or ord(each) < 32 else each for each in value)


def merged(paths: Sequence[str], into: str, schema: StructType, partition_by: Sequence[str], compression: str) -> None:
    """Write the rows of several files to one; a column that a file lacks is null."""
    own = arrow(schema, partition_by)
    with pq.ParquetWriter(into, own, compression=compression) as writer:
        waiting: list[pa.RecordBatch] = []
        size = rows = 0
        for batch in batches(paths, own):
            waiting.append(batch)
            size += batch.nbytes
            rows += len(batch)
            if size >= GROUP_BYTES or rows >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting), GROUP_ROWS)
                waiting, size, rows = [], 0, 0
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting), GROUP_ROWS)
