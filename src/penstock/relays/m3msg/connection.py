"""One connection to one instance of a consumer service: messages out, acks back.

Owns a seat in the subscription of each replica that it serves, while it stands. What is not acked in time goes out
again, over whatever connection has the shard then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from penstock.clock import SECOND, Clock
from penstock.delivery.seat import Keep, Seat
from penstock.delivery.source import Delivery
from penstock.m3.acks import AckReader
from penstock.relays.m3msg.retry import Retry
from penstock.relays.m3msg.wire import framed
from penstock.wire.dial import Dialler
from penstock.wire.link import Backoff, Link

_log = logging.getLogger("penstock.m3msg")

BEAT_NS = SECOND


class Counts:
    """What became of messages of one service."""

    def __init__(self) -> None:
        self.sent = 0
        self.resent = 0
        self.acked = 0
        #: Acks of what was not out: late ones, and those of messages that were acked before.
        self.unknown = 0
        self.too_large = 0
        #: Messages to shards that nobody has, and those from before or after their owner's time.
        self.unowned = 0
        self.untimely = 0
        self.resets = 0


class Manner(Protocol):
    """How messages are sent, the same for all connections of a relay."""

    clock: Clock
    dialler: Dialler
    retry: Retry
    in_flight: int
    dial_timeout_ns: int
    write_timeout_ns: int
    frame_bytes: int
    is_graceful: bool
    #: Whether cutover and cutoff are not looked at.
    ignores_times: bool

    def backoff(self) -> Backoff:
        """Return when to dial again."""


class Served(NamedTuple):
    """A replica that is sent over a connection."""

    attach: Callable[..., Seat]
    #: Which rows the instance may have, where that depends on their time.
    keep: Keep | None


class Connection:
    """A link, and the seats that are there while it stands."""

    def __init__(self, address: tuple[str, int], name: str, manner: Manner, counts: Counts, shards: int) -> None:
        self._name = name
        self._manner = manner
        self._counts = counts
        self._shards = shards
        #: By the first of the replica's shards, by which acks are told apart.
        self._served: dict[int, Served] = {}
        self._seats: dict[int, Seat] = {}
        self._reader = AckReader()
        #: Since when what was sent does not leave; None while it does.
        self._full_ns: int | None = None
        self._draining = False
        self.link = Link(
            "consumer",
            address,
            self,
            manner.clock,
            manner.dialler,
            manner.backoff(),
            beat_ns=BEAT_NS,
            log=_log,
            connect_ns=manner.dial_timeout_ns,
        )

    @property
    def in_flight(self) -> int:
        """How many messages wait for their ack."""
        return sum(seat.in_flight for seat in self._seats.values())

    @property
    def is_open(self) -> bool:
        """Whether it can be sent to."""
        return bool(self._seats)

    @property
    def is_used(self) -> bool:
        """Whether a replica is sent over it."""
        return bool(self._served)

    def serve(self, first_shard: int, attach: Callable[..., Seat], keep: Keep | None) -> None:
        """Send the rows of a replica as well, and of these only what `keep` says; what it refuses is finished."""
        self._served[first_shard] = Served(attach, keep)
        if first_shard in self._seats:
            self._seats[first_shard].keep = keep
        elif self.link.is_open:
            self._sit(first_shard)
        self.link.connect()

    def leave(self, first_shard: int) -> None:
        """Send nothing more of a replica; what is out is for others."""
        self._served.pop(first_shard, None)
        self._rise(first_shard)

    def drain(self) -> None:
        """Send nothing more; acks of what is out still come."""
        self._draining = True
        for seat in self._seats.values():
            seat.set_credit(0)

    def close(self) -> None:
        """Leave; whatever is out is for others."""
        self._rise_all()
        self.link.close()

    # --- the link calls these -------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Take seats."""
        self.link.settled()
        self._reader = AckReader(self._manner.frame_bytes)
        self._full_ns = None
        for first_shard in list(self._served):
            self._sit(first_shard)

    def received(self, data: bytes) -> None:
        """Finish what was acked."""
        said = self._reader.feed(data)
        if said is not None:
            ids = np.asarray(said.id, np.uint64).view(np.int64)
            acked = 0
            for first_shard, seat in list(self._seats.items()):
                mine = ids
                if len(self._seats) > 1:
                    shards = np.asarray(said.shard, np.uint64)
                    mine = ids[(shards >= first_shard) & (shards < first_shard + self._shards)]
                if len(mine):
                    acked += len(mine) - len(seat.ack(mine))
            self._counts.acked += acked
            self._counts.unknown += len(ids) - acked
        if self._reader.frames.fault:
            self.link.drop(self._reader.frames.fault)

    def beat(self) -> None:
        """Give up on who does not read, and take the seats anew that were lost."""
        if (
            self._full_ns is not None
            and self._manner.clock.monotonic() - self._full_ns >= self._manner.write_timeout_ns
        ):
            self.link.drop(f"it did not read for {self._manner.write_timeout_ns / SECOND:g} s")
            return
        for first_shard in [each for each in self._served if each not in self._seats]:
            self._sit(first_shard)

    def hold(self, full: bool) -> None:
        """Send nothing more while what was sent does not leave."""
        self._full_ns = self._manner.clock.monotonic() if full else None
        for seat in list(self._seats.values()):
            if full:
                seat.block()
            else:
                seat.unblock()

    def closed(self, why: str) -> None:
        """Give back what is out; it goes to whoever has its shard."""
        self._counts.resets += 1
        self._rise_all()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _sit(self, first_shard: int) -> None:
        if self._draining:  # a node that stops gives no seats
            return
        served = self._served[first_shard]
        seat = self._seats[first_shard] = served.attach(
            partial(self._deliver, first_shard),
            lease_ns=self._manner.retry.after_ns(1),
            name=self._name,
            keep=served.keep,
            evict=partial(self._evicted, first_shard),
        )
        if self._full_ns is not None:
            seat.block()
        seat.set_credit(self._manner.in_flight)

    def _rise(self, first_shard: int) -> None:
        seat = self._seats.pop(first_shard, None)
        if seat is not None:
            seat.close()

    def _rise_all(self) -> None:
        for first_shard in list(self._seats):
            self._rise(first_shard)

    def _evicted(self, first_shard: int) -> None:
        """Take the seat anew at the next beat, not at once: it may fail again. Without any other, hang up."""
        self._rise(first_shard)
        if not self._seats:
            self.link.drop("it could not be sent to")

    def _finish(self, first_shard: int, ids: list[int]) -> None:
        if first_shard in self._seats:
            self._seats[first_shard].ack(ids)

    def _deliver(self, first_shard: int, deliveries: list[Delivery]) -> None:
        seat, retry = self._seats.get(first_shard), self._manner.retry
        if seat is None:
            return
        for delivery in deliveries:
            out = framed(delivery, self._shards, first_shard, self._manner.clock.now(), self._manner.frame_bytes)
            self.link.write(memoryview(out.wire))
            self._counts.sent += delivery.count
            attempts = delivery.attempts
            if isinstance(attempts, int):
                if attempts > 1:
                    self._counts.resent += delivery.count
                    seat.extend(out.ids, retry.after_ns(attempts))
            else:
                for attempt in np.unique(attempts[attempts > 1]).tolist():
                    again = out.ids[attempts == attempt]
                    self._counts.resent += len(again)
                    seat.extend(again, retry.after_ns(attempt))
            if out.too_large:
                self._counts.too_large += len(out.too_large)
                _log.warning("%d messages are larger than a frame may be, and are not sent", len(out.too_large))
                seat.subscription.host.call_soon(partial(self._finish, first_shard, out.too_large))
        seat.lease_ns = retry.after_ns(1)
