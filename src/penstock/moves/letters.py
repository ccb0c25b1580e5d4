"""What a message looks like in the topic for those that failed too often, and the way back.

Pure: rows in, headers out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.columns import id_of
from penstock.message import Batch
from penstock.moves.move import Piece

#: Headers that tell where a dead letter came from; `redrive` takes them off again.
PREFIX = "penstock.dead."

#: Not carried along: a due time has passed, and a lease of life too.
LEFT_BEHIND = ("due", "expires", "bucket")


def as_letters(piece: Piece, attempts: list[int], reason: str) -> list[bytes | None]:
    """Return the headers of rows in the dead-letter topic: they tell where they failed, and why."""
    batch, origin = piece.batch, piece.origin
    headers: list[bytes | None] = []
    for row, tries in zip(piece.rows, attempts, strict=True):
        told = {
            "topic": origin.topic,
            "subscription": origin.subscription,
            "id": f"{id_of(piece.shard, batch.first + row):016x}",
            "attempts": str(tries),
            "reason": reason,
            "taken_ns": str(batch.row_time(row)),
        }
        headers.append(_with(batch.row_value("headers", row), told))
    return headers


def as_before(piece: Piece) -> list[bytes | None]:
    """Return the headers that dead letters had before they were some."""
    headers: list[bytes | None] = []
    for row in piece.rows:
        rest = {k: v for k, v in told(piece.batch, row, everything=True).items() if not k.startswith(PREFIX)}
        headers.append(msgspec.json.encode(rest) if rest else None)
    return headers


def holds_letters(batch: Batch) -> bool:
    """Tell whether a batch holds a dead letter that knows where it failed."""
    if "headers" not in batch.columns:
        return False
    return any("topic" in told(batch, row) for row in range(batch.count))


def told(batch: Batch, row: int, *, everything: bool = False) -> dict[str, Any]:
    """Return what the headers of a dead letter tell of its death, or all headers."""
    raw = batch.row_value("headers", row)
    try:
        headers = msgspec.json.decode(raw) if isinstance(raw, bytes) else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        headers = {}
    if not isinstance(headers, dict):
        headers = {}
    if everything:
        return headers
    return {key.removeprefix(PREFIX): value for key, value in headers.items() if key.startswith(PREFIX)}


def _with(raw: int | bytes | str | None, told: dict[str, str]) -> bytes:
    headers: dict[str, Any] = {}
    if isinstance(raw, bytes):
        try:
            decoded = msgspec.json.decode(raw)
            headers = decoded if isinstance(decoded, dict) else {"headers": decoded}
        except (msgspec.DecodeError, UnicodeDecodeError):
            headers = {"headers": raw.decode("utf-8", "replace")}
    return msgspec.json.encode({**headers, **{PREFIX + key: value for key, value in told.items()}})
