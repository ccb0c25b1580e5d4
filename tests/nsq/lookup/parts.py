"""A lookup service without sockets, on a clock in your hand: nodes that connect to it, and requests."""

from __future__ import annotations

import string
import struct
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import msgspec

from penstock.clock import SECOND
from penstock.config import Config
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.lookup.http import Host
from penstock.dialects.nsq.lookup.server import Connection
from penstock.dialects.nsq.lookup.service import Lookup
from tests.fakes import FakeClock, gate_of
from tests.http.line import Line


class Answer(NamedTuple):
    """What came back over HTTP."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.content)

    @property
    def refused(self) -> tuple[int, str]:
        return self.status, self.json["message"]


class Service:
    """A lookup service."""

    def __init__(self, clock: FakeClock | None = None, host: Host | None = None, **nsq: Any) -> None:
        self.clock = clock or FakeClock()
        self.faults: list[tuple[str, str]] = []
        self.bugs: list[BaseException] = []
        self.lookup = Lookup(
            Config(parts=(NsqConfig(**nsq),)),
            self.clock,
            lambda code, text, peer: self.faults.append((code, text)),
            lambda where, error: self.bugs.append(error),
            gate_of(self.clock),
            host,
        )
        self.lookup.tcp_port, self.lookup.http_port = 4160, 4161
        self.directory = self.lookup.directory
        self._next_port = 50000

    def node(self, address: str = "n1", *, identify: bool = True, **more: object) -> Peer:
        """Connect a node."""
        self._next_port += 1
        peer = Peer(self, self._next_port)
        if identify:
            peer.send(b"  V1")
            peer.identify(broadcast_address=address, **more)
        return peer

    def advance(self, seconds: float) -> None:
        self.clock.advance(int(seconds * SECOND))

    def ask(self, method: str, target: str) -> Answer:
        """Send one request."""
        line = Line(self.lookup.listener)
        shown = quote(target, safe=string.punctuation)  # what a client could not send, it escapes
        line.send(f"{method} {shown} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        status, headers, content = line.answer()
        assert headers["x-nsq-content-type"] == "nsq; version=1.0"
        assert not self.bugs
        return Answer(status, headers, content)

    def get(self, target: str) -> Any:
        """Ask for something that is there."""
        answer = self.ask("GET", target)
        assert answer.status == 200, answer
        return answer.json

    def post(self, target: str) -> None:
        """Ask for something that is done."""
        answer = self.ask("POST", target)
        assert (answer.status, answer.content) == (200, b""), answer


class Peer:
    """A node's connection; it is also the transport."""

    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self.address = f"127.0.0.1:{port}"
        self.out = b""
        self.closed = False
        self._port = port
        self.connection: Connection = service.lookup.server.connect()
        self.connection.connection_made(cast(Any, self))

    # what the connection asks of a transport

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", self._port) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.out += data

    def write_eof(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True
        self.service.clock.call_soon(lambda: self.connection.connection_lost(None))

    # what a test does with it

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.service.clock.run()

    def command(self, line: str) -> str:
        """Send a command and return its reply."""
        self.send(line.encode() + b"\n")
        return self.reply()

    def identify(self, **body: object) -> Any:
        said = {"version": "1.3.0", "tcp_port": 4150, "http_port": 4151, "hostname": "h", **body}
        data = msgspec.json.encode(said)
        self.send(b"IDENTIFY\n" + struct.pack(">I", len(data)) + data)
        reply = self.reply()
        return msgspec.json.decode(reply) if reply.startswith("{") else reply

    def reply(self) -> str:
        """Take the only reply that has come."""
        (size,) = struct.unpack_from(">I", self.out)
        data, rest = self.out[4 : 4 + size], self.out[4 + size :]
        assert rest == b""
        self.out = b""
        return data.decode()

    def is_closed(self) -> bool:
        """Tell whether the service hung up."""
        return self.closed

    def leave(self) -> None:
        """Hang up."""
        self.closed = True
        self.connection.connection_lost(None)
