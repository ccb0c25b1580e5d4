"""The dispatch policies a subscription's setting may name: one table, one line each.

`tagged` is not among them: it is in force while some seat asks for a tag, whatever was chosen.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.delivery.policies.policy import Policy
from penstock.errors import Refusal
from penstock.settings import SubscriptionSettings

POLICIES: dict[str, Callable[[SubscriptionSettings], Policy]] = {
    "shared": lambda settings: Policy(),
}


def policy_of(settings: SubscriptionSettings) -> Policy:
    """Return a new policy of the kind that settings choose."""
    if settings.policy not in POLICIES:
        raise Refusal("bad_request", f"there is no policy {settings.policy!r}; choose one of {', '.join(POLICIES)}")
    return POLICIES[settings.policy](settings)
