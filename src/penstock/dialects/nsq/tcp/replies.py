"""The replies of one connection, in the order of its commands, each once its own time has come (ruling 15).

Owns the queue between what is known and what may be sent. Knows nothing of commands or of what a reply says.
Invariant: nothing overtakes a reply that is still waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from penstock.message import Buffer

#: A reply that is waited for, None until it is known; or what is to be done when its turn comes.
Slot: TypeAlias = "list[Buffer | Callable[[], None] | None]"


class Writer(Protocol):
    """Where replies go."""

    def write(self, data: Buffer) -> None:
        """Send bytes."""


class Replies:
    """One ordered queue."""

    __slots__ = ("_promised", "_writer")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._promised: deque[Slot] = deque()

    def send(self, data: Buffer) -> None:
        """Send a frame behind every reply that is still waited for."""
        if self._promised:
            self._promised.append([data])
        else:
            self._writer.write(data)

    def through(self, writer: Writer) -> None:
        """Send by another way from now on."""
        self._writer = writer

    @property
    def waiting(self) -> bool:
        """Whether a reply is still waited for."""
        return bool(self._promised)

    def then(self, call: Callable[[], None]) -> None:
        """Do something once every reply before it was sent."""
        if self._promised:
            self._promised.append([call])
        else:
            call()

    def promise(self) -> Slot:
        """Hold the place of a reply that is not known yet."""
        slot: Slot = [None]
        self._promised.append(slot)
        return slot

    def keep(self, slot: Slot, data: Buffer) -> None:
        """Say what a reply is, and send all that waited for it alone."""
        promised = self._promised
        slot[0] = data
        if len(promised) == 1 and promised[0] is slot:
            promised.clear()
            self._writer.write(data)
            return
        while promised and (first := promised[0][0]) is not None:
            promised.popleft()
            if callable(first):
                first()
            else:
                self._writer.write(first)

    def forget(self) -> None:
        """Send nothing more."""
        self._promised.clear()
