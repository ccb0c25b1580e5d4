"""The report's questions, answered by Spark: three looks at the messages, two at the events.

Invariant: what comes to the driver is bounded by the options, not by the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from penstock.codecs import Measure
from penstock.pipeline.jobs.report import counts, events
from penstock.pipeline.jobs.report.compression import RESULT, measured_table, sampled
from penstock.pipeline.jobs.report.options import OWN_PREFIX, Report, moment
from penstock.pipeline.jobs.report.origin import wanted
from penstock.pipeline.jobs.report.span import HOUR_US, Span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.pipeline.jobs.report.totals import Total, Totals


class SparkQueries:
    """Frames of messages, of the node's events, and of its counts."""

    def __init__(
        self, messages: DataFrame, events: DataFrame | None, counts: DataFrame | None, options: Report
    ) -> None:
        self.options = options
        self.columns = frozenset(messages.columns)
        self.has_events = events is not None
        self.has_counts = counts is not None
        self._messages = wanted(messages, options)
        self._events = events
        self._counts = counts

    def totals(self) -> Totals:
        """Return the sums of all topics."""
        return counts.totals(self._messages, self.options)

    def last_us(self) -> int | None:
        """Return when the last event or count was written."""
        frames = [each for each in (self._events, self._counts) if each is not None]
        found = [each.agg(sql.unix_micros(sql.max("timestamp"))).collect()[0][0] for each in frames]
        return max((each for each in found if each is not None), default=None)

    def breakdown(self, span: Span, shown: Sequence[str]) -> Iterable[Any]:
        """Return what is counted within topics."""
        return counts.breakdown(self._messages, span, shown, self.columns, self.options.top).collect()

    def measured(self, totals: Sequence[Total]) -> dict[str, list[Measure]]:
        """Return by topic what each codec made of its sample."""
        sample_bytes = self.options.sample_bytes

        def measure_topic(table: pa.Table) -> pa.Table:
            return measured_table(table, sample_bytes)

        some = sampled(self._messages, totals, sample_bytes)
        found: dict[str, list[Measure]] = {}
        for row in some.groupBy("topic").applyInArrow(measure_topic, RESULT).collect():
            found.setdefault(row["topic"], []).append(Measure(*row[1:]))
        return found

    def happened(self, span: Span, shown: Sequence[str]) -> Iterable[Any]:
        """Return how many events of each kind there were."""
        return events.counts(self._runs(span), span, shown, self.options.topics_max).collect()

    def journeys(
        self, span: Span, shown: Sequence[str], busiest: Sequence[tuple[str, str]], *, timed: bool
    ) -> Iterable[Any]:
        """Return latency, lease time and attempts."""
        due = events.due_times(self._messages) if timed else None
        return events.measures(events.journeys(self._runs(span), due), span, shown, busiest).collect()

    def _runs(self, span: Span) -> DataFrame:
        assert self._events is not None
        runs = events.runs(self._events, span)
        if self.options.topics:
            return runs.where(sql.col("topic").isin(list(self.options.topics)))
        return runs.where(~sql.col("topic").startswith(OWN_PREFIX))

    def intervals(self) -> Iterator[bytes]:
        """Return what the node counted, one after the other: an archive may have years of it."""
        if self._counts is None:
            return
        found = self._counts
        if self.options.since_us is not None:
            found = found.where(sql.col("timestamp") >= sql.lit(moment(self.options.since_us)))
        if self.options.until_us is not None:
            found = found.where(sql.col("timestamp") < sql.lit(moment(self.options.until_us + HOUR_US)))
        for row in found.orderBy("timestamp").select("body").toLocalIterator():
            yield bytes(row["body"])
