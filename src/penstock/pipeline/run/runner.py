"""A pipeline from its first check to its last batch.

Owns the life of its queries: all start or none, one that fails ends all, and a signal ends them between two batches.
Knows nothing of how its state is shown. Invariant: whatever ends a run, the next one goes on from the checkpoints.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.client.wire import PipelineReport
from penstock.errors import PenstockError
from penstock.pipeline.plan.checks import check
from penstock.pipeline.plan.document import Document, converted
from penstock.pipeline.plan.graph import Query, queries
from penstock.pipeline.run.fault import reason
from penstock.pipeline.run.home import Home, base_of
from penstock.pipeline.run.progress import Progress
from penstock.pipeline.run.reporter import Reporter
from penstock.pipeline.session import session
from penstock.pipeline.target import parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.pipeline.run.query import Built

_log = logging.getLogger(__name__)

LOOK_S = 0.5
TELL_S = 3.0
#: How long a batch that is under way may take to end once a stop was asked for.
FINISH_S = 12.0

#: How long a query may take to find its source before the next one starts, and what it says until then.
START_S = 60.0
STARTING = ("Initializing StreamExecution", "Initializing sources")

Show = Callable[[PipelineReport], None]


class Failed(PenstockError):
    """A query of a pipeline failed."""


def home_of(document: Document) -> Home:
    """Return the directory of a pipeline."""
    return Home(document.home or os.path.join(base_of(document.node), document.name), document.name)


def prepared(document: Document) -> list[Query]:
    """Return the queries of a pipeline that passes every check that needs no Spark."""
    from penstock.pipeline.run.query import options_of, table_options

    found = queries(document)
    for query in found:
        options_of(document, query)
    for name, sink in document.sinks.items():
        if sink.table:
            table_options(document, name)
    check(document)
    return found


def opened(document: Document, master: str) -> SparkSession:
    """Return the Spark session of a pipeline."""
    settings = {name: _text(value) for name, value in document.spark.items()}
    return session(f"penstock {document.name}", master=master, options=settings, quick=document.quick)


def put_together(spark: SparkSession, document: Document, home: Home | None = None) -> list[Built]:
    """Return all queries, ready to start; without a home they are only looked at."""
    from penstock.pipeline.jobs.catalog import job
    from penstock.pipeline.run.query import built, stateful

    found = queries(document)
    needed = any(job(step.job).mapped for step in document.steps.values())
    mapping = _mapping(document) if needed else {}
    return [
        built(
            spark,
            document,
            query,
            home.identity(query.name, stateful(document, query)) if home is not None else "check",
            mapping,
        )
        for query in found
    ]


class Runner:
    """One run of a pipeline."""

    def __init__(self, document: Document, *, master: str = "local[*]", once: bool = False, show: Show | None = None):
        self.document = document
        self.master = master
        self.once = once
        self.home = home_of(document)
        self._show = show
        self._teller = Reporter(document.node)
        self._started_ms = time.time_ns() // 1_000_000
        self._told_s = float("-inf")
        self._stopping = threading.Event()
        self._running: list[tuple[StreamingQuery, Progress]] = []

    def stop(self, *_: object) -> None:
        """Ask for the end; may be called by a signal."""
        self._stopping.set()

    def run(self) -> None:
        """Run until all queries have ended, one fails, or a stop is asked for."""
        prepared(self.document)
        with self.home.owned():
            try:
                self._tell("starting")
                self._begin()
                self._tell("running")
                while self._alive() and not self._stopping.wait(LOOK_S):
                    self._look("running")
                self._tell("stopping")
                self._end()
                self._tell("stopped")
            except BaseException as error:
                self._end(at_once=True)
                self._tell("failed", reason(error))
                raise
            finally:
                self._teller.close()

    def _begin(self) -> None:
        spark = opened(self.document, self.master)
        for built in put_together(spark, self.document, self.home):
            checkpoint = self.home.checkpoint(built.query.name)
            progress = Progress(built.query.name, len(built.writer.branches))
            query = built.started(checkpoint, once=self.once)
            self._running.append((query, progress))
            # Each start brings up Python processes, and Spark does not wait long for one that is slow to come.
            end = time.monotonic() + START_S
            while query.isActive and query.status["message"] in STARTING and time.monotonic() < end:
                time.sleep(0.05)

    def _alive(self) -> bool:
        """Tell whether a query still runs; raise what ended one that failed."""
        alive = False
        for query, progress in self._running:
            if query.isActive:
                alive = True
                continue
            error = query.exception()
            if error is not None:
                raise Failed(f"query {progress.name}: {reason(error)}")
        return alive

    def _look(self, state: str) -> None:
        if time.monotonic() < self._told_s + TELL_S:
            return
        for query, progress in self._running:
            if (newest := query.lastProgress) is not None and progress.is_news(_plain(newest)):
                progress.see([_plain(each) for each in query.recentProgress])
        self._tell(state)

    def _end(self, *, at_once: bool = False) -> None:
        """Stop every query, after the batch it is at if that ends soon."""
        end = time.monotonic() + (0 if at_once else FINISH_S)
        for query, progress in self._running:
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
                time.sleep(0.05)
            if query.isActive:
                query.stop()
            progress.see([_plain(each) for each in query.recentProgress])

    def _tell(self, state: str, error: str = "") -> None:
        self._told_s = time.monotonic()
        report = PipelineReport(
            name=self.document.name,
            pid=os.getpid(),
            host=socket.gethostname(),
            state=state,
            started_ms=self._started_ms,
            error=error,
            master=self.master,
            queries=[progress.report("running" if query.isActive else "ended") for query, progress in self._running],
        )
        self.home.tell(report)
        self._teller.tell(report)
        if self._show is not None:
            self._show(report)


def _mapping(document: Document) -> Mapping[str, int]:
    """Return the routing mapping of the node, and log what is wrong with it."""
    from penstock.pipeline.jobs.route import Route, faults, node_mapping

    mapping = node_mapping(parsed(document.node.options()).node())
    for name, step in document.steps.items():
        if step.job == "route":
            options = converted(step.options, Route, f"steps.{name}")
            for fault in faults(options, mapping if options.mapping is None else options.mapping):
                _log.warning("steps.%s: %s", name, fault)
    return mapping


def _plain(report: object) -> Mapping[str, object]:
    """Return a progress report as plain values, whichever kind of session gave it."""
    if isinstance(report, Mapping):
        return report
    return json.loads(report.json)  # type: ignore[attr-defined,no-any-return]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
