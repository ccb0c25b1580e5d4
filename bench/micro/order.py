"""Cost of order by key: microseconds a row from the look at it to its ack, for keys that many rows share or none do.

Run: python -m bench.micro.order [rows]
"""

from __future__ import annotations

import sys
import time

from penstock.delivery.keys import KeyOrder


def drain(rows: int, keys: int, run: int) -> float:
    """Let all rows go out and be acked, as fast as their keys allow; return the microseconds each took."""
    order = KeyOrder(run)
    names = [b"%d" % (row % keys) for row in range(rows)]
    queue = list(range(rows))
    began = time.thread_time_ns()
    while queue:
        out = [row for row in queue if order.admit(names[row], row, 1)]
        queue, order.freed = order.freed, []
        queue += order.finished(out)
    return (time.thread_time_ns() - began) / rows / 1_000


def main() -> None:
    """Print every number."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    for keys in (rows, 100, 1):
        for run in (1, 10):
            print(f"{rows:,} rows of {keys:,} keys, {run} of a key out: {drain(rows, keys, run):6.2f} us a row")


if __name__ == "__main__":
    main()
