"""The bytes between a node and a lookup service, protocol V1, for both ends. No sockets, no clock, no directory.

To the service go lines, IDENTIFY with a body; back come lengths and data, without a frame type. A command is a tuple:
the wire's word, then what it carries; a fault is ("fault", code, text), and every fault is fatal.
Invariant: any cut of the stream into reads gives the same commands.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

import msgspec

from penstock.dialects.nsq.codec import LINE_BYTES_MAX, is_name
from penstock.dialects.nsq.lookup.directory import Meta

MAGIC = b"  V1"

#: What a node says of itself is a few hundred bytes.
BODY_BYTES_MAX = 64 * 1024
#: A reply is "OK", an error, or what a service says of itself.
REPLY_BYTES_MAX = 64 * 1024

#: Youzan's limit.
PARTITION_MAX = 1023

Command: TypeAlias = "tuple[str | bytes | list[bytes], ...]"

_U32 = struct.Struct(">I")


class Faulty(Exception):
    """What cannot be accepted; carries the wire's code and text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What either end says of itself; unknown keys are ignored, null means not set."""

    version: str | None = None
    tcp_port: int | None = None
    http_port: int | None = None
    hostname: str | None = None
    broadcast_address: str | None = None
    topology_zone: str | msgspec.UnsetType | None = msgspec.UNSET
    topology_region: str | msgspec.UnsetType | None = msgspec.UNSET
    distributed_id: str | msgspec.UnsetType | None = msgspec.UNSET
    #: Whether a service takes DESCRIBE, which only Penstock's does.
    takes_meta: bool | msgspec.UnsetType | None = msgspec.UNSET
    #: Whether a service takes nothing before AUTH, which only Penstock's knows.
    auth_required: bool | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def names_partitions(self) -> bool:
        """Whether this node's REGISTER has a partition behind the topic, as Youzan's fork writes it."""
        return self.distributed_id is not msgspec.UNSET or "HA" in (self.version or "")


class Target(NamedTuple):
    """What a REGISTER or UNREGISTER is about."""

    topic: str
    channel: str = ""
    partition: int | None = None


_IDENTITY = msgspec.json.Decoder(Identity)
_META = msgspec.json.Decoder(Meta)


# --- at the service ---------------------------------------------------------------------------------------------------


class Decoder:
    """Commands of one connection."""

    __slots__ = ("_dead", "_greeted", "_rest", "_said")

    def __init__(self) -> None:
        self._rest = b""
        self._greeted = False
        #: What is said once at most.
        self._said: set[str] = set()
        self._dead = False

    def feed(self, data: bytes) -> list[Command]:
        """Decode one read."""
        if self._dead:
            return []
        data = self._rest + data
        out: list[Command] = []
        pos = 0
        while not self._dead:
            step = self._next(data, pos, out)
            if step < 0:
                break
            pos = step
        self._rest = data[pos:]
        return out

    @property
    def held(self) -> int:
        """Bytes of a command that is not all there."""
        return len(self._rest)

    @property
    def greeted(self) -> bool:
        """Whether the magic bytes came."""
        return self._greeted

    def _next(self, data: bytes, pos: int, out: list[Command]) -> int:
        """Decode one command and return where the next begins, -1 if there is none yet."""
        if not self._greeted:
            if data.startswith(MAGIC):
                self._greeted = True
                return len(MAGIC)
            return -1 if MAGIC.startswith(data) else self._fault(out, "E_BAD_PROTOCOL", "")
        line_end = data.find(b"\n", pos)
        if line_end < 0 or line_end - pos >= LINE_BYTES_MAX:
            if len(data) - pos >= LINE_BYTES_MAX:
                self._dead = True
                out.append(("hang up",))
            return -1
        words = data[pos:line_end].strip().split(b" ")
        if words[0] in (b"IDENTIFY", b"AUTH"):
            return self._with_body(words[0].decode("ascii"), data, line_end + 1, out)
        if words[0] not in (b"REGISTER", b"UNREGISTER", b"PING", b"DESCRIBE"):
            return self._fault(out, "E_INVALID", f"invalid command {words[0].decode('latin-1')}")
        out.append((words[0].decode("ascii"), words[1:]))
        return line_end + 1

    def _with_body(self, word: str, data: bytes, at: int, out: list[Command]) -> int:
        if word in self._said:
            return self._fault(out, "E_INVALID", f"cannot {word} again")
        if len(data) < at + 4:
            return -1
        size: int = _U32.unpack_from(data, at)[0]
        if size > BODY_BYTES_MAX:
            # The wire's length is signed.
            shown = size if size < 1 << 31 else size - (1 << 32)
            text = f"{word} body too big {shown} > {BODY_BYTES_MAX}" if shown > 0 else f"{word} failed to read body"
            return self._fault(out, "E_BAD_BODY", text)
        if len(data) < at + 4 + size:
            return -1
        self._said.add(word)
        out.append((word, data[at + 4 : at + 4 + size]))
        return at + 4 + size

    def _fault(self, out: list[Command], code: str, text: str) -> int:
        out.append(("fault", code, text))
        self._dead = True
        return -1


