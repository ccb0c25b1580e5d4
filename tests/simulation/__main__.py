"""Run seeds: `--seconds N`, `--seeds A..B`, `--seed S [--trace]`, or `--forever`; a failing one is printed."""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from tests.simulation.runner import WORLDS, failure_of
from tests.simulation.world import Outcome

Result = tuple[int, Outcome | None, str]


def main() -> int:
    """Run what was asked for; 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, help="run seeds for this long")
    parser.add_argument("--seeds", help="run these seeds, first..last")
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--from", dest="start", type=int, default=1, help="the first seed of --seconds and --forever")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--only", choices=WORLDS, default="", help="one world of each seed: its clients, or a relay")
    parser.add_argument("--forever", action="store_true", help="run seeds until stopped")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    chosen = parser.parse_args()
    seeds: Iterable[int] = itertools.count(chosen.start)
    if chosen.seed is not None:
        seeds = [chosen.seed]
    elif chosen.seeds:
        first, _, last = chosen.seeds.partition("..")
        seeds = range(int(first), int(last or first) + 1)
    elif not chosen.forever and chosen.seconds is None:
        parser.error("say --seconds, --seeds, --seed or --forever")
    alone = chosen.jobs < 2 or chosen.seed is not None
    results = (
        _one_by_one(seeds, chosen.only, trace=chosen.trace) if alone else _side_by_side(seeds, chosen.only, chosen.jobs)
    )
    return _report(results, chosen.seconds, trace=chosen.trace, keep_going=chosen.keep_going)


def _begin() -> None:
    """Make ready for many runs: what a node logs in a disaster is no news, and the collector need not look so often."""
    logging.getLogger("penstock").setLevel(logging.CRITICAL + 1)
    gc.collect()
    gc.freeze()  # the modules stay
    gc.set_threshold(20_000, 20, 50)


def _one_by_one(seeds: Iterable[int], only: str, *, trace: bool) -> Iterator[Result]:
    _begin()
    for seed in seeds:
        yield seed, *failure_of(seed, trace=trace, only=only)


def _side_by_side(seeds: Iterable[int], only: str, jobs: int) -> Iterator[Result]:
    """Run seeds in several processes; results come in the order of the seeds, so that the first failure is."""
    pool = ProcessPoolExecutor(jobs, initializer=_begin)
    under_way: dict[int, Future[tuple[Outcome | None, str]]] = {}
    coming = iter(seeds)
    try:
        while True:
            for seed in itertools.islice(coming, 2 * jobs - len(under_way)):
                under_way[seed] = pool.submit(failure_of, seed, only=only)
            if not under_way:
                return
            wait(under_way.values(), return_when=FIRST_COMPLETED)
            while under_way and (first := next(iter(under_way.items())))[1].done():
                del under_way[first[0]]
                yield first[0], *first[1].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _report(results: Iterator[Result], seconds: float | None, *, trace: bool, keep_going: bool) -> int:
    began = time.monotonic()
    done = messages = checks = failed = 0
    virtual_ns = 0
    try:
        for seed, outcome, failure in results:
            done += 1
            if outcome is None:
                print(failure, flush=True)
                failed += 1
                if not keep_going:
                    break
            else:
                messages, checks = messages + outcome.messages, checks + outcome.checks
                virtual_ns += outcome.virtual_ns
                if trace:
                    print(f"seed {seed}: trace {outcome.digest}, {outcome.events} events")
            if seconds is not None and time.monotonic() - began >= seconds:
                break
    except KeyboardInterrupt:
        print()
    took = time.monotonic() - began
    print(
        f"simulation: {done} seeds, {failed} failed, {messages} messages, {checks} deliveries checked, "
        f"{virtual_ns / 1e9:.0f} s of virtual time in {took:.1f} s ({done / took:.1f} seeds/s)"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
