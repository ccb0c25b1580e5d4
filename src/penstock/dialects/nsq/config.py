"""The section [nsq]: listeners of the protocol and of its lookup service, limits and habits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from penstock.budget import sizes_of
from penstock.config import Config, Endpoint, Section, check_certificate, check_order, has_callers, host_and_port
from penstock.config.tree import KIB, MIB, Count, Duration, NamedList, Port, Secret, SomeSize
from penstock.errors import ConfigError
from penstock.settings import HOUR_NS, MINUTE_NS, SECOND_NS
from penstock.units.quantity import format_size


class NsqConfig(Section, frozen=True, kw_only=True):
    """The NSQ listeners and the limits of their protocol."""

    address: str = "127.0.0.1"
    tcp_port: Port = 4150
    http_port: Port = 4151
    #: Open only with a certificate.
    https_port: Port = 4152
    #: Run the lookup service in this process.
    lookup: bool = True
    lookup_tcp_port: Port = 4160
    lookup_http_port: Port = 4161
    #: Topics and channels that it remembers.
    lookup_names_max: Annotated[int, Meta(ge=1)] = 100_000
    #: Nodes that it remembers under them, each counted under each.
    lookup_registrations_max: Annotated[int, Meta(ge=1)] = 500_000
    #: Lookup services elsewhere that this node announces itself to, each "host:port".
    lookupd_tcp_addresses: NamedList = ()
    #: What those of them that ask for it are shown: a token, or user:secret.
    lookupd_token: Secret = ""
    #: Where others reach this node; empty = the address it listens on, or this machine's name if that is all of them.
    broadcast_address: str = ""
    #: A tombstone hides a producer of a topic this long.
    tombstone_lifetime_ns: Duration = 45 * SECOND_NS
    #: A producer that was not heard of for this long is not shown any more.
    inactive_producer_timeout_ns: Duration = 5 * MINUTE_NS
    #: One message.
    max_msg_size: SomeSize = MIB
    #: One command with all its messages, or the body of an HTTP request.
    max_body_size: SomeSize = 5 * MIB
    #: The highest RDY a client may ask for.
    max_rdy_count: Annotated[int, Meta(ge=1)] = 2500
    #: How long a client may hold a message, unless it asks for another time.
    msg_timeout_ns: Duration = 60 * SECOND_NS
    #: The longest it may ask for, and hold one by TOUCH.
    max_msg_timeout_ns: Duration = 15 * MINUTE_NS
    #: The longest delay of REQ and DPUB.
    max_req_timeout_ns: Duration = HOUR_NS
    #: How often a client hears a heartbeat, unless it asks for another time; it is cut off after two without an answer.
    heartbeat_interval_ns: Duration = 30 * SECOND_NS
    #: The longest it may ask for.
    max_heartbeat_interval_ns: Duration = 60 * SECOND_NS
    #: The largest buffer a client may ask for.
    max_output_buffer_size: SomeSize = 64 * KIB
    max_output_buffer_timeout_ns: Duration = 30 * SECOND_NS
    #: Consumers in one channel; 0 = no limit.
    max_channel_consumers: Count = 0
    #: Bytes a connection may leave unread before the node stops producing for it.
    max_client_output_size: SomeSize = 512 * KIB
    #: What a header must be: an object of strings under plain names, or with old producers any object.
    header_rules: Literal["strict", "lenient"] = "strict"
    #: A header of reserved names alone may be sent to a topic that takes none; it is dropped.
    allow_ext_compatible: bool = False
    #: A client that knows no headers may subscribe to a topic that has them; it does not see them.
    allow_sub_ext_compatible: bool = False
    #: What first use makes: topics with their channels, channels of topics that exist, or nothing.
    auto_create: Literal["topics", "channels", "off"] = "topics"
    #: Certificate and key for TLS on NSQ connections; empty = those of the node.
    tls_cert: str = ""
    tls_key: str = ""
    #: Clients must ask for TLS before anything else.
    tls_required: bool = False
    #: Clients, those of HTTPS too, must show a certificate that the next file, or without one the system, vouches for.
    #: Both words mean that.
    tls_client_auth_policy: Literal["none", "require", "require-verify"] = "none"
    #: Certificates that vouch for clients.
    tls_root_ca_file: str = ""
    tls_min_version: Literal["tls1.2", "tls1.3"] = "tls1.2"
    #: HTTP stays open in clear where TLS is required.
    plain_http: bool = False
    #: Clients may ask for compression.
    snappy: bool = True
    deflate: bool = True
    #: The highest level a client may ask for.
    max_deflate_level: Annotated[int, Meta(ge=1, le=9)] = 6
    #: Servers that say what a client may do, each "host:port" or a URL; empty = nobody has to authenticate.
    auth_http_addresses: NamedList = ()
    auth_http_request_method: Literal["get", "post"] = "get"
    #: Where StatsD listens, "host:port"; empty = nothing is sent.
    statsd_address: str = ""
    statsd_interval_ns: Annotated[int, Meta(ge=SECOND_NS, extra={"kind": "duration"})] = 60 * SECOND_NS
    #: Before every name; %s is this node's address and HTTP port, dots and colons replaced by _.
    statsd_prefix: str = "nsq.%s"
    #: Send figures of the process, too.
    statsd_mem_stats: bool = True
    #: Leave out topics and channels that end with `#ephemeral`.
    statsd_exclude_ephemeral: bool = False
    #: Bytes of a packet; what 508 leaves of the smallest packet that every network carries whole is for its headers.
    statsd_udp_packet_size: Annotated[int, Meta(ge=1, le=65507, extra={"kind": "size"})] = 508
    #: Percentiles of the time from publish to FIN that stats show, like ["0.99", "0.5"]; none = it is not measured.
    e2e_processing_latency_percentiles: tuple[str, ...] = ()
    #: Over how much of the past.
    e2e_processing_latency_window_time_ns: Annotated[int, Meta(ge=SECOND_NS, extra={"kind": "duration"})] = (
        10 * MINUTE_NS
    )


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    nsq, node = config.of(NsqConfig), config.node
    check_certificate(nsq.tls_cert, nsq.tls_key, "nsq.")
    if nsq.tls_required and not (nsq.tls_cert or config.tls_cert):
        raise ConfigError("nsq.tls_required needs a certificate; set tls_cert and tls_key")
    if nsq.tls_client_auth_policy != "none" and not nsq.tls_required:
        raise ConfigError("nsq.tls_client_auth_policy needs nsq.tls_required = true; clients could go without TLS else")
    if nsq.tls_root_ca_file and not os.access(nsq.tls_root_ca_file, os.R_OK):
        raise ConfigError(f'nsq.tls_root_ca_file = "{nsq.tls_root_ca_file}": no such file, or it cannot be read')
    check_order(nsq, "nsq.msg_timeout", nsq, "nsq.max_msg_timeout")
    check_order(nsq, "nsq.heartbeat_interval", nsq, "nsq.max_heartbeat_interval")
    check_order(nsq, "nsq.max_msg_size", node, "node.message_bytes")
    check_order(nsq, "nsq.max_msg_size", nsq, "nsq.max_body_size")
    for part in ("body", "input"):
        if nsq.max_body_size > (most := sizes_of(config.memory)[part]):
            size = format_size(nsq.max_body_size)
            text = f"memory.{part}_bytes = {format_size(most)}; lower it, or raise memory.{part}_bytes"
            raise ConfigError(f"nsq.max_body_size = {size} is above {text}")
    for name, addresses in (
        ("lookupd_tcp_addresses", nsq.lookupd_tcp_addresses),
        ("statsd_address", (nsq.statsd_address,) if nsq.statsd_address else ()),
    ):
        for text in addresses:
            try:
                host_and_port(text)
            except ConfigError as error:
                raise ConfigError(f"nsq.{name}: {error}") from None
    for text in nsq.auth_http_addresses:
        if "@" in text.partition("?")[0]:
            raise ConfigError(
                "nsq.auth_http_addresses: an address holds no user and no secret; leave out what is before @"
            )
    for text in nsq.e2e_processing_latency_percentiles:
        quantile(text)


def quantile(text: str) -> float:
    """Return a percentile written as a part of one."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ConfigError(f'nsq.e2e_processing_latency_percentiles: "{text}" is not between 0 and 1; write 0.99')
    return value


