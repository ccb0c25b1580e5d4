"""Pipelines: what this node last heard of each, in memory, until it hears nothing any more.

A pipeline runs elsewhere and reports every few seconds. Owns what is kept of that, within bounds, and when silence
means that one is lost. Knows nothing of Spark, nor of who starts a pipeline.
Invariant: whatever is reported, names, queries and texts stay within the limits here.
"""

from __future__ import annotations

import dataclasses

from penstock.client.wire import PIPELINE_STATES, PipelineReport, QueryReport
from penstock.clock import SECOND, Clock
from penstock.errors import Refusal

#: Each is a handful of series in /metrics; nobody runs more beside one node.
PIPELINES_MAX = 100
QUERIES_MAX = 64
NAME_BYTES_MAX = 256
#: What fits the log's int64 nanoseconds.
STARTED_MS_MAX = ((1 << 63) - 1) // 1_000_000
#: Errors of Spark bring a whole stack; its beginning says what happened.
ERROR_CHARS_MAX = 2000
#: Several times what passes between two reports, and a long pause of the Java machine.
LOST_NS = 30 * SECOND
FORGOTTEN_NS = 24 * 3600 * SECOND

#: The pid in a report about a pipeline that has no process yet.
NOBODY = 0
#: What a pipeline in one of these states has yet to end.
GOING_ON = ("starting", "running", "stopping")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """What the node knows of one pipeline at a moment."""

    report: PipelineReport
    #: As reported, or "lost" where a report is overdue.
    state: str
    #: Of its queries and of the whole, since the node first heard of it.
    restarts: int
    seen_ns: int

    @property
    def is_going_on(self) -> bool:
        """Whether it reports and has not ended."""
        return self.state in GOING_ON


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Heard:
    report: PipelineReport
    #: Restarts of processes before this one.
    before: int
    seen_ns: int
    monotonic_ns: int


class Pipelines:
    """All pipelines that a node has heard of."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[str, _Heard] = {}

    def report(self, report: PipelineReport) -> None:
        """Take note of how a pipeline is; `Refusal` if that cannot be meant."""
        report = _checked(report)
        last = self._heard.pop(report.name, None)  # so that who reported last stands last
        if last is None and len(self._heard) >= PIPELINES_MAX:
            self._make_room(report.name)
        self._heard[report.name] = _Heard(
            report=report,
            before=_restarts_before(last, report) if last is not None else 0,
            seen_ns=self._clock.now(),
            monotonic_ns=self._clock.monotonic(),
        )

    def known(self) -> list[Known]:
        """Return what is known of each, by name."""
        return [self._known(self._heard[name]) for name in sorted(self._heard)]

    def one(self, name: str) -> Known:
        """Return what is known of one."""
        heard = self._heard.get(name)
        if heard is None:
            raise Refusal("not_found", f"no pipeline {name!r} has reported here")
        return self._known(heard)

    def forget(self, name: str) -> None:
        """Drop what is known of one that has ended or is lost."""
        if self.one(name).is_going_on:
            raise Refusal("conflict", f"pipeline {name} is {self.one(name).state}; stop it first")
        del self._heard[name]

    def sweep(self) -> None:
        """Forget those that nothing was heard of for a day."""
        oldest_ns = self._clock.monotonic() - FORGOTTEN_NS
        for name in [name for name, heard in self._heard.items() if heard.monotonic_ns <= oldest_ns]:
            del self._heard[name]

    def _known(self, heard: _Heard) -> Known:
        report = heard.report
        is_late = self._clock.monotonic() - heard.monotonic_ns > LOST_NS
        return Known(
            report=report,
            state="lost" if is_late and report.state in GOING_ON else report.state,
            restarts=heard.before + report.restarts,
            seen_ns=heard.seen_ns,
        )

    def _make_room(self, name: str) -> None:
        """Forget the one that was silent longest and does not run."""
        for other, heard in self._heard.items():
            if not self._known(heard).is_going_on:
                del self._heard[other]
                return
        raise Refusal("conflict", f"pipeline {name} is one too many: {PIPELINES_MAX} report to this node already")


def _restarts_before(last: _Heard, report: PipelineReport) -> int:
    """Return the restarts up to this process: it is one itself if the one before failed, or vanished."""
    same = (last.report.host, last.report.pid, last.report.started_ms) == (report.host, report.pid, report.started_ms)
    if same:
        return last.before
    state, was_there = last.report.state, last.report.pid != NOBODY
    is_restart = state == "failed" or (was_there and state != "stopped")
    return last.before + last.report.restarts + is_restart


def _checked(report: PipelineReport) -> PipelineReport:
    """Return a report whose long texts are cut; refuse one that cannot be meant."""
    _check_name("a pipeline", report.name)
    if report.state not in PIPELINE_STATES:
        raise _bad(report, f"state {report.state[:80]!r} is none of {', '.join(PIPELINE_STATES)}")
    if len(report.queries) > QUERIES_MAX:
        raise _bad(report, f"{len(report.queries)} queries are too many; a pipeline has at most {QUERIES_MAX}")
    names = [query.name for query in report.queries]
    if len(set(names)) < len(names):
        raise _bad(report, "two of its queries have the same name")
    for number in ("pid", "started_ms", "restarts"):
        if getattr(report, number) < 0:
            raise _bad(report, f"{number} is {getattr(report, number)}, below 0")
    if report.started_ms > STARTED_MS_MAX:
        raise _bad(report, f"started_ms is {report.started_ms}, after the year 2262")
    return dataclasses.replace(
        report,
        host=_cut(report.host, NAME_BYTES_MAX),
        master=_cut(report.master, NAME_BYTES_MAX),
        error=_cut(report.error, ERROR_CHARS_MAX),
        queries=[_checked_query(report, query) for query in report.queries],
    )


def _checked_query(report: PipelineReport, query: QueryReport) -> QueryReport:
    _check_name(f"a query of pipeline {report.name}", query.name)
    for number in ("batch", "rows_total", "rows_per_s", "lag_rows", "batch_ms", "late_rows", "dead_rows"):
        if getattr(query, number) < 0:
            raise _bad(report, f"{number} of query {query.name} is {getattr(query, number)}, below 0")
    return dataclasses.replace(query, state=_cut(query.state, NAME_BYTES_MAX), error=_cut(query.error, ERROR_CHARS_MAX))


def _check_name(what: str, name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Refusal("bad_name", f"the name of {what} is not Unicode text") from None
    if not 0 < size <= NAME_BYTES_MAX or not name.isprintable():
        raise Refusal("bad_name", f"the name of {what} has 1 to {NAME_BYTES_MAX} bytes and no control characters")


def _cut(text: str, chars_max: int) -> str:
    """Return the beginning of a text; JSON may bring halves of characters, which no answer could carry."""
    return text[:chars_max].encode("utf-8", "backslashreplace").decode()


def _bad(report: PipelineReport, text: str) -> Refusal:
    return Refusal("bad_request", f"report of pipeline {report.name}: {text}")
