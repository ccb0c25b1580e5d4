"""Traffic-type verdicts of 20 subscriptions over batches of mixed messages, in process, as a topic asks for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from bench.plan import Plan
from bench.report import Result, at_least, rate_words, table_row
from penstock.filters.traffic import Rules, Traffic, TrafficFilter

SUBSCRIPTIONS = 20
ROWS = (1_000, 4_000, 16_000)
MILLION = 1e6

MAPPING = {f"type{bit}": bit for bit in range(SUBSCRIPTIONS)}
FILTERS = [TrafficFilter((name,)) for name in MAPPING]

TYPES = {"production": 0, "staging": 1, "experimental": 2, "canary": 3, "debug": 4}
SERVICES = [
    TrafficFilter(("production",)),
    TrafficFilter(("staging", "experimental")),
    TrafficFilter(("debug",)),
    TrafficFilter(("production", "staging"), is_default=True),
    TrafficFilter(("canary", "moon"), is_default=True, upstream_filter=True),
]


def run(plan: Plan) -> Iterator[Result]:
    """Judge batches of each size for a while; the slowest size counts."""
    rules = Rules(FILTERS, MAPPING)

    def together(traffic: Traffic) -> None:
        rules.verdicts(traffic)

    rates = {rows: max(_rate(together, rows, plan.seconds / 2) for _ in range(plan.rounds)) for rows in ROWS}
    words = ", ".join(f"{rate_words(rate)} at {rows:,} rows" for rows, rate in rates.items())
    goals = [at_least(500, min(rates.values()) / MILLION, " M/s")]
    work = f"traffic-type verdicts, batches of {ROWS[0]:,} rows and more, {SUBSCRIPTIONS} subscriptions"
    yield table_row("traffic", work, {"penstock": words}, goals, {})
    yield _services(plan)


def _services(plan: Plan) -> Result:
    """Route messages to a few services, as a metrics pipeline does; a message counts once, whoever takes it."""
    rules = Rules(SERVICES, TYPES)

    def together(traffic: Traffic) -> None:
        rules.verdicts(traffic)

    rates = {
        rows: max(_rate(together, rows, plan.seconds / 2) for _ in range(plan.rounds)) / SUBSCRIPTIONS for rows in ROWS
    }
    words = ", ".join(f"{rate_words(rate)} at {rows:,} rows" for rows, rate in rates.items())
    goals = [at_least(20, min(rates.values()) / MILLION, " M/s")]
    return table_row(
        "traffic", f"messages routed to {len(SERVICES)} services, mixed masks", {"penstock": words}, goals, {}
    )


def _rate(judge: Callable[[Traffic], None], rows: int, seconds: float) -> float:
    """Return verdicts per second: rows times subscriptions."""
    traffic = np.random.default_rng(rows).integers(0, 1 << SUBSCRIPTIONS, rows, dtype=np.uint64)
    turns = 0
    start = time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        judge(traffic)
        turns += 1
    return turns * rows * SUBSCRIPTIONS / took
