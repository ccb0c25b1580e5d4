"""What all calls of one Flight server share: the node behind its bridge, the limits, and how a call ends in an error.

Owns the counting of faults and the publishers that keep a connection's shard. Runs on Flight's threads; everything
that touches the node goes through the bridge.
Invariant: whatever happens in a call, its client gets one Flight error and the node lives on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol
from zlib import crc32

import pyarrow as pa
import pyarrow.flight as flight

from penstock.callers import Action, Caller
from penstock.callers.account import SLOW_NS
from penstock.config import Config
from penstock.delivery.subscription import Subscription
from penstock.dialect import Peer
from penstock.dialects.flight import owners
from penstock.dialects.flight.bridge import STOPPING, Bridge, Settle
from penstock.dialects.flight.config import FlightConfig
from penstock.dialects.flight.faults import OURS, error_of, refusal_of
from penstock.dialects.flight.halves import Halves, check_words
from penstock.dialects.flight.places import Places
from penstock.errors import Elsewhere, Refusal
from penstock.node.node import Change, Node
from penstock.node.topic import Topic
from penstock.registry.answer import Answer
from penstock.wire.crowd import Crowd

#: Connections share this many publishers, so that each keeps its shard and all of them use every shard.
PUBLISHERS = 64

DIALECT = "flight"


class Publisher:
    """The one a topic gives a shard to; see ruling 27 of the design."""


class Consuming(Protocol):
    """An exchange that is open."""

    def serves(self, topic: Topic) -> bool:
        """Tell whether it hands out messages of a topic."""

    def peer(self) -> Peer:
        """Return who consumes."""


class Service:
    """What a call needs besides itself."""

    def __init__(self, node: Node, config: Config, bridge: Bridge) -> None:
        self.node = node
        self.bridge = bridge
        limits = config.of(FlightConfig)
        self.exchanges_max = limits.exchanges_max
        #: Streams by the address that they come from: gRPC keeps its connections to itself. Touched on the loop only.
        self._crowd = Crowd(config.limits.connections, config.limits.connections_per_address)
        #: A place for each DoPut, and for each DoGet.
        now, of = node.clock.monotonic, config.limits
        self.puts = Places(limits.puts_max, "puts_max", "publish or stage", of.body_timeout_ns, now)
        self.gets = Places(limits.gets_max, "gets_max", "read", of.output_timeout_ns, now)
        #: What has not come whole.
        self.halves = Halves(self)
        self.batch_bytes_max = min(limits.max_batch_size, node.budget.input.bytes_max, node.budget.body.bytes_max)
        self.message_bytes_max = config.node.message_bytes
        #: Exchanges that are open, and what ends each; touched on the loop only.
        self.exchanges: dict[Consuming, Callable[[str], None]] = {}
        #: No call begins any more.
        self.closing = False
        self._publishers = [Publisher() for _ in range(PUBLISHERS)]
        node.watchers.append(self._changed)

    def _changed(self, change: Change, topic: Topic, subscription: Subscription | None) -> None:
        """Send consumers of a topic that left after it; on the loop."""
        if change == "left":
            for exchange, end in list(self.exchanges.items()):
                if exchange.serves(topic):
                    end(moved(topic))

    @property
    def streams(self) -> int:
        """How many publish, stage or consume; on the loop only."""
        return self._crowd.count

    def publisher(self, peer: str) -> Publisher:
        """Return the publisher of a connection: always the same one, so that its messages keep their order."""
        return self._publishers[crc32(peer.encode()) % PUBLISHERS]

    def topic(self, caller: Caller, action: Action, name: str) -> Topic:
        """Return a topic that must exist to somebody who may do this with it; on the loop only."""
        return self.node.reach(caller, action, name)

    def obtain(self, caller: Caller, action: Action, name: str, *, create: bool) -> Answer[Topic]:
        """Answer with a topic, made if it may be; on the loop only."""
        if create:
            return self.node.obtain_for(caller, action, name)
        return Answer.of(self.node.reach(caller, action, name))

    def check_open(self) -> None:
        """Refuse to go on once the node stops."""
        if self.closing or self.bridge.stopped:
            raise Refusal("stopping", STOPPING)

    def end_exchanges(self) -> None:
        """Tell every consumer that the node stops; on the loop."""
        for end in list(self.exchanges.values()):
            end(f"stopping: {STOPPING}")

    def check_room(self) -> None:
        """Refuse one exchange too many; on the loop."""
        self.check_open()
        if len(self.exchanges) >= self.exchanges_max:
            text = f"{self.exchanges_max} exchanges are open, which is all that flight.exchanges_max allows"
            raise Refusal("rate_limited", f"{text}: close one, or raise it")

    def open_exchange(
        self, exchange: Consuming, caller: Caller, changed: Callable[[], None], end: Callable[[str], None]
    ) -> None:
        """Count an exchange; `changed` hears when what its caller may do is another thing. On the loop."""
        caller.on_change = changed
        self.node.gate.follow(caller)
        self.exchanges[exchange] = end

    def close_exchange(self, exchange: Consuming, caller: Caller) -> None:
        """Count it no more; on the loop."""
        self.exchanges.pop(exchange, None)
        caller.on_change = None
        self.node.gate.leave(caller)

    @contextmanager
    def called(self, peer: str, size: int = 0) -> Iterator[None]:
        """Know of a call that said so much, while it is carried out."""
        self.halves.begin(peer, size)
        try:
            with self.guarded(peer):
                check_words(size)
                yield
        finally:
            self.halves.end(peer)

    @contextmanager
    def guarded(self, peer: str) -> Iterator[None]:
        """Turn whatever goes wrong inside into the Flight error that says it, and count it."""
        try:
            self.check_open()
            yield
        except Elsewhere as elsewhere:  # nobody's fault
            raise error_of(self._located(elsewhere)) from None
        except Refusal as refusal:
            self.count(refusal, peer)
            raise error_of(refusal) from None
        except flight.FlightError:
            raise
        except pa.ArrowException as error:
            unreadable = refusal_of(error)
            self.count(unreadable, peer)
            raise error_of(unreadable) from None
        except Exception as error:
            self.bridge.tell(partial(self.node.report_bug, DIALECT, error))
            raise flight.FlightInternalError(OURS) from None

    def _located(self, elsewhere: Elsewhere) -> Elsewhere:
        try:
            return self.bridge.call(partial(owners.told, self.node, elsewhere))
        except Refusal:  # the node stops
            return elsewhere

    @contextmanager
    def entered(self, caller: Caller) -> Iterator[None]:
        """Count a stream as a connection of its caller's, and of its address, while it lasts."""
        self.bridge.call(partial(self._enter, caller))
        try:
            yield
        finally:
            self.bridge.tell(partial(self._leave, caller))

    def _enter(self, caller: Caller) -> None:
        host = host_of(caller.address)
        if why := self._crowd.refusal(host, None):
            raise Refusal("too_many_connections", f"{why}; a stream counts as one")
        caller.enter()
        self._crowd.enter(host)

    def _leave(self, caller: Caller) -> None:
        self._crowd.leave(host_of(caller.address))
        self.node.gate.leave(caller)

    def admit(self, caller: Caller, count: int, size: int, slow_ns: int = SLOW_NS, *, is_begun: bool = False) -> None:
        """Let rows in at the rate of their publisher's quota: wait for a moment; what is too much is refused."""
        if caller.meter is None:  # without a hop to the loop
            return
        clock = self.node.clock

        def take(settle: Settle[None]) -> None:
            meter, now_ns = caller.meter, clock.monotonic()
            wait_ns = 0
            if meter is not None:
                wait_ns = meter.take(count, size, now_ns, slow_ns, is_begun=is_begun)
            if wait_ns:
                clock.call_at(now_ns + wait_ns, partial(settle, None, None))
            else:
                settle(None, None)

        self.bridge.ask(take)

    def count(self, refusal: Refusal, peer: str) -> None:
        """Count what a client did wrong."""
        if refusal.code != "stopping":
            self.bridge.tell(partial(self.node.count_fault, DIALECT, refusal.code, str(refusal), peer))


def moved(topic: Topic) -> str:
    """Return what consumers of a topic hear that another node has from now on."""
    return f"elsewhere: topic {topic.name} went to another node"


def host_of(peer: str) -> str:
    """Return the address of a client without its port, as gRPC writes it: `ipv4:127.0.0.1:50412`."""
    return peer.rpartition(":")[0] or peer
