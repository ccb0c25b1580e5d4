"""The metrics of pipelines, as they last reported.

Owns the names. Labels are bounded, because the node keeps a bounded number of pipelines and of queries in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from penstock.client.wire import PipelineReport, QueryReport
from penstock.observe.exposition import Exposition


class KnownSlots(Protocol):
    """What is read of one pipeline."""

    @property
    def report(self) -> PipelineReport:
        """What it last said."""

    @property
    def state(self) -> str:
        """What is known of it now."""

    @property
    def restarts(self) -> int:
        """Of its queries and of the whole."""

    @property
    def seen_ns(self) -> int:
        """When it last said anything, in unix time."""


class PipelineSlots(Protocol):
    """What is read of all of them."""

    def known(self) -> Sequence[KnownSlots]:
        """Return what is known of each."""


Kind = Literal["counter", "gauge"]

PREFIX = "penstock_pipeline_"


def _up(pipeline: KnownSlots) -> int:
    return int(pipeline.state == "running")


#: For each pipeline: name, kind, text, value.
OF_PIPELINES: tuple[tuple[str, Kind, str, Callable[[KnownSlots], float]], ...] = (
    ("up", "gauge", "1 while the pipeline runs, 0 once it stopped, failed or is lost.", _up),
    (
        "restarts_total",
        "counter",
        "Queries and processes that were started again.",
        lambda p: p.restarts,
    ),
    ("start_time_seconds", "gauge", "When the pipeline started, in unix time.", lambda p: p.report.started_ms / 1e3),
    ("report_time_seconds", "gauge", "When the pipeline last reported, in unix time.", lambda p: p.seen_ns / 1e9),
)
#: For each query of each pipeline.
OF_QUERIES: tuple[tuple[str, Kind, str, Callable[[QueryReport], float]], ...] = (
    ("rows_total", "counter", "Rows the query has read since its pipeline started.", lambda q: q.rows_total),
    ("late_rows_total", "counter", "Rows that came after their window was closed.", lambda q: q.late_rows),
    ("dead_rows_total", "counter", "Rows that could not be used.", lambda q: q.dead_rows),
    ("batches_total", "counter", "Batches that ended.", lambda q: q.batch),
    ("lag_rows", "gauge", "Rows of its sources the query has not read yet.", lambda q: q.lag_rows),
    ("rows_per_second", "gauge", "Rows the query reads in a second.", lambda q: q.rows_per_s),
    ("batch_seconds", "gauge", "How long the last batch took.", lambda q: q.batch_ms / 1e3),
)


def describe(out: Exposition, pipelines: PipelineSlots) -> None:
    """Add everything there is to say about pipelines."""
    known = pipelines.known()
    for name, kind, text, value in OF_PIPELINES:
        out.family(PREFIX + name, kind, text, [({"pipeline": p.report.name}, value(p)) for p in known])
    found = [({"pipeline": p.report.name, "query": query.name}, query) for p in known for query in p.report.queries]
    for name, kind, text, of in OF_QUERIES:
        out.family(f"{PREFIX}query_{name}", kind, text, [(labels, of(query)) for labels, query in found])
