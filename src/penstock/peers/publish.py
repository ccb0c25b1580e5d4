"""The door for batches of other nodes: each is published here, and answered when the topic would answer a client.

Owns the order of each publisher of a node. Invariant: nothing is answered that is not as safe as its topic promises.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.budget import Wait
from penstock.callers import Caller
from penstock.errors import Refusal
from penstock.intake.receipt import Published, Receipt
from penstock.intake.synced import synced
from penstock.peers.rows import BadFrame, Frames, Head, answered, read
from penstock.wire.reading import Reading

if TYPE_CHECKING:
    from penstock.message import Rows
    from penstock.node.node import Node

DOOR = "publish"

#: A node's publishers share this many, so that each keeps its shard and its order.
PUBLISHERS = 1024

#: Why nothing is read: the other node does not take its answers.
_FULL = 1


class Publisher:
    """The one a topic gives a shard to."""


def door(node: Node, caller: Caller, about: bytes) -> asyncio.Protocol:
    """Make the protocol of one connection."""
    return Batches(node, caller)


class Batches(asyncio.Protocol):
    """What one node publishes here."""

    def __init__(self, node: Node, caller: Caller) -> None:
        self._node = node
        self._name = caller.identity.note
        self._frames = Frames()
        self._publishers: dict[int, Publisher] = {}
        self._transport: asyncio.Transport | None = None
        self._reading = Reading()
        self._out: list[bytes] = []
        #: What came of a batch that is not all there.
        self._held: Wait | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._reading.begin(self._transport)

    def data_received(self, data: bytes) -> None:
        """Publish what is whole."""
        try:
            for frame in self._frames.feed(data):
                self._publish(*read(frame))
        except BadFrame as bad:
            self._node.count_fault("peers", "bad_request", str(bad), self._name)
            if self._transport is not None:
                self._transport.abort()
            return
        self._hold()

    def connection_lost(self, exc: Exception | None) -> None:
        """Answer nobody any more."""
        self._transport = None
        self._reading.end()
        self._frames = Frames()
        self._hold()

    def pause_writing(self) -> None:
        """Take nothing from a node that does not take its answers."""
        self._reading.stop(_FULL)

    def resume_writing(self) -> None:
        """Go on."""
        self._reading.start(_FULL)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _publish(self, head: Head, rows: Rows) -> None:
        done: Published = partial(self._stored, head.number)
        try:
            topic = self._node.topic(head.topic)
            if head.incarnation not in (0, topic.incarnation):
                raise Refusal("unavailable", f"topic {head.topic} was made anew; publish again")
        except Refusal as refusal:
            done(None, refusal)
            return
        number = head.publisher % PUBLISHERS
        publisher = self._publishers.get(number)
        if publisher is None:
            publisher = self._publishers[number] = Publisher()
        if head.passes_time:
            topic.intake.pass_time()
        topic.publish(rows, publisher, synced(topic.shards, done) if head.synced else done, head.shard)

    def _stored(self, number: int, receipt: Receipt | None, error: BaseException | None) -> None:
        if self._transport is None:
            return
        if not self._out:
            self._node.clock.call_soon(self._flush)
        self._out.append(answered(number, receipt, error))

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(b"".join(out))

    def _hold(self) -> None:
        bodies, held = self._node.budget.body, self._frames.held
        if held and self._held is None:
            self._held = bodies.begin(f"node {self._name}", self._cut)
        if self._held is not None and held:
            bodies.hold(self._held, held)
        elif self._held is not None:
            bodies.end(self._held)
            self._held = None

    def _cut(self, why: Refusal) -> None:
        self._held = None
        self._node.count_fault("peers", why.code, str(why), self._name)
        if self._transport is not None:
            self._transport.abort()
