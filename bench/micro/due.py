"""Cost of the due calendar: insert rate per batch size, and the CPU of every `pop` over a simulated day.

Run: python -m bench.micro.due [rows]
"""

from __future__ import annotations

import sys
import time

import numpy as np
import numpy.typing as npt

from penstock.delivery.calendar import BLOCK_ROWS, Calendar

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
START_NS = 1_700_000_000 * SECOND_NS
#: A timer that fires when the calendar asks for it, but not more often than this and at least that often.
TICK_NS_MIN = 5_000_000
TICK_NS_MAX = 100_000_000


def insert(calendar: Calendar, due_ns: npt.NDArray[np.int64], batch: int) -> None:
    """Fill the calendar and print the rate and the longest put."""
    offsets = np.arange(len(due_ns))
    steps = []
    for start in range(0, len(due_ns), batch):
        began = time.thread_time_ns()
        calendar.put(due_ns[start : start + batch], offsets[start : start + batch])
        steps.append(time.thread_time_ns() - began)
    cost = np.array(steps)
    rate = len(due_ns) / cost.sum() * 1_000
    print(
        f"insert {len(due_ns):,} in batches of {batch:,}: {rate:.1f} M/s; "
        f"put p50 {np.median(cost) / 1e3:.0f} us, p99 {np.percentile(cost, 99) / 1e3:.0f} us, "
        f"max {cost.max() / 1e6:.2f} ms"
    )


def insert_one(rows: int) -> None:
    """Print the rate of single puts."""
    calendar = Calendar(START_NS)
    due_ns = (START_NS + np.random.default_rng(1).integers(0, DAY_NS, rows)).tolist()
    began = time.thread_time_ns()
    for offset, due in enumerate(due_ns):
        calendar.put_one(due, offset)
    print(f"insert {rows:,} one by one: {(time.thread_time_ns() - began) / rows:.0f} ns each")


def day(calendar: Calendar, due_ns: npt.NDArray[np.int64]) -> None:
    """Pop for a day whenever the calendar asks for it and print the CPU of the calls."""
    now_ns, end_ns = START_NS, START_NS + DAY_NS
    steps, moved, got, late_ns = list[int](), list[int](), 0, 0
    while now_ns < end_ns:
        now_ns = min(max(calendar.next_ns() or end_ns, now_ns + TICK_NS_MIN), now_ns + TICK_NS_MAX)
        touched = calendar.touched
        began_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        offsets = calendar.pop(now_ns)
        # On a shared machine either clock alone sometimes shows milliseconds that were somebody else's.
        steps.append(min(time.thread_time_ns() - cpu_ns, time.perf_counter_ns() - began_ns))
        moved.append(calendar.touched - touched)
        if len(offsets):
            got += len(offsets)
            late_ns = max(late_ns, now_ns - int(due_ns[offsets[0]]))
    cost, rows = np.array(steps), np.array(moved)
    print(
        f"pop over a day, {got:,} rows in {len(cost):,} calls: p50 {np.median(cost) / 1e3:.1f} us, "
        f"p99 {np.percentile(cost, 99) / 1e3:.0f} us, p99.99 {np.percentile(cost, 99.99) / 1e3:.0f} us, "
        f"max {cost.max() / 1e6:.2f} ms, {cost.sum() / max(got, 1):.0f} ns a row; latest {late_ns / 1e6:.1f} ms"
    )
    blocks = cost[rows >= BLOCK_ROWS // 2]
    print(
        f"of these, {len(blocks):,} calls that split half a block or more: p50 {np.median(blocks) / 1e6:.2f} ms, "
        f"p99 {np.percentile(blocks, 99) / 1e6:.2f} ms, max {blocks.max() / 1e6:.2f} ms"
    )
    # A long call that moved next to nothing was held up by the machine, not by the calendar.
    longest = np.argsort(cost)[:-6:-1]
    print("longest calls: " + ", ".join(f"{cost[i] / 1e6:.2f} ms for {rows[i]:,} rows" for i in longest))


def main(rows: int) -> None:
    """Print every number."""
    due_ns = START_NS + np.random.default_rng(0).integers(0, DAY_NS, rows)
    insert_one(100_000)
    for batch in (100, 1_000, 10_000):
        calendar = Calendar(START_NS)
        insert(calendar, due_ns, batch)
    day(calendar, due_ns)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
