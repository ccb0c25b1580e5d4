"""The dispatch policies a subscription's setting may name: one table, one line each.

`tagged` is not among them: it is in force while some seat asks for a tag, whatever was chosen.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.delivery.policies.buckets import Buckets
from penstock.delivery.policies.fair import Fair
from penstock.delivery.policies.in_order import InOrder
from penstock.delivery.policies.partition_locked import PartitionLocked
from penstock.delivery.policies.policy import Policy
from penstock.delivery.policies.routed import Routed
from penstock.errors import Refusal
from penstock.settings import SubscriptionSettings

#: Each is made with the key by which ids of its topic are shown.
POLICIES: dict[str, Callable[[SubscriptionSettings, int], Policy]] = {
    "shared": lambda settings, key: Policy(),
    "in-order": lambda settings, key: InOrder(),
    "fair": lambda settings, key: Fair(),
    "partition-locked": lambda settings, key: PartitionLocked(key),
    "routed": lambda settings, key: Routed(),
    "buckets": lambda settings, key: Buckets(settings.dealer, settings.buckets, settings.prefetch_ns),
}


def policy_of(settings: SubscriptionSettings, key: int = 0) -> Policy:
    """Return a new policy of the kind that settings choose, for a topic whose ids are shown by this key."""
    if settings.policy not in POLICIES:
        raise Refusal("bad_request", f"there is no policy {settings.policy!r}; choose one of {', '.join(POLICIES)}")
    return POLICIES[settings.policy](settings, key)


def dealt_by(settings: SubscriptionSettings) -> tuple[object, ...]:
    """Return all that a policy is made from: while it is the same, so is the policy."""
    return settings.policy, settings.dealer, settings.buckets, settings.prefetch_ns
