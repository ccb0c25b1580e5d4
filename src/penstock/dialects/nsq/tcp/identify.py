"""IDENTIFY: what a client says of itself, and what is agreed with it.

Owns the request's and the reply's fields and their bounds. Pure: what the node can offer is passed in.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from penstock.clock import MILLISECOND
from penstock.dialects.nsq.config import NsqConfig
from penstock.filters.match import BadFilter, ExtFilter, HeaderFilter

#: Clients and nsqadmin compare this with nsqd's releases, so it must look like one.
VERSION = "1.3.0"

#: Youzan's bound; only the length of a tag is checked.
TAG_BYTES_MAX = 100
DEFLATE_LEVEL = 6

#: nsqd's output buffer. Client libraries send both whether their user chose them or not.
BUFFER_BYTES = 16 * 1024
BUFFER_TIMEOUT_NS = 250 * MILLISECOND


class Faulty(Exception):
    """An IDENTIFY that cannot be accepted; carries the error frame's code and text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Offer(NamedTuple):
    """What can be granted to this connection now."""

    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    auth_required: bool = False


#: Nothing can be granted.
NOTHING = Offer()


#: As wide as Go's: a larger number is no JSON of this form.
Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Body(msgspec.Struct):
    """The keys of the request; unknown ones are ignored, null means not set."""

    client_id: str | None = None
    hostname: str | None = None
    short_id: str | None = None
    long_id: str | None = None
    user_agent: str | None = None
    feature_negotiation: bool | None = None
    heartbeat_interval: Int64 | None = None
    output_buffer_size: Int64 | None = None
    output_buffer_timeout: Int64 | None = None
    tls_v1: bool | None = None
    snappy: bool | None = None
    deflate: bool | None = None
    deflate_level: Int64 | None = None
    sample_rate: Int32 | None = None
    msg_timeout: Int64 | None = None
    topology_region: str | None = None
    topology_zone: str | None = None
    extend_support: bool | None = None
    desired_tag: str | None = None
    ext_filter: ExtFilter | None = None


class Agreed(msgspec.Struct, frozen=True):
    """What holds for a connection; the defaults hold before IDENTIFY."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    #: 0 = no heartbeats.
    heartbeat_ns: int = 0
    lease_ns: int = 0
    output_buffer_size: int = BUFFER_BYTES
    output_buffer_timeout_ms: int = BUFFER_TIMEOUT_NS // MILLISECOND
    #: How long message frames wait for others to leave with them; 0 = they leave in the turn they are made.
    gather_ns: int = 0
    sample_rate: int = 0
    negotiated: bool = False
    #: Granted layers.
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = DEFLATE_LEVEL
    topology_region: str = ""
    topology_zone: str = ""
    #: The client reads extended frames.
    extend_support: bool = False
    desired_tag: str = ""
    #: What the client wants by headers, as it said it and ready for use.
    ext_filter: ExtFilter | None = None
    header_filter: HeaderFilter | None = None


#: null, too: Go leaves everything unset then.
_DECODER = msgspec.json.Decoder(Body | None)


def agree(data: bytes, config: NsqConfig, offer: Offer = NOTHING) -> Agreed:
    """Return what a request leads to, or raise Faulty."""
    try:
        body = _DECODER.decode(data.decode("utf-8", "replace")) or Body()
    except (msgspec.DecodeError, RecursionError):
        raise Faulty("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
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
        body.output_buffer_timeout, 25, config.max_output_buffer_timeout_ns, BUFFER_TIMEOUT_NS, "output buffer timeout"
    )
    size = body.output_buffer_size or 0
    if size == -1:
        size, timeout_ns = 1, 0
    elif size and not 64 <= size <= config.max_output_buffer_size:
        raise _invalid("output buffer size", size)
    if not 0 <= (body.sample_rate or 0) <= 99:
        raise _invalid("sample rate", body.sample_rate)
    tag = body.desired_tag or ""
    if len(tag.encode()) > TAG_BYTES_MAX:
        raise Faulty("E_BAD_BODY", f"IDENTIFY desired tag of {len(tag.encode())} bytes is invalid, {TAG_BYTES_MAX} fit")
    return Agreed(
        client_id=body.client_id or body.short_id or "",
        hostname=body.hostname or body.long_id or "",
        user_agent=body.user_agent or "",
        heartbeat_ns=heartbeat_ns,
        lease_ns=lease_ns,
        output_buffer_size=size or BUFFER_BYTES,
        output_buffer_timeout_ms=timeout_ns // MILLISECOND,
        gather_ns=timeout_ns if timeout_ns != BUFFER_TIMEOUT_NS else 0,
        sample_rate=body.sample_rate or 0,
        topology_region=body.topology_region or "",
        topology_zone=body.topology_zone or "",
        extend_support=bool(body.extend_support),
        desired_tag=tag,
        ext_filter=body.ext_filter,
        header_filter=_filter(body.ext_filter),
        **(_granted(body, config, offer) if body.feature_negotiation else {}),
    )


def reply(agreed: Agreed, config: NsqConfig, offer: Offer = NOTHING) -> bytes:
    """Return the JSON a negotiating client gets."""
    answer: dict[str, Any] = {
        "max_rdy_count": config.max_rdy_count,
        "version": VERSION,
        "max_msg_timeout": config.max_msg_timeout_ns // MILLISECOND,
        "msg_timeout": agreed.lease_ns // MILLISECOND,
        "tls_v1": agreed.tls,
        "deflate": agreed.deflate,
        "deflate_level": agreed.deflate_level,
        "max_deflate_level": config.max_deflate_level,
        "snappy": agreed.snappy,
        "sample_rate": agreed.sample_rate,
        "auth_required": offer.auth_required,
        "output_buffer_size": agreed.output_buffer_size,
        "output_buffer_timeout": agreed.output_buffer_timeout_ms,
        "topology_region": agreed.topology_region,
        "topology_zone": agreed.topology_zone,
        # That the node knows the extension, whether the client does or not.
        "extend_support": True,
    }
    if agreed.desired_tag:
        answer["desired_tag"] = agreed.desired_tag
    return msgspec.json.encode(answer)


def _granted(body: Body, config: NsqConfig, offer: Offer) -> dict[str, Any]:
    snappy = bool(body.snappy) and offer.snappy
    deflate = bool(body.deflate) and offer.deflate
    if snappy and deflate:
        raise Faulty("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    level = body.deflate_level or 0
    return {
        "negotiated": True,
        "tls": bool(body.tls_v1) and offer.tls,
        "snappy": snappy,
        "deflate": deflate,
        "deflate_level": min(level if deflate and level > 0 else DEFLATE_LEVEL, config.max_deflate_level),
    }


def _filter(filter_: ExtFilter | None) -> HeaderFilter | None:
    try:
        return filter_.compiled() if filter_ is not None else None
    except BadFilter as bad:
        raise Faulty("E_BAD_BODY", f"IDENTIFY ext_filter is invalid: {bad}") from None


def _duration(value: int | None, low_ms: int, high_ns: int, default_ns: int, what: str, *, off: bool = True) -> int:
    if not value:
        return default_ns
    if value == -1 and off:
        return 0
    if not low_ms <= value <= high_ns // MILLISECOND:
        raise _invalid(what, value)
    return value * MILLISECOND


def _invalid(what: str, value: object) -> Faulty:
    return Faulty("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")
