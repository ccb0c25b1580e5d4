"""Every API is asked what its OpenAPI document offers, rightly and wrongly: no 5xx, and only answers it tells of.

schemathesis makes the requests up. Names of topics and queues are given to it, else hardly one would be there.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import MILLISECOND
from penstock.dialects.dynamiq.config import DynamiqConfig
from tests.foreign import drivers
from tests.proofs.environment import clean
from tests.served import PATIENCE_S, Served

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"

#: What stands for a name in a path: some that are there, and one that is not.
NAMES = {
    "queue": ["jobs", "dead", "none"],
    "q": ["jobs", "dead", "none"],
    "topic": ["sales", "jobs", "none"],
    "t": ["sales", "none"],
    "subscription": ["queue", "none"],
}

#: Examples of each operation: together the three take well under 40 s.
EXAMPLES = {"v1": 6, "v2": 5, "admin": 3}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # Nobody waits: a request that waits a minute for nothing shows nothing.
    queues = DynamiqConfig(port=0, max_wait_ns=20 * MILLISECOND)
    with Served(tmp_path_factory.mktemp("schemathesis"), dynamiq=queues) as node:
        port = node.ports["dynamiq.port"]
        for name in ("jobs", "dead"):
            assert node.ask("POST", "/v2/queues", {"name": name}, port=port).status == 201
        assert node.ask("POST", "/v2/topics", {"name": "sales"}, port=port).status == 201
        assert node.ask("PUT", "/v2/topics/sales/subscriptions/jobs", port=port).status == 200
        yield node


def described(served: Served, kind: str) -> tuple[int, dict[str, Any]]:
    """Return the port and the document of an API, with names that are there."""
    port = served.api.port if kind == "admin" else served.ports["dynamiq.port"]
    path = "/api/v1/openapi.json" if kind == "admin" else f"/{kind}/openapi.json"
    document: dict[str, Any] = served.ask("GET", path, port=port).json
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path" and parameter["name"] in NAMES:
                    parameter["schema"] = {"type": "string", "enum": NAMES[parameter["name"]]}
            content = operation.get("requestBody", {}).get("content", {})
            if "application/x-ndjson" in content:  # one line of it is JSON, which it can write
                content["application/json"] = content.pop("application/x-ndjson")
    return port, document


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_api_answers_as_its_document_says_whatever_it_is_asked(served: Served, tmp_path: Path, kind: str) -> None:
    program = drivers.ENVIRONMENT / "bin" / "st"
    if not program.exists():
        pytest.fail("schemathesis is not installed: run `make .venv/foreign/.made`")
    port, document = described(served, kind)
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    done = subprocess.run(
        [
            *(str(program), "run", str(tmp_path / "openapi.json"), "--url", f"http://127.0.0.1:{port}"),
            *("--phases", "fuzzing", "--checks", CHECKS, "--max-examples", str(EXAMPLES[kind]), "--seed", "1"),
            *("--generation-deterministic", "--no-shrink", "--continue-on-failure", "--no-color", "--warnings", "off"),
            *("--request-timeout", str(PATIENCE_S)),
        ],
        cwd=tmp_path,
        env=clean(),
        capture_output=True,
        text=True,
        check=False,
        timeout=10 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert served.do(lambda: served.node.bugs) == 0
