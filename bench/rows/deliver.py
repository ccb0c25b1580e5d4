"""Deliver and FIN a backlog: read back from files, beside nsqd with its queue in memory, and stored row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from bench import measure
from bench.measure import Reading, Sample, interleaved
from bench.peers import Nsqd, NsqdInMemory, Penstock, Server, fleet
from bench.plan import Plan
from bench.report import Result, at_least, at_most, cpu, rate, ratio, result

RDY = 2500
#: The backlog is filled in batches; how it came is no part of what is measured.
FILL_BATCH = 200
#: Messages that each waited for their OK, so that each was stored alone, among so many, and in so many places.
LONE = 5_000
AMONG = 400_000
PLACES = 5


def run(plan: Plan) -> Iterator[Result]:
    """Fill a channel, restart the server, take everything."""

    def turn(server: Server) -> Sample:
        count = plan.deliver_ours if isinstance(server, Penstock) else plan.deliver_peer
        topic = server.topic()
        # The channel exists first, so that the peer keeps the backlog there and need not move it while it delivers.
        server.load("sub", topic=topic, count=0)
        server.load("pub", topic=topic, batch=FILL_BATCH, count=count)
        measure.settle(server.pid)
        server.restart()
        measure.quiet()
        return server.sample("sub", topic=topic, rdy=RDY, count=count)

    with fleet(Nsqd, Penstock) as made:
        numbers = interleaved(plan.rounds, made.each(turn))
    goals = [at_least(6, ratio(rate(numbers, "penstock"), rate(numbers, "nsqd")))]
    yield result("deliver", f"deliver + FIN, RDY {RDY}, backlog read back from disk", numbers, goals, made.missing)


def run_in_memory(plan: Plan) -> Iterator[Result]:
    """The same without a restart, beside nsqd that wrote nothing and reads nothing back."""

    def turn(server: Server) -> Sample:
        count = plan.deliver_ours if isinstance(server, Penstock) else plan.deliver_peer
        topic = server.topic()
        server.load("sub", topic=topic, count=0)
        server.load("pub", topic=topic, batch=FILL_BATCH, count=count)
        measure.settle(server.pid)
        return server.sample("sub", topic=topic, rdy=RDY, count=count)

    with fleet(NsqdInMemory, Penstock) as made:
        numbers = interleaved(plan.rounds, made.each(turn))
    goals = [
        at_least(6, ratio(rate(numbers, "penstock"), rate(numbers, NsqdInMemory.name))),
        at_most(0.5, cpu(numbers, "penstock"), " µs", "CPU "),
    ]
    work = f"deliver + FIN, RDY {RDY}, nsqd's queue in memory"
    yield result("deliver-memory", work, numbers, goals, made.missing)


def run_lone(plan: Plan) -> Iterator[Result]:
    """Take messages of which some were published one by one, each after the OK of the one before; and only others."""

    def turn(server: Server, lone: int = LONE) -> Sample:
        topic = server.topic()
        server.load("sub", topic=topic, count=0)
        for _ in range(PLACES):
            server.load("pub", topic=topic, batch=FILL_BATCH, count=(AMONG - lone) // PLACES)
            if lone:
                server.load("wait", topic=topic, count=lone // PLACES)
        measure.settle(server.pid)
        return server.sample("sub", topic=topic, rdy=RDY, count=AMONG)

    with fleet(NsqdInMemory, Penstock) as made:
        turns = made.each(turn)
        if ours := made.servers.get("penstock"):
            turns["penstock, none alone"] = partial(turn, ours, 0)
        numbers = interleaved(plan.rounds, turns)
    goals = [at_most(4, _lone_us(numbers), " µs", "CPU of a lone row ")]
    work = f"deliver + FIN, RDY {RDY}, {LONE:,} of {AMONG:,} stored one by one"
    yield result("deliver-lone", work, numbers, goals, made.missing)


def _lone_us(numbers: Mapping[str, Reading]) -> float | None:
    """Return what a row that was stored alone takes: what all take that others would not have."""
    mixed, others = cpu(numbers, "penstock"), cpu(numbers, "penstock, none alone")
    return None if mixed is None or others is None else (mixed * AMONG - others * (AMONG - LONE)) / LONE
