"""Proof that a streaming query writes every row once, whoever dies, and wherever in a commit.

Real Spark drivers copy a topic of a real node into another one. Drivers are killed after staging, at every step of the
node's commit, and between the node's answer and Spark's own note of it; the node is killed at the same steps, and while
a task stages; each driver that follows shuffles into another number of tasks. On a standalone cluster an executor is
killed in the middle of a task. In the end the rows in the output are those of the input, each as often as there.

    python -m tests.proofs.exactly_once --rows 5000000
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.ports import free_port
from penstock.client.connection import Access, Connection
from penstock.client.wire import Publish, Read
from tests.pipeline.cluster import Cluster
from tests.proofs.checks import Checks
from tests.proofs.child import Child
from tests.proofs.driver import Job
from tests.proofs.halting_node import APPENDED, APPENDING, DONE, JOURNALED, PLACES, RESUMED
from tests.proofs.halting_source import ANSWERED, STAGED, WRITING
from tests.proofs.halts import LOOK_S, Halts, NotReached
from tests.proofs.process import Died, Process

#: Enough micro-batches for every kill to have one of its own, and some to go on with.
BATCHES = 12
#: The cluster copies the same rows again, in fewer steps.
CLUSTER_BATCHES = 4
PUT_ROWS = 10_000
#: Rows a second that even a busy machine copies, with room for Spark's start.
SLOWEST_ROWS_S = 10_000
START_S = 120.0
BODY_BYTES = 100


class Trial:
    """A node, its topics, and the drivers that come and go."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        self.rows = rows
        self.halts = Halts(path / "halts")
        self.kills: dict[str, int] = {}
        flight = free_port()
        self.node = Process(
            path / "data",
            f"flight.port={flight}",
            "log.level=warning",
            command=(sys.executable, "-m", "tests.proofs.halting_node", str(path / "halts")),
        )
        self.access = Access(f"grpc://127.0.0.1:{flight}")
        #: Into how many tasks each driver shuffles, one driver after the other.
        self.lives: list[int] = []
        #: Drivers by the place where they wait to begin: the next is warm when the last is killed.
        self._ready: list[tuple[str, Child]] = []
        self._driver: Child | None = None
        self._spawned = 0
        self._began = time.monotonic()

    def begin(self) -> None:
        """Start the node and fill the input."""
        self.node.start()
        self.fill("in", self.rows)

    def fill(self, topic: str, count: int) -> None:
        """Publish numbers as bodies of a fixed size, in two shards, with a few thousand keys."""
        with Connection(self.access) as connection:
            connection.act("create-topic", {"name": topic, "settings": {"shards": 2}})
            schema = pa.schema([("body", pa.binary()), ("key", pa.binary())])
            writer, answers = connection.put(Publish(topic=topic), schema)
            with writer:
                for first in range(0, count, PUT_ROWS):
                    writer.write_batch(numbered(first, min(first + PUT_ROWS, count)))
                    answers.read()
                writer.done_writing()

    def spawn(self, partitions: int, *, master: str = "local[2]", batches: int = BATCHES, over: str = "") -> None:
        """Have a driver started that waits to begin."""
        self._spawned += 1
        begin = f"begin-{self._spawned}"
        self.halts.arm(begin)
        job = Job(
            url=self.access.url,
            path=None if over else str(self.path / "data"),
            checkpoint=str(self.path / f"checkpoint{over}"),
            halts=str(self.path / "halts"),
            rows=-(-self.rows // batches),
            partitions=partitions,
            master=master,
            begin=begin,
        )
        self._ready.append((begin, Child("tests.proofs.driver", job, self.path / f"driver-{self._spawned}.log")))

    def drive(self) -> Child:
        """Let the next driver begin, and have the one after it started."""
        if not self._ready:
            self.spawn(self.lives.pop(0))
        begin, self._driver = self._ready.pop(0)
        self.halts.reached(begin, self._driver.alive)
        if self.lives:
            self.spawn(self.lives.pop(0))
        self.halts.release(begin)
        return self._driver

    def driver_dies(self, place: str, *, node: bool = False) -> None:
        """Have a driver killed, and the node with it, when somebody stands at a place."""
        self.halts.arm(place)
        driver = self.drive()
        standing = self.halts.reached(place, driver.alive)
        driver.alive()
        driver.kill()
        if place in (STAGED, ANSWERED):
            # The driver's Python, which outlives its Java for a moment and would go on.
            os.kill(standing, signal.SIGKILL)
        if node:
            self.node.kill()
        self.halts.release(place)
        if node:
            self.node.start()
        if place in PLACES:
            self.settled()
        self.count(f"driver{' and node' if node else ''} {place}")

    def settled(self) -> None:
        """Wait until the node has finished what it promised; nobody stages meanwhile."""
        end = time.monotonic() + START_S
        while os.listdir(self.path / "data" / "staging"):
            if time.monotonic() > end:
                raise Died(f"the node does not finish a commit: {self.node.last_words()}")
            time.sleep(LOOK_S)

    def node_dies(self, *places: str) -> None:
        """Have the node killed at one place after the other, while one driver goes on to its end."""
        self.halts.arm(places[0])
        driver = self.drive()
        for number, place in enumerate(places, 1):
            self.halts.reached(place, driver.alive)
            self.node.kill()
            if number < len(places):
                self.halts.arm(places[number])
            self.halts.release(place)
            self.node.start()
            self.count(f"node {place}")
        driver.ended(self.patience_s())

    def count(self, kill: str) -> None:
        """Note a kill."""
        self.kills[kill] = self.kills.get(kill, 0) + 1
        print(f"     {time.monotonic() - self._began:5.1f} s, killed: {kill}", flush=True)

    def patience_s(self) -> float:
        """Return how long a driver may take to the end."""
        return START_S + self.rows / SLOWEST_ROWS_S

    def numbers(self, topic: str) -> npt.NDArray[np.int64]:
        """Return the numbers in a topic, sorted; a body that is not one of ours is an error."""
        found = []
        with Connection(self.access) as connection:
            for shard in connection.topic(topic).shards:
                for batch in connection.read(Read(topic=topic, shard=shard.shard, columns=["body"])):
                    found.append(numbers_in(batch.column("body")))
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    def abandon(self) -> None:
        """Leave nothing running."""
        for driver in (self._driver, *(driver for _, driver in self._ready)):
            if driver is not None:
                driver.abandon()
        self.node.abandon()


def numbered(first: int, end: int) -> pa.RecordBatch:
    """Return rows whose bodies hold their numbers."""
    count = end - first
    cells = np.zeros((count, BODY_BYTES), np.uint8)
    cells[:, :8] = np.arange(first, end, dtype=np.int64)[:, None].view(np.uint8)
    cuts = np.arange(0, (count + 1) * BODY_BYTES, BODY_BYTES, dtype=np.int32)
    body = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(cuts), pa.py_buffer(cells)])
    key = pa.array([b"key %d" % (number % 5000) for number in range(first, end)], pa.binary())
    return pa.record_batch([body, key], ["body", "key"])


