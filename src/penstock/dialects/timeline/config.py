"""The section [timeline]: the listener of its administration, and the habits of the service."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from penstock.config import TOKEN_AND_TLS, Config, Endpoint, Section, check_order, has_callers
from penstock.config.tree import MIB, MILLISECOND_NS, Port, SomeSize
from penstock.errors import ConfigError
from penstock.settings import SECOND_NS


class TimelineConfig(Section, frozen=True, kw_only=True):
    """Messages on a time axis."""

    enabled: bool = True
    address: str = "127.0.0.1"
    port: Port = 9000
    #: The name of the cluster, which clients say when they greet.
    cluster: str = "penstock"
    #: What this node is called in it; empty = this machine's name.
    broker: str = ""
    #: A broker is filled up with so many clients of a topic before another one gets any, ...
    clients_preferred: Annotated[int, Meta(ge=1)] = 4
    #: ... and has enough with so many; more are told that it is over its capacity.
    clients_most: Annotated[int, Meta(ge=1)] = 7
    #: Refuse those instead.
    clients_strict: bool = False
    #: A topic that is not there is made by whoever greets for it.
    auto_create: bool = False
    #: Clients that greeted, at once.
    max_sessions: Annotated[int, Meta(ge=1)] = 100_000
    #: Messages of one request.
    max_batch: Annotated[int, Meta(ge=1)] = 10_000
    #: One request over HTTP.
    max_body_size: SomeSize = 8 * MIB
    #: Consumers hear of their topic this often.
    status_tick_ns: Annotated[int, Meta(ge=10 * MILLISECOND_NS, extra={"kind": "duration"})] = SECOND_NS
    #: A consumer says within this what it has room for, or its stream ends.
    first_status_ns: Annotated[int, Meta(ge=10 * MILLISECOND_NS, extra={"kind": "duration"})] = 60 * SECOND_NS


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    timeline = config.of(TimelineConfig)
    cluster = timeline.cluster
    if not 0 < len(cluster.encode()) <= 256 or not cluster.isprintable() or "/" in cluster:
        raise ConfigError(f"timeline.cluster = {cluster!r}; a name has 1 to 256 printable bytes and no slash")
    check_order(timeline, "timeline.clients_preferred", timeline, "timeline.clients_most")


def endpoints(config: Config) -> list[Endpoint]:
    """Return where timelines are administered over HTTP; messages go over Flight."""
    timeline = config.of(TimelineConfig)
    if not timeline.enabled:
        return []
    port, tls, asks = config.listen_port(timeline.port), bool(config.tls_cert), has_callers(config)
    curl = "curl -X PUT {}/v1/topics/reminders"
    address = timeline.address
    return [Endpoint("timeline.port", "http", "Timelines", address, port, tls, asks, TOKEN_AND_TLS, example=curl)]
