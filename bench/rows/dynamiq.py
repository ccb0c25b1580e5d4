"""Dynamiq's queues: a message in beside Redis behind a bare handler, and how little the depth of a queue matters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from statistics import median

import msgspec

from bench.asking import Asking
from bench.generator import LoadFailed
from bench.measure import Sample, interleaved
from bench.peers import Penstock, Server, Starlette, fleet
from bench.plan import Plan
from bench.report import Result, at_least, at_most, cpu, rate, ratio, result, shown, table_row

BODY_BYTES = 64
SHALLOW = 10_000
#: A receive locks its partition, so there are enough of them for all receives of a turn.
PARTITIONS = 400
RECEIVES = 300
BATCH = 10
#: Until settings that were chosen are in force.
SYNC_SECONDS_MAX = 120.0


def run(plan: Plan) -> Iterator[Result]:
    """Enqueue on one connection, and on sixteen."""

    def turn(connections: int, server: Server) -> Sample:
        queue = server.topic()
        port = server.dynamiq_port if isinstance(server, Penstock) else server.port
        if isinstance(server, Penstock):
            with Asking(port) as asking:
                asking.call("PUT", f"/v1/queues/{queue}")
        place: dict[str, str | float] = {"dialect": "dynamiq", "port": port, "topic": queue, "size": BODY_BYTES}
        server.load("wait", **place, connections=connections, count=1000)
        return server.sample("wait", **place, connections=connections, seconds=plan.seconds)

    with fleet(Starlette, Penstock) as made:
        for connections in (1, 16):
            numbers = interleaved(plan.rounds, made.each(partial(turn, connections)))
            by_rate = ratio(rate(numbers, "penstock"), rate(numbers, Starlette.name))
            by_cpu = ratio(cpu(numbers, "penstock"), cpu(numbers, Starlette.name))
            plural = "connection" if connections == 1 else "connections"
            work = f"Dynamiq v1 enqueue, keep-alive, {connections} {plural}; peer: Redis behind a bare handler"
            yield result("dynamiq", work, numbers, [at_least(1, by_rate), shown("CPU", by_cpu)], made.missing)


def run_depth(plan: Plan) -> Iterator[Result]:
    """Receive ten and delete them, from a queue of ten thousand and from one of many more."""
    readings: dict[str, str] = {}
    times: dict[str, float] = {}
    with fleet(Penstock) as made:
        for server in made.servers.values():
            assert isinstance(server, Penstock)
            queues = {"shallow": SHALLOW, "deep": plan.queue_depth}
            with Asking(server.dynamiq_port) as asking:
                for queue in queues:
                    _make(asking, queue)
                for queue, depth in queues.items():
                    server.load("pub", topic=queue, batch=1000, count=depth)
                for queue in queues:
                    _await_partitions(asking, queue)
                for queue in queues:
                    _take(asking, queue)  # what a first receive finds out about a queue is not what is measured
                taken = {queue: [_take(asking, queue) for _ in range(RECEIVES)] for queue in queues}
            for queue, seen in taken.items():
                times[queue] = median(seen) * 1000
            words = [f"{times[queue]:.3g} ms at {depth:,}" for queue, depth in queues.items()]
            readings[server.name] = ", ".join(words)
    goal = at_most(2, ratio(times.get("deep"), times.get("shallow")), what="of the time at 10,000 ")
    work = f"Dynamiq receive of {BATCH} and their deletion from a queue of {plan.queue_depth:,}"
    yield table_row("queue-depth", work, readings, [goal], made.missing)


def _make(asking: Asking, queue: str) -> None:
    path = f"/v1/queues/{queue}"
    asking.call("PUT", path)
    asking.call("PATCH", path, b'{"max_partitions": %d}' % PARTITIONS)
    asking.call("PATCH", path, b'{"min_partitions": %d}' % PARTITIONS)


def _await_partitions(asking: Asking, queue: str) -> None:
    """Wait until the queue has its partitions: what was chosen is in force from the next sync on."""
    end = time.monotonic() + SYNC_SECONDS_MAX
    while msgspec.json.decode(asking.call("GET", f"/v1/queues/{queue}"))["partitions"] < PARTITIONS:
        if time.monotonic() > end:
            raise LoadFailed(f"queue {queue} did not get its {PARTITIONS} partitions")
        time.sleep(0.2)


def _take(asking: Asking, queue: str) -> float:
    """Return how long it took to receive some messages and delete them."""
    start = time.perf_counter()
    found = msgspec.json.decode(asking.call("GET", f"/v1/queues/{queue}/messages/{BATCH}"))
    if not found:
        raise LoadFailed(f"queue {queue} gave nothing")
    ids = ",".join(message["id"] for message in found)
    asking.call("DELETE", f"/v1/queues/{queue}/messages/{ids}")
    return time.perf_counter() - start
