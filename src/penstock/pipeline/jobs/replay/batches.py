"""A replay by this process, without Spark: rows as Arrow batches, counted and written as they come.

Owns how rows become messages again; `rows.py` reads them. `frames.py` does the same for much data, by Spark.
Invariant: both give the same messages under the same names, so a replay that one began the other can end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import OPTIONAL_COLUMNS
from penstock.pipeline.jobs.replay.condition import Condition
from penstock.pipeline.jobs.replay.options import Replay
from penstock.pipeline.jobs.replay.plan import Bucket, Plan, Stretch
from penstock.pipeline.jobs.replay.rows import PLACE, Rows
from penstock.pipeline.jobs.replay.source import COUNTED, TIME_US_MAX, TIMES, Settled, sink_options
from penstock.pipeline.stage import Attempt, Line
from penstock.pipeline.target import parsed as target_of

#: What a row weighs.
WEIGHED = ("body", "key", "headers")


class Batches:
    """Counts and writes in this process."""

    def __init__(self, options: Replay, rows: Rows, chosen: Condition) -> None:
        self._options = options
        self._rows = rows
        self._chosen = chosen
        carried = [name for name in OPTIONAL_COLUMNS if name not in TIMES]
        if not options.keep_dedup:
            carried.remove("dedup")
        self._carried = ("body", *carried)
        self._times = () if options.times == "none" else TIMES

    def count(self, settled: Settled, rows: int) -> list[Bucket]:
        """Return the chosen rows, counted in pieces of this many offsets."""
        found: list[Bucket] = []
        for stretch, batches in self._rows.whole(settled, self._wanted(COUNTED)):
            pieces: dict[int, Bucket] = {}
            for batch in self._filtered(stretch, batches):
                for number, bucket in _counted(batch, stretch, rows):
                    known = pieces.get(number)
                    pieces[number] = bucket if known is None else _together(known, bucket)
            found += pieces.values()
        return found

    def write(self, plan: Plan, number: int) -> None:
        """Write one step, once."""
        target = target_of(sink_options(self._options, plan, number))
        query, version = target.once()
        attempts: list[Attempt] = []
        wanted = self._wanted(("timestamp", *self._carried, *self._times))
        with Line(target) as line:
            try:
                for stretch, batches in self._rows.step(plan, number, wanted):
                    messages = self._messages(stretch, self._filtered(stretch, batches), plan.shift_us)
                    attempts += line.stage(query, version, messages, stretch.shard)[0]
            except BaseException:
                line.abort(query, version, attempts)
                raise
            line.commit(query, version, attempts)

    def _messages(self, stretch: Stretch, batches: Iterator[pa.RecordBatch], shift_us: int) -> Iterator[pa.RecordBatch]:
        """Yield rows of a stretch as what is written of them."""
        topic = self._options.target(stretch.topic)
        for batch in batches:
            columns = {"topic": pa.repeat(topic, len(batch))}
            columns |= {name: batch.column(name) for name in self._carried}
            for name in self._times:
                # The node says anew when it took a message; when that was first is told by event_time.
                own = batch.column(name)
                time_ = pc.coalesce(own, batch.column("timestamp")) if name == "event_time" else own
                columns[name] = _moved(time_, shift_us)
            yield pa.record_batch(columns)

    def _wanted(self, columns: Sequence[str]) -> list[str]:
        """Return these columns, and those that rows are chosen by."""
        return [name for name in dict.fromkeys((*columns, *self._chosen.columns)) if name not in PLACE]

    def _filtered(self, stretch: Stretch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the chosen rows of a stretch in their order."""
        for batch in batches:
            chosen = batch
            if self._chosen.verdict is not None:
                values = {"topic": pa.repeat(stretch.topic, len(batch)), "shard": pa.repeat(stretch.shard, len(batch))}
                values |= {name: batch.column(name) for name in batch.schema.names}
                chosen = batch.filter(self._chosen.verdict(values))
            if len(chosen):
                yield chosen


def _counted(batch: pa.RecordBatch, stretch: Stretch, rows: int) -> Iterator[tuple[int, Bucket]]:
    """Yield (number of a piece, its rows) for the pieces that a batch has rows of."""
    offsets = batch.column("offset").to_numpy()
    times_us = batch.column("timestamp").to_numpy() // 1000
    sizes = np.zeros(len(batch), np.int64)
    for name in WEIGHED:
        sizes += pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy(zero_copy_only=False)
    pieces = offsets // rows
    starts = np.concatenate(([0], np.flatnonzero(np.diff(pieces)) + 1))
    ends = np.append(starts[1:], len(batch))
    sums: dict[str, Any] = {
        "bytes": np.add.reduceat(sizes, starts),
        "first": np.minimum.reduceat(times_us, starts),
        "last": np.maximum.reduceat(times_us, starts),
    }
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        yield (
            int(pieces[start]),
            Bucket(
                stretch.topic,
                stretch.shard,
                int(offsets[start]),
                int(offsets[end - 1]),
                end - start,
                int(sums["bytes"][at]),
                int(sums["first"][at]),
                int(sums["last"][at]),
            ),
        )


def _together(one: Bucket, other: Bucket) -> Bucket:
    """Return two parts of one piece, of which the second follows the first."""
    return one._replace(
        last=other.last,
        rows=one.rows + other.rows,
        bytes=one.bytes + other.bytes,
        first_us=min(one.first_us, other.first_us),
        last_us=max(one.last_us, other.last_us),
    )


def _moved(array: pa.Array, shift_us: int) -> pa.Array:
    """Return times in ns, cut to microseconds as Spark has them, and shifted."""
    if array.null_count == len(array):
        return array
    times_us = pc.fill_null(array, 0).to_numpy() // 1000
    if shift_us:
        times_us = np.clip(times_us + shift_us, -TIME_US_MAX, TIME_US_MAX)
    return pa.array(times_us * 1000, pa.int64(), mask=np.asarray(array.is_null()))
