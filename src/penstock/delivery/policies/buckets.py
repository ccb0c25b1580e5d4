"""The `buckets` policy: rows stand in buckets, and buckets are dealt to seats: in ranges, to gladiators, or by racks.

A seat takes what is its own first; of what others have it takes, where the dealer lets it, what is left when everybody
was asked. It deals by the seats that are here, at once; or, once somebody says so, by tables that he gives, each from
its window on. A deal reads no row and touches no lease.

Backups take what was due first of what they back up: they need not meet owners in the middle here, since a row is
leased in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns import OFFSET_BITS, Offsets
from penstock.dealing.buckets import of_ids
from penstock.dealing.ranges import NOBODY
from penstock.dealing.table import DealerName, Member, Table, deal, moves
from penstock.dealing.windows import Schedule, Windows
from penstock.delivery.instant import Instant
from penstock.delivery.page import Slots
from penstock.delivery.policies.policy import NO_LIMIT, Policy, Stock, Taker
from penstock.message import Batch, int64s

#: So many rows stand in lanes if there are as many: who was due first is known among these.
AHEAD_ROWS = 16_384

_MS = 1_000_000

#: Lanes in the order in which they are tried; a set that has an order.
Lanes: TypeAlias = dict[int, None]


class Buckets(Policy):
    """Buckets that seats own and back up."""

    name = "buckets"
    many = True
    by_due = True
    ranks = 2

    def __init__(self, dealer: DealerName = "simple", buckets: int = 1024, prefetch_ns: int = 0) -> None:
        self.dealer = dealer
        self.buckets = buckets
        self.lead_ns = prefetch_ns
        #: The buckets that moved since the start, from one owner to another.
        self.moves = 0
        #: The seats that are here, each under the name it is dealt to by.
        self._here: dict[Taker, Member] = {}
        #: Where somebody else gives the tables; none of them may hold yet.
        self._windows: Windows | None = None
        #: Tells how many rows may be out at once that are not due yet; nothing bounds them where nobody does.
        self.ahead_max: Callable[[], int] | None = None
        self._ahead = Ahead()
        self._schedule = Schedule(dealer, buckets)
        self._stale = False
        self._share = Share(deal(dealer, (), buckets))

    @property
    def table(self) -> Table:
        """The table in force."""
        return self._dealt().table

    # --- from outside ---------------------------------------------------------------------------------------------

    def use_windows(self, windows: Windows) -> None:
        """Deal by tables alone from now on, each from its window on; nobody gets any before the first one holds."""
        self._windows = windows
        self._schedule = Schedule(self.dealer, self.buckets)
        self._go_by(deal(self.dealer, (), self.buckets))
        self.deal += 1

    def adopt(self, table: Table) -> bool:
        """Take in a table; whoever gives it sees to it that seats are asked again. False if it is of other buckets."""
        if table.buckets != self.buckets:
            return False
        self._schedule.adopt(table)
        return True

    def take_over(self, before: Policy) -> None:
        """Go by the tables that were given to the policy before, as far as they are of these buckets."""
        if isinstance(before, Buckets) and before._windows is not None:
            self.use_windows(before._windows)
            self.ahead_max, self._ahead = before.ahead_max, before._ahead
            if before.buckets == self.buckets:
                self._schedule = before._schedule

    def look(self, now: Instant) -> None:
        """Go by the table of this window, if that is another one."""
        if self._windows is not None:
            table = self._schedule.at(self._windows.at(now.wall_ns // _MS))
            if table is not None and table is not self._share.table:
                self._go_by(table)
                self.deal += 1

    def ahead_rows(self, wall_ns: int) -> int:
        """Return how many more rows may go out now that are not due yet; those that came back count until then."""
        return NO_LIMIT if self.ahead_max is None else self.ahead_max() - self._ahead.rows(wall_ns)

    def went_ahead(self, due_ns: Offsets, wall_ns: int) -> None:
        """Count rows that went out and are not due yet."""
        if self.lead_ns and self.ahead_max is not None:
            self._ahead.add(due_ns, wall_ns)

    def came_back(self, due_ns: Offsets, wall_ns: int) -> None:
        """Count rows no more of which nobody has heard."""
        if self.lead_ns and self.ahead_max is not None:
            self._ahead.take(due_ns, wall_ns)

    def opens_ns(self, now: Instant) -> int | None:
        """Return when the next table holds."""
        self.look(now)
        window = self._schedule.next_window()
        if self._windows is None or window is None:
            return None
        return self._windows.start_ms(window) * _MS - now.wall_ns + now.monotonic_ns

    # --- by the seats that are here -------------------------------------------------------------------------------

    def joined(self, taker: Taker) -> None:
        """Deal to one more."""
        # Connections may have one name, and each is somebody else.
        self._here[taker] = Member(taker.rack, taker.consumer or f"{taker.name}#{taker.holder}")
        self._changed()

    def left(self, taker: Taker) -> None:
        """Deal to one less."""
        self._here.pop(taker, None)
        self._changed()

    def _changed(self) -> None:
        if self._windows is None:
            # Many come and go together: it is dealt when somebody asks.
            self._stale = True
            self.deal += 1

    def _dealt(self) -> Share:
        if self._stale:
            self._stale = False
            before = self._share.table
            # A consumer that stands in two racks, or here twice, is one: where it came first.
            here = {member.name: member for member in reversed(self._here.values())}
            if set(here.values()) != set(before.members):
                self._go_by(deal(self.dealer, here.values(), self.buckets, before))
        return self._share

    def _go_by(self, table: Table) -> None:
        self.moves += moves(self._share.table, table)
        self._share = Share(table)

    # --- the policy -----------------------------------------------------------------------------------------------

    def stock(self, room: int) -> int:
        """Ask for many rows in lanes, so that those go first that were due first."""
        return AHEAD_ROWS

    def slots_of(self, shard: int, batch: Batch, offsets: Offsets) -> Slots:
        """Return the buckets of rows; where none was drawn, that of the id."""
        column = batch.columns.get("bucket")
        rows = offsets - batch.first
        if isinstance(column, pa.Array) and not column.null_count:
            return np.asarray(column, np.int32)[rows] % self.buckets
        ids = (shard << OFFSET_BITS) + offsets + 1
        if column is None:
            return of_ids(ids, self.buckets)
        values, valid = int64s(column)
        found = values[rows] % self.buckets
        return found.astype(np.int32) if valid.all() else np.where(valid[rows], found, of_ids(ids, self.buckets))

    def lanes_of(self, slots: Slots) -> Slots:
        """Return the lane of each bucket: those that the same consumers have, each in its rack, are one."""
        return self._dealt().lanes[slots]

    def may_take(self, taker: Taker, lanes: Collection[int], rank: int) -> bool:
        """Tell whether one of the lanes is a seat's own, or one that it backs up."""
        share = self._dealt()
        member = self._here.get(taker)
        if member is None:
            return bool(rank or not self._here)
        return not (share.own(member.name) if rank == 0 else share.backups(member.name)).keys().isdisjoint(lanes)

    def open_to(self, taker: Taker, stock: Stock, rank: int, now: Instant) -> Iterable[int]:
        """Give a seat its own, then what it is a backup for; whoever only looks takes what these leave."""
        self.look(now)
        share = self._dealt()
        member = self._here.get(taker)
        if member is None:
            return stock.codes() if rank or not self._here else ()
        return share.own(member.name) if rank == 0 else share.backups(member.name)


