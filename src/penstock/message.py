"""The two shapes a group of messages takes inside the node; the record itself is in `columns`.

`Rows` is what a decoder made and nobody stored yet; `Batch` is what the log holds. Both keep columns, never
message objects. Knows nothing of files, sockets or delivery.

They are structs of msgspec's, which makes them without a call of Python: one of each is on the way of a lone message.

Invariant: up to SMALL rows every column is a plain Python list; above that, numpy (cuts, times) and Arrow (the
rest). Code that handles both has a twin for each, because a numpy or Arrow call costs more than a lone message may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from operator import sub
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns import COLUMNS, OPTIONAL_COLUMNS, SMALL, Buffer, Column, Cuts, Offsets


class Rows(msgspec.Struct, eq=False):
    """Messages decoded and not yet stored: bodies back to back, and the optional columns they bring."""

    count: int
    cuts: Cuts
    body: Buffer
    source: str
    columns: Mapping[str, Column] = {}
    #: Producer sequence of an idempotent batch; it is stored with the batch and found again after a crash.
    sequence: bytes = b""

    @classmethod
    def of(cls, bodies: Sequence[bytes], source: str, columns: Mapping[str, Column] | None = None) -> Rows:
        """Make rows of separate bodies; `columns` may hold lists whatever the count."""
        count = len(bodies)
        cuts: Cuts = [0, *accumulate(map(len, bodies))]
        if count > SMALL:
            cuts = np.array(cuts, np.int32)
        given = {name: shaped(values, count, name) for name, values in columns.items()} if columns else {}
        return cls(count, cuts, b"".join(bodies), source, given)

    @classmethod
    def of_arrow(cls, batch: pa.RecordBatch, source: str, sequence: bytes = b"") -> Rows:
        """Make rows of a record batch with a `body` and any optional columns, in the record's own types; no copy."""
        count = len(batch)
        body = batch.column("body")
        _, ends, data = body.buffers()
        cuts = np.frombuffer(ends, np.int32, count + 1, body.offset * 4) if ends is not None else np.zeros(1, np.int32)
        low, high = int(cuts[0]), int(cuts[-1])
        if low:
            cuts = cuts - np.int32(low)
        columns = {
            name: shaped(column, count, name)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name in OPTIONAL_COLUMNS and column.null_count < count
        }
        piece = data.slice(low, high - low) if high > low else b""
        return cls(count, cuts.tolist() if count <= SMALL else cuts, piece, source, columns, sequence)


class Batch(msgspec.Struct, eq=False):
    """Stored rows with offsets first .. first + count - 1, no holes inside."""

    first: int
    count: int
    #: One time for all rows (a batch fresh from intake), or one per row (a batch merged by sealing).
    timestamp: int | list[int] | npt.NDArray[np.int64]
    cuts: Cuts
    body: Buffer
    #: One dialect for all rows, or one per row.
    source: str | Column
    columns: Mapping[str, Column]
    #: What the rows before this batch weigh together, by the measure of the topic at their time.
    weight: int
    sequence: bytes = b""
    #: What dialects made of it and keep for all subscriptions, like first-delivery frames; the keys are theirs.
    wire: dict[object, Any] = {}
    #: What a set of filters said of the rows, asked once for all its subscriptions: (the set, its verdicts).
    verdicts: tuple[object, npt.NDArray[np.bool_]] | None = None

    @property
    def end(self) -> int:
        """The offset after the last row."""
        return self.first + self.count

    def row_body(self, row: int) -> bytes:
        """Return one body; for single rows only, batches go through cuts and body."""
        return bytes(memoryview(self.body)[int(self.cuts[row]) : int(self.cuts[row + 1])])

    def bodies(self, rows: slice | Offsets) -> list[bytes]:
        """Return the bodies of some rows."""
        if not isinstance(rows, slice):
            return [self.row_body(row) for row in rows.tolist()]
        cuts = self.cuts[rows.start : rows.stop + 1]
        ends = cuts if isinstance(cuts, list) else cuts.tolist()
        low = ends[0]
        data = bytes(memoryview(self.body)[low : ends[-1]])
        return [data[start - low : stop - low] for start, stop in pairwise(ends)]

    def row_time(self, row: int) -> int:
        """Return the time one row was taken."""
        return self.timestamp if isinstance(self.timestamp, int) else int(self.timestamp[row])

    def row_value(self, name: str, row: int) -> int | bytes | str | None:
        """Return one value of an optional column, None where it is absent or null."""
        column = self.columns.get(name)
        if column is None:
            return None
        value: int | bytes | str | None = column[row] if isinstance(column, list) else column[row].as_py()
        return value

    def row_source(self, row: int) -> str:
        """Return the dialect that took one row."""
        if isinstance(self.source, str):
            return self.source
        value = self.source[row]
        return str(value if isinstance(self.source, list) else cast("pa.Scalar", value).as_py())


