"""The job: two frames in, a page out; three looks at the messages, two at the events.

Invariant: what comes to the driver is bounded by the options, not by the messages.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sql

from penstock.pipeline.jobs.report import events as history
from penstock.pipeline.jobs.report.compression import measured
from penstock.pipeline.jobs.report.counts import SETS, Totals, census, totals
from penstock.pipeline.jobs.report.events import due_times, measures, ways
from penstock.pipeline.jobs.report.figures import Figures, Found
from penstock.pipeline.jobs.report.frames import wanted
from penstock.pipeline.jobs.report.options import OWN_PREFIX, Report
from penstock.pipeline.jobs.report.page.document import document
from penstock.pipeline.jobs.report.span import Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


class Page(msgspec.Struct, frozen=True):
    """A report: the HTML document, and the figures in it."""

    html: str
    figures: Figures


def report(messages: DataFrame, events: DataFrame | None = None, options: Report | None = None) -> Page:
    """Return a report on messages, of one topic or many, and on what became of them by the node's events."""
    options = options or Report()
    figures = gather(messages, events, options)
    return Page(document(figures, options.title, time.time_ns() // 1000), figures)


#: Subscriptions whose latency is shown over time.
BUSIEST = 8


def gather(messages: DataFrame, events: DataFrame | None, options: Report) -> Figures:
    """Return the figures of a report."""
    present = frozenset(messages.columns)
    within = wanted(messages, options)
    sums = totals(within, options)
    span = _span(sums, options, events)
    shown = [total.topic for total in sums.shown]
    found = Found(span, options, {total.topic: total for total in sums.shown})
    if sums.messages and present & {column for column, _ in SETS.values()}:
        found.counted = _grouped(census(within, span, shown, present, options.top).collect())
    if options.sample_bytes and sums.body_bytes:
        found.packed = measured(within, sums.shown, options.sample_bytes)
    if events is not None:
        timed = any(total.timed for total in sums.shown) and {"shard", "offset", "timestamp"} <= present
        shown = _history(found, events, shown, due_times(within) if timed else None)
    topics = tuple(found.topic(name) for name in shown)
    rest = found.topic(None, sums.messages - sum(topic.messages for topic in topics),
                       sums.body_bytes - sum(topic.body_bytes for topic in topics))  # fmt: skip
    return Figures(
        span=span,
        columns=present,
        events=events is not None,
        one_in=found.one_in,
        topics=topics,
        others=rest if rest.messages or rest.events else None,
        topics_all=sums.topics + sum(name not in found.totals for name in shown),
        messages=sums.messages,
        body_bytes=sums.body_bytes,
        waiting=found.waiting(shown) if "due" in present else None,
    )


def _span(sums: Totals, options: Report, events: DataFrame | None) -> Span:
    """Return the range that was asked for, or else from the first message to the last message or event."""
    since_us, until_us = options.since_us, options.until_us
    if since_us is None:
        since_us = sums.first_us if sums.first_us is not None else (until_us or 1) - 1
    if until_us is None:
        # Messages may be delivered long after the last one came.
        last = None if events is None else events.agg(sql.unix_micros(sql.max("timestamp"))).collect()[0][0]
        until_us = max(sums.last_us or since_us, last or since_us) + 1
    return Span.over(since_us, until_us, options.steps)


def _history(found: Found, events: DataFrame, shown: list[str], due: DataFrame | None) -> list[str]:
    """Take in what happened, and what was measured on the messages' ways; return the topics to show."""
    options, span = found.options, found.span
    runs = history.runs(events, span)
    if options.topics:
        runs = runs.where(sql.col("topic").isin(list(options.topics)))
    else:
        runs = runs.where(~sql.col("topic").startswith(OWN_PREFIX))
    happened = _grouped(history.counts(runs, span, shown, options.topics_max).collect())
    if not happened:
        return shown
    found.happened = happened
    found.one_in = max(row["one_in"] for rows in happened.values() for row in rows)
    shown = shown + sorted({name for _, name in happened if name is not None and name not in shown})
    found.ways = _grouped(measures(ways(runs, due), span, shown, found.busiest(shown, BUSIEST)).collect())
    return shown


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, str | None], list[Row]]:
    """Return rows by kind and topic."""
    found: dict[tuple[str, str | None], list[Row]] = collections.defaultdict(list)
    for row in rows:
        found[row["kind"], row["topic"]].append(row)
    return dict(found)
