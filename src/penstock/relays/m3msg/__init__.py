"""M3Msg out: messages of a topic go to M3's consumer services, as M3's own producer would send them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.config import Config
from penstock.dialect import Bound, Dialect, Running
from penstock.relays.m3msg.config import RelayConfig, check

if TYPE_CHECKING:
    from penstock.node.node import Node


async def start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    """Begin to send."""
    import os
    from random import Random

    from penstock.relays.m3msg.relay import Relay
    from penstock.relays.m3msg.topology import EtcdTopology, FileTopology, read
    from penstock.wire.dial import LoopDialler

    relay, dialler, chance = config.of(RelayConfig), LoopDialler(), Random(os.urandom(32))
    if relay.topology:
        return Relay(node, relay, FileTopology(read(relay.topology)), dialler, chance, dialler.close)
    return Relay(node, relay, EtcdTopology(node.zones.client, relay), dialler, chance, dialler.close)


def _zones(config: Config) -> Iterable[tuple[str, str]]:
    relay = config.of(RelayConfig)
    return [(relay.zone, "M3's topics and placements")] if relay.topics and not relay.topology else []


RELAY = Dialect(
    "m3msg_relay",
    RelayConfig,
    check,
    lambda config: (),
    start,
    is_on=lambda config: bool(config.of(RelayConfig).topics),
    is_way_out=True,
    zones=_zones,
)
