"""A replay in a process of its own, to be killed: prints a line after each step.

Run: python -m tests.pipeline.replaying options-as-JSON home-directory
"""

from __future__ import annotations

import signal
import sys

import msgspec

from penstock.pipeline import session
from penstock.pipeline.jobs.replay import Replay, ends_on, replay


def main() -> None:
    """Run one replay until it ends or is told to."""
    options = msgspec.json.decode(sys.argv[1], type=Replay)
    spark = session("replaying", master="local[1]", quick=True)
    with ends_on(signal.SIGTERM) as stop:
        outcome = replay(spark, options, sys.argv[2], stop=stop, told=lambda each: print(each.step, flush=True))
    print(outcome.message, flush=True)


if __name__ == "__main__":
    main()
