"""What a relay needs of a topic, whether a node keeps it or this process's memory. Contracts only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.delivery.seat import Deliver, Keep, Seat
from penstock.delivery.subscription import Subscription
from penstock.registry.answer import Answer
from penstock.settings import SubscriptionSettings


class Attach(Protocol):
    """Lets receivers in."""

    def __call__(
        self,
        subscription: Subscription,
        deliver: Deliver,
        *,
        lease_ns: int | None = None,
        name: str = "",
        keep: Keep | None = None,
        evict: Callable[[], None] | None = None,
    ) -> Seat:
        """Let a receiver in and return its seat; `evict` is called if the subscription goes away."""


class Stream(Protocol):
    """Subscriptions over what is published, and what must be remembered of them."""

    name: str

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """All there are, by name."""

    @property
    def attach(self) -> Attach:
        """What lets receivers in."""

    def subscribe(self, name: str, settings: SubscriptionSettings) -> Answer[Subscription]:
        """Answer with a subscription, made if there is none of this name."""

    def update_subscription(self, name: str, settings: SubscriptionSettings) -> Answer[Subscription]:
        """Change what a subscription does from now on."""

    def delete_subscription(self, name: str) -> Answer[None]:
        """Drop a subscription and hang up on its consumers."""

    def declared(self, subscription: str, settings: SubscriptionSettings) -> SubscriptionSettings | None:
        """Return settings with the filters that the file has for a subscription; None where it has none."""

    def remembered(self, key: str) -> bytes | None:
        """Return what was remembered under a key."""

    def remember(self, key: str, value: bytes) -> Answer[None]:
        """Remember something, also over a restart where anything survives that."""

    def forget(self, key: str) -> Answer[None]:
        """Remember nothing under a key any more."""
