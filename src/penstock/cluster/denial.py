"""Why a timeline's command is not carried out, by the kinds of its protocol.

What a client does about each, and how it is written on a wire, is the dialect's.
"""

from __future__ import annotations

from penstock.client.timeline.wire import Kind
from penstock.clock import MILLISECOND
from penstock.errors import Refusal

#: How each kind shows elsewhere.
_CODES = {
    Kind.STORAGE: "disk_failed",
    Kind.BROKER_DEGRADED: "unavailable",
    Kind.BROKER_MINORITY: "unavailable",
    Kind.PROTOCOL: "bad_request",
    Kind.TOPIC: "unavailable",
    Kind.TOPIC_NOT_FOUND: "not_found",
    Kind.TOPIC_PROVISIONING: "unavailable",
    Kind.TOPIC_DELETING: "gone",
    Kind.TOPIC_EXISTS: "conflict",
    Kind.THROTTLED: "rate_limited",
}


class Denial(Refusal):
    """A refusal with a kind; `throttled_ms` is for how long the client should not ask again."""

    def __init__(self, kind: Kind, text: str, throttled_ms: int = 0) -> None:
        super().__init__(_CODES[kind], text, throttled_ms * MILLISECOND)
        self.kind = kind
        self.throttled_ms = throttled_ms
