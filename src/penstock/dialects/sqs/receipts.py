"""Receipt handles: which message, which lease of it, in which incarnation of its queue.

Opaque to clients; the core's receipt (id, version) inside. A handle of another queue, or of one that was deleted and
made again, is refused, so that it can never mean another message.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from struct import Struct
from zlib import crc32

import numpy as np

from penstock.columns import Offsets
from penstock.dialects.sqs.faults import Fault

#: Id, version, incarnation; and a sum of them, which tells a handle from any other text.
_HANDLE = Struct(">QIQ")
_SUM = Struct(">I")
_SIZE = _HANDLE.size + _SUM.size

Receipts = tuple[Offsets, Offsets]


def handle(id_: int, version: int, incarnation: int) -> str:
    """Return the handle of a lease."""
    packed = _HANDLE.pack(id_, version, incarnation)
    return urlsafe_b64encode(packed + _SUM.pack(crc32(packed))).decode("ascii")


def read(text: str, incarnation: int) -> tuple[int, int]:
    """Return (id, version) of a handle of this queue; refuse any other text."""
    try:
        packed = urlsafe_b64decode(text.encode("ascii"))
    except ValueError:
        packed = b""
    if len(packed) == _SIZE and _SUM.unpack(packed[_HANDLE.size :])[0] == crc32(packed[: _HANDLE.size]):
        id_, version, of = _HANDLE.unpack(packed[: _HANDLE.size])
        if of == incarnation and 0 < id_ < 1 << 63:
            return id_, version
    raise Fault("ReceiptHandleIsInvalid", f'The input receipt handle "{text[:200]}" is not a valid receipt handle.')


def arrays(receipts: Sequence[tuple[int, int]]) -> Receipts:
    """Return ids and versions, as seats take them."""
    both = np.array(receipts, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]
