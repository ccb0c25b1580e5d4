"""Connections that stand, for whoever may have to break them all.

Those that closed are forgotten now and then, not at each new one: a node may have one for each of its consumers.
"""

from __future__ import annotations

import asyncio

#: Fewer are not looked through.
LOOK_MIN = 64


class Standing:
    """Some connections."""

    __slots__ = ("_known", "_look_at")

    def __init__(self) -> None:
        self._known: set[asyncio.Transport] = set()
        #: So many are looked through for closed ones.
        self._look_at = LOOK_MIN

    def __len__(self) -> int:
        return sum(not each.is_closing() for each in self._known)

    def add(self, transport: asyncio.Transport) -> None:
        """Know one more."""
        if len(self._known) >= self._look_at:
            self._known = {each for each in self._known if not each.is_closing()}
            self._look_at = max(2 * len(self._known), LOOK_MIN)
        self._known.add(transport)

    def abort(self) -> None:
        """Break all of them."""
        known, self._known = self._known, set()
        for transport in known:
            transport.abort()
