"""NSQ as a client speaks it: commands out, frames in.

Written apart from the node's codec, so that each checks the other.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

MAGIC = b"  V2"
RESPONSE, ERROR, MESSAGE = range(3)


@dataclass(slots=True)
class Command:
    """One command: its bytes, and what they say."""

    word: str
    data: bytes
    topic: str = ""
    channel: str = ""
    bodies: list[bytes] = field(default_factory=list)
    #: Message id, credit, or delay in milliseconds.
    id: int = 0
    number: int = 0


@dataclass(slots=True)
class Frame:
    """One frame; message frames are taken apart."""

    kind: int
    data: bytes
    time_ns: int = 0
    attempts: int = 0
    id: int = 0


def pub(topic: str, body: bytes) -> Command:
    """Publish one message."""
    return Command("PUB", b"PUB %b\n" % topic.encode() + _sized(body), topic, bodies=[body])


def dpub(topic: str, body: bytes, delay_ms: int) -> Command:
    """Publish one message to be delivered later."""
    line = b"DPUB %b %d\n" % (topic.encode(), delay_ms)
    return Command("DPUB", line + _sized(body), topic, bodies=[body], number=delay_ms)


def mpub(topic: str, bodies: list[bytes]) -> Command:
    """Publish several messages."""
    items = struct.pack(">I", len(bodies)) + b"".join(map(_sized, bodies))
    return Command("MPUB", b"MPUB %b\n" % topic.encode() + _sized(items), topic, bodies=list(bodies))


def sub(topic: str, channel: str) -> Command:
    """Join a channel."""
    return Command("SUB", f"SUB {topic} {channel}\n".encode(), topic, channel)


def identify(text: str) -> Command:
    """Say who is there."""
    return Command("IDENTIFY", b"IDENTIFY\n" + _sized(text.encode()))


def rdy(count: int) -> Command:
    """Set the credit."""
    return Command("RDY", b"RDY %d\n" % count, number=count)


def fin(id_: int) -> Command:
    """Ack."""
    return Command("FIN", b"FIN %016x\n" % id_, id=id_)


def req(id_: int, delay_ms: int) -> Command:
    """Release."""
    return Command("REQ", b"REQ %016x %d\n" % (id_, delay_ms), id=id_, number=delay_ms)


def touch(id_: int) -> Command:
    """Extend."""
    return Command("TOUCH", b"TOUCH %016x\n" % id_, id=id_)


def plain(word: str) -> Command:
    """CLS and NOP."""
    return Command(word, word.encode() + b"\n")


def junk(data: bytes) -> Command:
    """Bytes that are no command, or half of one."""
    return Command("junk", data)


class FrameReader:
    """Frames from a stream in any cuts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[Frame, int]]:
        """Return the frames that are whole now, each with how many of the new bytes it needed."""
        offset = -len(self._rest)
        data = self._rest + data
        at, out = 0, []
        while len(data) - at >= 8:
            size, kind = struct.unpack_from(">II", data, at)
            if len(data) - at < 4 + size:
                break
            content = data[at + 8 : at + 4 + size]
            at += 4 + size
            out.append((_frame(kind, content), at + offset))
        self._rest = data[at:]
        return out


def _frame(kind: int, content: bytes) -> Frame:
    if kind != MESSAGE:
        return Frame(kind, content)
    time_ns, attempts = struct.unpack_from(">qH", content)
    return Frame(kind, content[26:], time_ns, attempts, int(content[10:26], 16))


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
