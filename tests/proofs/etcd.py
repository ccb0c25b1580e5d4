"""Proof that kills and pauses of etcd's leader, and `kill -9` of the node, lose nothing that a publisher was told.

A node keeps its registry in a cluster of three. Publishers make a new topic with every message, over HTTP, while the
leader is killed or stopped and the node is killed, in turns. In the end every topic whose publish was answered is
there with its message, no topic has another's number, and nothing stands in lost/.

    python -m tests.proofs.etcd --troubles 12
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from penstock.registry.etcd.client import Client
from tests.cli.program import Node
from tests.etcd.servers import Cluster, wait_for
from tests.proofs.checks import Checks

PUBLISHERS = 3
#: Longer than a node asks etcd again for what it does not know.
ANSWER_S = 60.0


class Load:
    """Publishers that make a topic with every message."""

    def __init__(self) -> None:
        self.port = 0
        self.answered: set[str] = set()
        self.refused = 0
        self.slowest_s = 0.0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(PUBLISHERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def more(self) -> None:
        """Wait until some more were answered."""
        before = len(self.answered)
        wait_for(lambda: len(self.answered) > before + 5, "answers")

    def _publish(self, number: int) -> None:
        count = 0
        while not self._over.is_set():
            count += 1
            topic, began = f"p{number}.{count}", time.monotonic()
            connection = HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
            try:
                connection.request("POST", f"/pub?topic={topic}", topic.encode())
                status = connection.getresponse().status
            except (OSError, HTTPException):  # the node is being killed
                self._over.wait(0.05)
                continue
            finally:
                connection.close()
            if status == 200:
                self.answered.add(topic)
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            else:
                self.refused += 1
                self._over.wait(0.05)


def leader(cluster: Cluster) -> int:
    """Return which member leads."""

    async def asked() -> int:
        client = Client("default", cluster.zone())
        try:
            return next((at for at, health in enumerate(await client.health()) if health.is_leader), 0)
        finally:
            await client.close()

    return asyncio.run(asked())


def main() -> int:
    """Make trouble, and look what is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--troubles", type=int, default=30)
    troubles = parser.parse_args().troubles
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="penstock-etcd-") as folder:
        cluster = Cluster(Path(folder) / "etcd", 3)
        try:
            _run(Path(folder), cluster, troubles, checks)
        finally:
            cluster.close()
    return checks.code()


def _run(folder: Path, cluster: Cluster, troubles: int, checks: Checks) -> None:
    options = ("--set=registry.kind=etcd", f"--set=etcd.zones.default.endpoints={','.join(cluster.endpoints)}")
    load, node = Load(), Node(folder, *options)
    load.port = node.port("nsq.http_port")
    load.start()
    try:
        for number in range(troubles):
            load.more()
            kind = ("kill", "pause", "node")[number % 3]
            if kind == "node":
                node.__exit__(None, None, None)
                node = Node(folder, *options)
                load.port = node.port("nsq.http_port")
            else:
                getattr(cluster.members[leader(cluster)], kind)()
            load.more()
            cluster.heal()
    finally:
        load.stop()
        node.__exit__(None, None, None)
    with Node(folder, *options) as last:
        there = {each["name"]: each for each in json.loads(last.ok("topic", "list", "--json").raw)}
        rows = {name for name, each in there.items() if each["rows"]}
        last.end()
    labels = [json.loads(path.read_bytes())["name"] for path in (folder / "data/topics").glob("*/topic.json")]
    print(f"     {troubles} troubles; {load.refused} refused, the slowest answer after {load.slowest_s:.1f} s")
    missing = sorted(load.answered - there.keys())
    checks.check(not missing, f"{len(load.answered)} new topics were answered, and all of them are there", *missing)
    empty = sorted(load.answered - rows)
    checks.check(not empty, "each has its message", *empty)
    twice = sorted({name for name in labels if labels.count(name) > 1})
    checks.check(not twice, "none was made twice", *twice)
    lost = [str(path) for path in (folder / "data/lost").glob("*")]
    checks.check(not lost, "nothing is in lost/", *lost)


if __name__ == "__main__":
    sys.exit(main())
