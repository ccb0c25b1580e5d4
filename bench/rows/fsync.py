"""Synced before the OK: 64 publishers with one message each in flight, beside the disk's own fdatasync."""

from __future__ import annotations

from collections.abc import Iterator

from bench import generator, supply
from bench.measure import interleaved
from bench.peers import Penstock, Redis, fleet
from bench.plan import Plan
from bench.report import Result, at_least, rate, ratio, result

PUBLISHERS = 64
#: About what one group commit of all publishers writes.
PROBE_BYTES = 8192


def run(plan: Plan) -> Iterator[Result]:
    """Publish one message at a time per connection to servers that sync before they answer."""
    with fleet(Redis, Penstock, durability="fsync") as made:
        options = {"connections": PUBLISHERS, "seconds": plan.seconds}
        numbers = interleaved(plan.rounds, made.turns("wait", options))
        disk = generator.load("disk", dir=str(supply.BUILD / "data"), unit=PROBE_BYTES, seconds=plan.seconds)
    goals = [at_least(0.9, ratio(rate(numbers, "penstock"), rate(numbers, "redis")))]
    line = result("fsync", f"fsync before OK, {PUBLISHERS} publishers", numbers, goals, made.missing)
    line.readings["fdatasync alone"] = f"p50 / p99 {disk.p50_us / 1000:.3g} / {disk.p99_us / 1000:.3g} ms"
    yield line
