"""What a report asks of its messages and events, whoever answers: Spark, or Arrow alone where there is little.

Contracts only. A row is anything that has these columns by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from penstock.codecs import Measure
from penstock.pipeline.jobs.report.options import Report
from penstock.pipeline.jobs.report.span import Span
from penstock.pipeline.jobs.report.totals import Total, Totals

Row = Mapping[str, Any]


class Queries(Protocol):
    """Messages, the node's events, and its counts."""

    options: Report

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the messages have."""

    @property
    def has_events(self) -> bool:
        """Whether there is a history of deliveries."""

    @property
    def has_counts(self) -> bool:
        """Whether there are the node's exact counts."""

    def totals(self) -> Totals:
        """Return the sums of all topics."""

    def last_us(self) -> int | None:
        """Return when the last event or count was written."""

    def breakdown(self, span: Span, shown: Sequence[str]) -> Iterable[Row]:
        """Return `kind`, topic (None: one that is not shown), what is counted by, and how many."""

    def measured(self, totals: Sequence[Total]) -> dict[str, list[Measure]]:
        """Return by topic what each codec made of its sample."""

    def happened(self, span: Span, shown: Sequence[str]) -> Iterable[Row]:
        """Return how many events of each kind, of the topics shown and of those with most events."""

    def journeys(
        self, span: Span, shown: Sequence[str], busiest: Sequence[tuple[str, str]], *, timed: bool
    ) -> Iterable[Row]:
        """Return latency, lease time and attempts; `timed`: messages had due times."""

    def intervals(self) -> Iterable[bytes]:
        """Return what the node counted, as it wrote it, of the range of time and a little around it."""
