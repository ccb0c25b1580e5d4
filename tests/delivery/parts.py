"""A shard in memory and a journal in a list, as delivery sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from penstock.columns import Column, Offsets
from penstock.delivery.cursor import Cursor
from penstock.delivery.instant import Instant
from penstock.delivery.page import WAITING
from penstock.delivery.rules import Rules
from penstock.delivery.seat import Keep, Seat
from penstock.delivery.source import Delivery, Entry
from penstock.delivery.subscription import Subscription
from penstock.message import Batch, Done, Rows
from penstock.settings import SubscriptionSettings

SECOND = 1_000_000_000
NONE = (np.empty(0, np.int64), np.empty(0, np.int64))


class MemoryShard:
    """Batches in a list; with `cold` they have to be fetched first."""

    def __init__(self) -> None:
        self.number = 0
        self.start = self.last_version = 0
        self.batches: list[Batch] = []
        self.end = 0
        self.cold = False
        self.fetches: list[Callable[[], None]] = []

    @property
    def readable_end(self) -> int:
        return self.end

    @property
    def kept_from(self) -> int:
        return self.start

    def put(self, bodies: Sequence[bytes], columns: dict[str, Column] | None = None, taken_ns: int = 0) -> Batch:
        rows = Rows.of(bodies, "test", columns)
        batch = Batch(self.end, rows.count, taken_ns, rows.cuts, rows.body, "test", rows.columns, 0)
        self.batches.append(batch)
        self.end += rows.count
        return batch

    def hole(self, count: int) -> None:
        self.end += count

    def read(self, offset: int, joined_below: int = 0) -> Batch | None:
        if self.cold:
            return None
        return next((batch for batch in self.batches if batch.end > offset), None)

    def fetch(self, offset: int, done: Callable[[], None]) -> None:
        self.fetches.append(done)

    def warm(self) -> None:
        self.cold = False
        fetches, self.fetches = self.fetches, []
        for done in fetches:
            done()

    def rows_between(self, first: int, end: int) -> int:
        return sum(max(0, min(b.end, end) - max(b.first, first)) for b in self.batches)


class ListJournal:
    """Keeps entries, as the file would."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.bloated = self.needs_snapshot = False
        self.compactions = 0

    def append(self, entries: Sequence[Entry] | npt.NDArray[np.int64]) -> None:
        self.entries += [tuple(int(v) for v in entry) for entry in entries]  # type: ignore[misc]

    def compact(self, entries: npt.NDArray[np.int64]) -> None:
        self.entries = [tuple(entry) for entry in entries.tolist()]
        self.compactions += 1
        self.bloated = self.needs_snapshot = False

    def keep(self, done: Done) -> None:
        done(None)

    def close(self, snapshot: Callable[[], npt.NDArray[np.int64]]) -> None:
        pass

    def remove(self) -> None:
        self.entries = []

    def array(self) -> npt.NDArray[np.int64]:
        return np.array(self.entries, np.int64).reshape(-1, 5)


class Receiver:
    """A consumer that remembers what it got."""

    def __init__(self, bench: Bench, lease_ns: int, credit: int, tag: str = "", keep: Keep | None = None) -> None:
        self.bench = bench
        self.got: list[tuple[int, bytes, int]] = []
        #: Looks at every body when it comes.
        self.check: Callable[[bytes], None] = lambda body: None
        self.last: list[int] = []
        self.tries: list[int] = []
        self.seat = Seat(bench.subscription, self._deliver, lease_ns, tag=tag, keep=keep)
        bench.subscription.join(self.seat)
        self.seat.set_credit(credit)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            rows = range(delivery.rows.start, delivery.rows.stop) if isinstance(delivery.rows, slice) else delivery.rows
            for number, row in enumerate(rows):
                self.check(delivery.batch.row_body(int(row)))
                tries = delivery.attempts if isinstance(delivery.attempts, int) else int(delivery.attempts[number])
                self.got.append((delivery.batch.first + int(row) + 1, delivery.batch.row_body(int(row)), tries))

    def take(self) -> list[bytes]:
        self.bench.pump()
        got, self.got = self.got, []
        self.last = [id_ for id_, _, _ in got]
        self.tries = [tries for _, _, tries in got]
        return [body for _, body, _ in got]

    def ack(self, ids: list[int]) -> list[int]:
        return self.seat.ack(ids)

    def release(self, ids: list[int], delay_ns: int = 0) -> list[int]:
        return self.seat.release(ids, delay_ns)

    def extend(self, ids: list[int]) -> list[int]:
        return self.seat.extend(ids, self.seat.lease_ns)

    def leave(self) -> None:
        self.seat.close()


