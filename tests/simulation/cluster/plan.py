"""What one seed of several nodes is: how many of what, how far away, and how much goes wrong."""

from __future__ import annotations

from random import Random

import msgspec

from penstock.clock import MILLISECOND, SECOND
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.registry.far import Trouble

NODES = ("n1", "n2", "n3")
#: Where nodes listen for each other.
PORTS = {name: 7075 + number for number, name in enumerate(NODES)}
#: A node that says nothing for so long has lost what it owned.
LEASE_NS = 2 * SECOND
SLOTS = 3
#: Publishers are refused when the store has taken nothing for so long.
PATIENCE_NS = 4 * SECOND
#: Consumers on connections, in order of keys; and receives under a name.
WORK, QUEUE = "work", "queue"


class Plan(msgspec.Struct):
    """One seed."""

    topics: dict[str, TopicSettings]
    subscriptions: dict[str, SubscriptionSettings]
    registry: Trouble
    #: How long the store takes, and how often an answer of it is lost.
    store_ns: int
    lost: float
    slowness: float
    #: How often somebody publishes at any node, whoever has the topic.
    astray: float
    #: Between publishes, receives and misfortunes.
    publish_ns: int
    look_ns: int
    trouble_ns: int
    rows_max: int
    #: How long a receive has what it got.
    lease_ns: int
    duration_ns: int


def make_plan(random: Random) -> Plan:
    """Draw one."""
    topics = {
        f"t{number}": TopicSettings(
            log="kafka",
            durability="fsync",
            shards=random.choice((1, 1, 2)),
            segment_bytes=random.choice((1500, 1 << 20)),
        )
        for number in range(random.choice((1, 2, 2)))
    }
    lease_ns = int(random.choice((0.3, 1, 3)) * SECOND)
    return Plan(
        topics,
        {
            WORK: SubscriptionSettings(order="key", lease_ns=2 * SECOND, lease_max_ns=60 * SECOND),
            QUEUE: SubscriptionSettings(lease_ns=lease_ns, lease_max_ns=60 * SECOND),
        },
        registry=Trouble(
            delay_ns=random.choice((1, 5, 30)) * MILLISECOND, answer_lost=random.choice((0.0, 0.02)), late=0.0
        ),
        store_ns=random.choice((1, 5, 20)) * MILLISECOND,
        lost=random.choice((0.0, 0.0, 0.002)),
        slowness=random.choice((0.5, 1, 3)),
        astray=random.choice((0.0, 0.5, 0.9)),
        publish_ns=random.choice((30, 80)) * MILLISECOND,
        look_ns=random.choice((20, 60)) * MILLISECOND,
        trouble_ns=int(random.choice((0.7, 1.5, 3)) * SECOND),
        rows_max=random.choice((1, 3)),
        lease_ns=lease_ns,
        duration_ns=random.randint(6, 14) * SECOND,
    )
