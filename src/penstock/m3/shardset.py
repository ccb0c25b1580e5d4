"""Shard sets as text: `7`, `0..511` with both ends in it, or several of them in a list, `0..3,7`."""

from __future__ import annotations

import re

from penstock.errors import PenstockError

#: A shard is an unsigned number of 32 bits.
SHARD_MAX = (1 << 32) - 1

_PIECE = re.compile(r"\s*([0-9]{1,10})\s*(?:\.\.\s*([0-9]{1,10})\s*)?", re.ASCII).fullmatch


class BadShardSet(PenstockError):
    """A text that is no shard set; it says what to write."""


def ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Return the (first, last) of each piece, joined where they touch, in order; raises BadShardSet."""
    found = sorted(_range(piece, text) for piece in text.split(","))
    joined = [found[0]]
    for first, last in found[1:]:
        if first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return tuple(joined)


def _range(piece: str, text: str) -> tuple[int, int]:
    read = _PIECE(piece)
    if read is None:
        raise BadShardSet(f'"{text}" is no shard set; write one shard like 7, a range like 0..511, or a list of them')
    first, last = int(read[1]), int(read[2] or read[1])
    if first > last or last > SHARD_MAX:
        raise BadShardSet(f'shard set "{text}": {piece.strip()} is no range; it goes from a shard to a larger one')
    return first, last
