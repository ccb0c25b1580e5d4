"""Dealing all buckets there can be to 1,000 consumers in ten racks, in process: the first time, and again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from random import Random

from bench.plan import Plan
from bench.report import Result, at_most, table_row
from penstock.dealing.form import pack
from penstock.dealing.table import BUCKETS_MAX, DEALERS, DealerName, Member, Table, deal, moves

CONSUMERS = 1_000
RACKS = 10
#: As many leave, and as many come, between two deals.
CHANGES = 10
DEALS = 20
MILLISECONDS = 1e3
KB = 1e3


def run(plan: Plan) -> Iterator[Result]:
    """Deal while some leave and others come; of each dealer the slowest deal of the best round counts."""
    slowest = {dealer: min(_slowest_ms(dealer) for _ in range(plan.rounds)) for dealer in DEALERS}
    moved, first_bytes, last_bytes = _churn()
    words = ", ".join(f"{dealer} {took_ms:.2g} ms" for dealer, took_ms in slowest.items())
    words += (
        f"; rack: {moved:.0f} moves a deal, table {first_bytes / KB:.0f} kB at first, {last_bytes / KB:.0f} kB after"
        f" {DEALS} deals"
    )
    goals = [at_most(50, max(slowest.values()), " ms", "slowest ")]
    work = f"deal {BUCKETS_MAX:,} buckets to {CONSUMERS:,} consumers in {RACKS} racks, {CHANGES} of them new each time"
    yield table_row("deal", work, {"penstock": words}, goals, {})


def _slowest_ms(dealer: DealerName) -> float:
    table: Table | None = None
    took: list[float] = []
    for crowd in _crowds():
        began = time.perf_counter()
        table = deal(dealer, crowd, BUCKETS_MAX, table)
        took.append(time.perf_counter() - began)
    return max(took) * MILLISECONDS


def _churn() -> tuple[float, int, int]:
    """Return how many buckets a deal moves, and how many bytes the first and the last table take."""
    tables: list[Table] = []
    for crowd in _crowds():
        tables.append(deal("rack", crowd, BUCKETS_MAX, tables[-1] if tables else None))
    moved = sum(moves(before, after) for before, after in pairwise(tables))
    return moved / (DEALS - 1), len(pack(tables[0])), len(pack(tables[-1]))


def _crowds() -> Iterator[list[Member]]:
    random = Random(BUCKETS_MAX)
    everybody = [Member(f"rack-{number % RACKS}", f"consumer-{number:04}") for number in range(CONSUMERS + CHANGES)]
    for _ in range(DEALS):
        yield random.sample(everybody, CONSUMERS)
