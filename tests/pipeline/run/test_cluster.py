"""The jobs on a real standalone cluster and through Spark Connect, by the commands that people use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flight.parts import Flown, body_batch
from tests.pipeline.cluster import Cluster

PIPELINE = """
home = "{home}"
trigger = "once"

[spark]
"spark.executor.memory" = "512m"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"

[sources.in]
topic = "in"

[steps.once]
from = "in"
job = "dedupe"
by = "body"

[steps.route]
from = "once"
job = "route"
mapping = {{ x = 0, y = 1 }}
services.one = {{ allowed = ["x"], topic = "one" }}
services.two = {{ allowed = ["y"], is_default = true, topic = "two" }}

[steps.rollup]
from = "in"
job = "rollup"
policies = ["1s:1d"]
lateness = "0s"
future = "0s"

[sinks.routed]
from = "route"
topic = "*"

[sinks.rolled]
from = "rollup"
topic = "rolled"

[sinks.lake]
from = "in"
table = "{lake}"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Flown]:
    with Flown(tmp_path / "node") as made:
        yield made
        assert made.do(lambda: made.node.bugs) == 0


def penstock(*words: str) -> str:
    """Run a command of the program as a process of its own; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "pipeline", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env={**environment, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize("way", ["standalone", "connect"])
def test_all_jobs_run(cluster: Cluster, node: Flown, tmp_path: Path, way: str) -> None:
    master = cluster.master if way == "standalone" else cluster.connect_server(sys.executable)
    url = f"grpc://127.0.0.1:{node.flight.port}"
    bodies = [b"hits:1|c", b"hits:1|c", b"load:2|g", b"no sample"]
    node.put("in", body_batch(*bodies, traffic=[1, 1, 2, 0]))
    time.sleep(1.1)  # windows close when later samples come
    node.put("in", body_batch(b"hits:5|c", traffic=[3]))
    file = tmp_path / "all.toml"
    file.write_text(PIPELINE.format(home=tmp_path / "home", lake=tmp_path / "lake"))
    words = ("--url", url, "--master", master)
    penstock("run", str(file), "--once", *words)
    assert sorted(node.bodies("one")) == [b"hits:1|c", b"hits:5|c"]
    assert sorted(node.bodies("two")) == [b"hits:5|c", b"load:2|g", b"no sample"]
    assert node.bodies("in.dead") == [b"no sample"]
    rolled = [json.loads(body) for body in node.bodies("rolled")]
    assert {each["id"]: each["value"] for each in rolled} == {"stats.counts.hitssum": 2.0, "stats.gauges.loadlast": 2.0}
    replayed = penstock("replay", "--table", str(tmp_path / "lake"), "--to", "again", "--name", "r", *words)
    assert "5 " in replayed
    assert sorted(node.bodies("again")) == sorted([*bodies, b"hits:5|c"])
    page = tmp_path / "report.html"
    assert "messages of" in penstock("report", "-o", str(page), *words)
    assert "<svg" in page.read_text()
