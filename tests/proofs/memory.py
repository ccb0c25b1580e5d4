"""Proof that a node whose consumers keep up settles at little memory, with its default budget.

Four topics, 20,000 messages a second together, each with a consumer that finishes what it gets. Prints the memory as it
goes, and what the parts of the budget hold at the end.

    python -m tests.proofs.memory [--seconds 300] [--rate 20000] [--size 200]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from bench.generator import LoadFailed, finished, started
from tests.proofs.checks import Checks
from tests.proofs.costs import pss_bytes
from tests.proofs.hostile import memory
from tests.proofs.process import Died, Process

SECONDS, RATE, SIZE = 300.0, 20_000, 200
TOPICS = 4
BYTES_MAX = 400_000_000
LOOK_S = 5.0


def prove(path: Path, seconds: float, rate: int, size: int, checks: Checks) -> None:
    """Load a node for a while."""
    node = Process(path / "data")
    try:
        node.start()
        port, began = node.ports["nsq.tcp_port"], time.monotonic()
        seen = [pss_bytes(node.pid)]
        options: dict[str, float] = {"port": port, "rate": rate // TOPICS, "seconds": seconds, "size": size}
        loads = [started("paced", topic=f"t{number}", **options) for number in range(TOPICS)]
        while any(load.poll() is None for load in loads):
            time.sleep(LOOK_S)
            seen.append(pss_bytes(node.pid))
        took = time.monotonic() - began
        done = [finished(load) for load in loads]
        print("     MB every 5 s: " + " ".join(f"{size / 1e6:.0f}" for size in seen))
        parts = ", ".join(
            f"{name} {used / 1e6:.1f} of {most / 1e6:.0f} MB" for name, (used, most) in memory(node).items()
        )
        print(f"     {parts}")
        count = sum(run.messages for run in done)
        slow = max(run.p99_us for run in done)
        text = f"{count} messages in {took:.0f} s, p99 {slow / 1e3:.1f} ms"
        checks.check(max(seen) <= BYTES_MAX, f"{text}: at most {max(seen) / 1e6:.0f} MB, {seen[0] / 1e6:.0f} before")
        checks.check(node.stop() == 0, "the node stopped")
    except (Died, LoadFailed) as failure:
        checks.check(False, f"{type(failure).__name__}: {failure}; the node said: {node.last_words()[-500:]}")
    finally:
        node.abandon()


def main() -> int:
    """Run the proof and print one line per check."""
    parser = argparse.ArgumentParser(description="A node that keeps up needs little memory.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long the load lasts")
    parser.add_argument("--rate", type=int, default=RATE, help="messages a second, of all topics together")
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of a message")
    asked = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="penstock-memory-") as path:
        prove(Path(path), asked.seconds, asked.rate, asked.size, checks)
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
