"""A quiet publisher's PUB to OK while another connection pipelines PUB to the same topic."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import interleaved
from bench.peers import Nsqd, Penstock, fleet
from bench.plan import Plan
from bench.report import Result, at_most, p99_ms, result


def run(plan: Plan) -> Iterator[Result]:
    """Probe once a millisecond; rate and CPU are the busy connection's."""
    with fleet(Nsqd, Penstock) as made:
        numbers = interleaved(plan.rounds, made.turns("neighbour", {"seconds": plan.seconds + 1}))
    goals = [at_most(5, p99_ms(numbers, "penstock"), " ms", "p99 ")]
    work = "a neighbour's PUB to OK while another connection pipelines PUB"
    yield result("neighbour", work, numbers, goals, made.missing)
