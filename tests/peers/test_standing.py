"""Connections that stand."""

from __future__ import annotations

import asyncio
from typing import cast

from penstock.peers.standing import LOOK_MIN, Standing


class Transport:
    """Counts how often it is looked at."""

    looks = 0

    def __init__(self) -> None:
        self.closed = False

    def is_closing(self) -> bool:
        Transport.looks += 1
        return self.closed

    def abort(self) -> None:
        self.closed = True


def test_closed_ones_are_forgotten_at_little_cost_and_all_others_are_broken() -> None:
    standing = Standing()
    made = [Transport() for _ in range(4000)]
    for number, each in enumerate(made):
        each.closed = number % 2 == 0
        standing.add(cast(asyncio.Transport, each))
    assert Transport.looks <= 3 * len(made)
    assert len(standing._known) < len(made)
    assert len(standing) == len(made) // 2
    for each in made:
        each.closed = True
    for each in (more := [Transport() for _ in range(8000)]):
        standing.add(cast(asyncio.Transport, each))
        each.closed = True
    assert len(standing._known) <= LOOK_MIN
    more[-1].closed = False
    standing.abort()
    assert more[-1].closed
    assert len(standing) == 0
