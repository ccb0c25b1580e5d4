"""A hundred consumers on one channel: without tags beside nsqd, and with a tag for each beside our untagged rate."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.measure import interleaved
from bench.peers import Nsqd, Penstock, fleet
from bench.plan import Plan
from bench.report import Result, at_least, rate, ratio, result

CONSUMERS = 100
#: What one of so many consumers may hold: together as much as one consumer of the other rows.
RDY = 2500


def run(plan: Plan) -> Iterator[Result]:
    """Publish, deliver and FIN together; the clock stops when the last consumer has finished the last message."""
    options = {"connections": CONSUMERS, "rdy": RDY, "seconds": plan.seconds}
    with fleet(Nsqd, Penstock) as made:
        numbers = interleaved(plan.rounds, made.turns("flow", options))
    goals = [at_least(6, ratio(rate(numbers, "penstock"), rate(numbers, "nsqd")))]
    work = f"publish + deliver + FIN together, {CONSUMERS} consumers on one channel, RDY {RDY}"
    yield result("crowd", work, numbers, goals, made.missing)


def run_tagged(plan: Plan) -> Iterator[Result]:
    """Publish with headers that name one of a hundred tags, each with one consumer; then with headers without one."""
    plain = {"ext": 1, "connections": CONSUMERS, "rdy": RDY, "seconds": plan.seconds}
    tagged = {**plain, "tags": CONSUMERS, "claims": CONSUMERS}
    with fleet(Penstock) as made:
        turns = made.turns("flow", tagged)
        if ours := made.servers.get("penstock"):
            turns["untagged"] = partial(ours.sample_fresh, "flow", plain)
        numbers = interleaved(plan.rounds, turns)
    goals = [at_least(0.5, ratio(rate(numbers, "penstock"), rate(numbers, "untagged")), what="our own untagged ")]
    work = f"PUB_EXT with a tag + deliver + FIN, {CONSUMERS} tags, {CONSUMERS} consumers, RDY {RDY}"
    yield result("tags", work, numbers, goals, made.missing)
