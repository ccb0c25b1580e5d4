"""Cost of the traffic filters: rows * subscriptions per second of CPU, for mixed and for constant bitmasks.

Run: python -m bench.micro.traffic
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from penstock.filters.traffic import Rules, TrafficFilter, verdicts

MAPPING = {f"type-{bit}": bit for bit in range(24)}
SUBSCRIPTIONS = 20


def cpu_ns(call: Callable[[], object]) -> float:
    """Return the median CPU of one call."""
    repeats, costs = 1, list[float]()
    while len(costs) < 9:
        began = time.thread_time_ns()
        for _ in range(repeats):
            call()
        spent = time.thread_time_ns() - began
        if spent < 5_000_000:
            repeats *= 2
        else:
            costs.append(spent / repeats)
    return float(np.median(costs))


def line(name: str, rows: int, subscriptions: int, cost_ns: float) -> None:
    """Print one measurement."""
    rate = rows * subscriptions / cost_ns * 1_000
    print(f"{name:<44} {rows:>7,} rows: {cost_ns / 1e3:8.2f} us, {rate:8,.0f} M row*subscription/s")


def main() -> None:
    """Print every number."""
    rng = np.random.default_rng(0)
    filters = [TrafficFilter((f"type-{i}", f"type-{i + 3}"), is_default=i % 3 == 0) for i in range(SUBSCRIPTIONS)]
    rules = Rules(filters, MAPPING)
    mask = filters[1].mask(MAPPING)
    print(f"single message, {SUBSCRIPTIONS} subscriptions: {cpu_ns(lambda: rules.verdict(8)) / 1e3:.2f} us")
    for rows in (100, 1_000, 10_000, 100_000):
        mixed = (1 << rng.integers(0, 24, rows)) * rng.integers(0, 2, rows)
        same = np.zeros(rows, np.int64)
        line("20 subscriptions, mixed bitmasks", rows, SUBSCRIPTIONS, cpu_ns(partial(rules.verdicts, mixed)))
        line("20 subscriptions, one bitmask", rows, SUBSCRIPTIONS, cpu_ns(partial(rules.verdicts, same)))
        line("1 subscription", rows, 1, cpu_ns(partial(verdicts, mixed, mask, False)))
        line("1 subscription, is_default", rows, 1, cpu_ns(partial(verdicts, mixed, mask, True)))


if __name__ == "__main__":
    main()
