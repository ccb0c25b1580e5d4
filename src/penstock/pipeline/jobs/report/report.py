"""The job: frames or tables in, a page out. How many there were is the node's exact counts, where it kept some;
what the sampled events give are shapes and percentiles.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from penstock.pipeline.jobs.report.figures import Figures, Found
from penstock.pipeline.jobs.report.options import Report
from penstock.pipeline.jobs.report.page.document import document
from penstock.pipeline.jobs.report.span import SECOND_US, Span
from penstock.pipeline.jobs.report.tallies import tallied
from penstock.pipeline.jobs.report.totals import SETS, Totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.jobs.report.queries import Queries, Row


class Page(msgspec.Struct, frozen=True):
    """A report: the HTML document, and the figures in it."""

    html: str
    figures: Figures


def report(
    messages: DataFrame,
    events: DataFrame | None = None,
    options: Report | None = None,
    *,
    counts: DataFrame | None = None,
) -> Page:
    """Return a report on messages, of one topic or many, and on what became of them by the node's events and counts."""
    from penstock.pipeline.jobs.report.spark import SparkQueries

    return page_of(SparkQueries(messages, events, counts, options or Report()))


def page_of(queries: Queries) -> Page:
    """Return the report that queries answer."""
    figures = gather(queries)
    return Page(document(figures, queries.options.title, time.time_ns() // 1000), figures)


#: Subscriptions whose latency is shown over time.
BUSIEST = 8


def gather(queries: Queries) -> Figures:
    """Return the figures of a report."""
    options, present = queries.options, queries.columns
    sums = queries.totals()
    span = _span(sums, queries)
    found = Found(span, options, {total.topic: total for total in sums.shown})
    shown = [total.topic for total in sums.shown]
    if sums.messages and present & {column for column, _ in SETS.values()}:
        found.counted = _grouped(queries.breakdown(span, shown))
    if options.sample_bytes and sums.body_bytes:
        found.packed = queries.measured(sums.shown)
    if queries.has_counts:
        found.tallies = tallied(queries.intervals(), span, options)
        more = sorted(found.tallies.topics() - set(shown), key=lambda name: (-found.published(name)[0], name))
        # Topics that have no place of their own are among the others already.
        room = options.topics_max - len(shown)
        shown = shown + more[:room] if sums.topics == len(shown) else shown
    if queries.has_events:
        timed = any(total.timed for total in sums.shown) and {"shard", "offset", "timestamp"} <= present
        shown = _history(found, queries, shown, timed=timed)
    return found.figures(sums, shown, present, events=queries.has_events)


def _span(sums: Totals, queries: Queries) -> Span:
    """Return the range that was asked for, or else from the first message to the last message, event or count."""
    since_us, until_us = queries.options.since_us, queries.options.until_us
    last_us = queries.last_us() if until_us is None else None
    if since_us is None:
        since_us = sums.first_us if sums.first_us is not None else (until_us or last_us or 1) - 1
    if until_us is None:
        # Messages may be delivered long after the last one came.
        until_us = max(sums.last_us or since_us, last_us or since_us) + 1
    # What is told per second is not counted in less: three messages within a moment are no hundred a second.
    return Span.over(since_us, until_us, queries.options.steps, SECOND_US)


def _history(found: Found, queries: Queries, shown: list[str], *, timed: bool) -> list[str]:
    """Take in what happened, and what was measured on the messages' journeys; return the topics to show."""
    happened = _grouped(queries.happened(found.span, shown))
    if not happened:
        return shown
    found.happened = happened
    found.one_in = max(row["one_in"] for rows in happened.values() for row in rows)
    if found.tallies is None:
        shown = shown + sorted({name for _, name in happened if name is not None and name not in shown})
    busiest = found.busiest(shown, BUSIEST)
    found.journeys = _grouped(queries.journeys(found.span, shown, busiest, timed=timed))
    return shown


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, str | None], list[Row]]:
    """Return rows by kind and topic."""
    found: dict[tuple[str, str | None], list[Row]] = collections.defaultdict(list)
    for row in rows:
        found[row["kind"], row["topic"]].append(row)
    return dict(found)
