"""An hour of a large cluster on paper: consumers come and go, a broker dies, a rack is lost and comes back.

`python -m bench.micro.churn [--dealer rack]`. Deals are real ones, by the code that brokers run; members are numbers,
and what the registry would be written is counted.
"""

from __future__ import annotations

import argparse
import time
from random import Random
from typing import NamedTuple

import numpy as np

from penstock.clock import SECOND
from penstock.cluster.presence import LEASE_KEYS_MAX, RENEW_NS
from penstock.dealing.form import pack
from penstock.dealing.table import DEALERS, DealerName, Member, Table, deal, follow, moves
from penstock.node.membership import FIGURES_NS

BUCKETS, CONSUMERS, BROKERS, RACKS = 65_535, 10_000, 100, 3
WINDOWS = 3600
#: A consumer restarts once a day, and is back after half a minute.
LIFE_S, AWAY_S = 24 * 3600, 30
#: When a broker dies its consumers are missed for one lease, and go to others; a rack is away for five minutes.
BROKER_DIES, LEASE_S = 900, 10
RACK_DIES, RACK_RETURNS = 1800, 2100


class Hour(NamedTuple):
    """What came of it."""

    deals: int
    moves: int
    least: int
    most: int
    worst: float
    table_bytes: int
    writes: int
    busiest: int
    deal_ms: list[float]


def run(dealer: DealerName, seed: int = 1) -> Hour:
    """Live an hour, a window a second."""
    random = Random(seed)
    here = {number: Member(f"rack-{number % RACKS}", f"consumer-{number:05}") for number in range(CONSUMERS)}
    returns: dict[int, list[int]] = {}
    table: Table = deal(dealer, here.values(), BUCKETS)
    deal_ms: list[float] = []
    moved = writes = busiest = table_bytes = 0
    worst = 0.0
    for window in range(1, WINDOWS):
        changed = _leaves(window, here, returns, random)
        for number in returns.pop(window, []):
            here[number] = Member(f"rack-{number % RACKS}", f"consumer-{number:05}")
            changed.add(number)
        # A record for each of them, what each broker they are with says of itself, and figures every ten seconds.
        written = len(changed) + len({number % BROKERS for number in changed}) + BROKERS * SECOND // FIGURES_NS
        if changed:
            begun = time.process_time()
            after = follow(table, here.values(), window + 1)
            packed = pack(after)
            deal_ms.append((time.process_time() - begun) * 1000)
            moved += moves(table, after)
            table, table_bytes = after, max(table_bytes, len(packed))
            written += 1
        counts = np.bincount(table.primary, minlength=len(table.members))
        worst = max(worst, float(counts.max() / counts.mean()))
        writes, busiest = writes + written, max(busiest, written)
    return Hour(len(deal_ms), moved, int(counts.min()), int(counts.max()), worst, table_bytes, writes, busiest, deal_ms)


def _leaves(window: int, here: dict[int, Member], returns: dict[int, list[int]], random: Random) -> set[int]:
    """Take away those who leave in a window, and say when each is back."""
    gone: dict[int, int] = {}
    for _ in range(_times(CONSUMERS / LIFE_S, random)):
        gone[random.randrange(CONSUMERS)] = AWAY_S
    if window == BROKER_DIES:
        gone |= dict.fromkeys(range(7, CONSUMERS, BROKERS), LEASE_S)
    if window == RACK_DIES:
        gone |= dict.fromkeys(range(1, CONSUMERS, RACKS), RACK_RETURNS - RACK_DIES)
    left = {number for number in gone if here.pop(number, None) is not None}
    for number in left:
        returns.setdefault(window + gone[number], []).append(number)
    return left


def _times(rate: float, random: Random) -> int:
    """Return how often something happens in a second that happens so often on average."""
    count, left = 0, random.expovariate(rate)
    while left < 1:
        count, left = count + 1, left + random.expovariate(rate)
    return count


def main() -> None:
    """Print the hour."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dealer", choices=DEALERS, default="rack")
    dealer: DealerName = parser.parse_args().dealer
    begun = time.process_time()
    hour = run(dealer)
    spent_s = time.process_time() - begun
    leases = BROKERS * -(-CONSUMERS // BROKERS // LEASE_KEYS_MAX)
    print(f"{dealer}: {BUCKETS:,} buckets, {CONSUMERS:,} consumers in {RACKS} racks, {BROKERS} brokers, an hour")
    print(f"  took            {spent_s:.1f} s of processor time; a deal {np.median(hour.deal_ms):.0f} ms (p50)")
    print(f"  deals           {hour.deals} of {WINDOWS} windows, {hour.moves:,} buckets moved")
    print(f"  imbalance       {hour.least} to {hour.most} buckets each; never above {hour.worst:.2f} of the mean")
    print(f"  table           {hour.table_bytes / 1024:.0f} KiB at most")
    print(f"  registry        {hour.writes / WINDOWS:.1f} writes/s, {hour.busiest} in the busiest second,")
    print(f"                  {leases * SECOND / RENEW_NS:.0f} renewals of leases/s")


if __name__ == "__main__":
    main()
