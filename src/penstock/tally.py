"""What a node counted in an interval of time, as it is written to `_penstock.counts` and read from there.

Every message and every delivery is in exactly one interval. Knows nothing of who counts or who reads.
"""

from __future__ import annotations

import msgspec

TOPIC = "_penstock.counts"


class Counted(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True):
    """Of a topic, what came in and was refused; of a subscription to it, what became of the messages."""

    topic: str
    subscription: str | None = None
    published: int = 0
    published_bytes: int = 0
    delivered: int = 0
    #: Those of the deliveries that were not a message's first.
    again: int = 0
    acked: int = 0
    released: int = 0
    expired: int = 0
    dead: int = 0
    #: Where the dead ones went; empty for TOPIC.dead.
    dead_letter: str = ""
    #: By reason.
    discarded: dict[str, int] = {}
    #: Messages of a subscription that could be delivered, or were out on lease, when the interval ended.
    backlog: int | None = None


class Interval(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True):
    """All that was counted from one moment to another; it does not cross a multiple of ten seconds."""

    #: Which node of a cluster counted; empty where it is alone.
    node: str = ""
    #: When the process began that counted.
    started_us: int
    from_us: int
    until_us: int
    counts: list[Counted] = []
    #: The last one of its process: what came before it is complete.
    ended: bool = False
