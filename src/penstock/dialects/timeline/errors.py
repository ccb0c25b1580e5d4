"""What can go wrong with a timeline, by the numbers that its clients know.

One table says of each kind whose fault it is, whether another try may succeed and whether the client shall greet the
node again. A refusal of the core becomes one of them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.timeline.wire import Error, Kind, Module, Severity
from penstock.errors import Refusal


class Known(NamedTuple):
    """What is known of a kind of error, whatever it is about."""

    module: Module
    text: str
    severity: Severity = Severity.ERROR
    should_retry: bool = False
    should_sync: bool = False
    #: What HTTP calls it.
    status: int = 400


KINDS: Mapping[int, Known] = {
    Kind.CLUSTER_OFFLINE: Known(
        Module.CLUSTER, "the cluster is offline", should_retry=True, should_sync=True, status=503
    ),
    Kind.WRONG_CLUSTER: Known(Module.CLUSTER, "this is another cluster", status=421),
    Kind.CLUSTER_MINORITY: Known(
        Module.CLUSTER, "most of the cluster is away", should_retry=True, should_sync=True, status=503
    ),
    Kind.NO_CONNECTION: Known(Module.CLUSTER, "there is no connection", should_retry=True, status=503),
    Kind.STORAGE: Known(Module.STORAGE, "storing failed", should_retry=True, status=503),
    Kind.STORAGE_OFFLINE: Known(Module.STORAGE, "the storage is offline", should_retry=True, status=503),
    Kind.STORAGE_TIMEOUT: Known(Module.STORAGE, "the storage takes too long", should_retry=True, status=503),
    Kind.UNSUPPORTED: Known(Module.STORAGE, "this is not supported", status=501),
    Kind.BROKER_DEGRADED: Known(
        Module.BROKER, "the node is degraded", Severity.WARN, should_retry=True, should_sync=True, status=503
    ),
    Kind.BROKER_MINORITY: Known(
        Module.BROKER, "the node is cut off", Severity.WARN, should_retry=True, should_sync=True, status=503
    ),
    Kind.BROKER_TIMEOUT: Known(Module.BROKER, "the node took too long", should_retry=True, status=504),
    Kind.PROTOCOL: Known(Module.PROTOCOL, "the request cannot be read"),
    Kind.UNKNOWN_COMMAND: Known(Module.PROTOCOL, "there is no such command", status=404),
    Kind.TOPIC: Known(Module.BROKER, "the topic refuses this"),
    Kind.TOPIC_NOT_FOUND: Known(Module.BROKER, "there is no such topic", status=404),
    Kind.TOPIC_PROVISIONING: Known(
        Module.BROKER, "the topic is being made", Severity.WARN, should_retry=True, status=409
    ),
    Kind.TOPIC_DELETING: Known(
        Module.BROKER, "the topic is being deleted", Severity.WARN, should_retry=True, status=409
    ),
    Kind.MESSAGE_NOT_FOUND: Known(Module.BROKER, "there is no such message", status=404),
    Kind.TOPIC_EXISTS: Known(Module.BROKER, "the topic has other settings", status=409),
    Kind.LEASE_EXPIRED: Known(Module.BROKER, "the lease is over", Severity.WARN, status=409),
    Kind.NOT_THE_HOLDER: Known(Module.BROKER, "the message is somebody else's", status=409),
    Kind.VERSION_MISMATCH: Known(Module.BROKER, "the message has another version", Severity.WARN, status=409),
    Kind.BODY_TOO_LARGE: Known(Module.BROKER, "the body is too large", status=413),
    Kind.TIME_OUT_OF_RANGE: Known(Module.BROKER, "the time is out of range"),
    Kind.DUPLICATE_ID: Known(Module.BROKER, "a message with this id is there already", Severity.WARN, status=409),
    Kind.LEASE_TOO_LONG: Known(Module.BROKER, "the lease is too long"),
    Kind.THROTTLED: Known(Module.BROKER, "too many requests", Severity.WARN, should_retry=True, status=429),
    Kind.UNKNOWN_SESSION: Known(Module.BROKER, "there is no such session", Severity.WARN, should_sync=True, status=401),
    Kind.WRONG_ROLE: Known(Module.BROKER, "a session of this role cannot do this", status=403),
}

#: A refusal of the core by its code; what is not here is the topic's.
_OF_CODE: Mapping[str, Kind] = {
    "bad_request": Kind.PROTOCOL,
    "bad_name": Kind.PROTOCOL,
    "bad_column": Kind.PROTOCOL,
    "due_too_far": Kind.TIME_OUT_OF_RANGE,
    "message_too_big": Kind.BODY_TOO_LARGE,
    "not_found": Kind.TOPIC_NOT_FOUND,
    "method_not_allowed": Kind.UNKNOWN_COMMAND,
    "too_slow": Kind.BROKER_TIMEOUT,
    "gone": Kind.TOPIC_DELETING,
    "rate_limited": Kind.THROTTLED,
    "limit_reached": Kind.THROTTLED,
    "too_many_connections": Kind.THROTTLED,
    "memory_full": Kind.THROTTLED,
    "disk_full": Kind.STORAGE,
    "quota_full": Kind.STORAGE,
    "disk_failed": Kind.STORAGE,
    "unavailable": Kind.CLUSTER_OFFLINE,
    "elsewhere": Kind.CLUSTER_OFFLINE,
    "stopping": Kind.BROKER_DEGRADED,
}

#: Whoever is throttled and is not told for how long waits so long.
THROTTLED_MS = 100
#: The field that says so has 16 bits.
THROTTLED_MS_MAX = 0xFFFF


class Fault(Exception):
    """A command, or one message of it, is refused."""

    def __init__(
        self, kind: Kind, text: str = "", *, throttled_ms: int = 0, details: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text or KINDS[kind].text)
        self.kind = kind
        self.known = KINDS[kind]
        self.throttled_ms = min(throttled_ms, THROTTLED_MS_MAX)
        self.details = dict(details or {})
        #: Status by which HTTP says it.
        self.status = self.known.status

    def error(self, op: str) -> Error:
        """Return what is said of it to whoever gave this command."""
        return Error(
            severity=self.known.severity,
            module=self.known.module,
            kind=self.kind,
            op=op,
            message=str(self),
            details=self.details,
            throttled_ms=self.throttled_ms,
            should_sync=self.known.should_sync,
            should_retry=self.known.should_retry,
        )


def of_refusal(refusal: Refusal) -> Fault:
    """Return what a refusal of the core is to clients of timelines."""
    told = getattr(refusal, "kind", None)  # a denial of the overseer's has one
    kind = told if isinstance(told, Kind) else _OF_CODE.get(refusal.code, Kind.TOPIC)
    throttled_ms = refusal.retry_ns // 1_000_000 or (THROTTLED_MS if kind == Kind.THROTTLED else 0)
    fault = Fault(kind, str(refusal), throttled_ms=throttled_ms, details={"code": refusal.code})
    if told is None:
        fault.status = refusal.reason.http
    return fault
