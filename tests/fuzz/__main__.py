"""Fuzz the parsers of every listener: python -m tests.fuzz [--seconds 60] [--seed N] [--target NAME]."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.fuzz import TARGETS, fuzz_for


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; the next ones count from it")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only these; may be given more than once")
    given = parser.parse_args()
    number = time.time_ns() % 1_000_000 if given.seed is None else given.seed
    try:
        total = fuzz_for(given.seconds, number, tuple(given.target or TARGETS), lambda text: print(text, flush=True))
    except BaseException:
        print(f"fuzz: FAILED; begin again with --seed {number}", flush=True)
        raise
    print(f"fuzz: {total} examples on {len(given.target or TARGETS)} targets, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
