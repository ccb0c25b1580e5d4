"""Timelines beside Redis: create, lease with delete, how late messages come, and what it takes to wait for a year."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench import measure, timeline
from bench.generator import LoadFailed, Run
from bench.measure import Sample, interleaved
from bench.peers import Penstock, Redis, Server, fleet
from bench.plan import Plan
from bench.report import Result, at_least, at_most, cpu, rate, ratio, result, shown, table_row
from bench.timeline import BATCH, YEAR_MS, Ours, Theirs

MB = 1_000_000
DUE_PER_SECOND = 50_000
#: Messages are created before the first of them is due.
HEAD_START_MS = 6_000
#: The shortest there is, so that a consumer has its buckets soon.
WINDOW_MS = 100
RESTART_SECONDS_MAX = 5.0


def run(plan: Plan) -> Iterator[Result]:
    """Create messages due over a year; then lease, take and delete messages that are due."""
    with fleet(Redis, Penstock) as made:
        numbers = interleaved(plan.rounds, made.each(lambda server: _create(server, plan.timeline)))
        goals = [
            at_least(3, ratio(rate(numbers, "penstock"), rate(numbers, "redis"))),
            shown("CPU", ratio(cpu(numbers, "penstock"), cpu(numbers, "redis"))),
        ]
        work = f"create with due times, batches of {BATCH:,}; Redis: ZADD and a hash each, pipelined"
        yield result("timeline", work, numbers, goals, made.missing)
        numbers = interleaved(plan.rounds, made.each(lambda server: _consume(server, plan.timeline)))
        goals = [
            at_least(3, ratio(rate(numbers, "penstock"), rate(numbers, "redis"))),
            shown("CPU", ratio(cpu(numbers, "penstock"), cpu(numbers, "redis"))),
        ]
        work = (
            "lease, push and delete messages that are due; Redis: Lua scripts that do the same by thousands, pipelined"
        )
        yield result("timeline", work, numbers, goals, made.missing)


def _create(server: Server, count: int) -> Sample:
    topic = server.topic()
    due = _over_a_year(count)
    if isinstance(server, Penstock):
        batches = [timeline.created(at, due[at : at + BATCH]) for at in range(0, count, BATCH)]
        with Ours(server.flight_port, topic) as ours:
            return server.measured(lambda: ours.create(batches))
    with Theirs(server.port, topic) as theirs:
        blocks = [theirs.commands(at, due[at : at + BATCH]) for at in range(0, count, BATCH)]
        return server.measured(lambda: theirs.create(blocks, count))


def _consume(server: Server, count: int) -> Sample:
    topic = server.topic()
    due = np.arange(count, dtype=np.uint64) + 1
    if isinstance(server, Penstock):
        with Ours(server.flight_port, topic, prefetch_max_ms=0, time_window_ms=WINDOW_MS) as ours:
            ours.create([timeline.created(at, due[at : at + BATCH]) for at in range(0, count, BATCH)])
            return server.measured(lambda: ours.consume(count)[0])
    with Theirs(server.port, topic) as theirs:
        theirs.create([theirs.commands(at, due[at : at + BATCH]) for at in range(0, count, BATCH)], count)
        return server.measured(lambda: theirs.consume(count))


def _over_a_year(count: int) -> timeline.Times:
    source = np.random.default_rng(1)
    return (time.time_ns() // 1_000_000 + 60_000 + source.integers(0, YEAR_MS - 120_000, count)).astype(np.uint64)


def run_late(plan: Plan) -> Iterator[Result]:
    """Let messages be due at a steady pace, and see how late a consumer has each."""
    readings: dict[str, str] = {}
    p50_ms = p99_ms = earliest_ms = timer_ms = None
    with fleet(Penstock) as made:
        for server in made.servers.values():
            assert isinstance(server, Penstock)
            timer_ms = timeline.timer_p99_ms()
            late = _late(server, plan.late_seconds)
            p50_ms, p99_ms = (float(each) for each in np.percentile(late, (50, 99)))
            earliest_ms = float(late.min())
            readings[server.name] = f"late p50 / p99 {p50_ms:.3g} / {p99_ms:.3g} ms of {len(late):,}"
    goals = [
        at_most(2, p50_ms, " ms", "p50 late "),
        at_most(9, p99_ms, " ms", "p99 late "),
        at_least(0, earliest_ms, " ms", "never early, earliest "),
        shown("p99 of a bare loop's timer before it; the targets are for less than 1 ms", timer_ms, " ms"),
    ]
    work = f"{DUE_PER_SECOND:,} messages of a timeline due each second, taken and deleted"
    yield table_row("timeline-late", work, readings, goals, made.missing)


def _late(server: Penstock, seconds: float) -> timeline.Lateness:
    count = int(DUE_PER_SECOND * seconds) // BATCH * BATCH
    with Ours(server.flight_port, server.topic(), prefetch_max_ms=0, time_window_ms=WINDOW_MS) as ours:
        first_ms = time.time_ns() // 1_000_000 + HEAD_START_MS
        due = (first_ms + np.arange(count) * 1000 // DUE_PER_SECOND).astype(np.uint64)
        ours.create([timeline.created(at, due[at : at + BATCH]) for at in range(0, count, BATCH)])
        if time.time_ns() // 1_000_000 > first_ms - 1000:
            raise LoadFailed("messages were due before all were created")
        return ours.consume(count)[1]


def run_wait(plan: Plan) -> Iterator[Result]:
    """Let messages wait over a year, see what is resident, and start anew until one is delivered."""
    readings: dict[str, str] = {}
    took: dict[str, float] = {}
    restart_s = None
    count = plan.timeline_waiting
    with fleet(Redis, Penstock) as made:
        for name, server in made.servers.items():
            topic = server.topic()
            _fill(server, topic, count)
            measure.settle(server.pid)
            took[name] = measure.rss_bytes(server.pid) / MB
            readings[name] = f"RSS {took[name]:.0f} MB"
            if isinstance(server, Penstock):
                server.stop()
                server.start_seconds_max = 600.0
                began = time.monotonic()
                server.start()
                with Ours(server.flight_port, topic, time_window_ms=WINDOW_MS) as ours:
                    ours.first()
                restart_s = time.monotonic() - began
                readings[name] += f", restart to first delivery {restart_s:.3g} s"
    goals = [
        at_most(0.2, ratio(took.get("penstock"), took.get("redis")), what="memory "),
        at_most(RESTART_SECONDS_MAX, restart_s, " s", "restart to first delivery "),
    ]
    work = f"{count / 1e6:g} M messages of {timeline.BODY_BYTES} bytes that wait, over a year"
    yield table_row("timeline-wait", work, readings, goals, made.missing)


def _fill(server: Server, topic: str, count: int) -> Run | None:
    """Create messages that wait; with a few that are due, for somebody who asks after a restart."""
    step = 100 * BATCH
    if isinstance(server, Penstock):
        with Ours(server.flight_port, topic, time_window_ms=WINDOW_MS) as ours:
            for at in range(0, count, step):
                due = _over_a_year(step)
                ours.create([timeline.created(at + row, due[row : row + BATCH]) for row in range(0, step, BATCH)])
            return ours.create([timeline.created(count, np.ones(BATCH, np.uint64))])
    with Theirs(server.port, topic) as theirs:
        for at in range(0, count, step):
            due = _over_a_year(step)
            theirs.create([theirs.commands(at + row, due[row : row + BATCH]) for row in range(0, step, BATCH)], step)
    return None
