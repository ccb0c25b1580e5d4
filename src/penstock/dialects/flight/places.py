"""Places of streams, each of which takes a thread: so many, and one whose client is waited for too long gives way.

Nothing ends a call that waits for its client but the end of its connection. A stream that is quiet does no harm while
there is room: it is hung up on when all places are taken, the one that waits longest first. Used from Flight's threads.
Invariant: never more places are taken than there are.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Condition
from typing import Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import Refusal

#: How long somebody waits for the place of a stream that was just hung up on.
GIVE_WAY_S = 5.0


class Reads(Protocol):
    """Where a client's batches come from."""

    @property
    def schema(self) -> pa.Schema:
        """Of the batches."""

    def read_chunk(self) -> flight.FlightStreamChunk:
        """Return what comes next."""


class Place:
    """What one stream has; stands before its reader, to know since when its client is waited for."""

    def __init__(self, peer: str, clock_ns: Callable[[], int]) -> None:
        self.peer = peer
        self.waits_ns: int | None = None
        self.is_cut = False
        self._clock_ns = clock_ns
        self._reader: Reads | None = None

    def reading(self, reader: Reads) -> Place:
        """Return what reads from the client."""
        self._reader = reader
        return self

    def wait(self, for_client: bool) -> None:
        """Know that the client is waited for, or is not."""
        self.waits_ns = self._clock_ns() if for_client else None

    @property
    def schema(self) -> pa.Schema:
        """Of the batches."""
        assert self._reader is not None
        return self._reader.schema

    def read_chunk(self) -> flight.FlightStreamChunk:
        """Wait for what the client sends next."""
        assert self._reader is not None
        self.wait(True)
        try:
            return self._reader.read_chunk()
        finally:
            self.wait(False)


class Places:
    """All of them."""

    def __init__(self, most: int, limit: str, doing: str, patience_ns: int, clock_ns: Callable[[], int]) -> None:
        """Take how many there are, by which setting, for streams that do what, and how long a client always has."""
        self._most = most
        self._limit = limit
        self._doing = doing
        self._patience_ns = patience_ns
        self._clock_ns = clock_ns
        self._taken: set[Place] = set()
        self._changed = Condition()
        #: Where clients come in.
        self.port = 0

    @contextmanager
    def taken(self, peer: str) -> Iterator[Place]:
        """Have a place for a while."""
        place = self.take(peer)
        try:
            yield place
        finally:
            self.give(place)

    def take(self, peer: str) -> Place:
        """Have a place; without one a client is refused, it would take a thread."""
        place = Place(peer, self._clock_ns)
        with self._changed:
            if len(self._taken) >= self._most:
                self._make_room(peer)
            if len(self._taken) >= self._most:
                text = f"{self._most} streams {self._doing}, which is all that flight.{self._limit} allows"
                raise Refusal("limit_reached", f"{text}: end one, or raise it")
            self._taken.add(place)
        return place

    def give(self, place: Place) -> None:
        """Have it no more."""
        with self._changed:
            self._taken.discard(place)
            self._changed.notify_all()

    def peers(self) -> list[str]:
        """Return whose streams have a place."""
        with self._changed:
            return [plain(place.peer) for place in self._taken]

    def _make_room(self, peer: str) -> None:
        """Hang up on the stream whose client is waited for longest, if that is too long.

        Not on the connection of whoever needs the place.
        """
        now_ns = self._clock_ns()
        others = [(place.waits_ns, id(place), place) for place in self._taken if place.peer != peer]
        waiting = [(since_ns, key, place) for since_ns, key, place in others if since_ns is not None]
        since_ns, _, place = min(waiting, default=(now_ns, 0, None))
        if place is None or now_ns - since_ns < self._patience_ns:
            return
        if not place.is_cut:
            place.is_cut = True
            hang_up(self.port, place.peer)
        self._changed.wait_for(lambda: len(self._taken) < self._most, GIVE_WAY_S)


def hang_up(port: int, *peers: str) -> None:
    """Cut every connection that was accepted on a port, or those of some peers: gRPC itself offers no way to end a call
    that waits for its client, and a node must not wait for a client."""
    wanted = {plain(peer) for peer in peers}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with copy, suppress(OSError):
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == port:
                host, remote = copy.getpeername()[:2]  # the listening socket has no peer, and stays
                if not wanted or plain(f"{host}:{remote}") in wanted:
                    copy.shutdown(socket.SHUT_RDWR)


def plain(peer: str) -> str:
    """Return a client's `address:port`, which gRPC writes in several ways."""
    shown = unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")
    return shown.replace("[", "").replace("]", "").removeprefix("::ffff:")
