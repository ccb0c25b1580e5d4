"""Which shard a keyed row goes to: murmur3 of the key, modulo the number of shards (ruling 27).

Pure: rows in, rows per shard out, in their order. Rows without a key go where their publisher's rows go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from penstock.columns import SMALL, Column
from penstock.keyed import shard_of
from penstock.message import Rows, shaped


def spread(rows: Rows, shards: int, home: int) -> list[tuple[int, Rows, list[int]]]:
    """Return (shard, its rows, their places in the input) for each shard that gets any.

    Budget: 6 ms for 10,000 rows of as many keys, 2 ms for 10,000 rows of 100 keys.
    """
    places = _places(rows, shards, home)
    if len(places) == 1:
        return [(number, rows, list(range(rows.count))) for number in places]
    return [(number, picked(rows, picks), picks) for number, picks in sorted(places.items())]


def stored_before(
    rows: Rows, counts: Iterable[int], home: Callable[[int], int], known: Callable[[int, int], int | None]
) -> dict[int, int]:
    """Return row -> id of those rows of an idempotent batch that were stored while its topic had fewer shards.

    `counts` are the numbers of shards it had, ascending; `home` tells where rows without a key went, and `known` the id
    of the first row of what was stored for a shard, None if that is not known. A row is there exactly if a known part
    should hold it: what a retry stores for a greater number of shards is all that no part of a lesser one held.
    """
    found: dict[int, int] = {}
    for count in counts:
        for number, picks in _places(rows, count, home(count)).items():
            first = known(number, count)
            if first is not None:
                new = [row for row in picks if row not in found]
                found.update(zip(new, range(first, first + len(new)), strict=True))
    return found


def _places(rows: Rows, shards: int, home: int) -> dict[int, list[int]]:
    column = rows.columns.get("key")
    if column is None:
        return {home: list(range(rows.count))}
    return _few(column, shards, home) if isinstance(column, list) else _many(column, shards, home)


def _few(keys: Sequence[object], shards: int, home: int) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        number = home if key is None else shard_of(bytes(key), shards)  # type: ignore[call-overload]
        places.setdefault(number, []).append(row)
    return places


def _many(column: pa.Array, shards: int, home: int) -> dict[int, list[int]]:
    """Return the rows of each shard; equal keys are hashed once."""
    encoded = column.dictionary_encode()
    keys = encoded.dictionary.to_pylist()
    table = np.array([*(shard_of(key, shards) for key in keys), home])
    numbers = table[np.asarray(encoded.indices.fill_null(len(keys)))]
    return {number: np.flatnonzero(numbers == number).tolist() for number in np.unique(numbers).tolist()}


def picked(rows: Rows, picks: list[int]) -> Rows:
    """Return some of the rows, in their order."""
    if len(picks) <= SMALL:
        whole = memoryview(rows.body)
        bodies = [bytes(whole[int(rows.cuts[row]) : int(rows.cuts[row + 1])]) for row in picks]
        return Rows.of(bodies, rows.source, {name: _cells(column, picks) for name, column in rows.columns.items()})
    taken = pa.array(picks, pa.int64())
    ends = pa.py_buffer(np.asarray(rows.cuts, np.int32))
    body = pa.Array.from_buffers(pa.binary(), rows.count, [None, ends, pa.py_buffer(rows.body)])
    arrays = {"body": body.take(taken)}
    for name, column in rows.columns.items():
        arrays[name] = shaped(column, rows.count, name).take(taken)  # type: ignore[union-attr]
    return Rows.of_arrow(pa.RecordBatch.from_pydict(arrays), rows.source)


def _cells(column: Column, picks: list[int]) -> Column:
    return [column[row] for row in picks] if isinstance(column, list) else column.take(pa.array(picks, pa.int64()))
