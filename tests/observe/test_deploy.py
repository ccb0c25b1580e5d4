"""The dashboard and the alert rules in `deploy/` speak of metrics that a node has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.wire import PipelineReport, QueryReport
from tests.cluster.member import joined
from tests.served import Served

DEPLOY = Path(__file__).parents[2] / "deploy"
#: Prometheus' own, and not a node's.
OTHERS = {"up", "ALERTS"}


def promtool(*words: str) -> str:
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing: apt-get install prometheus"
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False, cwd=DEPLOY)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all samples of a node at work."""
    with Served(tmp_path_factory.mktemp("deploy") / "data") as served:
        served.post("topics", {"name": "orders"})
        served.post("topics/orders/subscriptions", {"name": "audit"})
        served.publish("orders", "x")
        leased = served.lease("orders", "audit")
        served.post("topics/orders/subscriptions/audit/ack", {"receipts": [leased[0]["receipt"]]})
        served.post("topics/orders/messages", raw="garbage")  # something for the ledger
        query = QueryReport(name="q", state="running", batch=1)
        report = PipelineReport(name="p", pid=1, host="h", state="running", started_ms=1, restarts=0, queries=[query])
        served.do(lambda: served.node.pipelines.report(report))
        served.do(lambda: served.node.gate.refusals.update({("bad_token", "api.port"): 1}))
        with joined(served):
            text = served.get("/metrics").content.decode()
    return set(re.findall(r"^(\w+)[{ ]", text, re.MULTILINE))


def expressions(found: Any) -> Iterator[str]:
    """Yield every expression of a dashboard, wherever it stands."""
    if isinstance(found, dict):
        yield from (value for key, value in found.items() if key in ("expr", "definition") and isinstance(value, str))
        for value in found.values():
            yield from expressions(value)
    elif isinstance(found, list):
        for value in found:
            yield from expressions(value)


def named(expression: str) -> set[str]:
    """Return the metrics in an expression."""
    return set(re.findall(r"\b(?:penstock|process)_\w+", re.sub(r'"[^"]*"', "", expression)))


def test_promtool_takes_the_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", "alerts.yml")


def test_promtool_takes_the_configuration_and_finds_the_rules() -> None:
    assert "1 rule files found" in promtool("check", "config", "prometheus.yml")


def test_the_rules_fire_when_they_should_and_not_else() -> None:
    promtool("test", "rules", "alerts.test.yml")


def test_every_metric_of_the_rules_is_one_of_a_node(known: set[str]) -> None:
    text = (DEPLOY / "alerts.yml").read_text(encoding="utf-8")
    rules = re.findall(r"^ +expr: (.+)$", text, re.MULTILINE)
    assert len(rules) == text.count("- alert:") > 10
    names = set().union(*map(named, rules))
    assert names - OTHERS <= known, names - OTHERS - known


def test_every_metric_of_the_dashboard_is_one_of_a_node(known: set[str]) -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    found = list(expressions(dashboard))
    assert len(found) > 30
    names = set().union(*map(named, found))
    assert names <= known, names - known


def test_the_expressions_of_the_dashboard_can_be_read(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    rules = []
    for number, panel in enumerate(dashboard["panels"]):
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "5m")
            rules.append({"record": f"x:{number}{target['refId']}", "expr": expression})
    assert len(rules) > 30
    written = tmp_path / "rules.yml"
    written.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}), encoding="utf-8")
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(written))


def test_panels_of_the_dashboard_stand_beside_each_other() -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
