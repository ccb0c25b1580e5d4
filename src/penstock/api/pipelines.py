"""Pipelines over HTTP: how each one that reports to this node is; they run in processes of their own."""

from __future__ import annotations

import dataclasses

import msgspec

from penstock.api.endpoint import PREFIX, Call, Endpoint, Nothing
from penstock.node.pipelines import Known
from penstock.units import times


class QueryInfo(msgspec.Struct):
    """One query of a pipeline; rows count since the pipeline started."""

    name: str
    state: str
    batch: int
    rows_total: int
    rows_per_s: float
    lag_rows: int
    batch_ms: int
    late_rows: int
    dead_rows: int
    error: str


class PipelineInfo(msgspec.Struct):
    """A pipeline as it last told; `lost` where it should have told more since."""

    name: str
    state: str
    error: str
    host: str
    pid: int
    master: str
    started: str
    seen: str
    restarts: int
    queries: list[QueryInfo]


class PipelineList(msgspec.Struct):
    """All pipelines this node has heard of within a day, by name."""

    pipelines: list[PipelineInfo]


async def list_pipelines(call: Call[Nothing, None]) -> PipelineList:
    """List all pipelines."""
    return PipelineList([_info(known) for known in call.node.pipelines.known()])


async def show_pipeline(call: Call[Nothing, None]) -> PipelineInfo:
    """Show one pipeline."""
    return _info(call.node.pipelines.one(call.names["pipeline"]))


async def forget_pipeline(call: Call[Nothing, None]) -> None:
    """Forget a pipeline that has ended or is lost."""
    call.node.pipelines.forget(call.names["pipeline"])


def _info(known: Known) -> PipelineInfo:
    report = known.report
    return PipelineInfo(
        report.name,
        known.state,
        report.error,
        report.host,
        report.pid,
        report.master,
        times.shown(report.started_ms * times.MILLISECOND_NS),
        times.shown(known.seen_ns),
        known.restarts,
        [QueryInfo(**dataclasses.asdict(query)) for query in report.queries],
    )


_ONE = f"{PREFIX}/pipelines/{{pipeline}}"
ENDPOINTS = (
    Endpoint("GET", f"{PREFIX}/pipelines", list_pipelines, "List all pipelines", PipelineList, on_node="see"),
    Endpoint("GET", _ONE, show_pipeline, "Show a pipeline", PipelineInfo, on_node="see"),
    Endpoint(
        "DELETE", _ONE, forget_pipeline, "Forget a pipeline that has ended or is lost", status=204, on_node="admin"
    ),
)
