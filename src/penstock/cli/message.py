"""A message as the API says it in JSON, as far as a command shows it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from string import Formatter
from typing import Annotated

import msgspec
import typer

from penstock.cli.failure import USAGE, Failure
from penstock.cli.printer import moment
from penstock.errors import hint


class Message(msgspec.Struct, kw_only=True):
    """One message."""

    id: str
    shard: int
    offset: int
    timestamp: str
    body: str | None = None
    body_base64: str | None = None
    key: str | None = None
    tag: str | None = None
    headers: msgspec.Raw = msgspec.Raw()
    traffic: int | None = None
    traffic_types: list[str] | None = None
    due: str | None = None
    expires: str | None = None
    event_time: str | None = None
    source: str = ""
    attempts: int = 0
    receipt: str = ""

    def bytes(self) -> bytes:
        """Return the body as it was published."""
        if self.body_base64 is not None:
            return base64.b64decode(self.body_base64)
        return (self.body or "").encode()

    def extras(self) -> str:
        """Return what it carries beside its body, on one line."""
        parts = []
        if self.key is not None:
            parts.append(f"key={self.key}")
        if self.tag is not None:
            parts.append(f"tag={self.tag}")
        if self.traffic is not None:
            parts.append(f"traffic={','.join(self.traffic_types) if self.traffic_types else bin(self.traffic)}")
        if self.due is not None:
            parts.append(f"due={self.due}")
        if bytes(self.headers):
            parts.append(f"headers={bytes(self.headers).decode()}")
        return " ".join(parts)


class Format:
    """How a message is printed: text with names in braces, such as '{offset} {key} {body}'."""

    #: With -v: where, when, what it carries, and its body.
    VERBOSE = "{shard}/{offset}  {time}  {extras}{body}"

    def __init__(self, text: str) -> None:
        try:
            pieces = list(Formatter().parse(text.replace("\\t", "\t").replace("\\n", "\n")))
        except ValueError as error:
            raise Failure(f"--format {text!r} is not understood: {error}", USAGE) from error
        self._pieces: list[tuple[bytes, str]] = []
        for literal, name, _, _ in pieces:
            if name is not None and name not in FIELDS:
                raise Failure(f"--format {text!r}: there is no {{{name}}}; {hint(name, FIELDS)}", USAGE)
            self._pieces.append((literal.encode(errors="surrogateescape"), name or ""))

    def of(self, message: Message) -> bytes:
        """Return a message as it is printed, without the end of the line."""
        return b"".join(literal + (FIELDS[name](message) if name else b"") for literal, name in self._pieces)


def _text(value: object) -> bytes:
    return b"" if value is None else str(value).encode()


def _extras(message: Message) -> bytes:
    extras = message.extras()
    return f"{extras}  ".encode() if extras else b""


#: What a format may name; what a message does not carry is empty.
FIELDS: dict[str, Callable[[Message], bytes]] = {
    "body": lambda message: message.bytes(),
    "key": lambda message: _text(message.key),
    "headers": lambda message: bytes(message.headers),
    "tag": lambda message: _text(message.tag),
    "id": lambda message: _text(message.id),
    "shard": lambda message: _text(message.shard),
    "offset": lambda message: _text(message.offset),
    "timestamp": lambda message: _text(message.timestamp),
    "time": lambda message: _text(moment(message.timestamp)),
    "due": lambda message: _text(message.due),
    "expires": lambda message: _text(message.expires),
    "event_time": lambda message: _text(message.event_time),
    "traffic": lambda message: _text(message.traffic),
    "source": lambda message: _text(message.source),
    "attempts": lambda message: _text(message.attempts),
    "extras": _extras,
}

FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        help=f"How to print a message, such as '{{offset}} {{key}} {{body}}'; there are {', '.join(FIELDS)}.",
        metavar="TEXT",
        show_default=False,
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print place, time and what a message carries before its body.")
]


def format_of(text: str | None, *, verbose: bool, otherwise: str = "{body}") -> Format:
    """Return how messages are printed."""
    return Format(text if text is not None else Format.VERBOSE if verbose else otherwise)


def read(raw: msgspec.Raw) -> Message:
    """Return a message as a value."""
    try:
        return msgspec.json.decode(raw, type=Message)
    except msgspec.MsgspecError as error:
        raise Failure(
            f"the node sent a message this program cannot read ({error}); are they of one version?"
        ) from error


#: What `peek --json` and `sub --json` show of a message that the next topic says anew.
_PLACE = ("id", "shard", "offset", "timestamp", "source", "attempts", "receipt", "traffic_types")


def described(content: bytes, columns: dict[str, object]) -> bytes:
    """Return one line of a publish for a message that is a JSON object; a body that is no text is sent as JSON."""
    try:
        message = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(message, dict):
        raise ValueError(f"it is {content[:40].decode(errors='replace')!r}")
    message = {**columns, **{name: value for name, value in message.items() if name not in _PLACE}}
    if not isinstance(message.get("body", ""), str):
        message["body"] = msgspec.json.encode(message["body"]).decode()
    return msgspec.json.encode(message) + b"\n"


def outgoing(body: bytes, columns: dict[str, object]) -> bytes:
    """Return one line of a publish; a body that is no text travels as base64."""
    try:
        content: dict[str, object] = {"body": body.decode()}
    except UnicodeDecodeError:
        content = {"body_base64": base64.b64encode(body).decode("ascii")}
    return msgspec.json.encode({**content, **columns}) + b"\n"
