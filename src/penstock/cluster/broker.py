"""What is known of a broker where clients are sent to one: values, as the registry tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

State = Literal["healthy", "degraded", "inactive"]


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """One broker. Counts are of consumers where consumers are sent, of producers where those are."""

    id: str
    state: State = "healthy"
    #: Clients by topic.
    counts: Mapping[str, int] = {}
    connections: int = 0
    #: The share of its processors in use, and its mean latency to clients.
    cpu: float = 0.0
    latency_ms: float = 0.0

    @property
    def topics(self) -> int:
        """How many topics it has clients of."""
        return sum(count > 0 for count in self.counts.values())
