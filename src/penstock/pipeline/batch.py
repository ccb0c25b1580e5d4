"""A batch read of topics: from where to where, and the tasks.

Owns what Spark asks of one read. Invariant: a filter that is taken on is applied to every row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import Refusal
from penstock.pipeline.conditions import Conditions
from penstock.pipeline.options import EARLIEST, Options, for_batch, parsed
from penstock.pipeline.planning import checked, ending, planned, starting
from penstock.pipeline.scan import Scan
from penstock.pipeline.schema import Shape
from penstock.pipeline.store import opened, subscribed

if TYPE_CHECKING:
    import pyarrow as pa

#: The part of Spark that asks which filters the source takes on, where that is switched on.
PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader for some options."""
    options = parsed(given)
    for_batch(options)
    # Spark refuses a reader that takes filters while spark.sql.python.filterPushdown.enabled is off.
    kind = FilteringReader if _pushes_filters() else BatchReader
    return kind(options, schema)


class BatchReader(DataSourceReader):
    """One batch read of topics."""

    def __init__(self, options: Options, schema: StructType) -> None:
        shape = Shape(schema)
        self._scan = Scan(options, shape, Conditions(shape.schema))

    def partitions(self) -> list[InputPartition]:
        """Return the tasks, one per core at most."""
        scan = self._scan
        store = opened(scan.options)
        topics = subscribed(store, scan.options)
        if not topics:
            raise Refusal("not_found", f"option subscribePattern: no topic matches {scan.options.pattern}")
        start = checked(starting(store, topics, scan.options, EARLIEST), topics, scan.options)
        end = ending(store, topics, scan.options)
        return list(planned(topics, start, end, scan.options, scan.shape, scan.conditions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._scan.batches(partition)


class FilteringReader(BatchReader):
    """A batch read to which Spark hands its filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take on filters, and return those that Spark must apply itself."""
        return self._scan.conditions.push(filters)


def _pushes_filters() -> bool:
    """Tell whether the process that asks for a reader is the one that hands filters to it."""
    main: Any = sys.modules.get("__main__")
    return PUSHDOWN_WORKER in sys.modules or getattr(getattr(main, "__spec__", None), "name", "") == PUSHDOWN_WORKER
