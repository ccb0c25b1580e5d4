"""An hour of a large cluster on paper: nodes die and come back, all are restarted one by one, a tenth is lost at once.

`python -m bench.micro.slots [--nodes 1000 --slots 4096 --shards 100000 --rate 10000000]`. Deals are real ones, by the
code that nodes run, a second a step; what the registry and Kafka would be asked is counted.
"""

from __future__ import annotations

import argparse
import time
from random import Random
from typing import NamedTuple

import numpy as np

from penstock.clock import SECOND
from penstock.cluster.deal import deal
from penstock.cluster.presence import LEASE_KEYS_MAX, RENEW_NS
from penstock.cluster.slots import GIVES_MAX

HOUR_S = 3600
LEASE_S = 10
#: A node dies once in ten days, and is back after two minutes.
LIFE_S, AWAY_S = 240 * HOUR_S, 120
#: All nodes are restarted one by one: each gives its slots away, and is back after ten seconds.
ROLLING_FROM_S, ROLLING_EVERY_S, RESTART_S = 600, 2, 10
#: A tenth of all dies at once, and is back after five minutes.
BLOW_S, BLOW_AWAY_S = 3000, 300

#: Per message, and per partition that Kafka is asked to keep with copies; what one broker takes of each, roughly.
MESSAGE_BYTES = 100
COPIES = 3
BROKER_PARTITIONS, BROKER_REQUESTS, BROKER_BYTES = 4000, 50_000, 200_000_000


class Hour(NamedTuple):
    """What came of it."""

    writes: list[int]
    moves_of_loss: list[int]
    moves: int
    ownerless_most: int
    worst: int
    deal_ms: list[float]


class Paper:
    """The cluster, as its registry would show it."""

    def __init__(self, nodes: int, slots: int, seed: int) -> None:
        self.random = Random(seed)
        self.slots = slots
        self.here = {f"n{number:04}": 1 for number in range(nodes)}
        self.owners = deal(slots, self.here, {}, {}, ())
        self.leaving: set[str] = set()
        self.returns: dict[int, list[str]] = {}
        #: Keys of the dead stay until their lease ends.
        self.expires: dict[int, list[str]] = {}
        self.dead: set[str] = set()
        self.writes = 0
        self.moves = 0
        self.deal_ms: list[float] = []

    def die(self, second: int, name: str, away_s: int) -> int:
        """Let a node die; return how many slots have no owner for that."""
        self.here.pop(name)
        self.dead.add(name)
        self.expires.setdefault(second + LEASE_S, []).append(name)
        self.returns.setdefault(second + away_s, []).append(name)
        return sum(owner == name for owner in self.owners.values())

    def step(self, second: int) -> bool:
        """Live a second; return whether anything is on its way."""
        for name in self.expires.pop(second, []):
            self.dead.discard(name)
            self.owners = {slot: owner for slot, owner in self.owners.items() if owner != name}
            self.writes += 1  # a lease that ends takes all its keys at once
        for name in self.returns.pop(second, []):
            self.here[name] = 1
            self.writes += 2  # a lease has a key, and the node a record
        begun = time.process_time()
        dealt = deal(self.slots, {name: 1 for name in self.here if name not in self.leaving}, self.owners, {}, ())
        self.deal_ms.append((time.process_time() - begun) * 1000)
        gives: dict[str, int] = {}
        is_busy = bool(self.expires)
        for slot in range(self.slots):
            owner, wanted = self.owners.get(slot), dealt[slot]
            if owner == wanted:
                continue
            is_busy = True
            if owner is None:
                self.owners[slot] = wanted
                self.writes, self.moves = self.writes + 1, self.moves + 1
            elif owner in self.here and gives.get(owner, 0) < GIVES_MAX:
                gives[owner] = gives.get(owner, 0) + 1
                del self.owners[slot]
                self.writes += 1
        return is_busy


