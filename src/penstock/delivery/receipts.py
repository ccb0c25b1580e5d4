"""Receipts as clients hold them: which message, which lease of it, in which incarnation of its topic.

Opaque to clients; the core's receipt (id, version) inside. One of another topic, or of one that was deleted and made
again, is none, so that it can never mean another message. Several are checked at once, as arrays.
Invariant: what one receipt of several may do does not depend on the others.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Literal, TypeAlias
from zlib import crc32

import numpy as np

from penstock.delivery.seat import Receipt as Receipt
from penstock.delivery.seat import Seat

#: Id, version, incarnation; and a sum of them, which tells a receipt from any other text.
_RECEIPT = Struct(">QIQ")
_SUMMED = Struct(">QIQI")
_LETTERS = _SUMMED.size * 4 // 3

#: Base64 with letters that may stand in an address.
_SAFE = bytes.maketrans(b"+/", b"-_")
_USUAL = bytes.maketrans(b"-_", b"+/")

#: What a receipt did: it finished its message, it is the last one of a message whose time is over, it is stale.
Outcome: TypeAlias = Literal["done", "late", "stale"]


def written(id_: int, version: int, incarnation: int) -> str:
    """Return the receipt of a lease as a text."""
    sum_ = crc32(_RECEIPT.pack(id_, version, incarnation))
    packed = _SUMMED.pack(id_, version, incarnation, sum_)
    return b2a_base64(packed, newline=False).translate(_SAFE).decode("ascii")


def written_all(ids: Sequence[int], versions: Sequence[int], incarnation: int) -> list[str]:
    """Return the receipts of several leases."""
    packed = [
        _SUMMED.pack(id_, version, incarnation, crc32(_RECEIPT.pack(id_, version, incarnation)))
        for id_, version in zip(ids, versions, strict=True)
    ]
    # Nothing is left over between two of them: 24 bytes are 32 letters.
    text = b2a_base64(b"".join(packed), newline=False).translate(_SAFE).decode("ascii")
    return [text[at : at + _LETTERS] for at in range(0, len(text), _LETTERS)]


def read_all(texts: Sequence[str], incarnation: int) -> list[Receipt | None]:
    """Return what `read` would of each text."""
    try:
        packed = a2b_base64("".join(texts).encode("ascii").translate(_USUAL))
    except ValueError:
        packed = b""
    if len(packed) != _SUMMED.size * len(texts) or set(map(len, texts)) != {_LETTERS}:
        return [read(text, incarnation) for text in texts]  # one of them is no receipt, or none of ours
    out: list[Receipt | None] = []
    at = 0
    for id_, version, of, sum_ in _SUMMED.iter_unpack(packed):
        good = of == incarnation and 0 < id_ < 1 << 63 and sum_ == crc32(packed[at : at + _RECEIPT.size])
        out.append((id_, version) if good else None)
        at += _SUMMED.size
    return out


def read(text: str, incarnation: int) -> Receipt | None:
    """Return (id, version) of a receipt of this topic; None of any other text."""
    try:
        packed = a2b_base64(text.encode("ascii").translate(_USUAL))
    except ValueError:
        return None
    if len(packed) == _SUMMED.size:
        id_, version, of, sum_ = _SUMMED.unpack(packed)
        if of == incarnation and 0 < id_ < 1 << 63 and sum_ == crc32(packed[: _RECEIPT.size]):
            return id_, version
    return None


def finish(seat: Seat, given: Sequence[Receipt], *, late: bool = True) -> list[Outcome]:
    """Finish messages and tell of each receipt what it did.

    The last receipt of a message does it also after its time (`late`), as long as nobody has got the message since.
    """
    if not given:
        return []
    versions = dict(given)
    if len(versions) == len(given) and seat.few(len(given)):  # one look at each is enough
        refused = seat.ack([*versions], [*versions.values()])
        if not refused:
            return ["done"] * len(given)
        held = [id_ not in refused for id_ in versions]
    else:
        held = seat.current(given)
        if ids := {id_ for (id_, _), holds in zip(given, held, strict=True) if holds}:
            seat.ack(sorted(ids))
    if all(held):
        return ["done"] * len(given)
    rest = iter(seat.last([receipt for receipt, holds in zip(given, held, strict=True) if not holds]))
    over = [not holds and next(rest) for holds in held]
    if late and any(over):
        seat.subscription.remove(np.unique([id_ for (id_, _), then in zip(given, over, strict=True) if then]))
    after: Outcome = "done" if late else "late"
    return ["done" if now else after if then else "stale" for now, then in zip(held, over, strict=True)]


def extend(seat: Seat, given: Sequence[Receipt], lease_ns: Sequence[int]) -> list[bool]:
    """Let leases last for so long from now, each its own time, none at all for 0; tell which receipts held."""

    def change(ids: list[int], time_ns: int) -> list[int]:
        return seat.extend(ids, time_ns) if time_ns else seat.release(ids)

    return _each(seat, given, lease_ns, change)


def release(seat: Seat, given: Sequence[Receipt], delay_ns: Sequence[int]) -> list[bool]:
    """Give messages back, to go out again after a delay; tell which receipts held."""
    return _each(seat, given, delay_ns, seat.release)


def _each(
    seat: Seat, given: Sequence[Receipt], times_ns: Sequence[int], act: Callable[[list[int], int], list[int]]
) -> list[bool]:
    """Do something with all that hold, those with the same time together."""
    if not given:
        return []
    good = seat.current(given)
    todo: dict[int, list[int]] = {}
    seen: set[int] = set()
    for (id_, _), time_ns, holds in zip(given, times_ns, good, strict=True):
        if holds and id_ not in seen:  # one that is given twice counts once
            seen.add(id_)
            todo.setdefault(time_ns, []).append(id_)
    refused = {id_ for time_ns, ids in todo.items() for id_ in act(ids, time_ns)}
    return [holds and id_ not in refused for (id_, _), holds in zip(given, good, strict=True)]
