"""M3Msg in: aggregated metrics from one producer, each acked once it is stored; beside NATS JetStream's publish."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import Sample, interleaved
from bench.peers import Nats, PenstockM3Msg, PenstockRelay, Server, fleet
from bench.plan import Plan
from bench.report import Result, at_least, rate, ratio, result, shown

#: A metric with an id of 45 bytes.
SIZE = 100
#: NATS refuses publishes beyond a limit of its own.
WINDOW = 1000


def run(plan: Plan) -> Iterator[Result]:
    """Publish without waiting; every ack is counted, and a run ends with the last of them."""

    def turn(server: Server) -> Sample:
        window = WINDOW if isinstance(server, Nats) else 0
        return server.sample("pub", topic=server.topic(), size=SIZE, window=window, seconds=plan.seconds)

    with fleet(Nats, PenstockM3Msg) as made:
        numbers = interleaved(plan.rounds, made.each(turn))
    goals = [at_least(2, ratio(rate(numbers, "penstock"), rate(numbers, "nats")))]
    yield result("m3msg-in", f"M3Msg in with acks, {SIZE}-byte metrics", numbers, goals, made.missing)


def run_through(plan: Plan) -> Iterator[Result]:
    """Send metrics in, relay them to a service, and count what that acks; the clock starts with its first message."""

    def turn(server: Server) -> Sample:
        assert isinstance(server, PenstockRelay)
        return server.measured(lambda: server.through(plan.deliver_ours // 2, SIZE))

    with fleet(PenstockRelay) as made:
        numbers = interleaved(plan.rounds, made.each(turn))
    work = f"M3Msg in, stored, out to a service and acked, {SIZE}-byte metrics"
    yield result(
        "m3msg-through", work, numbers, [shown("a second", (rate(numbers, "penstock") or 0) / 1e3, " k")], made.missing
    )
