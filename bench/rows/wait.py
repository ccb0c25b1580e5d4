"""PUB and wait for its OK, on one connection and on fifty."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import interleaved
from bench.peers import Nsqd, Penstock, Redis, fleet
from bench.plan import Plan
from bench.report import Result, at_least, at_most, cpu, rate, ratio, result


def run(plan: Plan) -> Iterator[Result]:
    """Publish one message at a time per connection."""
    with fleet(Nsqd, Redis, Penstock) as made:
        for connections in (1, 50):
            options = {"connections": connections, "seconds": plan.seconds}
            numbers = interleaved(plan.rounds, made.turns("wait", options))
            ours = rate(numbers, "penstock")
            if connections == 1:
                goals = [
                    at_most(1.1, ratio(cpu(numbers, "penstock"), cpu(numbers, "nsqd")), what="CPU of nsqd's "),
                    at_least(0.85, ratio(ours, rate(numbers, "nsqd")), what="rate of nsqd's "),
                ]
            else:
                goals = [
                    at_least(1.1, ratio(ours, rate(numbers, "nsqd")), what="rate of nsqd's "),
                    at_least(0.7, ratio(ours, rate(numbers, "redis")), what="rate of Redis's "),
                ]
            plural = "connection" if connections == 1 else "connections"
            yield result("wait", f"PUB, wait for OK, {connections} {plural}", numbers, goals, made.missing)
