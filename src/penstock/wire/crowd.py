"""Who is connected to one listener, counted in all and by address, and how many open files are left for it.

A process has so many open files and no more. Each listener leaves some of them alone, so that the log can go on and
whoever looks after the node still gets in: the admin API may use more of them than the others.
"""

from __future__ import annotations

import resource
import sys
from asyncio import BaseTransport
from collections import Counter

#: The part of all open files that connections leave to the admin API and to the log, and what is the least of it.
RESERVE = 16
RESERVE_MIN = 64


def files_left(share: float = 1.0) -> int:
    """Return how many open files connections may use that leave this share of the reserve alone."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return sys.maxsize
    return most - int(max(RESERVE_MIN, most // RESERVE) * share)


class Crowd:
    """The connections of one listener."""

    __slots__ = ("_addresses", "_files_max", "_most", "_most_each", "count")

    def __init__(self, most: int = 10_000, most_each: int = 5_000, files_max: int = sys.maxsize) -> None:
        """Take how many there may be, how many from one address, and below which number their files must be."""
        self._most = most
        self._most_each = most_each
        self._files_max = files_max
        #: How many there are.
        self.count = 0
        self._addresses: Counter[str] = Counter()

    def refusal(self, address: str, transport: BaseTransport | None) -> str:
        """Return why one more connection from an address cannot be taken, empty if it can."""
        if self.count >= self._most:
            return f"{self._most} connections are open, which is all that limits.connections allows"
        if (here := self._addresses[address]) >= self._most_each:
            most = f"which is all that limits.connections_per_address = {self._most_each} allows"
            return f"{here} connections from {address} are open, {most}"
        sock = transport.get_extra_info("socket") if transport is not None else None
        # The kernel gives the lowest number that is free: a high one says that all below are taken.
        if sock is not None and sock.fileno() >= self._files_max:
            return f"{self._files_max} files are open, which leaves those that the node needs itself; raise ulimit -n"
        return ""

    def enter(self, address: str) -> None:
        """Count somebody in."""
        self.count += 1
        self._addresses[address] += 1

    def leave(self, address: str) -> None:
        """Count somebody out."""
        self.count -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
