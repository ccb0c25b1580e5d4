"""One receiver in a subscription: how much it may hold, and where its rows go.

A dialect makes one per connection. Leases that outlive a connection (HTTP, later SQS and SDK sessions) all belong
to the holder SESSION instead, and are answered for by receipt.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.delivery.source import Delivery

#: The holder number of leases that no connection owns.
SESSION = 0xFFFF


class Consumer:
    """Credit, and what is out against it."""

    __slots__ = (
        "acked",
        "blocked",
        "credit",
        "deliver",
        "expired",
        "gone",
        "holder",
        "in_flight",
        "lease_ns",
        "name",
        "queued",
        "received",
        "released",
    )

    def __init__(self, deliver: Callable[[list[Delivery]], None], lease_ns: int, name: str = "") -> None:
        self.deliver = deliver
        self.lease_ns = lease_ns
        self.name = name
        self.holder = -1
        self.credit = 0
        self.in_flight = 0
        #: Its socket is full: no more until it drains.
        self.blocked = False
        #: It stands in the subscription's line of those with room.
        self.queued = False
        self.gone = False
        self.received = 0
        self.acked = 0
        self.released = 0
        self.expired = 0

    @property
    def room(self) -> int:
        """How many rows it may get now."""
        return 0 if self.blocked or self.gone else self.credit - self.in_flight
