from __future__ import annotations

from typing import Any

from penstock.client.wire import PipelineReport, QueryReport
from tests.served import Served

REPORT = PipelineReport(
    name="shop/é",
    pid=42,
    host="here",
    state="running",
    started_ms=1_700_000_000_000,
    master="local[2]",
    queries=[QueryReport(name="archive", state="running", batch=3, rows_total=60, rows_per_s=20.5, lag_rows=2)],
)
PATH = "pipelines/shop%2F%C3%A9"


def tell(served: Served, report: PipelineReport = REPORT) -> None:
    served.do(lambda: served.node.pipelines.report(report))


def test_pipelines_are_listed_and_shown(served: Served) -> None:
    assert served.get("pipelines").json == {"pipelines": []}
    tell(served)
    found: dict[str, Any] = served.get(PATH).json
    assert served.get("pipelines").json == {"pipelines": [found]}
    assert found.pop("seen").endswith("Z")
    assert found == {
        "name": "shop/é",
        "state": "running",
        "error": "",
        "host": "here",
        "pid": 42,
        "master": "local[2]",
        "started": "2023-11-14T22:13:20.000000000Z",
        "restarts": 0,
        "queries": [
            {
                "name": "archive",
                "state": "running",
                "batch": 3,
                "rows_total": 60,
                "rows_per_s": 20.5,
                "lag_rows": 2,
                "batch_ms": 0,
                "late_rows": 0,
                "dead_rows": 0,
                "error": "",
            }
        ],
    }


def test_a_pipeline_that_runs_is_not_forgotten_and_a_lost_one_is(served: Served) -> None:
    tell(served)
    refused = served.ask("DELETE", PATH)
    assert (refused.status, refused.code, refused.message) == (
        409,
        "conflict",
        "pipeline shop/é is running; stop it first",
    )
    served.advance(31)
    assert served.get(PATH).json["state"] == "lost"
    assert served.ask("DELETE", PATH).status == 204
    assert (served.get(PATH).status, served.get(PATH).code) == (404, "not_found")


def test_pipelines_are_in_the_openapi_document(served: Served) -> None:
    document = served.get("openapi.json").json
    assert set(document["paths"]["/api/v1/pipelines/{pipeline}"]) == {"get", "delete"}
    assert document["paths"]["/api/v1/pipelines"]["get"]["tags"] == ["pipelines"]
    assert "rows_per_s" in document["components"]["schemas"]["QueryInfo"]["properties"]
