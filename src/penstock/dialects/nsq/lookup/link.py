"""One lookup service as a node sees it: kept connected, told what the node has, asked what it knows.

Owns the node's half of protocol V1 over a kept link: IDENTIFY, everything the node has, changes as they come, and a
PING now and then. Knows nothing of topics: names are given to it. A service that knows of partitions hears of each,
in Youzan's form; upstream's would take the number for a channel, so it hears the name alone.
Invariant: once a service has said who it is, it hears all of `announced` before anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple, Protocol

from penstock.clock import MILLISECOND, SECOND, Clock
from penstock.dialects.nsq.lookup import codec
from penstock.dialects.nsq.lookup.codec import Faulty, Identity, Replies
from penstock.dialects.nsq.lookup.directory import Meta
from penstock.wire.dial import Dialler
from penstock.wire.link import CONNECT_NS, Backoff, Link

Channels = Callable[[list[str]], None]

_log = logging.getLogger("penstock.nsq.lookup")


class Pace(NamedTuple):
    """When what is done about a service."""

    #: As often as nsqd; a service drops a node after twenty of them.
    ping_ns: int = 15 * SECOND
    #: The first retry after a lost connection comes about this soon, each later one after twice the time.
    retry_ns_min: int = 250 * MILLISECOND
    retry_ns_max: int = 15 * SECOND
    connect_ns: int = CONNECT_NS


PACE = Pace()


class Announced(NamedTuple):
    """A topic the node has, with its channels, the number of its partitions and what it was made with."""

    topic: str
    channels: list[str]
    partitions: int
    meta: Meta


class Network(Dialler, Protocol):
    """The way to services elsewhere; a seam for tests and the simulation."""

    def ask(self, host: str, port: int, topic: str, done: Channels) -> None:
        """Ask a service over HTTP for the channels of a topic; `done` is not called if it does not answer."""


class ServiceLink:
    """The connection to one service."""

    def __init__(
        self,
        address: tuple[str, int],
        clock: Clock,
        network: Network,
        me: Identity,
        announced: Callable[[], Iterable[Announced]],
        pace: Pace = PACE,
        token: str = "",
    ) -> None:
        #: What the service said of itself, while it is connected.
        self.service: Identity | None = None
        self._network = network
        self._me = me
        self._announced = announced
        self._token = token
        self._replies = Replies()
        self._awaited = 0
        # Nodes differ in where they are reached, so they do not come back all at once.
        backoff = Backoff(pace.retry_ns_min, pace.retry_ns_max, Random(f"{me.broadcast_address}:{me.tcp_port}"))
        self._pace = pace
        self._link = Link(
            *("lookup service", address, self, clock, network, backoff),
            beat_ns=pace.ping_ns,
            log=_log,
            connect_ns=pace.connect_ns,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Where the service is."""
        return self._link.address

    @property
    def name(self) -> str:
        """The service's address, as it was configured."""
        return self._link.name

    @property
    def problem(self) -> str:
        """Why the service cannot be used, empty while all is well."""
        return self._link.problem

    @property
    def connected(self) -> bool:
        """Whether the service has answered on the present connection."""
        return self.service is not None

    def connect(self) -> None:
        """Go and connect."""
        self._link.connect()

    def close(self) -> None:
        """Leave for good."""
        self._link.close()

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

    # --- the link calls these -------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Introduce the node; what it has follows once the service has answered."""
        self._replies = Replies()
        self._awaited = 1
        self._link.write(codec.MAGIC + codec.identify(self._me))

    def received(self, data: bytes) -> None:
        """Take replies."""
        try:
            for reply in self._replies.feed(data):
                self._take(reply)
        except Faulty as faulty:
            self._link.drop(f"it sent no lookup protocol: {faulty}")

    def beat(self) -> None:
        """Show life to a service that answers."""
        if self._awaited:
            self._link.drop(f"{self._awaited} commands were not answered for {self._pace.ping_ns / SECOND:g} s")
        else:
            self._command(codec.PING)

    def hold(self, full: bool) -> None:
        """Nothing: what it hears is little, and a service that does not read does not answer, either."""

    def closed(self, why: str) -> None:
        """Forget who it was."""
        self.service = None

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
            if self.service.auth_required is True and self._token:  # what follows waits there for the answer
                self._command(codec.auth(self._token))
            self._link.settled()
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
        if registers:
            self._awaited += len(registers)
            self._link.write(b"".join(registers))

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
        if self._link.is_open:
            self._awaited += 1
            self._link.write(line)
