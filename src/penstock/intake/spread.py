"""Which shard a keyed row goes to: murmur3 of the key, modulo the number of shards (ruling 27).

Pure: rows in, rows per shard out, in their order. Rows without a key go where their publisher's rows go.
"""

from __future__ import annotations

import mmh3
import pyarrow as pa

from penstock.message import Rows


def shard_of(key: bytes, shards: int) -> int:
    """Return the shard of a key; the same in every Penstock and in every client that wants to agree."""
    return int(mmh3.hash(key, signed=False)) % shards


def spread(rows: Rows, shards: int, home: int) -> list[tuple[int, Rows, list[int]]]:
    """Return (shard, its rows, their places in the input) for each shard that gets any."""
    column = rows.columns["key"]
    keys = column if isinstance(column, list) else column.to_pylist()
    known: dict[object, int] = {None: home}
    numbers = []
    for key in keys:
        number = known.get(key)
        if number is None:
            number = known[key] = shard_of(bytes(key), shards)  # type: ignore[arg-type]
        numbers.append(number)
    if len(set(numbers)) == 1:
        return [(numbers[0], rows, list(range(rows.count)))]
    places: dict[int, list[int]] = {}
    for row, number in enumerate(numbers):
        places.setdefault(number, []).append(row)
    return [(number, _picked(rows, picks), picks) for number, picks in sorted(places.items())]


def _picked(rows: Rows, picks: list[int]) -> Rows:
    whole = memoryview(rows.body)
    bodies = [bytes(whole[int(rows.cuts[row]) : int(rows.cuts[row + 1])]) for row in picks]
    columns = {
        name: [column[row] for row in picks] if isinstance(column, list) else column.take(pa.array(picks))
        for name, column in rows.columns.items()
    }
    return Rows.of(bodies, rows.source, columns)
