"""One connection to one instance of a consumer service: messages out, acks back.

Owns a seat while it stands. What is not acked in time goes out again, over whatever connection has the shard then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

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


class Connection:
    """A link, and the seat that is there while it stands."""

    def __init__(
        self,
        address: tuple[str, int],
        name: str,
        attach: Callable[..., Seat],
        manner: Manner,
        counts: Counts,
        shards: int,
        first_shard: int,
    ) -> None:
        #: Which rows its instance may have, where that depends on their time.
        self._keep: Keep | None = None
        self._attach = attach
        self._name = name
        self._manner = manner
        self._counts = counts
        self._shards = shards
        self._first_shard = first_shard
        self._seat: Seat | None = None
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
        return self._seat.in_flight if self._seat is not None else 0

    @property
    def is_open(self) -> bool:
        """Whether it can be sent to."""
        return self._seat is not None

    def judge_by(self, keep: Keep | None) -> None:
        """Take only what this says of rows; what it refuses is finished."""
        self._keep = keep
        if self._seat is not None:
            self._seat.keep = keep

    def drain(self) -> None:
        """Send nothing more; acks of what is out still come."""
        self._draining = True
        if self._seat is not None:
            self._seat.set_credit(0)

    def close(self) -> None:
        """Leave; whatever is out is for others."""
        self._leave()
        self.link.close()

    # --- the link calls these -------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Take a seat."""
        self.link.settled()
        self._reader = AckReader(self._manner.frame_bytes)
        self._full_ns = None
        if self._draining:  # a node that stops gives no seats
            return
        self._seat = self._attach(
            self._deliver,
            lease_ns=self._manner.retry.after_ns(1),
            name=self._name,
            keep=self._keep,
            evict=self._evicted,
        )
        self._seat.set_credit(self._manner.in_flight)

    def received(self, data: bytes) -> None:
        """Finish what was acked."""
        said = self._reader.feed(data)
        if said is not None and self._seat is not None:
            ids = np.asarray(said.id, np.uint64).view(np.int64)
            unknown = len(self._seat.ack(ids))
            self._counts.acked += len(ids) - unknown
            self._counts.unknown += unknown
        if self._reader.frames.fault:
            self.link.drop(self._reader.frames.fault)

    def beat(self) -> None:
        """Give up on who does not read."""
        if (
            self._full_ns is not None
            and self._manner.clock.monotonic() - self._full_ns >= self._manner.write_timeout_ns
        ):
            self.link.drop(f"it did not read for {self._manner.write_timeout_ns / SECOND:g} s")

    def hold(self, full: bool) -> None:
        """Send nothing more while what was sent does not leave."""
        self._full_ns = self._manner.clock.monotonic() if full else None
        if self._seat is not None:
            if full:
                self._seat.block()
            else:
                self._seat.unblock()

    def closed(self, why: str) -> None:
        """Give back what is out; it goes to whoever has its shard."""
        self._counts.resets += 1
        self._leave()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.close()

    def _evicted(self) -> None:
        """Hang up: without a seat a link that stands would let its shards wait for nobody."""
        self._leave()
        self.link.drop("it could not be sent to")

    def _finish(self, ids: list[int]) -> None:
        if self._seat is not None:
            self._seat.ack(ids)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        seat, retry = self._seat, self._manner.retry
        if seat is None:
            return
        for delivery in deliveries:
            out = framed(delivery, self._shards, self._first_shard, self._manner.clock.now(), self._manner.frame_bytes)
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
                seat.subscription.host.call_soon(partial(self._finish, out.too_large))
        seat.lease_ns = retry.after_ns(1)
