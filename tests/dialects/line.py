"""A whole dialect to copy from: lines of text over TCP or a unix socket, and a status page over HTTP.

    PUB topic text          OK, once it is stored
    SUB topic subscription  OK, and from then on as many `MSG id attempts time text` as are wanted
    WANT number             how many it may hold
    ACK id                  silence, unless it does not hold it

What goes wrong is `ERR code COMMAND reason`. In a text %, carriage return and newline are %25, %0D and %0A.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar, cast
from urllib.parse import unquote_to_bytes

from penstock.callers import Caller
from penstock.config import Config, Endpoint, Section
from penstock.config.tree import Duration, Port
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.dialect import Bound, Dialect, Peer, Running, Sample
from penstock.errors import ConfigError, Refusal
from penstock.http import Listener, Pages, Response, Route, Routes
from penstock.message import Rows
from penstock.node.admission import publish
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.settings import SubscriptionSettings


class LineConfig(Section, frozen=True, kw_only=True):
    """Lines of text."""

    address: str = "127.0.0.1"
    port: Port = 7099
    http_port: Port = 7098
    path: str = ""  # of a unix socket besides; empty = none
    lease_ns: Duration = 60_000_000_000  # what is not acked for so long goes to somebody else


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    if not config.of(LineConfig).lease_ns:
        raise ConfigError('line.lease is 0, so nothing could be acked in time; write a duration, like "30s"')


def endpoints(config: Config) -> list[Endpoint]:
    """Return where it listens."""
    line = config.of(LineConfig)
    tcp = Endpoint("line.port", "tcp", "lines", line.address, config.listen_port(line.port))
    http = Endpoint("line.http_port", "http", "lines' status", line.address, config.listen_port(line.http_port))
    return [tcp, http, Endpoint("line.path", "unix", "lines", line.path)] if line.path else [tcp, http]


async def start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    """Serve on what was bound."""
    server, create = Server(node, config), asyncio.get_running_loop().create_server
    keys = [key for key in ("line.port", "line.path") if key in bound]
    server.acceptors = [await create(partial(Line, server, key), sock=bound[key].taken()) for key in keys]
    await server.http.serve(bound["line.http_port"].taken())
    return server


DIALECT = Dialect("line", LineConfig, check, endpoints, start)


class Server:
    """The dialect at work: everybody who is connected."""

    def __init__(self, node: Node, config: Config) -> None:
        self.node, self.lease_ns = node, config.of(LineConfig).lease_ns
        self.lines: set[Line] = set()
        self.acceptors: list[asyncio.Server] = []
        status = Routes([("GET", "/status", Route(lambda _: Response(b"lines: %d\n" % len(self.lines))))])
        self.http = Listener("line.http_port", Pages("line", node, status), node.clock, node.budget, node.gate)

    async def drain(self) -> None:
        for acceptor in self.acceptors:
            acceptor.close()

    async def close(self) -> None:
        for line in list(self.lines):
            line.hang_up()
        await self.http.close()

    def samples(self) -> Iterator[Sample]:
        yield Sample("connections", "gauge", "Lines that are open.", len(self.lines))

    def peers(self) -> Iterator[Peer]:
        for line in self.lines:
            held = line.seat and line.seat.in_flight
            yield Peer(line.caller.address, line.caller.listener, topic=line.topic, in_flight=held or 0)


class Line(asyncio.Protocol):
    """One connection: lines in, lines out, replies in the order of the commands."""

    def __init__(self, server: Server, listener: str) -> None:
        self._server, self._node, self.caller = server, server.node, Caller(server.node.gate, "unix", listener)
        self.seat: Seat | None = None
        self.topic, self._want, self._rest = "", 0, b""
        self._replies: deque[list[bytes]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if peer := transport.get_extra_info("peername"):
            self.caller.address = f"{peer[0]}:{peer[1]}"
        self._server.lines.add(self)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode("latin-1").rstrip("\r").partition(" ")
            try:
                self.COMMANDS[word](self, *rest.split(" ", 1))
            except (Refusal, KeyError, TypeError, ValueError) as error:
                return self._give_up(word, error)
        return self._give_up("line", ValueError("it never ends")) if len(self._rest) > 1 << 22 else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.lines.discard(self)
        if self.seat is not None:
            self.seat.close()

    def pause_writing(self) -> None:
        self._transport.pause_reading()  # who does not read is not answered without end
        if self.seat is not None:
            self.seat.block()

    def resume_writing(self) -> None:
        self._transport.resume_reading()
        if self.seat is not None:
            self.seat.unblock()

    def pub(self, topic: str, text: str) -> None:
        rows, reply = Rows.of([unquote_to_bytes(text.encode("latin-1"))], "line"), self._promise()

        def stored(_: object, error: BaseException | None) -> None:
            self._keep(reply, b"OK\n" if error is None else _error("PUB", error))

        asked = self._node.obtain_for(self.caller, "publish", topic)
        asked.then(lambda to, error: publish(to, self.caller, rows, self, stored) if to else stored(None, error))

    def sub(self, topic: str, name: str) -> None:
        if self.topic:
            raise Refusal("bad_request", f"this line has a subscription of {self.topic}")
        self.topic, reply, lease_ns = topic, self._promise(), self._server.lease_ns

        def join(there: Topic, found: Subscription) -> None:
            if self in self._server.lines:  # it may be gone meanwhile
                self.seat = there.attach(found, self._deliver, lease_ns=lease_ns, evict=self.hang_up)
                self._keep(reply, b"OK\n")
                self.seat.set_credit(self._want)

        settings = SubscriptionSettings(lease_ns=lease_ns, lease_max_ns=lease_ns)
        asked = self._node.obtain_for(self.caller, "receive", topic)
        joined = asked.then_ask(lambda there: there.subscribe(name, settings).then_make(partial(join, there)))
        joined.then(lambda _, error: self._give_up("SUB", error) if error is not None else None)

    def want(self, number: str) -> None:
        self._want = int(number)
        if self.seat is not None:
            self.seat.set_credit(self._want)

    def ack(self, id_: str) -> None:
        if self.seat is None or self.seat.ack([int(id_, 16)]):
            self._keep(self._promise(), _error("ACK", Refusal("not_leased", id_)))

    COMMANDS: ClassVar[dict[str, Callable[..., None]]] = {"PUB": pub, "SUB": sub, "WANT": want, "ACK": ack}

    def hang_up(self) -> None:
        self._transport.close()  # once everything written has left

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            for id_, attempts, row in delivery.each():
                text = delivery.batch.row_body(row).replace(b"%", b"%25").replace(b"\r", b"%0D").replace(b"\n", b"%0A")
                self._transport.write(b"MSG %016x %d %d %b\n" % (id_, attempts, delivery.batch.row_time(row), text))

    def _promise(self) -> list[bytes]:
        self._replies.append([])
        return self._replies[-1]

    def _keep(self, reply: list[bytes], text: bytes) -> None:
        reply.append(text)
        while self._replies and self._replies[0]:
            self._transport.write(self._replies.popleft()[0])

    def _give_up(self, word: str, error: BaseException) -> None:
        self._keep(self._promise(), _error(word, error))
        self.hang_up()


def _error(word: str, error: BaseException) -> bytes:
    return f"ERR {error.code if isinstance(error, Refusal) else 'bad_request'} {word} {error}\n".encode()
