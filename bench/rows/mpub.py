"""MPUB of 200 on one connection, pipelined: bodies of one size and of varied ones, and with a sync before each OK."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import interleaved
from bench.peers import Nsqd, NsqdInMemory, NsqdSynced, Penstock, fleet
from bench.plan import Plan
from bench.report import Result, at_least, rate, ratio, result, shown

BATCH = 200
SIZES = ("equal", "varied")


def run(plan: Plan) -> Iterator[Result]:
    """Publish batches without waiting for replies, which are counted and checked."""
    with fleet(Nsqd, NsqdInMemory, Penstock) as made:
        for sizes in SIZES:
            options = {"batch": BATCH, "varied": int(sizes == "varied"), "seconds": plan.seconds}
            numbers = interleaved(plan.rounds, made.turns("pub", options))
            ours = rate(numbers, "penstock")
            goals = [
                at_least(6, ratio(ours, rate(numbers, NsqdInMemory.name)), what="nsqd in memory "),
                shown("beside nsqd", ratio(ours, rate(numbers, "nsqd"))),
            ]
            work = f"MPUB of {BATCH}, one connection, {sizes} sizes"
            yield result("mpub", work, numbers, goals, made.missing)


def run_synced(plan: Plan) -> Iterator[Result]:
    """The same batches against servers that have synced a batch when they answer it."""
    with fleet(NsqdSynced, Penstock, durability="fsync") as made:
        numbers = interleaved(plan.rounds, made.turns("pub", {"batch": BATCH, "seconds": plan.seconds}))
    goals = [at_least(100, ratio(rate(numbers, "penstock"), rate(numbers, NsqdSynced.name)))]
    work = f"stored with fsync before OK, MPUB of {BATCH}, pipelined"
    yield result("mpub-fsync", work, numbers, goals, made.missing)
