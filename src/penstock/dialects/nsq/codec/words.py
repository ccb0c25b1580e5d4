"""The words of NSQ's protocol: what a command is called, how names and numbers are written, what a client may send.

Values and their rules only; nothing here reads a stream.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

MAGIC = b"  V2"
SOURCE = "nsq"

#: A line without an end longer than this is not NSQ; upstream's reader has the same bound.
LINE_BYTES_MAX = 16 * 1024

NAME = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")
NAME_BYTES_MAX = 64

PARTITION_MAX = 1023
#: The partition of a command that names none.
ANY = -1

#: Commands of one line.
LINES = frozenset(
    (
        b"SUB",
        b"SUB_ADVANCED",
        b"SUB_ORDERED",
        b"RDY",
        b"FIN",
        b"REQ",
        b"TOUCH",
        b"CLS",
        b"NOP",
        b"INTERNAL_CREATE_TOPIC",
    )
)
#: Commands of one line and one message, and how many bytes before the message's first are the command's own.
SINGLES = {b"PUB": 0, b"PUB_EXT": 2, b"PUB_TRACE": 8}
#: Commands of one line and many messages, likewise.
MANY = {b"MPUB": 0, b"MPUB_EXT": 2, b"MPUB_TRACE": 8}
#: Commands of one line and something else.
OTHERS = frozenset((b"DPUB", b"IDENTIFY", b"AUTH"))

#: What comes behind one of these may have to be read in another way: in other ids, or through another layer.
BARRIERS = frozenset((b"IDENTIFY", b"AUTH", b"SUB", b"SUB_ADVANCED", b"SUB_ORDERED"))

_ESCAPES = {char: "\\" + name for char, name in zip('"\\\a\b\f\n\r\t\v', ['"', "\\", *"abfnrtv"], strict=True)}

Command: TypeAlias = "tuple[object, ...]"


class Limits(NamedTuple):
    """What one connection may send."""

    message_bytes_max: int
    body_bytes_max: int
    #: How long a DPUB may ask to wait.
    delay_ms_max: int = 3_600_000


def is_name(name: bytes) -> bool:
    """Tell whether NSQ takes this as the name of a topic or channel."""
    return 1 <= len(name) <= NAME_BYTES_MAX and NAME.fullmatch(name) is not None


def partition_of(text: bytes) -> int | None:
    """Return the partition that a field names, ANY for -1; None if it is no partition."""
    if text == b"-1":
        return ANY
    if not text:
        return 0
    if not text.isdigit() or len(text) > 18:
        return None
    number = int(text)
    return number if number <= PARTITION_MAX else None


def shown(text: bytes) -> str:
    """Return what a client wrote, for a reply: text stays, other bytes become escapes (nsqd echoes them)."""
    return text.decode("utf-8", "backslashreplace")


def quoted(text: bytes) -> str:
    """Return what a client wrote in quotes, as Go's %q writes it."""
    return '"' + "".join(_ESCAPES.get(char) or _escaped(char) for char in text.decode("utf-8", "surrogateescape")) + '"'


def _escaped(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no text
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def signed(size: int) -> int:
    """Return a length as every other implementation reads it: above 2^31 it is negative."""
    return size if size < 1 << 31 else size - (1 << 32)


def number_of(text: bytes) -> int | None:
    """Return a number as NSQ writes them: digits only, nothing at all is 0."""
    if not text:
        return 0
    return int(text) if text.isdigit() and len(text) < 19 else None
