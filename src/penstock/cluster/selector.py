"""The selector: which broker a client of a topic should go to.

Few brokers share a topic, because each of them reads what its clients share; yet none takes too many. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.cluster.broker import Broker
from penstock.errors import Refusal

#: A broker is filled up to the first with clients of a topic, and gets more than the second only if all have as many.
PREFERRED = 4
MOST = 7


class Choice(NamedTuple):
    """A broker, its place in the list, from 1 on, and whether it has as many clients of the topic as it should."""

    broker: str
    weight: int
    over_capacity: bool


def choices(
    brokers: Iterable[Broker], topic: str, *, preferred: int = PREFERRED, most: int = MOST, strict: bool = False
) -> list[Choice]:
    """Return the brokers that a client of a topic should try, in order; those that are degraded come last.

    `strict` refuses a client where the best would be over its capacity. Inactive ones are none.
    """
    ranked = sorted(
        (broker for broker in brokers if broker.state != "inactive"),
        key=lambda broker: (broker.state != "healthy", *score(broker, topic, preferred, most)),
    )
    if not ranked:
        raise Refusal("unavailable", f"no broker is there for clients of {topic}; try again when one has come back")
    found = [
        Choice(broker.id, number, broker.counts.get(topic, 0) >= most) for number, broker in enumerate(ranked, start=1)
    ]
    if strict and found[0].over_capacity:
        raise Refusal(
            "limit_reached", f"every broker has {most} clients of {topic} or more; add a broker, or raise the limit"
        )
    return found


def score(broker: Broker, topic: str, preferred: int, most: int) -> tuple[int, int, int, int, str]:
    """Return what brokers are sorted by, the best first: its tier, its place there, and what decides between equals."""
    count = broker.counts.get(topic, 0)
    if count >= most:
        tier, place = 4, count
    elif count >= preferred:
        tier, place = 3, count
    elif count == 0:
        tier, place = 2, broker.topics
    else:
        tier, place = 1, -count
    return tier, place, broker.topics, broker.connections, broker.id
