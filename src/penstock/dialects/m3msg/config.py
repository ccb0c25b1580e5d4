"""The section [m3msg]: the listener that M3's producers connect to, its limits and habits."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from msgspec import Meta

from penstock.budget import sizes_of
from penstock.config import Config, Endpoint, Section, has_callers
from penstock.config.tree import MIB, MILLISECOND_NS, Port, SomeSize
from penstock.errors import ConfigError
from penstock.settings import SECOND_NS
from penstock.units.quantity import format_size


class M3MsgConfig(Section, frozen=True, kw_only=True):
    """M3Msg in: what a consumer service is to M3's producers."""

    enabled: bool = True
    address: str = "127.0.0.1"
    port: Port = 7507
    #: Where messages go; it is made with the first of them.
    topic: str = "aggregated_metrics"
    #: What values are: metrics of M3's, aggregated or not, or bytes that nobody looks into.
    payload: Literal["metrics", "opaque"] = "metrics"
    #: What becomes of a value that is no metric: stored without a key and without traffic types; dropped and acked, as
    #: M3's aggregator does; or left without an ack, so that its producer sends it until it gives up, as M3's
    #: coordinator does.
    unreadable: Literal["store", "drop", "leave"] = "store"
    #: One frame, in and out.
    max_message_size: SomeSize = 4 * MIB
    #: Acks of so many messages leave together ...
    ack_buffer_size: Annotated[int, Meta(ge=1)] = 1 << 20
    #: ... or whatever there is, after so long.
    ack_flush_interval_ns: Annotated[int, Meta(ge=MILLISECOND_NS, extra={"kind": "duration"})] = 200 * MILLISECOND_NS
    #: A producer that takes none of its acks for so long is cut off.
    write_timeout_ns: Annotated[int, Meta(ge=10 * MILLISECOND_NS, extra={"kind": "duration"})] = 5 * SECOND_NS
    #: Messages of one connection that are read and not stored; above it, no more are read.
    max_pending_bytes: SomeSize = 16 * MIB
    #: TLS with the node's certificate, where there is one; or none: M3's own producers speak it only if told how.
    tls: Literal["auto", "off"] = "auto"
    #: Certificates that vouch for producers; with it, each must show one, and is the user of its name.
    tls_client_ca: str = ""


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    m3msg = config.of(M3MsgConfig)
    if not m3msg.enabled:
        return
    if m3msg.tls_client_ca:
        if not has_tls(config):
            raise ConfigError('m3msg.tls_client_ca needs TLS; set tls_cert, tls_key and m3msg.tls = "auto"')
        if not os.access(m3msg.tls_client_ca, os.R_OK):
            raise ConfigError(f'm3msg.tls_client_ca = "{m3msg.tls_client_ca}": no such file, or it cannot be read')
    for part in ("body", "input"):
        if m3msg.max_message_size > (most := sizes_of(config.memory)[part]):
            size = format_size(m3msg.max_message_size)
            text = f"memory.{part}_bytes = {format_size(most)}; lower it, or raise memory.{part}_bytes"
            raise ConfigError(f"m3msg.max_message_size = {size} is above {text}")


def has_tls(config: Config) -> bool:
    """Tell whether producers speak TLS."""
    return bool(config.tls_cert) and config.of(M3MsgConfig).tls == "auto"


#: How the listener is made safe for a network; the protocol has nothing that a producer could show but a certificate.
MEND = 'set tls_cert, tls_key, m3msg.tls = "auto" and m3msg.tls_client_ca'


def endpoints(config: Config) -> list[Endpoint]:
    """Return where producers connect."""
    m3msg = config.of(M3MsgConfig)
    if not m3msg.enabled:
        return []
    port, asks = config.listen_port(m3msg.port), bool(m3msg.tls_client_ca) or has_callers(config)
    return [Endpoint("m3msg.port", "tcp", "M3Msg", m3msg.address, port, has_tls(config), asks, MEND)]