def run(nodes: int, slots: int, seed: int = 1) -> Hour:
    """Live an hour."""
    paper = Paper(nodes, slots, seed)
    names = sorted(paper.here)
    writes, moves_of_loss, ownerless_most = [], [], 0
    is_busy = False
    for second in range(HOUR_S):
        before = paper.writes
        changed = second in paper.returns or second in paper.expires
        for name in [name for name in paper.here if paper.random.random() < 1 / LIFE_S]:
            moves_of_loss.append(paper.die(second, name, AWAY_S))
            changed = True
        at, rest = divmod(second - ROLLING_FROM_S, ROLLING_EVERY_S)
        if rest == 0 and 0 <= at < len(names) and names[at] in paper.here:
            paper.leaving.add(names[at])
            paper.writes += 1
            changed = True
        if second == BLOW_S:
            for name in [name for name in names[::10] if name in paper.here]:
                paper.die(second, name, BLOW_AWAY_S)
            changed = True
        if changed or is_busy:
            is_busy = paper.step(second)
        for name in sorted(paper.leaving - set(paper.owners.values())):
            paper.leaving.discard(name)
            if paper.here.pop(name, None):
                paper.returns.setdefault(second + RESTART_S, []).append(name)
                paper.writes += 1
        gone = sum(paper.owners.get(slot) is None or paper.owners[slot] in paper.dead for slot in range(slots))
        ownerless_most = max(ownerless_most, gone)
        writes.append(paper.writes - before)
    counts = [list(paper.owners.values()).count(name) for name in paper.here]
    return Hour(writes, moves_of_loss, paper.moves, ownerless_most, max(counts), paper.deal_ms)


def main() -> None:
    """Print the hour, and what Kafka is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=10_000_000, help="messages a second")
    parser.add_argument("--busy", type=int, default=2_000, help="shards that most of them go to")
    given = parser.parse_args()
    hour = run(given.nodes, given.slots)
    leases = given.nodes * -(-(given.slots // given.nodes + 1) // LEASE_KEYS_MAX)
    print(f"{given.nodes:,} nodes, {given.slots:,} slots, an hour")
    print(f"  deal            {np.median(hour.deal_ms):.1f} ms (p50), {max(hour.deal_ms):.1f} ms at most")
    print(f"  loss of a node  {np.mean(hour.moves_of_loss):.1f} slots move, {max(hour.moves_of_loss)} at most")
    print(f"  all moves       {hour.moves:,} slots; {hour.ownerless_most} without a live owner at most")
    print(f"  registry        {np.mean(hour.writes):.1f} writes/s, {max(hour.writes)} in the busiest second,")
    print(f"                  {np.mean(hour.writes) * given.nodes:,.0f} events/s to all watchers,")
    print(f"                  {leases * SECOND / RENEW_NS:.0f} renewals of leases/s")
    _print_kafka(given)


def _print_kafka(given: argparse.Namespace) -> None:
    shards, rate, slots, nodes = given.shards, given.rate, given.slots, given.nodes
    partitions = 2 * shards * COPIES
    sent = rate * MESSAGE_BYTES
    brokers = max(-(-partitions // BROKER_PARTITIONS), -(-sent * COPIES // BROKER_BYTES))
    print(f"{shards:,} shards, {rate:,} messages of {MESSAGE_BYTES} bytes a second")
    print(f"  partitions      {2 * shards:,}, with copies {partitions:,}: {brokers} brokers of {BROKER_PARTITIONS:,}")
    print(f"  bytes           {sent / 1e9:.1f} GB/s in, {sent * COPIES / 1e9:.1f} GB/s with copies")
    print(f"  connections     {slots:,} a broker, and {-(-slots // nodes) * brokers:,} threads a node")
    for active in (shards, given.busy):
        print(f"  requests        with the messages in {active:,} shards, by what Kafka takes to answer:")
        for answer_ms in (6, 20, 60):
            # What waits while a send is under way goes in the next one; journals are written every 10 ms at most.
            records = min(rate, active * 1000 / answer_ms)
            journals = min(rate, active * 1000 / max(answer_ms, 10))
            requests = records + journals
            print(
                f"    {answer_ms:>3} ms        {records / 1e6:.2f} M records/s of {rate / records:,.1f} messages, with "
                f"journals {requests / brokers:,.0f} requests/s a broker at most (it takes {BROKER_REQUESTS:,})"
            )


if __name__ == "__main__":
    main()
