"""One lookup service as a node sees it: kept connected, told what the node has, asked what it knows.

Owns the node's half of protocol V1 over a transport: IDENTIFY, everything the node has, changes as they come, and a
PING now and then. Knows nothing of topics: names are given to it. A service that knows of partitions hears of each,
in Youzan's form; upstream's would take the number for a channel, so it hears the name alone.
Invariant: once a service has said who it is, it hears all of `announced` before anything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, cast

from penstock.clock import MILLISECOND, SECOND, Clock, Timer
from penstock.dialects.nsq.lookup import codec
from penstock.dialects.nsq.lookup.codec import Faulty, Identity, Replies
from penstock.dialects.nsq.lookup.directory import Meta

#: As often as nsqd; a service drops a node after twenty of them.
PING_NS = 15 * SECOND

#: The first retry after a lost connection comes this soon, each later one after twice the time, up to a PING's.
RETRY_NS_MIN = 250 * MILLISECOND
RETRY_NS_MAX = PING_NS

Channels = Callable[[list[str]], None]

_log = logging.getLogger("penstock.nsq.lookup")


class Announced(NamedTuple):
    """A topic the node has, with its channels, the number of its partitions and what it was made with."""

    topic: str
    channels: list[str]
    partitions: int
    meta: Meta


class Network(Protocol):
    """The way to services elsewhere; a seam for tests."""

    def dial(self, host: str, port: int, link: Link) -> None:
        """Connect; the link hears `connection_made` or `failed`."""

    def ask(self, host: str, port: int, topic: str, done: Channels) -> None:
        """Ask a service over HTTP for the channels of a topic; `done` is not called if it does not answer."""


class Link(asyncio.Protocol):
    """The connection to one service."""

    def __init__(
        self,
        address: tuple[str, int],
        clock: Clock,
        network: Network,
        me: Identity,
        announced: Callable[[], Iterable[Announced]],
    ) -> None:
        self.address = address
        #: What the service said of itself, while it is connected.
        self.service: Identity | None = None
        #: Why the last attempt failed, empty while all is well.
        self.trouble = ""
        self._clock = clock
        self._network = network
        self._me = me
        self._announced = announced
        self._transport: asyncio.Transport | None = None
        self._replies = Replies()
        self._awaited = 0
        self._retry_ns = RETRY_NS_MIN
        self._timer: Timer | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The service's address, as it was configured."""
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def connected(self) -> bool:
        """Whether the service has answered on the present connection."""
        return self.service is not None

    def connect(self) -> None:
        """Go and connect."""
        if not self._closed and self._transport is None:
            self._network.dial(*self.address, self)

    def announce(self, topic: str, channel: str = "", partitions: int = 1) -> None:
        """Say that the node has a topic or channel; a service that is not connected hears it when it is."""
        for number in self._numbers(channel, partitions):
            self._tell(codec.register(topic, channel, number))

    def describe(self, topic: str, meta: Meta) -> None:
        """Say what a topic was made with, to a service that asks for it."""
        if self._takes_meta:
            self._command(codec.describe(topic, meta))

    def withdraw(self, topic: str, channel: str = "", partitions: int = 1) -> None:
        """Say that the node has a topic or channel no more."""
        for number in self._numbers(channel, partitions):
            self._tell(codec.unregister(topic, channel, number))

    def ask_channels(self, topic: str, done: Channels) -> None:
        """Ask which channels of a topic are known, if the service is there to be asked."""
        if self.service is not None and self.service.broadcast_address and self.service.http_port:
            self._network.ask(self.service.broadcast_address, self.service.http_port, topic, done)

    def close(self) -> None:
        """Leave for good."""
        self._closed = True
        self._cancel()
        if self._transport is not None:
            self._transport.close()

    # --- the network calls these ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce the node and say all it has."""
        self._transport = cast(asyncio.Transport, transport)
        if self._closed:
            self._transport.abort()
            return
        self._replies = Replies()
        self._awaited = 1
        self._transport.write(codec.MAGIC + codec.identify(self._me))
        self._arm(PING_NS, self._ping)

    def data_received(self, data: bytes) -> None:
        """Take replies."""
        try:
            for reply in self._replies.feed(data):
                self._take(reply)
        except Faulty as faulty:
            self._drop(f"it sent no lookup protocol: {faulty}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Come back later."""
        self._transport = None
        self.service = None
        if not self._closed:
            self.failed(self.trouble or (str(exc) if exc is not None else "it hung up"))

    def failed(self, why: str) -> None:
        """Take note that there is no connection, and try again later and later."""
        if self._closed:
            return
        if not self.trouble:  # said once, not at every attempt
            _log.warning("lookup service %s cannot be used: %s; trying again", self.name, why)
        self.trouble = why
        self._arm(self._retry_ns, self.connect)
        self._retry_ns = min(2 * self._retry_ns, RETRY_NS_MAX)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _take(self, reply: bytes) -> None:
        self._awaited -= 1
        if self._awaited < 0:
            raise Faulty("E_INVALID", "more replies than commands")
        if reply.startswith(b"E_"):
            raise Faulty("E_INVALID", reply[:200].decode(errors="replace"))
        if self.service is None:
            # A service that answers with a bare OK is too old to be asked over HTTP, and still a service.
            self.service = codec.service(reply) or Identity()
            self._retry_ns = RETRY_NS_MIN
            self.trouble = ""
            self._announce_all()
            _log.info("announced to lookup service %s", self.name)

    def _announce_all(self) -> None:
        registers: list[bytes] = []
        for topic, channels, partitions, meta in self._announced():
            if self._takes_meta:  # before anybody can find the topic
                registers.append(codec.describe(topic, meta))
            # Upstream's services learn a topic from its channels; the others must hear of every partition.
            if self._names_partitions or not channels:
                registers += [codec.register(topic, "", number) for number in self._numbers("", partitions)]
            registers += [codec.register(topic, name, number) for name in channels for number in self._numbers(name, 1)]
        if registers and self._transport is not None:
            self._awaited += len(registers)
            self._transport.write(b"".join(registers))

    @property
    def _names_partitions(self) -> bool:
        return self.service is not None and self.service.names_partitions and self._me.names_partitions

    @property
    def _takes_meta(self) -> bool:
        return self.service is not None and self.service.takes_meta is True

    def _numbers(self, channel: str, partitions: int) -> Sequence[int | None]:
        """Return the partitions to name: none to upstream's services, all of a topic, and one for a channel."""
        if not self._names_partitions:
            return (None,)
        return (0,) if channel else range(partitions)

    def _tell(self, line: bytes) -> None:
        if self.service is not None:  # else it hears everything once it has answered
            self._command(line)

    def _command(self, line: bytes) -> None:
        if self._transport is not None and not self._closed:
            self._awaited += 1
            self._transport.write(line)

    def _ping(self) -> None:
        if self._awaited:
            self._drop(f"{self._awaited} commands were not answered for {PING_NS // SECOND} s")
            return
        self._command(codec.PING)
        self._arm(PING_NS, self._ping)

    def _drop(self, why: str) -> None:
        if not self.trouble:
            _log.warning("lookup service %s cannot be used: %s; trying again", self.name, why)
        self.trouble = why
        self._cancel()
        if self._transport is not None:
            self._transport.abort()

    def _arm(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._cancel()
        self._timer = self._clock.call_at(self._clock.monotonic() + delay_ns, partial(self._ring, call))

    def _ring(self, call: Callable[[], None]) -> None:
        self._timer = None
        call()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
