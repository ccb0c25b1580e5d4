"""A large backlog: memory above idle, and the time from restart to the first delivery.

`run` fills it in batches and by pipelined single PUBs; `run_lone` waits for every OK, so that each message
is stored alone. The latter takes minutes per million and is only run when asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench import measure
from bench.generator import Run
from bench.peers import Penstock, Redis, Server, fleet
from bench.plan import Plan
from bench.report import Result, at_most, rate_words, table_row

MEMORY_MB_MAX = 300
FIRST_SECONDS_MAX = 3
MB = 1_000_000

Fill = Callable[[Server, str], Run]


def run(plan: Plan) -> Iterator[Result]:
    """Fill in batches of 1,000, then one by one without waiting."""
    count = plan.backlog

    def in_batches(server: Server, topic: str) -> Run:
        return server.load("pub", topic=topic, batch=1000, count=count)

    def one_by_one(server: Server, topic: str) -> Run:
        return server.load("pub", topic=topic, count=count)

    yield _backlog(count, "in batches", in_batches, Redis, Penstock)
    yield _backlog(count, "one by one", one_by_one, Penstock)


def run_lone(plan: Plan) -> Iterator[Result]:
    """Fill with messages that each wait for their OK."""
    count = plan.backlog_lone

    def each_alone(server: Server, topic: str) -> Run:
        return server.load("wait", topic=topic, count=count)

    yield _backlog(count, "each alone, waiting for its OK", each_alone, Penstock)


def _backlog(count: int, how: str, fill: Fill, *kinds: type[Server]) -> Result:
    readings: dict[str, str] = {}
    memory_mb = first_seconds = None
    with fleet(*kinds) as made:
        for name, server in made.servers.items():
            topic = server.topic()
            if isinstance(server, Penstock):
                server.load("sub", topic=topic, count=0)
            measure.settle(server.pid)
            idle = measure.rss_bytes(server.pid)
            filled = fill(server, topic)
            measure.settle(server.pid)
            above_mb = (measure.rss_bytes(server.pid) - idle) / MB
            peak_mb = (measure.rss_peak_bytes(server.pid) - idle) / MB
            readings[name] = f"RSS +{above_mb:.0f} MB (peak +{peak_mb:.0f}), filled at {rate_words(filled.rate)}"
            if isinstance(server, Penstock):
                memory_mb = above_mb
                after_stop = _first_delivery(server, server.stop, topic)
                after_kill = _first_delivery(server, server.kill, topic)
                first_seconds = max(after_stop, after_kill)
                readings[name] += f"; first delivery {after_stop:.2f} s after a stop, {after_kill:.2f} s after kill -9"
    goals = [
        at_most(MEMORY_MB_MAX, memory_mb, " MB", "memory above idle "),
        at_most(FIRST_SECONDS_MAX, first_seconds, " s", "restart to first delivery "),
    ]
    return table_row("backlog", f"{count / 1e6:g} M message backlog, {how}", readings, goals, made.missing)


def _first_delivery(server: Server, end: Callable[[], None], topic: str) -> float:
    """Return the seconds from the start of the process to the first message at a consumer."""
    end()
    start = time.monotonic()
    server.start(wait=False)
    return server.load("sub", topic=topic, rdy=1, count=1, patience=60).first_at - start
