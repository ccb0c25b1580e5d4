"""A topic that is nowhere but in this process: delivery's own parts over batches in memory, for a relay without a node.

Nothing is written, so nothing survives. What the journal of a subscription would be told is how it is known which rows
are finished: whoever holds rows for several subscriptions counts by that.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

import numpy as np
import numpy.typing as npt

from penstock.clock import MILLISECOND, Clock, Timer
from penstock.columns import Offsets
from penstock.delivery.cursor import Cursor
from penstock.delivery.instant import Instant
from penstock.delivery.journal import ACKED, HOLE, SKIPPED
from penstock.delivery.rules import Rules, rules_of
from penstock.delivery.seat import Deliver, Keep, Seat
from penstock.delivery.source import Entry
from penstock.delivery.subscription import Subscription
from penstock.message import Batch, Done, Rows
from penstock.registry.answer import Answer
from penstock.settings import SubscriptionSettings

_log = logging.getLogger("penstock.m3msg")

#: Leases end, and what is too old is let go of, at most this much too late.
LOOK_NS = 10 * MILLISECOND
#: A batch of which so little is waited for is cut into what is, so that memory follows the messages that wait.
_SPARSE = 4

_NONE = np.empty(0, np.int64)

#: (the bit of a subscription, the first and the last row that it has finished)
Finished = Callable[[int, int, int], None]


class Kept:
    """Batches in memory, each for as long as some row of it is waited for."""

    number = 0
    last_version = 0
    start = kept_from = 0

    def __init__(self) -> None:
        self.readable_end = 0
        self._firsts: list[int] = []
        self._batches: list[Batch] = []
        self._open: list[set[int]] = []

    def put(self, rows: Rows, wall_ns: int) -> Batch:
        """Store rows behind the others."""
        batch = Batch(self.readable_end, rows.count, wall_ns, rows.cuts, rows.body, rows.source, rows.columns, 0)
        self._firsts.append(batch.first)
        self._batches.append(batch)
        self._open.append(set(range(batch.first, batch.end)))
        self.readable_end = batch.end
        return batch

    @property
    def first(self) -> int:
        """The first row that is waited for."""
        return self._firsts[0] if self._firsts else self.readable_end

    def taken_before(self, wall_ns: int) -> int:
        """Return the offset below which all rows were taken at or before a time."""
        end = self.first
        for batch in self._batches:
            if batch.row_time(0) > wall_ns:
                break
            end = batch.end
        return end

    def done(self, offset: int) -> None:
        """Let go of a row."""
        place = bisect_right(self._firsts, offset) - 1
        left = self._open[place]
        left.discard(offset)
        batch = self._batches[place]
        if not left:
            del self._firsts[place], self._batches[place], self._open[place]
        elif len(left) * _SPARSE < batch.count:
            pieces = [_piece(batch, first, last) for first, last in _runs(sorted(left))]
            self._firsts[place : place + 1] = [piece.first for piece in pieces]
            self._batches[place : place + 1] = pieces
            self._open[place : place + 1] = [set(range(piece.first, piece.end)) for piece in pieces]

    def read(self, offset: int, joined_below: int = 0) -> Batch | None:
        """Return the batch that holds an offset or comes next after it."""
        place = max(bisect_right(self._firsts, offset) - 1, 0)
        if place < len(self._batches) and self._batches[place].end <= offset:
            place += 1
        return self._batches[place] if place < len(self._batches) else None

    def fetch(self, offset: int, done: Callable[[], None]) -> None:
        """Bring nothing: all there is is in memory."""
        done()

    def rows_between(self, first: int, end: int) -> int:
        """Return how many rows are stored in a range of offsets."""
        place = max(bisect_right(self._firsts, first) - 1, 0)
        found = 0
        for batch in self._batches[place:]:
            if batch.first >= end:
                break
            found += max(0, min(batch.end, end) - max(batch.first, first))
        return found


def _runs(offsets: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = runs[-1][0], offset
        else:
            runs.append((offset, offset))
    return runs


def _piece(batch: Batch, first: int, last: int) -> Batch:
    """Return some rows of a batch, with nothing of the others."""
    rows = range(first - batch.first, last - batch.first + 1)
    columns = {name: [batch.row_value(name, row) for row in rows] for name in batch.columns}
    some = Rows.of([batch.row_body(row) for row in rows], batch.row_source(0), columns)
    return Batch(first, some.count, batch.row_time(0), some.cuts, some.body, some.source, some.columns, 0)


class Heard:
    """A journal that nobody reads again: it tells which rows are finished."""

    bloated = needs_snapshot = False

    def __init__(self, told: Callable[[int, int], None], gone: Callable[[], None]) -> None:
        self._told = told
        self.remove = gone

    def append(self, entries: Sequence[Entry] | npt.NDArray[np.int64]) -> None:
        """Tell of the rows that these entries finish."""
        for op, first, last, _, _ in entries.tolist() if isinstance(entries, np.ndarray) else entries:
            if ACKED <= op <= HOLE or op == SKIPPED:
                self._told(first, last)

    def compact(self, entries: npt.NDArray[np.int64]) -> None:
        """Keep nothing."""

    def keep(self, done: Done) -> None:
        """Keep nothing."""
        done(None)

    def close(self, snapshot: Callable[[], npt.NDArray[np.int64]]) -> None:
        """Keep nothing."""


class MemoryTopic:
    """Subscriptions over what was put in."""

    #: Whoever waits for a message hears of its ack at once.
    flush_at_once = True
    is_shared = False
    incarnation = 0

    def __init__(self, name: str, clock: Clock, finished: Finished, traffic_types: Mapping[str, int]) -> None:
        self.name = name
        self.kept = Kept()
        self.subscriptions: dict[str, Subscription] = {}
        self.busy = False
        self.is_open = True
        self._bits: dict[str, int] = {}
        self.wall, self.monotonic = clock.now, clock.monotonic
        self.call_soon = clock.call_soon
        self._clock = clock
        self._finished = finished
        self._mapping = traffic_types
        self._numbers = count()
        self._remembered: dict[str, bytes] = {}
        self._timer: Timer | None = None

    @property
    def waits(self) -> int:
        """A bit for each subscription that gets what comes next."""
        ends = [(self._bits[name], each.cursors[0].position.gate) for name, each in self.subscriptions.items()]
        return sum(bit for bit, gate in ends if gate is None)

    def append(self, rows: Rows) -> Batch:
        """Store rows, and find out who wants which of them."""
        return self.kept.put(rows, self._clock.now())

    def offer(self) -> None:
        """Hand out what was appended; who refuses a row says so now, whether anybody is there or not."""
        now = self.now()
        for subscription in tuple(self.subscriptions.values()):
            for cursor in subscription.cursors:
                while cursor.sort_ahead(now):
                    pass
            subscription.flush()
            subscription.pump()
        self.touch()

    def remove(self, offset: int) -> None:
        """Let nobody have a row any more."""
        for subscription in tuple(self.subscriptions.values()):
            subscription.remove([offset + 1])

    def close(self) -> None:
        """End."""
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()

    # --- what a relay needs ---------------------------------------------------------------------------------------

    def subscribe(self, name: str, settings: SubscriptionSettings) -> Answer[Subscription]:
        """Answer with a subscription, made if there is none of this name; it gets what comes from now on."""
        if name not in self.subscriptions:
            self._make(name, settings)
        return Answer.of(self.subscriptions[name])

    def _make(self, name: str, settings: SubscriptionSettings) -> None:
        bit = 1 << next(self._numbers)
        subscription = Subscription(name, bit.bit_length(), settings, self)
        journal = Heard(partial(self._finished, bit), partial(self._forget, bit))
        cursor = Cursor(self.kept, journal, Rules(), subscription.wake, _bury, subscription.names)
        cursor.position.begin(self.kept.readable_end)
        subscription.add(cursor)
        self.subscriptions[name] = subscription
        self._bits[name] = bit
        self._apply_rules()

    def _forget(self, bit: int) -> None:
        self._finished(bit, 0, self.kept.readable_end - 1)

    def update_subscription(self, name: str, settings: SubscriptionSettings) -> Answer[Subscription]:
        """Change what a subscription does from now on."""
        subscription = self.subscriptions[name]
        subscription.configure(settings)
        self._apply_rules()
        self.touch()
        return Answer.of(subscription)

    def delete_subscription(self, name: str) -> Answer[None]:
        """Drop a subscription: nobody waits there any more."""
        del self._bits[name]
        for seat in self.subscriptions.pop(name).close(forget=True):
            if seat.evict is not None:
                seat.evict()
        return Answer.of(None)

    def attach(
        self,
        subscription: Subscription,
        deliver: Deliver,
        *,
        lease_ns: int | None = None,
        name: str = "",
        keep: Keep | None = None,
        evict: Callable[[], None] | None = None,
    ) -> Seat:
        """Let a receiver in and return its seat."""
        lease_ns = subscription.settings.lease_ns if lease_ns is None else lease_ns
        seat = Seat(subscription, deliver, lease_ns, name, keep=keep, evict=evict)
        subscription.join(seat)
        return seat

    def declared(self, subscription: str, settings: SubscriptionSettings) -> SubscriptionSettings | None:
        """Return None: there is no file."""
        return None

    def remembered(self, key: str) -> bytes | None:
        """Return what was remembered under a key."""
        return self._remembered.get(key)

    def remember(self, key: str, value: bytes) -> Answer[None]:
        """Remember something, for as long as the process lives."""
        self._remembered[key] = value
        return Answer.of(None)

    def forget(self, key: str) -> Answer[None]:
        """Remember nothing under a key any more."""
        self._remembered.pop(key, None)
        return Answer.of(None)

    def _apply_rules(self) -> None:
        settings = {name: each.settings for name, each in self.subscriptions.items()}
        refused = {name: each.refused for name, each in self.subscriptions.items()}
        for name, rules in rules_of(settings, self._mapping, refused).items():
            for cursor in self.subscriptions[name].cursors:
                cursor.use_rules(rules)

    # --- what subscriptions need ----------------------------------------------------------------------------------

    def now(self) -> Instant:
        """Return this instant."""
        return Instant(self._clock.monotonic(), self._clock.now())

    def touch(self) -> None:
        """See to it that leases end in time."""
        if not self.busy and self.is_open:
            self.busy = True
            self._timer = self._clock.call_at(self._clock.monotonic() + LOOK_NS, self._look)

    def _look(self) -> None:
        self.busy = False
        now = self.now()
        for subscription in tuple(self.subscriptions.values()):
            subscription.tick(now)
            if subscription.settings.ttl_ns:
                self._let_go(subscription, now.wall_ns - subscription.settings.ttl_ns)
        if self.kept.first < self.kept.readable_end:
            self.touch()

    def _let_go(self, subscription: Subscription, before_ns: int) -> None:
        """Finish what is older than a subscription wants it, also where nobody would ask for it."""
        end = self.kept.taken_before(before_ns)
        rows = subscription.unfinished(np.arange(self.kept.first, end) + 1) if end > self.kept.first else _NONE
        if len(rows):
            subscription.remove(rows)

    def set_timer(self) -> None:
        """Do nothing: no row waits for a time."""

    def left(self, subscription: Subscription) -> None:
        """Do nothing: a subscription stays without seats."""

    def failed(self, seat: Seat | None, failure: Exception) -> None:
        """Report a bug, and hang up on a seat that could not be served."""
        _log.error("a message could not be handed over", exc_info=failure)
        if seat is not None and seat.evict is not None:
            seat.credit = 0
            self._clock.call_soon(seat.evict)


def _bury(cursor: Cursor, batch: Batch, offsets: Offsets) -> None:
    """Do nothing: a message is sent until it is acked, there are no dead letters."""
