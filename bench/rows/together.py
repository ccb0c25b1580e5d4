"""Publish, deliver and FIN at the same time, through one subscription and through ten."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import interleaved
from bench.peers import Nsqd, Penstock, fleet
from bench.plan import Plan
from bench.report import Result, at_least, rate, ratio, result

TARGETS = {1: 10.0, 10: 5.0}


def run(plan: Plan) -> Iterator[Result]:
    """Publish for a while beside the consumers; the clock stops when the last one has finished the last message."""
    with fleet(Nsqd, Penstock) as made:
        for channels, target in TARGETS.items():
            options = {"channels": channels, "seconds": plan.seconds}
            numbers = interleaved(plan.rounds, made.turns("flow", options))
            goals = [at_least(target, ratio(rate(numbers, "penstock"), rate(numbers, "nsqd")))]
            plural = "subscription" if channels == 1 else "subscriptions"
            work = f"publish + deliver + FIN together, {channels} {plural}"
            yield result("together", work, numbers, goals, made.missing)