def identity(body: bytes) -> Identity:
    """Return what an IDENTIFY says, or raise Faulty; a node must say where it is reached and what it runs."""
    try:
        said = _IDENTITY.decode(_text(body))
    except (msgspec.DecodeError, RecursionError):
        raise Faulty("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
    if not (said.broadcast_address and said.tcp_port and said.http_port and said.version):
        raise Faulty("E_BAD_BODY", "IDENTIFY missing fields")
    return said


def target(word: str, args: list[bytes], *, names_partitions: bool) -> Target:
    """Return what a REGISTER or UNREGISTER names, in either of its forms, or raise Faulty."""
    if not args or (names_partitions and len(args) < 2):
        raise Faulty("E_INVALID", f"{word} insufficient number of params")
    topic = args[0]
    if not is_name(topic):
        raise Faulty("E_BAD_TOPIC", f"{word} topic name '{topic.decode('latin-1')}' is not valid")
    partition = _partition(word, args[1]) if names_partitions else None
    rest = args[2:] if names_partitions else args[1:]
    channel = rest[0] if rest else b""
    if channel and not is_name(channel):
        raise Faulty("E_BAD_CHANNEL", f"{word} channel name '{channel.decode('latin-1')}' is not valid")
    return Target(topic.decode("ascii"), channel.decode("ascii"), partition)


def described(args: list[bytes]) -> tuple[str, Meta]:
    """Return what a DESCRIBE says of which topic, or raise Faulty."""
    if len(args) != 2:
        raise Faulty("E_INVALID", "DESCRIBE insufficient number of params")
    if not is_name(args[0]):
        raise Faulty("E_BAD_TOPIC", f"DESCRIBE topic name '{args[0].decode('latin-1')}' is not valid")
    try:
        return args[0].decode("ascii"), _META.decode(_text(args[1]))
    except (msgspec.DecodeError, RecursionError):
        raise Faulty("E_INVALID", "DESCRIBE failed to decode JSON") from None


def _text(json: bytes) -> str:
    """Return JSON as Go reads it: bytes that are no text become U+FFFD."""
    return json.decode("utf-8", "replace")


def _partition(word: str, text: bytes) -> int:
    if not (text.isdigit() and len(text) <= 4 and int(text) <= PARTITION_MAX):
        raise Faulty("E_BAD_PARTITIONID", f"{word} partition '{text.decode('latin-1')}' is not valid")
    return int(text)


def reply(data: bytes) -> bytes:
    """Return a reply as it is sent."""
    return _U32.pack(len(data)) + data


def error(code: str, text: str) -> bytes:
    """Return the reply to what was refused."""
    return reply(f"{code} {text}".encode() if text else code.encode())


OK = reply(b"OK")


# --- at the node ------------------------------------------------------------------------------------------------------

PING = b"PING\n"


def identify(said: Identity) -> bytes:
    """Return the first command of a node."""
    body = msgspec.json.encode(said)
    return b"IDENTIFY\n" + _U32.pack(len(body)) + body


def auth(token: str) -> bytes:
    """Return the command that shows who vouches for the node; only for services that ask for it."""
    body = token.encode()
    return b"AUTH\n" + _U32.pack(len(body)) + body


def register(topic: str, channel: str = "", partition: int | None = None) -> bytes:
    """Return the command that announces a topic or channel; with a partition in Youzan's form."""
    return _line("REGISTER", topic, channel, partition)


def unregister(topic: str, channel: str = "", partition: int | None = None) -> bytes:
    """Return the command that takes an announcement back; with a partition in Youzan's form."""
    return _line("UNREGISTER", topic, channel, partition)


def describe(topic: str, meta: Meta) -> bytes:
    """Return the command that tells what a topic was made with; only for services that take it."""
    return b"DESCRIBE %b %b\n" % (topic.encode("ascii"), msgspec.json.encode(meta))


def _line(word: str, topic: str, channel: str, partition: int | None) -> bytes:
    words = [word, topic, *([] if partition is None else [str(partition)]), *([channel] if channel else [])]
    return " ".join(words).encode("ascii") + b"\n"


class Replies:
    """Replies of one service."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Decode one read; Faulty if this cannot be a lookup service."""
        data = self._rest + data
        out = []
        pos = 0
        while len(data) - pos >= 4:
            size: int = _U32.unpack_from(data, pos)[0]
            if size > REPLY_BYTES_MAX:
                raise Faulty("E_INVALID", f"a reply of {size} bytes")
            if len(data) - pos - 4 < size:
                break
            out.append(data[pos + 4 : pos + 4 + size])
            pos += 4 + size
        self._rest = data[pos:]
        return out


def service(data: bytes) -> Identity | None:
    """Return what a service said of itself, None where it said only OK or something else."""
    try:
        return _IDENTITY.decode(_text(data))
    except (msgspec.DecodeError, RecursionError):
        return None
