"""Time windows: a table holds for whole ones, and is dealt in the middle of the one before.

Pure: times are passed in, as milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.dealing.table import DealerName, Member, Table, deal, follow


class Windows(msgspec.Struct, frozen=True):
    """Windows of one width: number n is [n * width, (n + 1) * width)."""

    width_ms: int = 1000

    def at(self, time_ms: int) -> int:
        """Return the window that a time falls into."""
        return time_ms // self.width_ms

    def start_ms(self, window: int) -> int:
        """Return when a window begins."""
        return window * self.width_ms

    def deal_point_ms(self, window: int) -> int:
        """Return when, within a window, the table for the next one is dealt: in its middle."""
        return window * self.width_ms + self.width_ms // 2

    def next_deal_point_ms(self, time_ms: int) -> int:
        """Return the first deal point that is not before a time."""
        window = self.at(time_ms)
        point_ms = self.deal_point_ms(window)
        return point_ms if time_ms <= point_ms else self.deal_point_ms(window + 1)

    def serves_from(self, joined_ms: int) -> int:
        """Return the first window in which somebody serves who was there at a time: the one after a deal with it."""
        return self.at(self.next_deal_point_ms(joined_ms)) + 1


class Schedule:
    """The table that holds now, and those that will. Each node follows it alone, with the same outcome."""

    def __init__(self, dealer: DealerName, buckets: int) -> None:
        self._dealer = dealer
        self._buckets = buckets
        self._current: Table | None = None
        #: Those that hold later, by epoch.
        self._coming: list[Table] = []

    @property
    def last(self) -> Table | None:
        """The latest table there is."""
        return self._coming[-1] if self._coming else self._current

    def adopt(self, table: Table) -> None:
        """Take a table in, whoever dealt it; of two of one epoch the one that came last counts, older ones do not."""
        if self._current is not None and table.epoch < self._current.epoch:
            return
        if self._current is not None and table.epoch == self._current.epoch:
            self._current = None
        later = [one for one in self._coming if one.epoch != table.epoch]
        self._coming = sorted([*later, table], key=lambda one: one.epoch)

    def at(self, window: int) -> Table | None:
        """Return the table in force in a window, the latest that holds by then; None if none does yet.

        What it replaced is forgotten: a clock that goes back does not bring it back.
        """
        while self._coming and (table := self._begun(window)) is not None:
            self._current = table
            self._coming = [one for one in self._coming if one.epoch > table.epoch]
        return self._current

    def next_window(self) -> int | None:
        """Return from which window on another table holds; None if none is known."""
        return min((table.window for table in self._coming), default=None)

    def deal(self, members: Iterable[Member], window: int) -> Table | None:
        """Deal, at the deal point of a window, for the next one; None if the last table stays in force.

        Whoever asks proposes it to the others, and adopts it or what was there before it.
        """
        last = self.last
        if last is None or (last.dealer, last.buckets) != (self._dealer, self._buckets):
            return deal(self._dealer, members, self._buckets, last, window + 1)
        table = follow(last, members, window + 1)
        return None if table is last else table

    def _begun(self, window: int) -> Table | None:
        begun = [table for table in self._coming if table.window <= window]
        return begun[-1] if begun else None
