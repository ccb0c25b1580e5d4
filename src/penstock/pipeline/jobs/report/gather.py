"""From frames to figures: three looks at the messages, two at the events.

Owns the order of the queries. Invariant: what comes to the driver is bounded by the
options, not by the messages.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from penstock.pipeline.jobs.report import events as history
from penstock.pipeline.jobs.report.census import SETS, census
from penstock.pipeline.jobs.report.figures import Figures
from penstock.pipeline.jobs.report.found import Found
from penstock.pipeline.jobs.report.frames import wanted
from penstock.pipeline.jobs.report.options import OWN_PREFIX, Report
from penstock.pipeline.jobs.report.sample import measured
from penstock.pipeline.jobs.report.span import Span
from penstock.pipeline.jobs.report.totals import Totals, totals
from penstock.pipeline.jobs.report.ways import due_times, measures, ways

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

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
