"""A small NSQ client for the self-benchmark: bytes made in advance, answers counted in bulk.

It speaks just enough of the protocol to keep a node busy from one Python thread; it is no client library.
Invariant: an answer that is not the expected one ends the run with what the node said.
"""

from __future__ import annotations

import socket
import struct
import threading
import time

import numpy as np

from penstock.cli.failure import UNREACHABLE, Failure

MAGIC = b"  V2"
OK = struct.pack(">ii", 6, 0) + b"OK"
#: Size, kind, time, attempts and id stand before a message's body.
HEAD_BYTES = 4 + 4 + 8 + 2 + 16
ID = slice(18, 34)
READ_BYTES = 1 << 20
TIMEOUT_S = 30.0
#: The most messages a consumer may hold, by the node's default.
READY = 2500


class Nsq:
    """One connection."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._socket = socket.create_connection((host, port), TIMEOUT_S)
        except OSError as error:
            text = (
                f"nobody speaks NSQ at {host}:{port} ({error.strerror or error}). Name the port with --nsq HOST:PORT."
            )
            raise Failure(text, UNREACHABLE) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        # So rarely that none comes before the run is over: a heartbeat among messages would end it.
        options = b'{"heartbeat_interval":60000,"feature_negotiation":false}'
        self._socket.sendall(MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(options)) + options)
        try:
            self._expect_ok(1)
        except Failure:
            self.close()
            raise

    def publish(self, topic: str, body: bytes, count: int) -> float:
        """Publish without waiting in between; return the seconds until every one was answered."""
        command = _pub(topic, body)
        per_write = max(1, (256 << 10) // len(command))
        block = command * per_write
        begin = time.perf_counter()

        def send() -> None:
            for _ in range(count // per_write):
                self._socket.sendall(block)
            self._socket.sendall(command * (count % per_write))

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        self._expect_ok(count)
        sender.join()
        return time.perf_counter() - begin

    def publish_one_by_one(self, topic: str, body: bytes, count: int) -> list[float]:
        """Publish and wait for each answer; return the seconds each took, sorted."""
        command = _pub(topic, body)
        taken = []
        for _ in range(count):
            begin = time.perf_counter()
            self._socket.sendall(command)
            self._expect_ok(1)
            taken.append(time.perf_counter() - begin)
        return sorted(taken)

    def consume(self, topic: str, channel: str, body_bytes: int, count: int) -> float:
        """Take and finish messages of one size; return the seconds it took."""
        begin = time.perf_counter()
        self._socket.sendall(f"SUB {topic} {channel}\nRDY {READY}\n".encode())
        self._expect_ok(1)
        frame_bytes = HEAD_BYTES + body_bytes
        size = np.frombuffer(struct.pack(">ii", frame_bytes - 4, 2), np.uint8)
        done = 0
        while done < count:
            rows = len(self._rest) // frame_bytes
            if not rows:
                self._rest += self._read()
                continue
            frames = np.frombuffer(self._rest, np.uint8, rows * frame_bytes).reshape(rows, frame_bytes)
            if not (frames[:, :8] == size).all():
                raise Failure(f"the node sent something that is no message: {self._rest[:100]!r}")
            self._rest = self._rest[rows * frame_bytes :]
            self._socket.sendall(_fins(frames))
            done += rows
        self._socket.sendall(b"CLS\n")
        return time.perf_counter() - begin

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _expect_ok(self, count: int) -> None:
        wanted = count * len(OK)
        pattern = memoryview(OK * (READ_BYTES // len(OK) + 2))
        at = 0
        while at < wanted:
            data = self._rest or self._read()
            self._rest = b""
            take = min(len(data), wanted - at)
            start = at % len(OK)
            if pattern[start : start + take] != data[:take]:
                raise Failure(f"the node refused: {data[:200]!r}")
            at += take
            self._rest = data[take:]

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(READ_BYTES)
        except TimeoutError as error:
            raise Failure(f"the node said nothing for {TIMEOUT_S:.0f} s; look at its log.") from error
        if not data:
            raise Failure("the node hung up; look at its log.")
        return data


def _pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + struct.pack(">i", len(body)) + body


def _fins(frames: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> bytes:
    commands = np.empty((len(frames), 21), np.uint8)
    commands[:, :4] = np.frombuffer(b"FIN ", np.uint8)
    commands[:, 4:20] = frames[:, ID]
    commands[:, 20] = ord("\n")
    return commands.tobytes()
