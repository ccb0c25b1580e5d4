"""A real nsqd on free ports, and a client that speaks just enough to leave it in a state worth importing.

Nothing here sleeps: whoever waits asks nsqd again until it says what is expected, and not for ever.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import selectors
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from bench import supply

SECONDS_MAX = 60.0


class Message(NamedTuple):
    """A message frame taken apart."""

    time_ns: int
    attempts: int
    id: bytes
    body: bytes


class Nsqd:
    """nsqd, everything of it on disk."""

    def __init__(self, data: Path, *arguments: str) -> None:
        data.mkdir(exist_ok=True)
        command = [str(supply.nsqd()), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, f"--data-path={data}", "--mem-queue-size=0", "--msg-timeout=10m", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        self._said = b""
        self.tcp_port = self._port(rb"TCP: listening on \S+:(\d+)")
        self.http_port = self._port(rb"HTTP: listening on \S+:(\d+)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.end(signal.SIGKILL)

    def _port(self, pattern: bytes) -> int:
        assert self.process.stderr is not None
        end = time.monotonic() + SECONDS_MAX
        while (found := re.search(pattern, self._said)) is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stderr, selectors.EVENT_READ)
                assert selector.select(max(end - time.monotonic(), 0)), self._said
            data = os.read(self.process.stderr.fileno(), 65536)
            assert data, self._said
            self._said += data
        return int(found[1])

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it and wait until it is gone."""
        if self.process.stderr is not None and not self.process.stderr.closed:
            if self.process.poll() is None:
                self.process.send_signal(number)
            self.process.communicate(timeout=SECONDS_MAX)

    def post(self, path: str, body: bytes = b"") -> None:
        """Ask for a change over HTTP."""
        self._call("POST", path, body)

    def wait(self, topic: str, expected: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the numbers of a topic are as expected; its channels are in `channels`, by name."""
        end = time.monotonic() + SECONDS_MAX
        while True:
            (found,) = json.loads(self._call("GET", f"/stats?format=json&topic={topic}"))["topics"]
            found["channels"] = {channel["channel_name"]: channel for channel in found["channels"]}
            if expected(found):
                return
            assert time.monotonic() < end, found

    def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=SECONDS_MAX)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, content
            return content
        finally:
            connection.close()

    def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish some messages, in order."""
        items = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        self.post(f"/mpub?topic={topic}&binary=true", struct.pack(">i", len(bodies)) + items)


class Consumer:
    """One connection to a channel, of nsqd or of whoever speaks like it."""

    def __init__(self, port: int, topic: str, channel: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        self._rest = b""
        self.send(b"  V2" + f"SUB {topic} {channel}\n".encode())
        assert self._frame() == (0, b"OK")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def take(self, count: int) -> list[Message]:
        """Receive so many messages and hold them."""
        self.send(b"RDY %d\n" % count)
        messages: list[Message] = []
        while len(messages) < count:
            kind, data = self._frame()
            assert kind == 2, data
            time_ns, attempts = struct.unpack_from(">qH", data)
            messages.append(Message(time_ns, attempts, data[10:26], data[26:]))
        self.send(b"RDY 0\n")
        return messages

    def finish(self, messages: Sequence[Message]) -> None:
        """Finish messages."""
        self.send(b"".join(b"FIN " + message.id + b"\n" for message in messages))

    def requeue(self, messages: Sequence[Message], delay_ms: int) -> None:
        """Give messages back."""
        self.send(b"".join(b"REQ %s %d\n" % (message.id, delay_ms) for message in messages))

    def _frame(self) -> tuple[int, bytes]:
        while True:
            if len(self._rest) >= 8:
                size, kind = struct.unpack_from(">ii", self._rest)
                if len(self._rest) >= 4 + size:
                    data = self._rest[8 : 4 + size]
                    self._rest = self._rest[4 + size :]
                    if data != b"_heartbeat_":
                        return kind, data
                    self.send(b"NOP\n")
                    continue
            more = self._socket.recv(1 << 20)
            assert more, self._rest
            self._rest += more
