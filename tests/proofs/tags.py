"""Proof that rows which wait for their tag's client delay nobody and cost little.

Two nodes get the same messages: a million rows of one tag, in stretches with others between them, then messages of 999
other tags and of none. In the first node clients without a tag take everything. In the second a client asks for the
one tag and stays at RDY 0, so that its rows wait.

- memory: how much the Pss of each node grew over the million, at rest before and after. Before, the same log without
  the tag was published and taken, so that what a node keeps of any log it just read is there already; the cache for
  that is small here, because its ups and downs would hide what is measured. The second node's growth must stay within
  bounds; the first's, an idle channel over the same log, is printed beside it.
- rate: messages published, delivered and finished by ten clients with a tag each and ten without, in turns, medians.

    python -m tests.proofs.tags [--rows 1000000]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench import generator
from tests.proofs.checks import Checks
from tests.proofs.client import Client
from tests.proofs.costs import cpu_ns, pss_bytes, settle
from tests.proofs.process import Died, Process

ROWS = 1_000_000
#: Rows that wait come in so many stretches, each followed by rows that anybody may have.
STRETCHES = 20
OTHERS = 5_000

#: Against 128 MiB by default.
CACHE = "8MiB"

TAGS = 1_000
RATE_MIN = 0.7
GROWTH_BYTES_MAX = 40_000_000
ROUNDS = 5
TURN_S = 2.0

#: The generator numbers tags and channels: tag 0 is the one whose client takes nothing.
TOPIC, CHANNEL, PARKED = "tags", "ch0", "t00000"
TRAFFIC = {"tags": TAGS - 1, "first_tag": 1, "untagged": 50, "connections": 20, "claims": 10}


class Side:
    """One of the two nodes, and what was measured there."""

    def __init__(self, path: Path) -> None:
        self.process = Process(path, f"memory.cache_bytes={CACHE}")
        self.process.start()
        self._port = self.process.ports["nsq.tcp_port"]
        self._load("sub", count=0)  # the channel comes first: what is published then is its backlog
        self.client: Client | None = None
        self.rates: list[float] = []
        self.costs_us: list[float] = []

    def fill(self, rows: int, tags: int) -> None:
        """Publish rows of one tag (or of none), and others between them."""
        for _ in range(STRETCHES):
            self._load("pub", tags=tags, count=rows // STRETCHES)
            self._load("pub", count=OTHERS)

    def claim(self) -> None:
        """Ask for the tag of those rows, and take nothing."""
        self.client = Client(self._port, timeout_s=120.0)
        self.client.identify(extend_support=True, desired_tag=PARKED)
        self.client.subscribe(TOPIC, CHANNEL, 0)

    def take(self, count: int) -> int:
        """Let clients without a tag have so many rows of the backlog; return how many they got."""
        return self._load("sub", connections=2, count=count).messages

    def turn(self) -> None:
        """Publish, deliver and finish for a while."""
        before_ns = cpu_ns(self.process.pid)
        seen = self._load("flow", seconds=TURN_S, **TRAFFIC)
        self.costs_us.append((cpu_ns(self.process.pid) - before_ns) / 1e3 / seen.published)
        self.rates.append(seen.published / seen.seconds)

    def depth(self) -> int:
        """Return how many rows wait in the channel."""
        return int(self.process.call("GET", f"/topics/{TOPIC}/subscriptions/{CHANNEL}")["depth"])

    def pss_bytes(self) -> int:
        """Return the node's memory once it is at rest."""
        settle(self.process.pid)
        return pss_bytes(self.process.pid)

    def phrase(self) -> str:
        """Return rate and CPU in a few words."""
        return f"{median(self.rates) / 1e3:.0f} k/s, {median(self.costs_us):.1f} us of CPU each"

    def _load(self, mode: str, **options: str | float) -> generator.Run:
        return generator.load(mode, port=self._port, topic=TOPIC, ext=1, **options)


def prove(without: Side, parked: Side, rows: int, checks: Checks) -> None:
    """Do the same to both nodes and compare them."""
    others = STRETCHES * OTHERS
    grown: list[int] = []
    for side in (without, parked):
        side.fill(rows, tags=0)
        side.take(rows + others)
        side.turn()
        before = side.pss_bytes()
        count = rows + others
        if side is parked:
            side.claim()
            count = others
        side.fill(rows, tags=1)
        taken = side.take(count)
        checks.check(taken == count, f"{taken:,} of {rows + others:,} rows were delivered to clients without a tag")
        side.turn()
        grown.append(side.pss_bytes() - before)
    waiting = parked.depth()
    checks.check(waiting == rows, f"{waiting:,} rows wait for the client of their tag, which is at RDY 0")
    checks.check(
        grown[1] <= GROWTH_BYTES_MAX,
        f"the node grew by {grown[1] / 1e6:.1f} MB meanwhile, {grown[1] / rows:.0f} bytes for each that waits (where "
        f"none wait by {grown[0] / 1e6:.1f} MB), allowed {GROWTH_BYTES_MAX / 1e6:.0f} MB",
    )
    for _ in range(ROUNDS):
        without.turn()
        parked.turn()
    ratio = median(parked.rates) / median(without.rates)
    checks.check(
        ratio >= RATE_MIN,
        f"other messages of {TAGS - 1} tags and of none: {parked.phrase()}, beside {without.phrase()} where none wait: "
        f"{ratio:.2f}x, at least {RATE_MIN}x",
    )
    client = parked.client
    if client is not None:
        client.send(b"RDY 1\n")
        checks.check(PARKED.encode() in client.message().body, "the first of them comes as soon as its client is ready")
        client.close()


def main() -> int:
    """Run the proof and print one line per check."""
    parser = argparse.ArgumentParser(description="Rows that wait for their tag delay nobody.")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows that wait")
    rows = parser.parse_args().rows
    checks = Checks()
    sides: list[Side] = []
    with tempfile.TemporaryDirectory(prefix="penstock-tags-") as path:
        try:
            sides += [Side(Path(path, "without")), Side(Path(path, "parked"))]
            prove(sides[0], sides[1], rows, checks)
            for side in sides:
                side.process.stop()
        except (Died, generator.LoadFailed) as failure:
            checks.check(False, str(failure))
        finally:
            for side in sides:
                side.process.abandon()
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
