"""How much a user may use: what it publishes a second, and what it has at a time."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.units.quantity import format_size

#: More than anybody has; sums of a few of them still fit 64 bits.
QUOTA_MAX = (1 << 60) - 1

Amount = Annotated[int, Meta(ge=0, le=QUOTA_MAX)]


class UserQuota(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds on one user; 0 is none."""

    messages_per_second: Amount = 0
    #: Of bodies and of the columns beside them.
    bytes_per_second: Amount = 0
    #: At a time; where a listener shows none, streams are counted as such.
    connections: Amount = 0
    #: That it made.
    topics: Amount = 0
    #: What the segments of those hold.
    stored_bytes: Amount = 0

    @property
    def is_metered(self) -> bool:
        """Whether it bounds what is published a second."""
        return bool(self.messages_per_second or self.bytes_per_second)

    def lines(self) -> list[str]:
        """Return it as people read it, one bound each."""
        found = [
            (self.messages_per_second, f"{self.messages_per_second} messages/s"),
            (self.bytes_per_second, f"{format_size(self.bytes_per_second)}/s"),
            (self.connections, f"{self.connections} connections"),
            (self.topics, f"{self.topics} topics"),
            (self.stored_bytes, f"{format_size(self.stored_bytes)} stored"),
        ]
        return [text for value, text in found if value]


NO_QUOTA = UserQuota()
