"""Why a timeline's command is not carried out: the kinds of its protocol, and what a client does about each.

Values only; who finds out is elsewhere, and how it is written on a wire is the dialect's.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.clock import MILLISECOND
from penstock.errors import Refusal

WRONG_CLUSTER = 12
MINORITY = 13
STORAGE_ERROR = 100
BROKER_DEGRADED = 201
BROKER_MINORITY = 202
TOPIC_ERROR = 400
TOPIC_NOT_FOUND = 401
TOPIC_PROVISIONING = 402
TOPIC_BEING_DELETED = 403
TOPIC_DIFFERS = 405
THROTTLED = 429
BAD_PROTOCOL = 300


class Kind(NamedTuple):
    """How a kind shows elsewhere, and what a client does: ask again, or ask first who it should talk to."""

    code: str
    should_retry: bool = False
    should_sync: bool = False


KINDS: dict[int, Kind] = {
    WRONG_CLUSTER: Kind("misdirected"),
    MINORITY: Kind("unavailable", should_retry=True, should_sync=True),
    STORAGE_ERROR: Kind("disk_failed", should_retry=True),
    BROKER_DEGRADED: Kind("unavailable", should_retry=True, should_sync=True),
    BROKER_MINORITY: Kind("unavailable", should_retry=True, should_sync=True),
    BAD_PROTOCOL: Kind("bad_request"),
    TOPIC_ERROR: Kind("unavailable"),
    TOPIC_NOT_FOUND: Kind("not_found"),
    TOPIC_PROVISIONING: Kind("unavailable", should_retry=True),
    TOPIC_BEING_DELETED: Kind("gone", should_retry=True),
    TOPIC_DIFFERS: Kind("conflict"),
    THROTTLED: Kind("rate_limited", should_retry=True),
}


class Denial(Refusal):
    """A refusal with a kind; `throttled_ms` is for how long the client should not ask again."""

    def __init__(self, kind: int, text: str, throttled_ms: int = 0) -> None:
        super().__init__(KINDS[kind].code, text, throttled_ms * MILLISECOND)
        self.kind = kind
        self.throttled_ms = throttled_ms
        self.should_retry = KINDS[kind].should_retry
        self.should_sync = KINDS[kind].should_sync
