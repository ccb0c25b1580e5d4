"""How a running pipeline is shown: a table that is kept up to date on a terminal, or a line now and then elsewhere.

Owns the look of a report. Knows nothing of Spark.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.cli.printer import Printer
from penstock.client.wire import PipelineReport, QueryReport

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

COLUMNS = ("query", "state", "batch", "rows", "rows/s", "lag", "batch time", "late", "dead")
#: How often a query that works gets a line where there is no terminal.
LINE_S = 10.0


def cells(query: QueryReport) -> tuple[str, ...]:
    """Return one query as a row of the table."""
    return (
        query.name,
        query.state,
        f"{query.batch:,}",
        f"{query.rows_total:,}",
        f"{query.rows_per_s:,.0f}",
        f"{query.lag_rows:,}",
        f"{query.batch_ms / 1000:.2f} s",
        f"{query.late_rows:,}",
        f"{query.dead_rows:,}",
    )


class Lines:
    """Progress as lines of text, each with its time in UTC."""

    def __init__(self, write: Callable[[str], object] | None = None, clock: Callable[[], float] = time.monotonic):
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))
        self._clock = clock
        self._state = ""
        self._last: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is left open."""

    def show(self, report: PipelineReport) -> None:
        """Write what is new: a change of state at once, progress now and then."""
        if report.state != self._state:
            self._state = report.state
            self._line(f"pipeline {report.name} {report.state} on {report.master}")
            if report.state == "stopped":
                self._last.clear()
        for query in report.queries:
            shown_s, batch = self._last.get(query.name, (float("-inf"), -1))
            if query.rows_total and query.batch != batch and self._clock() >= shown_s + LINE_S:
                self._last[query.name] = (self._clock(), query.batch)
                self._line(
                    f"{query.name}: batch {query.batch}, {query.rows_total:,} rows, {query.rows_per_s:,.0f} rows/s, "
                    f"lag {query.lag_rows:,}, {query.batch_ms / 1000:.2f} s a batch"
                    + (f", {query.late_rows:,} late" if query.late_rows else "")
                    + (f", {query.dead_rows:,} dead" if query.dead_rows else "")
                )

    def _line(self, text: str) -> None:
        self._write(f"{time.strftime('%H:%M:%SZ', time.gmtime())} {text}")


class Documents:
    """Progress as JSON documents on standard output, one a line: whatever the pipeline tells its node."""

    def __init__(self) -> None:
        self._printer = Printer(json=True)

    def __enter__(self) -> Documents:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is left open."""

    def show(self, report: PipelineReport) -> None:
        """Write the report."""
        self._printer.document(asdict(report))


class Board:
    """Progress as a table on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live: Live = Live(console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> Board:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def show(self, report: PipelineReport) -> None:
        """Draw the table anew."""
        self._live.update(table(report), refresh=True)


def table(report: PipelineReport) -> Table:
    """Return a report as a table for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(
        title=f"{report.name}: {report.state} on {report.master}",
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
    )
    for name in COLUMNS:
        made.add_column(name, justify="left" if name in ("query", "state") else "right")
    for query in report.queries:
        made.add_row(*map(Text, cells(query)))
    return made