class Ahead:
    """Rows that are out and not due yet, by when they are."""

    def __init__(self) -> None:
        #: Ascending times; small runs grow together, so that there are few of them.
        self._runs: list[Offsets] = []

    def rows(self, wall_ns: int) -> int:
        """Return how many they are; those that are due by now are forgotten."""
        left = [run[np.searchsorted(run, wall_ns, side="right") :] for run in self._runs]
        self._runs = [run for run in left if len(run)]
        return sum(map(len, self._runs))

    def add(self, due_ns: Offsets, wall_ns: int) -> None:
        """Take in those of some rows that are not due yet."""
        run = np.sort(due_ns[due_ns > wall_ns])
        if len(run):
            while self._runs and len(self._runs[-1]) <= 2 * len(run):
                run = np.sort(np.concatenate((self._runs.pop(), run)))
            self._runs.append(run)

    def take(self, due_ns: Offsets, wall_ns: int) -> None:
        """Undo an `add`."""
        gone = np.sort(due_ns[due_ns > wall_ns])
        run = np.sort(np.concatenate(self._runs)) if self._runs else gone[:0]
        places = np.searchsorted(run, gone) + np.arange(len(gone)) - np.searchsorted(gone, gone)
        self._runs = [np.delete(run, places[places < len(run)])]


class Share:
    """One table as lanes: buckets that the same consumers have, one in each rack, stand in one."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._numbers = {member.name: number for number, member in enumerate(table.members)}
        #: Of each consumer, once somebody asked: its own lanes, and those it is a backup for.
        self._known: dict[str, tuple[Lanes, Lanes]] = {}
        tables = (table.primary, *table.by_rack)
        # Neighbours mostly have the same; so the dear part looks at few.
        changes = np.logical_or.reduce([owners[1:] != owners[:-1] for owners in tables])
        starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
        runs = np.stack([owners[starts] for owners in tables])
        #: For each lane: its owner, and who has it in each rack.
        self._holders, lanes = np.unique(runs, axis=1, return_inverse=True)
        lanes = lanes.reshape(-1)
        #: The highest bucket of each lane.
        self._tops = np.zeros(self._holders.shape[1], np.int64)
        ends = np.append(starts[1:], table.buckets)
        np.maximum.at(self._tops, lanes, ends - 1)
        #: The lane of each bucket.
        self.lanes: Slots = np.repeat(lanes.astype(np.int32), ends - starts)

    def own(self, consumer: str) -> Lanes:
        """Return the lanes that a consumer owns."""
        return self._of(consumer)[0]

    def backups(self, consumer: str) -> Lanes:
        """Return the lanes that it is a backup for, in the order in which it tries them."""
        return self._of(consumer)[1]

    def _of(self, consumer: str) -> tuple[Lanes, Lanes]:
        known = self._known.get(consumer)
        if known is None:
            number = self._numbers.get(consumer, NOBODY)
            known = self._known[consumer] = ({}, {}) if number == NOBODY else self._found(number)
        return known

    def _found(self, number: int) -> tuple[Lanes, Lanes]:
        owners = self._holders[0]
        own = np.flatnonzero(owners == number)
        if self.table.dealer == "simple":
            return dict.fromkeys(own.tolist()), {}
        backed: npt.NDArray[np.bool_] = owners != number
        if self.table.dealer == "rack":
            backed &= (self._holders[1:] == number).any(axis=0)
        backups = np.flatnonzero(backed)
        order = np.lexsort((-self._tops[backups], self.table.ranks(number)[owners[backups]]))
        return dict.fromkeys(own.tolist()), dict.fromkeys(backups[order].tolist())
