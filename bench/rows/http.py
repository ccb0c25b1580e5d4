"""POST /pub and wait for its answer: connections that are kept open, one message in flight on each."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import Sample, interleaved
from bench.peers import Nsqd, Penstock, Server, fleet
from bench.plan import Plan
from bench.report import Result, at_most, cpu, rate, ratio, result, shown

CONNECTIONS = 16


def run(plan: Plan) -> Iterator[Result]:
    """Publish over HTTP; what counts is the server's CPU, since the generator and the kernel share its cores."""

    def turn(server: Server) -> Sample:
        assert isinstance(server, Nsqd | Penstock)
        topic = server.topic()
        place: dict[str, str | float] = {"dialect": "http", "port": server.http_port, "topic": topic}
        server.load("wait", **place, count=CONNECTIONS)  # the topic exists before the clock starts
        return server.sample("wait", **place, connections=CONNECTIONS, seconds=plan.seconds)

    with fleet(Nsqd, Penstock) as made:
        numbers = interleaved(plan.rounds, made.each(turn))
    goals = [
        at_most(1, ratio(cpu(numbers, "penstock"), cpu(numbers, "nsqd")), what="CPU of nsqd's "),
        shown("rate of nsqd's", ratio(rate(numbers, "penstock"), rate(numbers, "nsqd"))),
    ]
    yield result("http", f"HTTP /pub, keep-alive, {CONNECTIONS} connections", numbers, goals, made.missing)
