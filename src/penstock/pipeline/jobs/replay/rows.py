"""Rows of a source as Arrow batches in this process, stretch by stretch, as the log has them.

Owns the way from topics and from tables of an archive to such batches. Invariant: the rows of a stretch come in the
order of their offsets, and of a table they are those that Spark would read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.wire import Read
from penstock.columns import COLUMNS, KINDS
from penstock.errors import ConfigError, Refusal
from penstock.pipeline.jobs.replay.options import Bound, Replay
from penstock.pipeline.jobs.replay.plan import Plan, Stretch
from penstock.pipeline.jobs.replay.source import NEEDED, Settled, TableSource, TopicSource
from penstock.pipeline.store import Piece

#: What a row of the log does not say itself.
PLACE = ("topic", "shard")
#: What a table may have in the place of the record's types; anything else is Spark's to understand.
READABLE = {
    "json": (pa.string(), pa.binary()),
    "time": (pa.timestamp("us", "UTC"),),
}

Batches = Iterator[pa.RecordBatch]
Chosen = npt.NDArray[np.bool_]


class Rows(Protocol):
    """What can be read here."""

    def whole(self, settled: Settled, columns: Sequence[str]) -> Iterator[tuple[Stretch, Batches]]:
        """Yield everything between the bounds, with these columns."""

    def step(self, plan: Plan, number: int, columns: Sequence[str]) -> Iterator[tuple[Stretch, Batches]]:
        """Yield what one step of a plan is about, with these columns."""


class TopicRows:
    """Ranges of topics."""

    def __init__(self, source: TopicSource) -> None:
        self._store = source.store

    def whole(self, settled: Settled, columns: Sequence[str]) -> Iterator[tuple[Stretch, Batches]]:
        """Yield everything between the bounds, with these columns."""
        for stretch in settled.stretches:
            yield stretch, self._read(stretch, columns, settled.incarnations)

    def step(self, plan: Plan, number: int, columns: Sequence[str]) -> Iterator[tuple[Stretch, Batches]]:
        """Yield what one step of a plan is about, with these columns."""
        for stretch in plan.steps[number].stretches:
            yield stretch, self._read(stretch, columns, plan.incarnations)

    def _read(self, stretch: Stretch, columns: Sequence[str], incarnations: Mapping[str, int]) -> Batches:
        info = self._store.topic(stretch.topic)
        if info is None:
            raise Refusal("gone", f"topic {stretch.topic} was deleted while it was replayed")
        read = Read(
            topic=stretch.topic,
            shard=stretch.shard,
            incarnation=incarnations[stretch.topic],
            start=stretch.start,
            end=stretch.end,
            columns=list(columns),
        )
        return self._store.batches(Piece(read, info.path or ""))


class TableRows:
    """A version of a table, whole in memory, in the order of its topics, shards and offsets."""

    def __init__(self, options: Replay, source: TableSource, loaded: pa.Table) -> None:
        self._options = options
        self._source = source
        self._table = loaded

    def whole(self, settled: Settled, columns: Sequence[str]) -> Iterator[tuple[Stretch, Batches]]:
        """Yield everything between the bounds, with these columns."""
        chosen = self._table.filter(pa.array(self._between()))
        for stretch, start, end in _stretches(chosen):
            yield stretch, _sliced(chosen, start, end, columns)

    def step(self, plan: Plan, number: int, columns: Sequence[str]) -> Iterator[tuple[Stretch, Batches]]:
        """Yield what one step of a plan is about, with these columns."""
        step = plan.steps[number]
        for stretch in step.stretches:
            here = pc.and_(
                pc.equal(self._table.column("topic"), stretch.topic),
                pc.equal(self._table.column("shard"), stretch.shard),
            )
            found = self._table.filter(here)
            offsets = found.column("offset").to_numpy()
            start, end = np.searchsorted(offsets, (stretch.start, stretch.end)).tolist()
            some = found.slice(start, end - start)
            times_us = some.column("timestamp").to_numpy() // 1000
            # Clocks may have been set back: what was outside of the bounds may lie between rows that were not.
            some = some.filter(pa.array((times_us >= step.first_us) & (times_us <= step.last_us)))
            yield stretch, _sliced(some, 0, len(some), columns)

    def _between(self) -> Chosen:
        """Return which rows lie between the bounds."""
        table, options = self._table, self._options
        found: Chosen = np.ones(len(table), np.bool_)
        if options.topics:
            found &= pc.is_in(table.column("topic"), pa.array(options.topics)).to_numpy()
        for said, bound, low in zip((options.from_, options.until), self._source.bounds, (True, False), strict=True):
            found &= self._beside(said, bound, low)
        return found

    def _beside(self, said: Bound, bound: Bound, low: bool) -> Chosen | bool:
        """Return which rows lie on the right side of a bound, given as it was said and as it is meant."""
        table = self._table
        if bound in ("earliest", "latest"):
            return (bound == "latest") is not low
        offsets = table.column("offset").to_numpy()
        found: Chosen = np.ones(len(table), np.bool_)
        if isinstance(said, str):
            assert isinstance(bound, int)
            times_us = table.column("timestamp").to_numpy() // 1000
            found &= times_us >= bound // 1000 if low else times_us < bound // 1000
            return found
        if isinstance(said, int):
            found &= offsets >= said if low else offsets < said
            return found
        shards = table.column("shard").to_numpy()
        for shard, offset in said.items():
            found &= (shards != int(shard)) | (offsets >= offset if low else offsets < offset)
        return found


def table_rows(options: Replay, source: TableSource, version: int | None) -> TableRows | None:
    """Return the rows of a table; None if it has columns of types that only Spark makes messages of."""
    found = source.table.rows(version=version)
    names = found.column_names
    for name in NEEDED:
        if name not in names:
            raise ConfigError(f"table {options.table} has no column {name}: it is no archive of messages")
    columns = {"topic": found.column("topic"), "shard": found.column("shard")}
    if found.schema.field("topic").type != pa.string() or found.schema.field("shard").type != pa.int32():
        return None
    for name, type_ in COLUMNS.items():
        if name not in names:
            columns[name] = pa.nulls(len(found), type_)
        elif found.schema.field(name).type not in READABLE.get(KINDS[name], (type_,)):
            return None
        elif KINDS[name] == "time":
            columns[name] = pc.multiply(found.column(name).cast(pa.int64()), 1000)
        else:
            columns[name] = found.column(name).cast(type_)
    ordered = pa.table(columns).sort_by([(name, "ascending") for name in (*PLACE, "offset")])
    return TableRows(options, source, ordered.combine_chunks())


def _stretches(table: pa.Table) -> Iterator[tuple[Stretch, int, int]]:
    """Yield the rows of each shard of an ordered table: what they are, and from where to where they go."""
    if not len(table):
        return
    topics = table.column("topic").combine_chunks().dictionary_encode()
    numbers, shards = topics.indices.to_numpy(), table.column("shard").to_numpy()
    offsets = table.column("offset").to_numpy()
    cuts = np.flatnonzero((np.diff(numbers) != 0) | (np.diff(shards) != 0)) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(table)], strict=True):
        topic = topics.dictionary[int(numbers[start])].as_py()
        yield Stretch(topic, int(shards[start]), int(offsets[start]), int(offsets[end - 1]) + 1), start, end


def _sliced(table: pa.Table, start: int, end: int, columns: Sequence[str]) -> Batches:
    return iter(table.slice(start, end - start).select(list(columns)).to_batches())
