"""The relay's section of the configuration."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from penstock.config import Config, Section, parse_duration
from penstock.config.tree import Duration, Named, NamedList, SomeSize
from penstock.errors import ConfigError, hint

SECOND_NS = 1_000_000_000


class RelayConfig(Section, frozen=True, kw_only=True):
    """Topics whose messages are sent to M3's consumer services."""

    #: Topics of this node that are topics of M3's, too, under the same name; none = no relay.
    topics: NamedList = ()
    #: A TOML file with topics and placements; empty = they are in etcd.
    topology: Named = ""
    #: The zone of etcd, and the environment, in which topics and placements are.
    zone: str = "default"
    environment: str = "default_env"
    #: Where in etcd topics and placements are.
    topic_namespace: str = "/topic"
    placement_namespace: str = "_sd.placement"
    #: Connections to each instance; a shard always goes over the same one.
    connections: Annotated[int, Meta(ge=1, le=64)] = 4
    #: Messages without an ack that one connection may have, of each replica that it serves.
    in_flight: Annotated[int, Meta(ge=1)] = 65_536
    #: A message without an ack is sent again after this, and each time after twice as long, up to the next (0 = the
    #: most there is, 12 h). Up to half of it is left off by chance.
    retry_initial_ns: Duration = 5 * SECOND_NS
    retry_max_ns: Duration = 0
    #: These pauses instead, of which the last one repeats, like ["1s", "10s"].
    retry_pauses: NamedList = ()
    #: An instance that does not accept a connection, or does not read, for so long is given up, and dialled again.
    dial_timeout_ns: Duration = 5 * SECOND_NS
    write_timeout_ns: Duration = 5 * SECOND_NS
    #: A service that leaves its topic gets what was published for it before, and is hung up on when it has acked that.
    graceful_close: bool = False
    #: The key of a flag in etcd that says so instead, and may change its mind.
    graceful_close_key: str = ""
    #: Owners of replicated shards get messages from before their cutover and after their cutoff, too.
    ignore_cutover_cutoff: bool = False
    #: A larger message is not sent, and counted.
    frame_bytes: SomeSize = 4 << 20


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    relay = config.of(RelayConfig)
    for name, value in (("retry_initial", relay.retry_initial_ns), ("write_timeout", relay.write_timeout_ns)):
        if not value:
            raise ConfigError(f'm3msg_relay.{name} is 0; write a duration, like "5s"')
    for pause in relay.retry_pauses:
        try:
            is_none = parse_duration(pause) <= 0
        except ConfigError:
            is_none = True
        if is_none:
            raise ConfigError(f'm3msg_relay.retry_pauses: "{pause}" is no pause; write durations, like ["1s", "10s"]')
    if relay.topics and not relay.topology and relay.zone not in config.etcd.zones:
        way_out = f"add it with its endpoints, or name another: {hint(relay.zone, list(config.etcd.zones))}"
        raise ConfigError(f'm3msg_relay.zone = "{relay.zone}": there is no [etcd.zones.{relay.zone}]; {way_out}')
    if relay.topics and relay.topology:
        from penstock.relays.m3msg.topology import read

        known = read(relay.topology).topics
        for topic in relay.topics:
            if topic not in known:
                raise ConfigError(f"m3msg_relay.topics names {topic}, which is not in {relay.topology}")
