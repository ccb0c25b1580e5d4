"""One receiver in a subscription: how much it may hold, and where its rows go.

A dialect makes one per connection. Leases that outlive a connection (HTTP, later SQS and SDK sessions) all belong
to the holder SESSION instead, and are answered for by receipt.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.delivery.source import Delivery
from penstock.message import Batch, Offsets

#: Which rows of a batch of a shard a consumer wants.
Keep = Callable[[int, Batch, "slice | Offsets"], "npt.NDArray[np.bool_]"]

#: The holder number of leases that no connection owns.
SESSION = 0xFFFF


class Consumer:
    """Credit, and what is out against it."""

    __slots__ = (
        "acked",
        "blocked",
        "closing",
        "credit",
        "deliver",
        "expired",
        "gone",
        "holder",
        "in_flight",
        "keep",
        "lease_ns",
        "name",
        "outlet",
        "queued",
        "received",
        "released",
        "shard",
        "tag",
    )

    def __init__(
        self,
        deliver: Callable[[list[Delivery]], None],
        lease_ns: int,
        name: str = "",
        tag: str = "",
        keep: Keep | None = None,
        shard: int | None = None,
    ) -> None:
        self.deliver = deliver
        self.lease_ns = lease_ns
        self.name = name
        #: The tag it asks for: it gets rows with this tag and no others, and nobody else gets them.
        self.tag = tag
        #: Its own filter, applied to what was chosen for it; what it refuses is finished (ruling 12).
        self.keep = keep
        #: The only shard it reads; None for all.
        self.shard = shard
        self.holder = -1
        #: Code of its tag in the subscription.
        self.outlet = 0
        #: It said that it will go: it finishes what it has, and its tag is no longer its own.
        self.closing = False
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
