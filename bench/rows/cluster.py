"""Several nodes: what a client at the wrong one costs, and how soon topics are back after a node was killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from bench import measure
from bench.arrivals import arrivals
from bench.cluster import LEASE_S, Cluster, Member, cluster
from bench.measure import Sample, interleaved
from bench.plan import Plan
from bench.report import Result, at_least, at_most, cpu, rate, ratio, result, shown, table_row
from bench.supply import Missing

#: Of the publishes that fill a topic, and of those that come as batches.
BATCH = 200
RDY = 2500
#: What is lost with a node.
SHARDS = 100
#: A topic has 64 of them at most unless it is told otherwise.
ROOMY = {"limits.topic_shards": str(SHARDS)}
FIRST_S_MAX, ALL_S_MAX = 2.0, 10.0

OWNER, FORWARDED = "at the owner", "penstock"


def run(plan: Plan) -> Iterator[Result]:
    """Publish and receive at the node that has a topic, and at one that has not; CPU is that of both nodes."""
    try:
        with cluster({}, {}) as made:
            yield _beside(plan, made, "forwarded publish, pipelined PUB", _published)
            yield _beside(plan, made, f"forwarded publish, MPUB of {BATCH}", partial(_published, batch=BATCH))
            yield _beside(plan, made, f"forwarded deliver + FIN, RDY {RDY}", _received)
    except Missing as reason:
        yield result("cluster", "a client at the wrong node", {}, [], {FORWARDED: str(reason)})


def run_lost(plan: Plan) -> Iterator[Result]:
    """Kill a node of two, and wait at the other for what it had."""
    for shards in (1, SHARDS):
        what = f"{SHARDS} topics" if shards == 1 else f"a topic of {shards} shards"
        work = f"take-over after kill -9: {what}, {plan.lost:,} messages a shard"
        try:
            with cluster(ROOMY, ROOMY, slots=64) as made:
                yield _taken(plan, made, work, shards)
        except Missing as reason:
            yield table_row("cluster-lost", work, {}, [], {"penstock": str(reason)})


def _beside(plan: Plan, made: Cluster, work: str, turn: Callable[[Plan, Member, Member], Sample]) -> Result:
    owner, other = made.nodes
    owner.along, other.along = (other,), (owner,)
    turns = {OWNER: partial(turn, plan, owner, owner), FORWARDED: partial(turn, plan, owner, other)}
    numbers = interleaved(plan.rounds, turns)
    goals = [
        at_least(0.5, ratio(rate(numbers, FORWARDED), rate(numbers, OWNER))),
        shown("CPU of the owner's", ratio(cpu(numbers, FORWARDED), cpu(numbers, OWNER))),
    ]
    return result("cluster", work, numbers, goals, {})


def _published(plan: Plan, owner: Member, asked: Member, batch: int = 0) -> Sample:
    return asked.sample("pub", topic=owner.topic(), seconds=plan.seconds, batch=batch)


def _received(plan: Plan, owner: Member, asked: Member) -> Sample:
    topic, count = owner.topic(), plan.deliver_ours // 2
    owner.load("sub", topic=topic, count=0)
    owner.load("pub", topic=topic, batch=BATCH, count=count)
    measure.settle(owner.pid)
    return asked.sample("sub", topic=topic, rdy=RDY, count=count)


def _taken(plan: Plan, made: Cluster, work: str, shards: int) -> Result:
    owner, other = made.nodes
    topics = [owner.topic() for _ in range(SHARDS)] if shards == 1 else ["many"]
    for topic in topics:
        if shards > 1:
            owner.make(topic, shards)
        owner.load("sub", topic=topic, count=0)
        for _ in range(shards):  # each connection publishes to a shard of its own
            owner.load("pub", topic=topic, batch=BATCH, count=plan.lost)
    measure.settle(owner.pid)
    owner.kill()
    killed = time.monotonic()
    after = [at - killed for at in arrivals(other.port, topics)]
    first, last = min(after) - LEASE_S, max(after) - LEASE_S
    goals = [
        at_most(FIRST_S_MAX, first, " s", f"first delivery after the lease of {LEASE_S} s "),
        at_most(ALL_S_MAX, last, " s", "all after the lease "),
    ]
    words = {"penstock": f"{min(after):.2f} s to the first delivery, {max(after):.2f} s to the last"}
    return table_row("cluster-lost", work, words, goals, {})
