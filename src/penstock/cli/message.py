"""A message as the API says it in JSON, as far as a command shows it."""

from __future__ import annotations

import base64

import msgspec

from penstock.cli.failure import Failure


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


def read(raw: msgspec.Raw) -> Message:
    """Return a message as a value."""
    try:
        return msgspec.json.decode(raw, type=Message)
    except msgspec.MsgspecError as error:
        raise Failure(
            f"the node sent a message this program cannot read ({error}); are they of one version?"
        ) from error


def outgoing(body: bytes, columns: dict[str, object]) -> bytes:
    """Return one line of a publish; a body that is no text travels as base64."""
    try:
        content: dict[str, object] = {"body": body.decode()}
    except UnicodeDecodeError:
        content = {"body_base64": base64.b64encode(body).decode("ascii")}
    return msgspec.json.encode({**content, **columns}) + b"\n"
