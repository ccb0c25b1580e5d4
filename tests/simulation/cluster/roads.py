"""The ways between the nodes of one world: whoever publishes at the wrong node is brought to the right one."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.node.node import Node
from penstock.peers.peers import Peers
from penstock.peers.publish import DOOR, door
from penstock.peers.reception import Reception
from penstock.wire.dial import Failed
from tests.simulation.clock import Call, Scheduler, SimClock
from tests.simulation.network import Weather
from tests.simulation.outgoing import Outside

SECRET = b"what all nodes know"


class Roads:
    """Connections from any node to any other."""

    def __init__(self, scheduler: Scheduler, weather: Weather) -> None:
        self._outside = Outside(scheduler, weather)

    def open(self, node: Node, clock: SimClock) -> None:
        """Let a node go to the others, and be gone to."""
        share, cluster = node.share, node.config.cluster
        assert share is not None
        node.peers = Peers(node, cluster.node, SECRET, share.address, _Way(self._outside, clock))
        node.doors[DOOR] = partial(door, node)
        self._outside.listen(cluster.port, Reception(node, cluster.node, SECRET).connect, clock)

    def break_up(self, clock: SimClock) -> None:
        """Cut every connection of a process; it lives."""
        for wire in self._outside.wires:
            if clock in (wire.near.clock, wire.far.clock) and not wire.dead:
                wire.cut()

    def die(self, clock: SimClock) -> None:
        """Let a process be gone."""
        self._outside.die(clock)


class _Way:
    """What one process dials by."""

    def __init__(self, outside: Outside, clock: SimClock) -> None:
        self._outside = outside
        self._clock = clock

    def dial(self, host: str, port: int, protocol: asyncio.Protocol, failed: Failed) -> Call:
        """Connect; whatever comes of it comes later."""
        return self._outside.dial(self._clock, port, protocol, failed)
