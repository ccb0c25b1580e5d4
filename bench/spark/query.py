"""A streaming query of a benchmark: how fast its warm batches were, how long it took in all, what its start cost.

Owns what "warm" and "start" mean. Knows no format.
"""

from __future__ import annotations

from statistics import median

import msgspec

from bench.generator import LoadFailed
from bench.measure import Sample
from bench.spark.engine import Engine
from bench.spark.job import Done, Job


class Query(msgspec.Struct, frozen=True):
    """What one run of a query showed."""

    #: Rows a second of all batches but the first.
    warm: float
    #: Rows a second from start() to the end.
    whole: float
    #: From start() to the end without the batches: the query's start and end.
    start_s: float
    #: A warm batch, at the median.
    batch_ms: float
    cpu_us: float

    @property
    def sample(self) -> Sample:
        """The warm rate as a row compares it."""
        return Sample(self.warm, self.cpu_us)


def run(spark: Engine, job: Job, rows: int, *servers: int) -> Query:
    """Run a query to its end; the rows must all have come."""
    done, cpu_us = spark.measured(job, rows, *servers)
    seen = sum(batch.rows for batch in done.batches)
    if seen != rows:
        raise LoadFailed(f"{job.source.format} to {job.sink.format}: {seen} of {rows} rows came")
    return _query(done, rows, cpu_us)


def middle(queries: list[Query], field: str) -> float:
    """Return the median of one field."""
    found: float = median(getattr(query, field) for query in queries)
    return found


def _query(done: Done, rows: int, cpu_us: float) -> Query:
    warm = done.batches[1:]
    batches_ms = sum(batch.ms for batch in done.batches) + done.idle_ms
    return Query(
        warm=sum(batch.rows for batch in warm) / sum(batch.ms for batch in warm) * 1000,
        whole=rows / done.seconds,
        start_s=done.seconds - batches_ms / 1000,
        batch_ms=median(batch.ms for batch in warm),
        cpu_us=cpu_us,
    )
