"""The memory budget over HTTP: which part holds how much."""

from __future__ import annotations

import msgspec

from penstock.api.endpoint import PREFIX, Call, Endpoint
from penstock.resident import resident_bytes


class MemoryPart(msgspec.Struct):
    """One part of the budget, under the name of its setting without `_bytes`."""

    name: str
    bytes: int
    max_bytes: int
    #: How often somebody gave way because it was full, or was waited for too long.
    refused: int


class Memory(msgspec.Struct):
    """All of them, and what the whole process has in memory."""

    resident_bytes: int
    max_bytes: int
    parts: list[MemoryPart]


async def show_memory(call: Call[None, None]) -> Memory:
    """Tell what is held for whom."""
    parts = [MemoryPart(each.name, each.used, each.bytes_max, each.refused) for each in call.node.memory()]
    return Memory(resident_bytes(), call.node.budget.bytes_max, parts)


ENDPOINTS = (
    Endpoint("GET", f"{PREFIX}/memory", show_memory, "Show what memory is held for", Memory, query=None, on_node="see"),
)
