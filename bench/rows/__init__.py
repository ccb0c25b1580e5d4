"""The rows of the target table: one module each, one function from a plan to its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from bench.plan import Plan
from bench.report import Result
from bench.rows import (
    backlog,
    batches,
    deliver,
    due,
    fsync,
    latency,
    neighbour,
    publish,
    together,
    traffic,
    wait,
)

Row = Callable[[Plan], Iterator[Result]]

ROWS: Mapping[str, Row] = {
    "publish": publish.run,
    "deliver": deliver.run,
    "wait": wait.run,
    "together": together.run,
    "batches": batches.run,
    "fsync": fsync.run,
    "latency": latency.run,
    "neighbour": neighbour.run,
    "traffic": traffic.run,
    "backlog": backlog.run,
    "due": due.run,
}

#: Too long for every run; `--only` names them.
EXTRA: Mapping[str, Row] = {"backlog-lone": backlog.run_lone}
