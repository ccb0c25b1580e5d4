"""Message ids as SQS shows them: UUIDs in form, computed from the core's ids.

The lower half is the id as queue services show it; the upper half tells queues apart. Nothing is looked up: a message
has the same one whenever it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import pack

from penstock.shown import shown_few, shown_id

_MASK = (1 << 64) - 1
#: A number that belongs to no message: the place of a queue in the space of its own ids.
_QUEUE = 1 << 62


def message_id(incarnation: int, id_: int) -> str:
    """Return the id of a message for people and clients."""
    return message_ids(incarnation, (id_,))[0]


def message_ids(incarnation: int, ids: Sequence[int]) -> list[str]:
    """Return the ids of several."""
    heads = _heads(incarnation)
    digits = pack(f">{len(ids)}Q", *shown_few(ids, incarnation)).hex()
    return [
        f"{heads[digits[at]]}{digits[at + 1 : at + 4]}-{digits[at + 4 : at + 16]}" for at in range(0, 16 * len(ids), 16)
    ]


@lru_cache(maxsize=4096)
def _heads(incarnation: int) -> dict[str, str]:
    """Return the upper half and the digit behind it by the shown id's first digit."""
    # Version and variant of a UUID: its random kind. The shown id has 63 bits; one of them stands above the variant.
    upper = shown_id(_QUEUE, incarnation) & ~0xF003 & _MASK | 0x4000
    texts = [f"{upper | bit:016x}" for bit in (0, 1)]
    return {
        f"{digit:x}": f"{text[:8]}-{text[8:12]}-{text[12:]}-{0x8 | digit & 0x3:x}"
        for digit in range(8)
        for text in [texts[digit >> 2]]
    }


def sequence(id_: int) -> str:
    """Return the sequence number of a message of a FIFO queue: it grows within a queue."""
    return f"{id_:020d}"
