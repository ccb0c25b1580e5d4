"""MPUB of 200 on one connection, pipelined: bodies of one size and of varied ones, and with a sync before each OK."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import interleaved
from bench.peers import Nsqd, NsqdSynced, Penstock, fleet
from bench.plan import Plan
from bench.report import Result, at_least, rate, ratio, result

BATCH = 200
TARGETS = {"equal": 5.0, "varied": 4.0}


def run(plan: Plan) -> Iterator[Result]:
    """Publish batches without waiting for replies, which are counted and checked."""
    with fleet(Nsqd, Penstock) as made:
        for sizes, target in TARGETS.items():
            options = {"batch": BATCH, "varied": int(sizes == "varied"), "seconds": plan.seconds}
            numbers = interleaved(plan.rounds, made.turns("pub", options))
            goals = [at_least(target, ratio(rate(numbers, "penstock"), rate(numbers, "nsqd")))]
            work = f"MPUB of {BATCH}, one connection, {sizes} sizes"
            yield result("mpub", work, numbers, goals, made.missing)


def run_synced(plan: Plan) -> Iterator[Result]:
    """The same batches against servers that have synced a batch when they answer it."""
    with fleet(NsqdSynced, Penstock, durability="fsync") as made:
        numbers = interleaved(plan.rounds, made.turns("pub", {"batch": BATCH, "seconds": plan.seconds}))
    goals = [at_least(100, ratio(rate(numbers, "penstock"), rate(numbers, NsqdSynced.name)))]
    work = f"stored with fsync before OK, MPUB of {BATCH}, pipelined"
    yield result("mpub-fsync", work, numbers, goals, made.missing)
