"""Pipelined PUB on one connection. nsqd with its defaults is the peer; nsqd in memory is shown beside it."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import interleaved
from bench.peers import Nsqd, NsqdInMemory, Penstock, fleet
from bench.plan import Plan
from bench.report import Result, at_least, rate, ratio, result, shown


def run(plan: Plan) -> Iterator[Result]:
    """Publish for a while without waiting for replies, which are counted and checked."""
    with fleet(Nsqd, NsqdInMemory, Penstock) as made:
        numbers = interleaved(plan.rounds, made.turns("pub", {"seconds": plan.seconds}))
    ours = rate(numbers, "penstock")
    goals = [
        at_least(20, ratio(ours, rate(numbers, "nsqd"))),
        shown("beside nsqd in memory", ratio(ours, rate(numbers, "nsqd in memory"))),
    ]
    yield result("publish", "pipelined PUB, one connection", numbers, goals, made.missing)
