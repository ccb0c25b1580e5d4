"""What Spark says of a running query, as the numbers people ask for: rows, rows a second, lag, time of a batch.

Owns the sums over batches, because Spark forgets. Knows nothing of where they are shown.
Invariant: a batch counts once, whenever it is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.client.wire import QueryReport
from penstock.pipeline.offsets import decoded

#: How the name of a step's counts begins among a query's observed metrics; they are `dead` and `late`.
DEAD = "dead."


class Progress:
    """The state of one query, taken from its progress reports."""

    def __init__(self, name: str, scans: int) -> None:
        self.name = name
        #: How often the plan reads its source: Spark counts each of them.
        self._scans = scans
        self._batch = -1
        self._rows = 0
        self._late = 0
        self._dead = 0
        self._lag = 0
        self._last: Mapping[str, Any] = {}
        #: When the newest report was made.
        self._made = ""

    def is_news(self, report: Mapping[str, Any]) -> bool:
        """Tell whether this newest report was not seen yet: to ask for all of them is dear."""
        return bool(report.get("timestamp", "") != self._made)

    def see(self, reports: list[Mapping[str, Any]]) -> None:
        """Take in progress reports, some of which may have been seen before."""
        for report in reports:
            self._made = report.get("timestamp", "")
            number = int(report["batchId"])
            if number <= self._batch:
                continue
            self._lag = _lag(report)
            if _is_idle(report):
                continue
            self._rows += self._rows_of(report)
            self._late += sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in report["stateOperators"])
            for name, row in (report.get("observedMetrics") or {}).items():
                if name.startswith(DEAD):
                    self._dead += _number(row, "dead")
                    self._late += _number(row, "late")
            self._batch, self._last = number, report

    def report(self, state: str, error: str = "") -> QueryReport:
        """Return the query as it is reported."""
        last = self._last
        took_ms = int(last.get("batchDuration", 0)) if last else 0
        rows = self._rows_of(last) if last else 0
        return QueryReport(
            name=self.name,
            state=state,
            batch=max(self._batch, 0),
            rows_total=self._rows,
            rows_per_s=round(rows * 1000 / took_ms, 1) if took_ms else 0.0,
            lag_rows=self._lag,
            batch_ms=took_ms,
            late_rows=self._late,
            dead_rows=self._dead,
            error=error,
        )

    def _rows_of(self, report: Mapping[str, Any]) -> int:
        return int(report.get("numInputRows") or 0) // self._scans


def _is_idle(report: Mapping[str, Any]) -> bool:
    """Tell whether Spark only looked: such a report has the number of the batch that comes next."""
    return not report.get("numInputRows") and "addBatch" not in report.get("durationMs", ())


def _number(row: Any, name: str) -> int:
    """Return one number of an observed metric, which is a row or a dict of it; 0 if it has none of this name."""
    values = row if isinstance(row, Mapping) else row.asDict()
    return int(values.get(name) or 0)


def _lag(report: Mapping[str, Any]) -> int:
    """Return how many offsets of all shards are there and not read yet."""
    behind = 0
    for source in report.get("sources", ()) if report else ():
        there, read = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        behind += sum(max(0, end - read.get(place, 0)) for place, end in there.items())
    return behind


def _offsets(said: Any) -> dict[tuple[str, int], int]:
    """Return offsets by topic and shard from what the source gave to Spark."""
    values = json.loads(said) if isinstance(said, str) else said
    if not isinstance(values, Mapping):
        return {}
    return {
        (topic, shard): offset
        for topic, position in decoded(values).items()
        for shard, offset in enumerate(position.offsets)
    }
