"""Dynamiq's arithmetic of members: each would serve a range of the ids, exact and half open."""

from __future__ import annotations

from penstock.shown import SPACE


def key_range(index: int, count: int) -> tuple[int, int]:
    """Return the first id of a member's range, and the first behind it; members are counted by their names' order."""
    return index * SPACE // count, (index + 1) * SPACE // count
