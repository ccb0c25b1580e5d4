"""What a person waits for: commands on little data, and Spark from its start to the first row."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from bench import supply
from bench.generator import LoadFailed
from bench.peers import Penstock, fleet
from bench.plan import Plan
from bench.report import Result, at_most, shown, table_row
from bench.spark.messages import fill_topic

ROWS = 100_000
SECONDS_MAX = 5.0
PATIENCE_S = 300.0

#: A topic's first row by a new Spark, on all cores, as somebody's first lines would have it.
FIRST_ROW = """
import sys
from penstock.pipeline import session
topic = session(quick=sys.argv[3] == "quick").read.format("penstock").options(path=sys.argv[1], subscribe=sys.argv[2])
assert topic.load().first() is not None
"""


def run_replay(plan: Plan) -> Iterator[Result]:
    """Count and replay a topic by the command."""
    with fleet(Penstock) as made:
        for server in made.servers.values():
            assert isinstance(server, Penstock)
            fill_topic(server, "little", ROWS)
            took = [_best(plan, partial(_replayed, server, extra)) for extra in (["--dry-run"], [])]
            goals = [at_most(SECONDS_MAX, took[0], " s", "counting "), at_most(SECONDS_MAX, took[1], " s", "in all ")]
            words = {"penstock": f"{took[0]:.1f} s counted, {took[1]:.1f} s replayed"}
            work = f"`penstock pipeline replay` of {ROWS:,} messages, from the command to its end"
            yield table_row("replay", work, words, goals, made.missing)


def run_report(plan: Plan) -> Iterator[Result]:
    """Write a report on one topic by the command."""
    with fleet(Penstock) as made:
        for server in made.servers.values():
            assert isinstance(server, Penstock)
            fill_topic(server, "little", ROWS)
            took = _best(plan, partial(_reported, server))
            work = f"`penstock pipeline report` on {ROWS:,} messages, from the command to the page"
            goals = [at_most(SECONDS_MAX, took, " s")]
            yield table_row("report-small", work, {"penstock": f"{took:.1f} s"}, goals, made.missing)


def run_start(plan: Plan) -> Iterator[Result]:
    """Start Spark again and again, once its class archive is there."""
    with fleet(Penstock) as made:
        for server in made.servers.values():
            assert isinstance(server, Penstock)
            fill_topic(server, "little", 1000)
            took = {}
            for kind, extra in (("usual", []), ("quick", ["--quick"])):
                _run([sys.executable, "-m", "penstock.pipeline.classes", *extra])
                script = [sys.executable, "-c", FIRST_ROW, str(server.node_data), "little", kind]
                took[kind] = min(_run(script) for _ in range(plan.rounds))
            work = "`session()` to a topic's first row, in a process of its own, from its start to its end"
            goals = [at_most(SECONDS_MAX, took["usual"], " s"), shown("with quick=True", took["quick"], " s")]
            words = {"penstock": f"{took['usual']:.1f} s, quick {took['quick']:.1f} s"}
            yield table_row("start", work, words, goals, made.missing)


def _best(plan: Plan, turn: Callable[[int], float]) -> float:
    """Return the least of some turns: what others on the machine do only ever adds."""
    return min(turn(number) for number in range(plan.rounds))


def _replayed(server: Penstock, extra: list[str], turn: int) -> float:
    words = ["pipeline", "replay", "little", "--to", f"again{turn}", "--data", str(server.node_data), *extra]
    return _run([str(supply.penstock()), *words])


def _reported(server: Penstock, turn: int) -> float:
    page = str(server.node_data.parent / f"report{turn}.html")
    return _run([str(supply.penstock()), "pipeline", "report", "--data", str(server.node_data), "-o", page])


def _run(command: list[str]) -> float:
    environment = {**os.environ, "PYTHONPATH": str(supply.ROOT / "src")}
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_S)
    if done.returncode:
        raise LoadFailed(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-400:]}")
    return time.perf_counter() - began