#: How the listeners are made safe for a network.
MEND = (
    "set tls_cert, tls_key and nsq.tls_required = true, and make users (`penstock user add`) "
    "or set nsq.tls_client_auth_policy = require-verify"
)
MEND_HTTP = f"{MEND} (it only points to HTTPS then)"
MEND_LOOKUP = "its protocol has no TLS, so set nsq.lookup = false"


def endpoints(config: Config) -> list[Endpoint]:
    """Return where NSQ clients, their tools and nodes that announce themselves connect."""
    return list(_endpoints(config, config.of(NsqConfig)))


def _endpoints(config: Config, nsq: NsqConfig) -> Iterator[Endpoint]:
    certified = nsq.tls_client_auth_policy != "none"
    known = has_callers(config)
    asks = known or certified or bool(nsq.auth_http_addresses)
    tcp_port, http_port = config.listen_port(nsq.tcp_port), config.listen_port(nsq.http_port)
    yield Endpoint("nsq.tcp_port", "tcp", "NSQ", nsq.address, tcp_port, nsq.tls_required, asks, MEND)
    curl = "curl -d hello '{}/pub?topic=greetings'"
    points = nsq.tls_required and not nsq.plain_http
    yield Endpoint("nsq.http_port", "http", "NSQ HTTP", nsq.address, http_port, False, known, MEND_HTTP, points, curl)
    if config.tls_cert or nsq.tls_cert:
        port = config.listen_port(nsq.https_port)
        yield Endpoint("nsq.https_port", "http", "NSQ HTTPS", nsq.address, port, True, known or certified, MEND)
    if nsq.lookup:
        yield from lookup_endpoints(config)


def lookup_endpoints(config: Config) -> list[Endpoint]:
    """Return where the lookup service listens, which may also run alone."""
    nsq = config.of(NsqConfig)
    tcp_port, http_port = config.listen_port(nsq.lookup_tcp_port), config.listen_port(nsq.lookup_http_port)
    asks = has_callers(config)
    return [
        Endpoint("nsq.lookup_tcp_port", "tcp", "NSQ lookup", nsq.address, tcp_port, False, asks, MEND_LOOKUP),
        Endpoint("nsq.lookup_http_port", "http", "NSQ lookup HTTP", nsq.address, http_port, False, asks, MEND_LOOKUP),
    ]