def shaped(values: Column, count: int, name: str) -> Column:
    """Return a column in the shape its row count asks for: a list up to SMALL rows, Arrow above."""
    if count <= SMALL:
        return values if isinstance(values, list) else values.to_pylist()
    return values if isinstance(values, pa.Array) else pa.array(values, COLUMNS[name])


def int64s(column: Column) -> tuple[Offsets, npt.NDArray[np.bool_]]:
    """Return a numeric column as (values, valid); nulls read as 0."""
    if isinstance(column, list):  # few rows, for which Arrow's calls would cost more
        return (
            np.array([0 if cell is None else cell for cell in column], np.int64),
            np.array([cell is not None for cell in column], np.bool_),
        )
    if not column.null_count:
        return np.asarray(column, dtype=np.int64), np.ones(len(column), np.bool_)
    return np.asarray(column.fill_null(0), dtype=np.int64), np.asarray(column.is_valid())


def gathered(pieces: Sequence[Rows]) -> Rows:
    """Return several groups of rows as one, in order. They must agree in their columns and carry no sequence."""
    if len(pieces) == 1:
        return pieces[0]
    count, cuts, body, columns = _together(pieces)
    return Rows(count, cuts, body, pieces[0].source, columns)


def joined(batches: Sequence[Batch]) -> Batch:
    """Return batches that follow each other as one, of more than SMALL rows; they must agree as `gathered` says."""
    count, cuts, body, columns = _together(batches)
    first = batches[0]
    times: list[int] | npt.NDArray[np.int64]
    if count == len(batches):
        times = [batch.row_time(0) for batch in batches]
    else:
        parts = [[time] * each.count if isinstance(time := each.timestamp, int) else time for each in batches]
        alike = all(isinstance(part, list) for part in parts)
        times = list(chain.from_iterable(parts)) if alike else np.concatenate(parts)
    return Batch(first.first, count, np.asarray(times, np.int64), cuts, body, first.source, columns, first.weight)


def _together(pieces: Sequence[Rows] | Sequence[Batch]) -> tuple[int, Cuts, bytes, dict[str, Column]]:
    """Return count, cuts, body and columns of several pieces as one."""
    bodies = [piece.body for piece in pieces]
    count = sum([piece.count for piece in pieces])
    cuts: Cuts
    if count == len(pieces):  # a row each, as from publishers that wait
        cuts = [0, *accumulate(map(len, bodies))]
        if count > SMALL:
            cuts = np.array(cuts, np.int32)
    elif count <= SMALL:
        cuts = [0]
        for piece in pieces:
            base = cuts[-1]
            cuts.extend([base + cut for cut in piece.cuts[1:]])
    else:
        cuts = np.zeros(count + 1, np.int32)
        np.cumsum(_sizes(pieces), out=cuts[1:])
    columns = {name: _column([p.columns[name] for p in pieces], count, name) for name in pieces[0].columns}
    return count, cuts, b"".join(bodies), columns


def _sizes(pieces: Sequence[Rows] | Sequence[Batch]) -> npt.NDArray[np.int32]:
    """Return the body sizes of all pieces; small ones share an array, because one each costs 5 us a message."""
    parts: list[npt.NDArray[np.int32]] = []
    small: list[int] = []
    for piece in pieces:
        cuts = piece.cuts
        if isinstance(cuts, list):
            small.extend(map(sub, cuts[1:], cuts))
        else:
            parts += [np.array(small, np.int32), np.diff(cuts)]
            small = []
    return np.concatenate([*parts, np.array(small, np.int32)])


def _column(parts: list[Column], count: int, name: str) -> Column:
    if count <= SMALL:
        return [value for part in parts for value in part]
    if all(isinstance(part, list) for part in parts):
        return pa.array([value for part in parts for value in part], COLUMNS[name])
    return pa.concat_arrays([part if isinstance(part, pa.Array) else pa.array(part, COLUMNS[name]) for part in parts])


Done: TypeAlias = Callable[["BaseException | None"], None]