class Bench:
    """One subscription over one shard, with the clock in your hand; it hands out when told to and not before."""

    flush_at_once = False
    is_shared = False
    #: The key by which ids are shown.
    incarnation = 0x5DEECE66D
    busy = False

    def __init__(self, settings: SubscriptionSettings | None = None, rules: Rules | None = None) -> None:
        self.shard = MemoryShard()
        self.journal = ListJournal()
        self.settings = settings or SubscriptionSettings()
        chosen = self.settings
        run = chosen.key_run if chosen.order == "key" else 0
        self.rules = rules or Rules(None, chosen.ttl_ns, chosen.max_attempts, chosen.order == "shard", run)
        self.instant = Instant(1_000 * SECOND, 1_700_000_000 * SECOND)
        self.buried: list[Offsets] = []
        self.woken = 0
        self.is_open = False
        self.soon: list[Callable[[], None]] = []
        self.subscription = self._open()

    def _open(self, due: tuple[Offsets, Offsets] = NONE) -> Subscription:
        subscription = Subscription("audit", 1, self.settings, self)
        cursor = Cursor(
            self.shard,
            self.journal,
            self.rules,
            self._wake,
            lambda _, batch, rows: self.buried.append(rows),
            subscription.names,
        )
        cursor.recover(self.journal.array(), 0, due, self.instant, subscription.number_of)
        subscription.add(cursor)
        return subscription

    @property
    def cursor(self) -> Cursor:
        return self.subscription.cursors[0]

    def _wake(self) -> None:
        self.woken += 1

    def crash(self, *, flush: bool = True, due: tuple[Offsets, Offsets] = NONE) -> None:
        """Come up again with what the journal says."""
        if flush:
            self.cursor.flush(self.instant)
        self.subscription = self._open(due)

    def receiver(
        self, credit: int = 1000, lease_ns: int = 60 * SECOND, tag: str = "", keep: Keep | None = None
    ) -> Receiver:
        return Receiver(self, lease_ns, credit, tag, keep)

    def advance(self, ns: int) -> None:
        self.instant = Instant(self.instant.monotonic_ns + ns, self.instant.wall_ns + ns)
        self.subscription.expire(self.instant)
        self._announce()
        self.cursor.states.pop_due(self.instant.wall_ns)

    def _announce(self) -> None:
        """Announce published rows as the topic does, so long ahead as the subscription wants."""
        states = self.cursor.states
        until_ns = self.instant.wall_ns + states.agenda.lead_ns
        rows = states.pages.held()
        state, attempts, due_ns, _ = states.pages.details(rows)
        coming = (state == WAITING) & (attempts == 0) & (due_ns <= until_ns)
        states.announced(rows[coming], until_ns, self.instant.wall_ns)

    def pump(self) -> None:
        self.turn()
        while self.soon:
            self.turn()

    def turn(self) -> None:
        """Hand out what one turn of the loop does."""
        self.is_open = True
        soon, self.soon = self.soon, []
        for call in soon:
            call()
        self.subscription.pump()
        self.is_open = False

    def sums_hold(self) -> bool:
        counts = self.subscription.counts()
        return counts.pop("passed") == sum(counts.values())

    # --- what a subscription needs of its topic -------------------------------------------------------------------

    def now(self) -> Instant:
        return self.instant

    def wall(self) -> int:
        return self.instant.wall_ns

    def monotonic(self) -> int:
        return self.instant.monotonic_ns

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def touch(self) -> None:
        pass

    def set_timer(self) -> None:
        pass

    def left(self, subscription: Subscription) -> None:
        pass

    def failed(self, seat: Seat | None, failure: Exception) -> None:
        raise failure
