"""A pipeline tells how it is, as the runner does: over Flight, with the SDK's connection."""

from __future__ import annotations

import pytest

from penstock.client.connection import Access, Connection
from penstock.client.wire import PipelineReport, QueryReport
from penstock.errors import Refusal
from tests.flight.parts import Flown

REPORT = PipelineReport(
    name="shop",
    pid=42,
    host="here",
    state="running",
    started_ms=1_700_000_000_000,
    restarts=1,
    master="local[2]",
    queries=[QueryReport(name="archive", state="running", rows_total=60, rows_per_s=20.5)],
)


@pytest.fixture
def connection(flown: Flown) -> Connection:
    return Connection(Access(f"grpc://127.0.0.1:{flown.flight.port}"), 30)


def test_a_report_reaches_the_node_as_it_was_told(flown: Flown, connection: Connection) -> None:
    with connection:
        connection.report(REPORT)
    assert [known.report for known in flown.do(flown.node.pipelines.known)] == [REPORT]


def test_a_bad_report_is_refused_counted_and_changes_nothing(flown: Flown, connection: Connection) -> None:
    with connection:
        connection.report(REPORT)
        bad: list[tuple[dict[str, object], str]] = [
            ({"name": "shop"}, "a pipelinereport needs 'pid'"),
            (
                {"name": "shop", "pid": 1, "host": "h", "state": "dancing", "started_ms": 1},
                "'dancing' is none of",
            ),
            ({"name": "shop", "pid": 1, "host": "h", "state": "running", "started_ms": 1, "queries": [[]]}, "not list"),
        ]
        for document, text in bad:
            with pytest.raises(Refusal, match=text):
                connection.act("pipeline", document)
        with pytest.raises(Refusal, match="the name of a pipeline has 1 to 256 bytes"):
            connection.act(
                "pipeline", {"name": "a\0", "pid": 1, "host": "h", "state": "running", "started_ms": 1, "queries": []}
            )
    assert [known.report for known in flown.do(flown.node.pipelines.known)] == [REPORT]
    flown.until(lambda: sum(entry.count for entry in flown.node.ledger.entries()) == 4)
    assert flown.faults() == {"bad_request": 3, "bad_name": 1}
