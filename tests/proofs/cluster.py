"""Proof that all jobs run on a real standalone cluster, and through Spark Connect, by the commands that people use.

A master and two workers of one core each; archive, dedupe, route and rollup as one declared pipeline, then a replay of
the archive and a report. What comes out is compared with what went in.

    python -m tests.proofs.cluster
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.flight.parts import Flown, body_batch
from tests.pipeline.cluster import Cluster
from tests.proofs.checks import Checks

PIPELINE = """
home = "{home}"
trigger = "once"

[spark]
"spark.executor.memory" = "512m"
"spark.sql.shuffle.partitions" = 2
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

BODIES = [b"hits:1|c", b"hits:1|c", b"load:2|g", b"no sample"]
LAST = b"hits:5|c"


def penstock(cluster: Cluster, place: Path, *words: str) -> None:
    """Run a command of the program as a process of its own in a place."""
    program = (sys.executable, "-m", "penstock.cli", "pipeline")
    cluster.ran([*program, *words], {"PYSPARK_PYTHON": sys.executable}, place)


def trial(checks: Checks, cluster: Cluster, master: str, way: str, place: Path) -> None:
    """Run every job on one master and compare what came of it."""
    place.mkdir()
    with Flown(place / "node") as node:
        node.put("in", body_batch(*BODIES, traffic=[1, 1, 2, 0]))
        time.sleep(1.1)  # windows close when later samples come
        node.put("in", body_batch(LAST, traffic=[3]))
        file = place / "all.toml"
        file.write_text(PIPELINE.format(home=place / "home", lake=place / "lake"))
        words = ("--url", f"grpc://127.0.0.1:{node.flight.port}", "--master", master)
        penstock(cluster, place, "run", str(file), "--once", *words)
        routed = [sorted(node.bodies(name)) for name in ("one", "two")]
        checks.check(routed == [[BODIES[0], LAST], [LAST, *BODIES[2:]]], f"{way}: dedupe and route give {routed}")
        checks.check(node.bodies("in.dead") == [BODIES[3]], f"{way}: what is no sample is a dead letter")
        values = {each["id"]: each["value"] for each in map(json.loads, node.bodies("rolled"))}
        expected = {"stats.counts.hitssum": 2.0, "stats.gauges.loadlast": 2.0}
        checks.check(values == expected, f"{way}: rollup gives {values}")
        penstock(cluster, place, "replay", "--table", str(place / "lake"), "--to", "again", "--name", "r", *words)
        again = sorted(node.bodies("again"))
        checks.check(again == sorted([*BODIES, LAST]), f"{way}: the archive was replayed, {len(again)} messages")
        page = place / "report.html"
        penstock(cluster, place, "report", "-o", str(page), *words)
        checks.check("<svg" in page.read_text(), f"{way}: a report of {page.stat().st_size:,} bytes")
        checks.check(node.do(lambda: node.node.bugs) == 0, f"{way}: the node reported no bug of its own")


def main() -> int:
    """Run the jobs on both kinds of master."""
    checks = Checks()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with Cluster(place) as cluster:
            trial(checks, cluster, cluster.master, "standalone", place / "standalone")
            trial(checks, cluster, cluster.connect_server(sys.executable), "connect", place / "connect")
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
