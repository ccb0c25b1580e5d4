"""How a running pipeline is shown."""

from __future__ import annotations

import io

from rich.console import Console

from penstock.cli.progress import Lines, table
from penstock.client.wire import PipelineReport, QueryReport


def report(state: str, **numbers: int) -> PipelineReport:
    query = QueryReport(name="q", state="running", **numbers)  # type: ignore[arg-type]
    return PipelineReport(name="shop", pid=1, host="h", state=state, started_ms=0, master="local[2]", queries=[query])


def test_lines_tell_changes_at_once_and_progress_now_and_then() -> None:
    said: list[str] = []
    now = [0.0]
    lines = Lines(said.append, lambda: now[0])
    with lines:
        lines.show(report("starting"))
        lines.show(report("running"))
        lines.show(report("running", batch=0, rows_total=5))
        lines.show(report("running", batch=1, rows_total=9))  # too soon
        now[0] = 11.0
        lines.show(report("running", batch=2, rows_total=1200, batch_ms=250, lag_rows=7, late_rows=3, dead_rows=2))
        now[0] = 22.0
        lines.show(report("running", batch=2, rows_total=1200))  # nothing new
    told = [line.split(" ", 1)[1] for line in said]
    assert told == [
        "pipeline shop starting on local[2]",
        "pipeline shop running on local[2]",
        "q: batch 0, 5 rows, 0 rows/s, lag 0, 0.00 s a batch",
        "q: batch 2, 1,200 rows, 0 rows/s, lag 7, 0.25 s a batch, 3 late, 2 dead",
    ]


def test_the_table_has_a_row_for_each_query() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(table(report("running", batch=4, rows_total=1234, lag_rows=5)))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "shop: running on local[2]" in shown
    assert "1,234" in shown
