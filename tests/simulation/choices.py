"""What operators choose: filters, orders and settings of subscriptions."""

from __future__ import annotations

from random import Random
from typing import Literal

from penstock.clock import MILLISECOND, SECOND
from penstock.settings import SubscriptionSettings, TrafficSettings

Order = Literal["none", "key", "shard"]

#: Names of traffic types; some mappings lack some of them.
TYPES = ("raw", "minute", "hour", "test")


def some_filter(random: Random) -> TrafficSettings | None:
    """Return a filter, or none."""
    if random.random() < 0.3:
        return None
    allowed = tuple(name for name in TYPES if random.random() < 0.4)
    return TrafficSettings(allowed, random.random() < 0.5)


def some_order(random: Random) -> tuple[Order, int]:
    """Return an order, and how many rows of a key may be out."""
    order: Order = random.choice(("none", "key", "key", "key", "shard"))
    return order, random.choice((1, 1, 2, 10)) if order == "key" else 1


def some_settings(random: Random, lease_ns: int, lease_max_ns: int, *, limited: bool) -> SubscriptionSettings:
    """Return settings of a subscription that an operator makes."""
    draw = random.random()
    order, run = some_order(random) if random.random() < 0.4 else ("none", 1)
    return SubscriptionSettings(
        order=order,
        key_run=run,
        traffic=some_filter(random) if draw < 0.5 else None,
        max_attempts=random.choice((1, 2, 4)) if limited else 0,
        ttl_ns=random.choice((50 * MILLISECOND, SECOND)) if draw > 0.85 else 0,
        lease_ns=lease_ns,
        lease_max_ns=lease_max_ns,
        # With ranges alone, what belongs to somebody without credit would wait for it.
        policy="buckets" if int(draw * 1000) % 5 == 0 else "shared",
        dealer="gladiator",
        buckets=(1, 5, 64, 1024)[int(draw * 10_000) % 4],
    )
