"""A row of the log as JSON shows it: binary columns as text where they are text, else as base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec


def shown(row: Mapping[str, object], shard: int) -> dict[str, object]:
    """Return the columns of a row that hold something, with its shard."""
    found: dict[str, object] = {"shard": shard}
    for name, value in row.items():
        if isinstance(value, bytes):
            found |= _binary(name, value)
        elif value is not None:
            found[name] = value
    return found


def _binary(name: str, value: bytes) -> dict[str, object]:
    if name == "headers":
        try:
            msgspec.json.decode(value)
            return {name: msgspec.Raw(value)}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # stored as sent, and not JSON
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}
