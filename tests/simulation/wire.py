"""NSQ as a client speaks it: commands out, frames in.

Written apart from the node's codec, so that each checks the other.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.extras import Extras
from tests.simulation.taste import Taste

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
    #: What each body carries beside it, where the command can say so.
    extras: list[Extras] = field(default_factory=list)
    #: What IDENTIFY asks for.
    taste: Taste = field(default_factory=Taste)
    fields: dict[str, object] = field(default_factory=dict)
    #: The only shard a consumer reads; None for all.
    shard: int | None = None
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
    #: Where frames tell it: the trace of a raw id, the header, place and size in the queue.
    trace: int | None = None
    header: bytes | None = None
    place: tuple[int, int] | None = None


class Form(NamedTuple):
    """What message frames have beyond plain ones."""

    raw: bool = False
    extended: bool = False
    detailed: bool = False


PLAIN = Form()


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


def pub_ext(topic: str, body: bytes, extras: Extras) -> Command:
    """Publish one message with a header."""
    line = b"PUB_EXT %b\n" % topic.encode()
    return Command("PUB_EXT", line + _sized(_headed(body, extras)), topic, bodies=[body], extras=[extras])


def mpub_ext(topic: str, bodies: list[bytes], extras: list[Extras]) -> Command:
    """Publish several messages, each with or without a header."""
    items = [_sized(_headed(body, extra)) for body, extra in zip(bodies, extras, strict=True)]
    content = struct.pack(">I", len(bodies)) + b"".join(items)
    line = b"MPUB_EXT %b\n" % topic.encode()
    return Command("MPUB_EXT", line + _sized(content), topic, bodies=list(bodies), extras=extras)


def sub(topic: str, channel: str, *, ordered: bool = False, shard: int | None = None) -> Command:
    """Join a channel, all of it or one shard."""
    word = "SUB_ORDERED" if ordered else "SUB"
    where = "" if shard is None and not ordered else f" {-1 if shard is None else shard}"
    return Command(word, f"{word} {topic} {channel}{where}\n".encode(), topic, channel, shard=shard)


def identify(fields: dict[str, object], taste: Taste) -> Command:
    """Say who is there, and what it wants."""
    text = json.dumps({**fields, **(taste.fields() if taste != Taste() else {})})
    return Command("IDENTIFY", b"IDENTIFY\n" + _sized(text.encode()), fields=fields, taste=taste)


def rdy(count: int) -> Command:
    """Set the credit."""
    return Command("RDY", b"RDY %d\n" % count, number=count)


def fin(id_: int, trace: int | None = None) -> Command:
    """Ack; with a trace by raw id, as for the two below."""
    return Command("FIN", b"FIN %b\n" % _id(id_, trace), id=id_)


def req(id_: int, delay_ms: int, trace: int | None = None) -> Command:
    """Release."""
    return Command("REQ", b"REQ %b %d\n" % (_id(id_, trace), delay_ms), id=id_, number=delay_ms)


def touch(id_: int, trace: int | None = None) -> Command:
    """Extend."""
    return Command("TOUCH", b"TOUCH %b\n" % _id(id_, trace), id=id_)


def plain(word: str) -> Command:
    """CLS and NOP."""
    return Command(word, word.encode() + b"\n")


def junk(data: bytes) -> Command:
    """Bytes that are no command, or half of one."""
    return Command("junk", data)


class FrameReader:
    """Frames from a stream in any cuts."""

    def __init__(self) -> None:
        self.form = PLAIN
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
            out.append((_frame(kind, content, self.form), at + offset))
        self._rest = data[at:]
        return out


def traced(data: bytes) -> tuple[int, int, tuple[int, int]] | None:
    """Return (id, trace, place) of a reply that tells where a message went; None for a plain OK."""
    if len(data) != 30:
        return None
    id_, trace, offset, size = struct.unpack(">QQQI", data[2:])
    return id_, trace, (offset, size)


def _frame(kind: int, content: bytes, form: Form) -> Frame:
    if kind != MESSAGE:
        return Frame(kind, content)
    time_ns, attempts = struct.unpack_from(">qH", content)
    frame = Frame(kind, b"", time_ns, attempts)
    if form.raw:
        frame.id, frame.trace = struct.unpack_from(">QQ", content, 10)
    else:
        frame.id = int(content[10:26], 16)
    at = 26
    if form.extended:
        version, at = content[at], at + 1
        if version:
            (size,) = struct.unpack_from(">H", content, at)
            frame.header = content[at + 2 : at + 2 + size]
            at += 2 + size
    if form.detailed:
        frame.place = struct.unpack_from(">QI", content, at)
        at += 12
    frame.data = content[at:]
    return frame


def _id(id_: int, trace: int | None) -> bytes:
    return b"%016x" % id_ if trace is None else struct.pack(">QQ", id_, trace)


def _headed(body: bytes, extras: Extras) -> bytes:
    header = extras.header or b""
    return struct.pack(">H", len(header)) + header + body


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
