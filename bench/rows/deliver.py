"""Deliver and FIN a backlog: one that a restarted server reads back from its files, and one stored row by row."""

from __future__ import annotations

from collections.abc import Iterator

from bench import measure
from bench.measure import Sample, interleaved
from bench.peers import Nsqd, NsqdInMemory, Penstock, Server, fleet
from bench.plan import Plan
from bench.report import Result, at_least, at_most, cpu, rate, ratio, result

RDY = 2500
#: The backlog is filled in batches; how it came is no part of what is measured.
FILL_BATCH = 200
#: Messages that each waited for their OK, so that each was stored alone.
LONE = 5_000


def run(plan: Plan) -> Iterator[Result]:
    """Fill a channel, restart the server unless it keeps nothing, take everything."""

    def turn(server: Server) -> Sample:
        count = plan.deliver_ours if isinstance(server, Penstock) else plan.deliver_peer
        topic = server.topic()
        # The channel exists first, so that the peer keeps the backlog there and need not move it while it delivers.
        server.load("sub", topic=topic, count=0)
        server.load("pub", topic=topic, batch=FILL_BATCH, count=count)
        measure.settle(server.pid)
        if not isinstance(server, NsqdInMemory):
            server.restart()
        measure.quiet()
        return server.sample("sub", topic=topic, rdy=RDY, count=count)

    with fleet(Nsqd, NsqdInMemory, Penstock) as made:
        numbers = interleaved(plan.rounds, made.each(turn))
    ours = rate(numbers, "penstock")
    goals = [
        at_least(6, ratio(ours, rate(numbers, "nsqd"))),
        at_least(6, ratio(ours, rate(numbers, NsqdInMemory.name)), what="nsqd in memory, which read nothing back "),
        at_most(0.5, cpu(numbers, "penstock"), " µs", "CPU "),
    ]
    yield result("deliver", f"deliver + FIN, RDY {RDY}, backlog read back from disk", numbers, goals, made.missing)


def run_lone(plan: Plan) -> Iterator[Result]:
    """Take messages that were published one by one, each after the OK of the one before, while nobody received."""

    def turn(server: Server) -> Sample:
        topic = server.topic()
        server.load("sub", topic=topic, count=0)
        server.load("wait", topic=topic, count=LONE)
        return server.sample("sub", topic=topic, rdy=RDY, count=LONE)

    with fleet(Nsqd, Penstock) as made:
        numbers = interleaved(plan.rounds, made.each(turn))
    goals = [at_most(4, cpu(numbers, "penstock"), " µs", "CPU ")]
    yield result("deliver-lone", f"deliver + FIN, RDY {RDY}, {LONE:,} stored one by one", numbers, goals, made.missing)
