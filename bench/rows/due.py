"""Messages with due times over a day: how fast they go in through intake, and how late they come out.

The node runs in a process of its own (`bench.due_node`), because intake is called in process and the lateness
is measured at an NSQ consumer outside.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench import generator, supply
from bench.due_node import Filled
from bench.generator import Run
from bench.plan import Plan
from bench.report import Result, at_least, at_most, rate_words, table_row

TOPIC = "due"
CHANNEL = "ch"
MILLION = 1e6
DAY_SECONDS = 86_400
#: Due times are drawn at random, so the number that falls into a window is only about what is expected.
ARRIVED_MIN = 0.8


def run(plan: Plan) -> Iterator[Result]:
    """Insert, then listen quietly, then listen while another connection pipelines PUB."""
    work = f"{plan.due / MILLION:g} M messages with due times over a day, inserted through intake"
    with _filled_node(plan.due) as filled:
        alone = _late(filled.port, plan.late_seconds)
        busy = generator.started("pub", port=filled.port, topic="busy", seconds=plan.late_seconds + 1)
        beside = _late(filled.port, plan.late_seconds)
        other = generator.finished(busy)
    rate = plan.due / filled.seconds
    expected = plan.due * plan.late_seconds / DAY_SECONDS
    arrived = min(alone.messages, beside.messages) / expected
    words = [
        f"insert {rate_words(rate)}",
        f"late p50 / p99 {_ms(alone.p50_us)} / {_ms(alone.p99_us)} ms of {alone.messages} (due: about {expected:.0f})",
        f"beside {rate_words(other.rate)} of PUB {_ms(beside.p50_us)} / {_ms(beside.p99_us)} ms of {beside.messages}",
        f"earliest {_ms(min(alone.min_us, beside.min_us))} ms",
    ]
    goals = [
        at_least(1, rate / MILLION, " M/s", "insert "),
        at_most(9, alone.p99_us / 1000, " ms", "p99 late "),
        at_most(9, beside.p99_us / 1000, " ms", "p99 late beside a pipelining connection "),
        at_least(ARRIVED_MIN, arrived, "", "arrived within 3 s, share of those due "),
        at_least(0, min(alone.min_us, beside.min_us) / 1000, " ms", "never early, earliest "),
    ]
    yield table_row("due", work, {"penstock": "; ".join(words)}, goals, {})


def _late(port: int, seconds: float) -> Run:
    return generator.load("late", port=port, topic=TOPIC, channel=CHANNEL, seconds=seconds)


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.3g}"


@contextlib.contextmanager
def _filled_node(count: int) -> Iterator[Filled]:
    data = supply.BUILD / "data"
    data.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="due-", dir=data))
    # The generator numbers channels, so that its first consumer asks for number 0.
    command = [sys.executable, "-m", "bench.due_node", str(place), TOPIC, CHANNEL + "0", str(count)]
    with (place / "node.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=supply.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise generator.LoadFailed("the node broke off: " + (place / "node.log").read_text()[-500:])
        yield msgspec.json.decode(line, type=Filled)
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(place, ignore_errors=True)
