"""Flight: batches of 10,000 rows put and got back, stored, beside Redis and NATS JetStream with a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench import flight, measure
from bench.measure import Reading, Sample, interleaved
from bench.peers import Nats, Penstock, Redis, Server, fleet
from bench.plan import Plan
from bench.report import Goal, Result, at_least, best_rate, rate, ratio, result

#: NATS refuses publishes beyond a limit of its own; replies of this many entries were Redis' fastest.
WINDOW = 1000
MILLION = 1e6


def run(plan: Plan) -> Iterator[Result]:
    """Publish for a while, with replies outstanding; then read what was stored from its beginning."""
    with fleet(Redis, Nats, Penstock) as made:
        numbers = interleaved(plan.rounds, made.each(lambda server: _put(server, plan.seconds)))
        work = f"Flight put, batches of {flight.ROWS:,}, stored; peers: single publishes, pipelined"
        yield result("flight", work, numbers, _goals(numbers), made.missing)
        filled = {name: _filled(server, plan) for name, server in made.servers.items()}
        numbers = interleaved(plan.rounds, made.each(lambda server: _get(server, *filled[server.name])))
        work = "Flight get of offset, timestamp, body, stored in such batches; peers: XREAD, pull consumer without acks"
        yield result("flight", work, numbers, _goals(numbers), made.missing)


def _goals(numbers: Mapping[str, Reading]) -> list[Goal]:
    ours = rate(numbers, "penstock")
    return [
        at_least(3, ratio(ours, MILLION), " M/s"),
        at_least(4, ratio(ours, best_rate(numbers, "redis", "nats")), what="the better one "),
    ]


def _put(server: Server, seconds: float) -> Sample:
    topic = server.topic()
    if isinstance(server, Penstock):
        flight.put(server.flight_port, topic, count=flight.ROWS)  # the topic exists before the clock starts
        return server.measured(lambda: flight.put(server.flight_port, topic, seconds=seconds))
    return server.sample("pub", topic=topic, window=_window(server), seconds=seconds)


def _filled(server: Server, plan: Plan) -> tuple[str, int]:
    """Store what is to be read, and return its topic and how many there are."""
    topic = server.topic()
    if isinstance(server, Penstock):
        count = flight.put(server.flight_port, topic, count=plan.deliver_ours).messages
    else:
        count = server.load("pub", topic=topic, window=_window(server), count=plan.deliver_peer).messages
    measure.settle(server.pid)
    return topic, count


def _get(server: Server, topic: str, count: int) -> Sample:
    if isinstance(server, Penstock):
        return server.measured(lambda: flight.get(server.flight_port, topic, count))
    return server.sample("read", topic=topic, batch=WINDOW, count=count)


def _window(server: Server) -> int:
    return WINDOW if isinstance(server, Nats) else 0
