"""Message ids as SQS shows them: UUIDs in form, computed from the core's ids.

The lower half is the id as queue services show it; the upper half tells queues apart. Nothing is looked up: a message
has the same one whenever it is shown.
"""

from __future__ import annotations

from penstock.shown import shown_id

_MASK = (1 << 64) - 1
#: A number that belongs to no message: the place of a queue in the space of its own ids.
_QUEUE = 1 << 62


def message_id(incarnation: int, id_: int) -> str:
    """Return the id of a message for people and clients."""
    upper = shown_id(_QUEUE, incarnation)
    # Version and variant of a UUID: its random kind. The shown id has 63 bits; one of them stands above the variant.
    shown = shown_id(id_, incarnation)
    upper = upper & ~0xF003 & _MASK | 0x4000 | shown >> 62 & 1
    lower = 0x8000_0000_0000_0000 | shown & (1 << 62) - 1
    text = f"{upper:016x}{lower:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
