"""Proof that hostile clients cost the others nothing: all attacks at once, on a real node, beside somebody who is good.

The good ones publish one message at a time, consume and finish it, and sit idle with heartbeats; none of them may be
cut off, and no message may be lost. The node's memory stays within its budget and the program's own. How long they
waited is printed beside its goal, a 99th percentile of 50 ms from PUB to delivery; it depends on the disk, and on whose
machine it is, so it is no check.

    python -m tests.proofs.hostile [--seconds 60] [--connections 500] [--budget 256MiB] [--only HalfBodies,Floods]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.callers.parts import user, users_in
from tests.proofs.checks import Checks
from tests.proofs.client import Client, Refused, fin, pub
from tests.proofs.connections import Crowd
from tests.proofs.costs import pss_bytes
from tests.proofs.process import Died, Process

SECONDS, CONNECTIONS, BUDGET = 60.0, 500, "256MiB"
IDLE = 20
P99_GOAL_S = 0.050
#: The program without anybody, some state of messages that are out, and what allocators lose between blocks.
PROGRAM_BYTES_MAX = 200_000_000
PAUSE_S = 0.005


class Good(threading.Thread):
    """Publishes, consumes and finishes messages, each with its number, and notes how long each took."""

    def __init__(self, port: int) -> None:
        super().__init__(name="good")
        self._port = port
        self._end = threading.Event()
        self.seen_s: list[float] = []
        self.lost: list[int] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Go round and round until told to end."""
        try:
            publisher, consumer = Client(self._port), Client(self._port)
            consumer.subscribe("good", "ch", 1)
            number = 0
            while not self._end.wait(PAUSE_S):
                began = time.monotonic()
                publisher.command(pub("good", b"%d" % number + bytes(100)))
                message = consumer.message()
                self.seen_s.append(time.monotonic() - began)
                if message.body.rstrip(b"\0") != b"%d" % number:
                    self.lost.append(number)
                consumer.send(fin(message.id))
                number += 1
            publisher.close()
            consumer.close()
        except (OSError, Refused) as failure:
            self.failure = failure

    def finish(self) -> None:
        """End it."""
        self._end.set()
        self.join(30)


class Watched(threading.Thread):
    """Looks at the node's memory."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="watched")
        self._pid = pid
        self._end = threading.Event()
        self.most = 0

    def run(self) -> None:
        """Look until told to end."""
        while not self._end.wait(0.25):
            try:
                self.most = max(self.most, pss_bytes(self._pid))
            except OSError:
                return

    def finish(self) -> None:
        """End it."""
        self._end.set()
        self.join(5)


def prove(path: Path, seconds: float, connections: int, budget: str, checks: Checks, *, only: str = "") -> None:
    """Let everybody loose on a node."""
    users_in(path / "data", [user("ops", ("admin", "*"))])
    dory = ("dory.tcp=true", "dory.tcp_port=0", "dory.http_port=0")
    node = Process(path / "data", f"memory.budget_bytes={budget}", *dory)
    good: Good | None = None
    try:
        node.start()
        alone = pss_bytes(node.pid)
        good, watched = Good(node.ports["nsq.tcp_port"]), Watched(node.pid)
        good.start()
        watched.start()
        idle = Crowd(node.ports["nsq.tcp_port"], IDLE)
        code = [
            sys.executable,
            "-m",
            "tests.proofs.attacks",
            json.dumps(node.ports),
            str(seconds),
            str(connections),
            only,
        ]
        attackers = subprocess.Popen(code, stdout=subprocess.PIPE, text=True)
        while attackers.poll() is None:
            idle.answer(0.5)
        said, _ = attackers.communicate()
        done = json.loads(said)
        checks.check(attackers.returncode == 0 and all(done.values()), f"attacked: {done}")
        idle.answer(6.0)
        good.finish()
        watched.finish()
        _judge(node, good, watched, idle, alone, checks)
        idle.close()
        ended = node.stop()
        checks.check(ended == 0, f"the node stopped with {ended}")
    except (Died, Refused, OSError, ValueError) as failure:
        checks.check(False, f"{type(failure).__name__}: {failure}; the node said: {node.last_words()[-1500:]}")
    finally:
        if good is not None:
            good.finish()
        node.abandon()


def _judge(node: Process, good: Good, watched: Watched, idle: Crowd, alone: int, checks: Checks) -> None:
    seen = sorted(good.seen_s)
    checks.check(
        good.failure is None and not good.lost and len(seen) > 10,
        f"the good ones: {len(seen)} messages, {len(good.lost)} lost, failure {good.failure!r}",
    )
    if seen:
        p50, p99 = seen[len(seen) // 2], seen[len(seen) * 99 // 100]
        text = f"from PUB to delivery {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.0f} ms, at most {seen[-1] * 1e3:.0f} ms"
        print(f"     {text}; the goal of {P99_GOAL_S * 1e3:.0f} ms is {'met' if p99 < P99_GOAL_S else 'MISSED'}")
    checks.check(idle.lost == 0 and idle.beats > 0, f"{IDLE} idle ones: {idle.lost} cut off, {idle.beats} heartbeats")
    parts = memory(node)
    most = sum(held for _, held in parts.values()) + PROGRAM_BYTES_MAX
    checks.check(
        watched.most <= most,
        f"memory: {alone / 1e6:.0f} MB before, {watched.most / 1e6:.0f} MB at most, allowed {most / 1e6:.0f} MB",
    )
    print("     " + ", ".join(f"{name} {used / 1e6:.1f} of {of / 1e6:.0f} MB" for name, (used, of) in parts.items()))
    polls = next(line for line in metrics(node).splitlines() if line.startswith("penstock_sqs_polls "))
    checks.check(polls.endswith(" 0"), f"receives that nobody waits for any more: {polls}")
    bugs = next(line for line in metrics(node).splitlines() if line.startswith("penstock_bugs_total"))
    checks.check(bugs.endswith(" 0"), f"{bugs}")


def metrics(node: Process) -> str:
    """Return what the node says of itself."""
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{node.ports['api.port']}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def memory(node: Process) -> dict[str, tuple[float, float]]:
    """Return what each part of the node's memory holds, and may hold."""
    found: dict[str, dict[str, float]] = {}
    for line in metrics(node).splitlines():
        for name in ("penstock_memory_bytes", "penstock_memory_max_bytes"):
            if line.startswith(name + "{"):
                part, value = line.split('"')[1], float(line.rsplit(" ", 1)[1])
                found.setdefault(part, {})[name] = value
    return {part: (held["penstock_memory_bytes"], held["penstock_memory_max_bytes"]) for part, held in found.items()}


def main() -> int:
    """Run the proof and print one line per check."""
    parser = argparse.ArgumentParser(description="Hostile clients cost the others nothing.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long the attack lasts")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="attackers")
    parser.add_argument("--budget", default=BUDGET, help="the node's memory budget")
    parser.add_argument("--only", default="", help="attacks by name, with commas between")
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="penstock-hostile-") as path:
        prove(Path(path), asked.seconds, asked.connections, asked.budget, checks, only=asked.only)
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
