"""What the registry holds of a fan-out."""

from __future__ import annotations

from typing import Any

import msgspec


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic that gets a copy of what is published."""

    topic: str
    #: The topic's own: one that is made later under the same name is another.
    number: int


class FanoutRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fan-out: its name and who gets copies, in the order in which they came."""

    name: str
    targets: tuple[Target, ...] = ()
    #: What dialects know of it besides, each under its name; the core does not look into it.
    dialects: dict[str, dict[str, Any]] = {}
    created_ns: int
