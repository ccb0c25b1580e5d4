"""A streaming read of topics: offsets, limits, and the tasks of each micro-batch.

Owns what Spark asks between two micro-batches, in one long-lived process per query. Does as little as can be in there:
a look at each shard's end, and arithmetic. Invariant: offsets only go forward, and never past what can be read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.pipeline.conditions import Conditions
from penstock.pipeline.hold import Keeper
from penstock.pipeline.offsets import Position, Positions, decoded, encoded, placed
from penstock.pipeline.options import LATEST, Options
from penstock.pipeline.planning import checked, planned, settled, starting
from penstock.pipeline.scan import Scan
from penstock.pipeline.schema import Shape
from penstock.pipeline.store import Store, Topics, opened, subscribed
from penstock.pipeline.tasks import Extent, limited

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming read of topics."""

    def __init__(self, options: Options, schema: StructType) -> None:
        shape = Shape(schema)
        self._scan = Scan(options, shape, Conditions(shape.schema))
        self._store: Store | None = None
        self._keeper = Keeper(options.hold_name, options.hold_s)
        self._initial: Positions | None = None
        #: What was there when the query began, where it ends with that.
        self._target: Positions | None = None
        self._topics: Topics = {}
        #: When rows were last given out, where few of them wait for more.
        self._fired_ns: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors only read: connections, and what the driver remembers, stay here.
        return {**self.__dict__, "_store": None, "_topics": {}}

    # --- in the driver --------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint begins."""
        options = self._scan.options
        if self._initial is None:
            store = self._opened()
            topics = subscribed(store, options)
            self._initial = checked(starting(store, topics, options, LATEST), topics, options)
        return encoded(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how much a micro-batch may hold; with both limits set, this one stands for both."""
        options = self._scan.options
        if options.offsets_max is not None:
            return ReadMaxRows(options.offsets_max)
        return ReadMaxBytes(options.bytes_max) if options.bytes_max is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note what is there now: the query ends once it has that."""
        topics = subscribed(self._opened(), self._scan.options)
        self._target = placed(LATEST, topics, "startingOffsets")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far the next micro-batch goes."""
        stood = decoded(start)
        topics = self._look(stood)
        begin = checked(stood, topics, self._scan.options)
        self._hold(begin)
        ends = placed(LATEST, topics, "startingOffsets")
        if self._target is not None:
            ends = _at_most(ends, self._target, begin)
        if self._waits(topics, begin, ends):
            return start
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(topics, begin, ends)
        return encoded(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end of every shard as of the last look, from which Spark tells the lag."""
        return encoded(placed(LATEST, self._topics, "startingOffsets")) if self._topics else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch."""
        stood, ends = decoded(start), decoded(end)
        topics = self._topics if _covers(self._topics, ends) else self._look(ends)
        if not self._keeper.told:
            self._hold(stood)
        checked(ends, topics, self._scan.options)
        begin = checked(stood, {name: topics[name] for name in ends if name in topics}, self._scan.options)
        scan = self._scan
        return list(planned(topics, begin, ends, scan.options, scan.shape, scan.conditions))

    def commit(self, end: dict[str, Any]) -> None:
        """Note that everything before these offsets is done."""
        self._keeper.needs(decoded(end))

    # --- on executors ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._scan.batches(partition)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _opened(self) -> Store:
        if self._store is None:
            self._store = opened(self._scan.options)
        return self._store

    def _look(self, needed: Positions) -> Topics:
        self._topics = settled(self._opened(), self._scan.options, needed)
        return self._topics

    def _hold(self, begin: Positions) -> None:
        if not self._keeper.told:
            self._keeper.needs(begin)
        self._keeper.renew(self._opened())

    def _waits(self, topics: Topics, begin: Positions, ends: Positions) -> bool:
        """Tell whether so few rows are there that they wait for more; the first ones after a start never do."""
        options = self._scan.options
        if options.offsets_min is None or self._target is not None:
            return False
        now_ns = time.monotonic_ns()
        rows = sum(
            Extent(topics[name].shards[number]).rows(first, end)
            for name, position in ends.items()
            for number, (first, end) in enumerate(zip(begin[name].offsets, position.offsets, strict=True))
        )
        if rows < options.offsets_min and self._fired_ns is not None and now_ns < self._fired_ns + options.delay_ns:
            return True
        if rows:
            self._fired_ns = now_ns
        return False

    def _limited(self, topics: Topics, begin: Positions, ends: Positions) -> Positions:
        """Return the ends cut to what one micro-batch may hold, the rest shared by backlog."""
        options = self._scan.options
        places = [(name, number) for name, position in ends.items() for number in range(len(position.offsets))]
        extents = [
            (Extent(topics[name].shards[number]), begin[name].offsets[number], ends[name].offsets[number])
            for name, number in places
        ]
        stops = dict(zip(places, limited(extents, options.offsets_max, options.bytes_max), strict=True))
        return {
            name: Position(position.incarnation, tuple(stops[name, number] for number in range(len(position.offsets))))
            for name, position in ends.items()
        }


def _at_most(ends: Positions, target: Positions, begin: Positions) -> Positions:
    """Return the ends cut to a target, but never before where the query stands; what came later stays out."""
    found = {}
    for name, position in ends.items():
        if name in target and target[name].incarnation == position.incarnation:
            begins = begin[name].offsets
            stops = (*target[name].offsets, *begins[len(target[name].offsets) :])  # shards that came later stay out
            triples = zip(position.offsets, stops, begins, strict=True)
            offsets = tuple(max(min(end, stop), stood) for end, stop, stood in triples)
            found[name] = Position(position.incarnation, offsets)
    return found


def _covers(topics: Topics, ends: Positions) -> bool:
    """Tell whether a look at topics reaches as far as some offsets."""
    for name, position in ends.items():
        info = topics.get(name)
        if info is None or info.incarnation != position.incarnation or len(info.shards) < len(position.offsets):
            return False
        if any(offset > info.shards[shard].end for shard, offset in enumerate(position.offsets)):
            return False
    return True