def numbers_in(body: pa.Array) -> npt.NDArray[np.int64]:
    """Return the numbers in bodies."""
    cuts = np.frombuffer(body.buffers()[1], np.int32, len(body) + 1, 4 * body.offset)
    if not (np.diff(cuts) == BODY_BYTES).all():
        raise Died("a body in the output has another length than all in the input")
    cells = np.frombuffer(body.buffers()[2], np.uint8, len(body) * BODY_BYTES, int(cuts[0]))
    return cells.reshape(-1, BODY_BYTES)[:, :8].copy().view(np.int64)[:, 0]


def executor_of(pid: int) -> int:
    """Return the executor that a Python process works for."""
    while pid > 1:
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
        found = re.search(r"^PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        pid = int(found[1]) if found else 0
    raise Died("the process that writes belongs to no executor")


def prove(trial: Trial, cluster: Cluster) -> None:
    """Kill drivers and the node, and let a last driver come to the end."""
    trial.begin()
    trial.lives = [3, 2, 5, 4, 2, 3]
    trial.driver_dies(STAGED)
    trial.driver_dies(JOURNALED)
    trial.driver_dies(APPENDING)
    trial.driver_dies(APPENDED, node=True)
    trial.driver_dies(ANSWERED)
    # The driver of the next part gets warm meanwhile.
    trial.spawn(2, master=cluster.master, batches=CLUSTER_BATCHES, over="-cluster")
    # Whatever it resumes, it is killed in the midst of that, too.
    trial.node_dies(JOURNALED, RESUMED, APPENDING, RESUMED, APPENDED, RESUMED, DONE, WRITING)


def prove_cluster(trial: Trial) -> None:
    """Kill an executor in the middle of a task, on a cluster with two workers."""
    with Connection(trial.access) as connection:
        connection.act("delete-topic", {"name": "out"})
    trial.halts.arm(WRITING)
    driver = trial.drive()
    writer = trial.halts.reached(WRITING, driver.alive)
    os.kill(executor_of(writer), signal.SIGKILL)
    trial.halts.release(WRITING)
    trial.count("executor writing")
    driver.ended(trial.patience_s())


def report(trial: Trial, checks: Checks, where: str) -> None:
    """Compare the topics."""
    found, wanted = trial.numbers("out"), np.arange(trial.rows)
    unique = len(np.unique(found))
    text = f"{where}: {trial.rows} rows in, {len(found)} out, {len(found) - unique} of them twice"
    checks.check(bool(np.array_equal(found, wanted)), text, f"{trial.rows - unique} are missing")


def main() -> int:
    """Run the proof and print one line per check."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    args = parser.parse_args()
    checks = Checks()
    path = Path(tempfile.mkdtemp(prefix="penstock-exactly-once-"))
    trial = Trial(path, args.rows)
    (path / "cluster").mkdir()
    try:
        with Cluster(path / "cluster") as cluster:
            prove(trial, cluster)
            report(trial, checks, "drivers and node killed")
            prove_cluster(trial)
            report(trial, checks, "executor killed")
        errors = [line for line in trial.node.log.read_text().splitlines() if " error " in line[:40]]
        checks.check(not errors, "the node reported no bug of its own", *errors)
        left = os.listdir(path / "data" / "staging")
        checks.check(not left, "nothing is left staged", *left)
    except (Died, NotReached) as died:
        checks.check(False, str(died))
    finally:
        trial.abandon()
    print(f"     {sum(trial.kills.values())} kills")
    if checks.failed:
        print(f"     what was left is in {path}")
    else:
        shutil.rmtree(path)
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
