"""The replies of one connection, in the order of its commands, each once its own time has come (ruling 15).

Owns the queue between what is known and what may be sent. Knows nothing of commands or of what a reply says.
Invariant: nothing overtakes a reply that is still waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.columns import Buffer


class Reply(msgspec.Struct, eq=False, kw_only=True):
    """One that has its place in the queue: None until it is known, bytes, or what is to be done in its turn."""

    what: Buffer | Callable[[], None] | None = None


class Writer(Protocol):
    """Where replies go."""

    def write(self, data: Buffer) -> None:
        """Send bytes."""


class Replies:
    """One ordered queue."""

    __slots__ = ("_writer", "promised")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        #: Replies in order, the first of them not known yet; whoever will `keep` one puts it here.
        self.promised: deque[Reply] = deque()

    def send(self, data: Buffer) -> None:
        """Send a frame behind every reply that is still waited for."""
        if self.promised:
            self.promised.append(Reply(what=data))
        else:
            self._writer.write(data)

    def through(self, writer: Writer) -> None:
        """Send by another way from now on."""
        self._writer = writer

    @property
    def waiting(self) -> bool:
        """Whether a reply is still waited for."""
        return bool(self.promised)

    def then(self, call: Callable[[], None]) -> None:
        """Do something once every reply before it was sent."""
        if self.promised:
            self.promised.append(Reply(what=call))
        else:
            call()

    def keep(self, reply: Reply, data: Buffer) -> None:
        """Say what a promised reply is, and send all that waited for it alone."""
        promised = self.promised
        if len(promised) == 1 and promised[0] is reply:
            promised.clear()
            self._writer.write(data)
            return
        reply.what = data
        while promised and (first := promised[0].what) is not None:
            promised.popleft()
            if callable(first):
                first()
            else:
                self._writer.write(first)

    def forget(self) -> None:
        """Send nothing more."""
        self.promised.clear()
