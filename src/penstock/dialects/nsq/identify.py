"""IDENTIFY: what a client says of itself, and what is agreed with it."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.clock import MILLISECOND
from penstock.config import NsqConfig

#: Clients and nsqadmin compare this with nsqd's releases, so it must look like one.
VERSION = "1.3.0"


class Faulty(Exception):
    """An IDENTIFY that cannot be accepted; carries the error frame's code and text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Body(msgspec.Struct):
    """The keys of the request; unknown ones are ignored, null means not set."""

    client_id: str | None = None
    hostname: str | None = None
    short_id: str | None = None
    long_id: str | None = None
    user_agent: str | None = None
    feature_negotiation: bool | None = None
    heartbeat_interval: int | None = None
    output_buffer_size: int | None = None
    output_buffer_timeout: int | None = None
    tls_v1: bool | None = None
    snappy: bool | None = None
    deflate: bool | None = None
    deflate_level: int | None = None
    sample_rate: int | None = None
    msg_timeout: int | None = None
    topology_region: str | None = None
    topology_zone: str | None = None


class Agreed(msgspec.Struct, frozen=True):
    """What holds for a connection; the defaults hold before IDENTIFY."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    #: 0 = no heartbeats.
    heartbeat_ns: int = 0
    lease_ns: int = 0
    output_buffer_size: int = 16 * 1024
    output_buffer_timeout_ms: int = 250
    sample_rate: int = 0
    negotiated: bool = False


_DECODER = msgspec.json.Decoder(Body)


def agree(data: bytes, config: NsqConfig) -> Agreed:
    """Return what a request leads to, or raise Faulty."""
    try:
        body = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise Faulty("E_BAD_BODY", f"IDENTIFY failed to decode JSON body: {error}") from None
    heartbeat_ns = _duration(
        body.heartbeat_interval,
        1000,
        config.max_heartbeat_interval_ns,
        config.heartbeat_interval_ns,
        "heartbeat interval",
    )
    lease_ns = _duration(
        body.msg_timeout, 1000, config.max_msg_timeout_ns, config.msg_timeout_ns, "msg timeout", off=False
    )
    timeout_ns = _duration(
        body.output_buffer_timeout, 25, config.max_output_buffer_timeout_ns, 250 * MILLISECOND, "output buffer timeout"
    )
    size = body.output_buffer_size or 0
    if size == -1:
        size, timeout_ns = 1, 0
    elif size and not 64 <= size <= config.max_output_buffer_size:
        raise Faulty("E_BAD_BODY", f"IDENTIFY output buffer size ({size}) is invalid")
    if not 0 <= (body.sample_rate or 0) <= 99:
        raise Faulty("E_BAD_BODY", f"IDENTIFY sample rate ({body.sample_rate}) is invalid")
    return Agreed(
        client_id=body.client_id or body.short_id or "",
        hostname=body.hostname or body.long_id or "",
        user_agent=body.user_agent or "",
        heartbeat_ns=heartbeat_ns,
        lease_ns=lease_ns,
        output_buffer_size=size or 16 * 1024,
        output_buffer_timeout_ms=timeout_ns // MILLISECOND,
        negotiated=bool(body.feature_negotiation),
    )


def reply(agreed: Agreed, config: NsqConfig) -> bytes:
    """Return the JSON a negotiating client gets; a feature that is not built yet is not granted."""
    answer: dict[str, Any] = {
        "max_rdy_count": config.max_rdy_count,
        "version": VERSION,
        "max_msg_timeout": config.max_msg_timeout_ns // MILLISECOND,
        "msg_timeout": agreed.lease_ns // MILLISECOND,
        "tls_v1": False,
        "deflate": False,
        "deflate_level": 6,
        "max_deflate_level": 6,
        "snappy": False,
        "sample_rate": agreed.sample_rate,
        "auth_required": False,
        "output_buffer_size": agreed.output_buffer_size,
        "output_buffer_timeout": agreed.output_buffer_timeout_ms,
        "topology_region": "",
        "topology_zone": "",
    }
    return msgspec.json.encode(answer)


def _duration(value: int | None, low_ms: int, high_ns: int, default_ns: int, what: str, *, off: bool = True) -> int:
    if not value:
        return default_ns
    if value == -1 and off:
        return 0
    if not low_ms <= value <= high_ns // MILLISECOND:
        raise Faulty("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")
    return value * MILLISECOND
