"""Rows to store and ways to look at what came back, for the tests of the log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.columns import COLUMNS, OPTIONAL_COLUMNS, Column
from penstock.log.file_shard import FileShard
from penstock.log.shard import Shard, open_shard
from penstock.message import Batch, Rows
from penstock.settings import TopicSettings
from tests.fakes import FakeClock
from tests.log.disks import InlineDisk, ManualDisk

Row = tuple[Any, ...]


def rows_of(count: int, *, seed: int = 0, names: Sequence[str] = (), nulls: bool = True) -> Rows:
    """Return rows of varied sizes with the named optional columns, every third value null."""
    bodies = [b"body-%d-" % (seed + row) * ((seed + row) % 5) for row in range(count)]
    columns: dict[str, Column] = {name: values(name, count, seed, nulls=nulls) for name in names}
    return Rows.of(bodies, "nsq", columns)


def values(name: str, count: int, seed: int = 0, *, nulls: bool = True) -> Column:
    """Return a list of values that fit a column."""
    found: list[Any] = []
    for row in range(count):
        number = seed + row
        if nulls and number % 3 == 0:
            found.append(None)
        elif COLUMNS[name] == pa.string():
            found.append(f"tag-é-{number % 7}" * (number % 3))
        elif COLUMNS[name] == pa.binary():
            found.append(b"\x00value-%d" % number * (number % 4))
        else:
            found.append(number * 1001 - 500)
    return found


def listed(batch: Batch) -> list[Row]:
    """Return a batch as plain tuples: offset, time, body, source, then every optional column."""
    return [
        (
            batch.first + row,
            batch.row_time(row),
            batch.row_body(row),
            batch.row_source(row),
            *(batch.row_value(name, row) for name in OPTIONAL_COLUMNS),
        )
        for row in range(batch.count)
    ]


def opened(path: Path | str, disk: InlineDisk | None = None, clock: FakeClock | None = None, **options: Any) -> Shard:
    """Open a shard with settings given by name."""
    keywords = {name: options.pop(name) for name in ("strict", "measures", "cache_bytes") if name in options}
    settings = TopicSettings(**options)
    return open_shard(disk or InlineDisk(), clock or FakeClock(), str(path), 0, settings, **keywords)


def in_files(shard: Shard) -> FileShard:
    """Return a shard as what it is, to look at its parts."""
    assert isinstance(shard, FileShard)
    return shard


def settle(shard: Shard) -> None:
    """Let the shard's clock and disk do what is waiting."""
    if isinstance(shard._disk, ManualDisk):
        shard._disk.run_all()
    if isinstance(shard._clock, FakeClock):
        shard._clock.run()


def read_all(shard: Shard, start: int | None = None, joined_below: int = 64) -> list[Row]:
    """Read every row through `read` and `fetch`, as delivery does."""
    found: list[Row] = []
    offset = shard.start if start is None else start
    while offset < shard.readable_end:
        batch = shard.read(offset, joined_below)
        if batch is None:
            called: list[bool] = []
            shard.fetch(offset, lambda called=called: called.append(True))  # type: ignore[misc]
            settle(shard)
            assert called == [True]
            batch = shard.read(offset, joined_below)
            if batch is None:
                break
        found += listed(batch)[max(0, offset - batch.first) :]
        offset = batch.end
    return found
