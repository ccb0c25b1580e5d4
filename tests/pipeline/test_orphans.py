"""A node that is killed leaves nothing of a real Spark behind: neither the Java machine nor its Python workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.cli.processes import descendants, is_alive, text, until
from tests.cli.test_beside import Up

#: A streaming query whose rows go through Python workers.
STREAMING = """
from penstock.pipeline import session

spark = session("orphans", master="local[1]", quick=True, archive=False)
rows = spark.readStream.format("rate").load()
query = rows.mapInPandas(lambda batches: batches, rows.schema).writeStream.format("noop").start()
while not (query.lastProgress and query.lastProgress["numInputRows"]):
    query.awaitTermination(0.1)
print("running", flush=True)
query.awaitTermination()
"""


def test_nothing_of_spark_outlives_a_node_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "data" / "pipelines" / "shop.log"
    with Up(tmp_path, STREAMING) as node:
        until(lambda: "running" in text(log), "running")
        family = list(descendants(node.process.pid))
        programs = [program(pid) for pid in family]
        assert "java" in programs  # twice for the moment in which it forks a program
        assert sum(name.startswith("python") for name in programs) >= 3  # the runner's, the driver, the workers' daemon
        assert node.end(signal.SIGKILL) == -signal.SIGKILL
        # Also those that came after the look: everything there works in this directory.
        until(lambda: not any(map(is_alive, [*family, *working_in(tmp_path)])), "the end of all")


def program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:  # it ended just now
        return ""


def working_in(directory: Path) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/cwd") == str(directory):
                found.append(int(name))
        except OSError:
            continue
    return found
