"""Many queues: what messages in a thousand of them take of memory, and what ten thousand cost that nobody uses."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

from bench import measure, supply
from bench.asking import make_queues
from bench.peers import ElasticMq, Penstock, fleet
from bench.plan import Plan
from bench.report import Result, at_most, rate_words, ratio, table_row

QUEUES = 1_000
BODY_BYTES = 1_024
BATCH = 10
CONNECTIONS = 16
MB = 1_000_000
#: What Java and ElasticMQ's code take beside the heap.
BESIDE_HEAP_MB = 180
KB_EACH_MAX = 20
START_SECONDS_MAX = 5.0
PATIENCE_SECONDS = 600.0


def run_memory(plan: Plan) -> Iterator[Result]:
    """Fill a thousand queues and see what is resident; of ElasticMQ what its heap holds when it has been swept."""
    readings: dict[str, str] = {}
    took_mb: dict[str, float] = {}
    with fleet(ElasticMq, Penstock) as made:
        for name, server in made.servers.items():
            assert isinstance(server, ElasticMq | Penstock)
            if isinstance(server, Penstock):
                _start_with(server, QUEUES)
            else:
                make_queues(server.sqs_port, "many", QUEUES)
            place: dict[str, str | float] = {
                "dialect": "sqs",
                "port": server.sqs_port,
                "topic": "many",
                "topics": QUEUES,
                "size": BODY_BYTES,
            }
            batches = plan.queue_messages // BATCH
            filled = server.load("wait", **place, connections=CONNECTIONS, batch=BATCH, count=batches)
            measure.settle(server.pid)
            rss_mb = measure.rss_bytes(server.pid) / MB
            if isinstance(server, ElasticMq):
                live_mb = server.live_bytes() / MB
                took_mb[name] = live_mb + BESIDE_HEAP_MB
                readings[name] = f"live heap {live_mb:.0f} MB + {BESIDE_HEAP_MB}; RSS {rss_mb:.0f} MB"
            else:
                took_mb[name] = rss_mb
                readings[name] = f"RSS {rss_mb:.0f} MB"
            readings[name] += f", filled at {rate_words(filled.rate)}"
    goal = at_most(0.5, ratio(took_mb.get("penstock"), took_mb.get(ElasticMq.name)), what="memory ")
    work = f"{plan.queue_messages / 1e6:g} M messages of 1 KB in {QUEUES:,} queues"
    yield table_row("queue-memory", work, readings, [goal], made.missing)


def _start_with(server: Penstock, queues: int) -> float:
    """Start a node anew with so many queues and return how long that takes, in seconds."""
    server.stop()
    shutil.rmtree(server.node_data)
    words = [sys.executable, "-m", "bench.many", str(server.node_data), str(queues)]
    subprocess.run(words, cwd=supply.ROOT, check=True, timeout=PATIENCE_SECONDS)
    server.start_seconds_max = PATIENCE_SECONDS
    began = time.monotonic()
    server.start()
    return time.monotonic() - began


def run_idle(plan: Plan) -> Iterator[Result]:
    """Start a node with queues that nobody uses, and one without, and see what is resident."""
    readings: dict[str, str] = {}
    each_kb = start_seconds = None
    with fleet(Penstock) as made:
        for server in made.servers.values():
            assert isinstance(server, Penstock)
            measure.settle(server.pid)
            alone = measure.rss_bytes(server.pid)
            start_seconds = _start_with(server, plan.queues)
            measure.settle(server.pid)
            each_kb = (measure.rss_bytes(server.pid) - alone) / plan.queues / 1000
            readings[server.name] = f"{each_kb:.3g} kB each, start in {start_seconds:.2g} s"
    goals = [
        at_most(KB_EACH_MAX, each_kb, " kB", "each "),
        at_most(START_SECONDS_MAX, start_seconds, " s", "start "),
    ]
    yield table_row("queue-idle", f"{plan.queues:,} queues that nobody uses", readings, goals, made.missing)
