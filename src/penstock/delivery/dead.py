"""Dead letters: what a row looks like in the topic for rows that failed too often, and the way back.

Pure: a row in, rows to publish out. The dedup key names the row and the subscription it failed in, so a crash
between the copy and the ack of the source repeats nothing (ruling 21).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from penstock.message import OPTIONAL_COLUMNS, Batch, Column, Rows, id_of

#: Headers that tell where a dead letter came from; `redrive` takes them off again.
PREFIX = "penstock.dead."

#: Not carried along: a due time has passed, and a lease of life too; the dedup key is the move's own.
_LEFT_BEHIND = ("due", "expires", "dedup", "bucket")


class Origin(NamedTuple):
    """Where a dead letter failed."""

    topic: str
    incarnation: int
    shard: int
    subscription: str


def move_key(topic: str, incarnation: int, shard: int, offset: int, subscription: str) -> bytes:
    """Return the dedup key of moving one row."""
    return msgspec.msgpack.encode((topic, incarnation, shard, offset, subscription))


def dead_letters(batch: Batch, rows: list[int], attempts: list[int], origin: Origin, reason: str) -> Rows:
    """Return rows as they stand in the dead-letter topic: the reason is in the headers."""
    headers: list[bytes | None] = []
    for row, tries in zip(rows, attempts, strict=True):
        told = {
            "topic": origin.topic,
            "subscription": origin.subscription,
            "id": f"{id_of(origin.shard, batch.first + row):016x}",
            "attempts": str(tries),
            "reason": reason,
            "taken_ns": str(batch.row_time(row)),
        }
        headers.append(_with(batch.row_value("headers", row), told))
    keys = [
        move_key(origin.topic, origin.incarnation, origin.shard, batch.first + row, origin.subscription) for row in rows
    ]
    return copies(batch, rows, headers, keys)


def redriven(batch: Batch, rows: list[int], keys: list[bytes]) -> Rows:
    """Return dead letters as they were before."""
    headers: list[bytes | None] = []
    for row in rows:
        rest = {k: v for k, v in told(batch, row, everything=True).items() if not k.startswith(PREFIX)}
        headers.append(msgspec.json.encode(rest) if rest else None)
    return copies(batch, rows, headers, keys)


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


def copies(batch: Batch, rows: list[int], headers: list[bytes | None], keys: list[bytes]) -> Rows:
    """Return picked rows of a batch with other headers and dedup keys, ready to be published elsewhere."""
    columns: dict[str, Column] = {"dedup": keys}
    for name in OPTIONAL_COLUMNS:
        if name in batch.columns and name not in _LEFT_BEHIND and name != "headers":
            columns[name] = [batch.row_value(name, row) for row in rows]
    if any(header is not None for header in headers):
        columns["headers"] = headers
    source = batch.row_source(rows[0])
    return Rows.of([batch.row_body(row) for row in rows], source, columns)


def _with(raw: int | bytes | str | None, told: dict[str, str]) -> bytes:
    headers: dict[str, Any] = {}
    if isinstance(raw, bytes):
        try:
            decoded = msgspec.json.decode(raw)
            headers = decoded if isinstance(decoded, dict) else {"headers": decoded}
        except (msgspec.DecodeError, UnicodeDecodeError):
            headers = {"headers": raw.decode("utf-8", "replace")}
    return msgspec.json.encode({**headers, **{PREFIX + key: value for key, value in told.items()}})
