"""Batches of 1,000, written to the page cache before the reply (durability os)."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import Sample, interleaved
from bench.peers import Nats, Penstock, Redis, Server, fleet
from bench.plan import Plan
from bench.report import Result, at_least, best_rate, rate, ratio, result

BATCH = 1000


def run(plan: Plan) -> Iterator[Result]:
    """Publish MPUBs; Redis gets XADDs without a limit in flight, NATS publishes with a batch of acks outstanding."""

    def turn(server: Server) -> Sample:
        window = BATCH if isinstance(server, Nats) else 0  # beyond its own limit it refuses publishes
        return server.sample("pub", topic=server.topic(), batch=BATCH, window=window, seconds=plan.seconds)

    with fleet(Redis, Nats, Penstock) as made:
        numbers = interleaved(plan.rounds, made.each(turn))
    goals = [at_least(4, ratio(rate(numbers, "penstock"), best_rate(numbers, "redis", "nats")), what="the better one ")]
    yield result("batches", f"batches of {BATCH:,} (MPUB), durability os", numbers, goals, made.missing)
