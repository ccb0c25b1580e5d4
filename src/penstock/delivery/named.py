"""Leases that outlive connections: written down before anybody hears of them (ruling 3), and answered for by receipt.

Knows nothing of who holds a name, and no clock: times are passed in.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from penstock.columns import SMALL, Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.journal import JournalWriter
from penstock.delivery.page import READY, WAITING
from penstock.delivery.pages import Pages
from penstock.delivery.source import Delivery


class NamedLeases:
    """The leases of one shard that named holders have."""

    __slots__ = ("_journal", "_names", "_pages")

    def __init__(self, pages: Pages, journal: JournalWriter, names: Mapping[int, str]) -> None:
        self._pages = pages
        self._journal = journal
        self._names = names

    def note(self, out: list[Delivery], holder: int, now: Instant) -> None:
        """Note leases that no connection holds, to be written before anybody hears of them (ruling 3)."""
        name, later_ns = self._names[holder], now.wall_ns - now.monotonic_ns
        for delivery in out:
            rows, first = delivery.rows, delivery.batch.first
            if isinstance(rows, slice):  # straight from the log: what one of them has, all have
                deadline_ns, version = self._pages.few.lease_of(first + rows.start)
                delivery.versions = [version] * delivery.count
                ends = (first + rows.start, first + rows.stop - 1)
                self._journal.held_range(holder, name, ends, 1, deadline_ns + later_ns, version)
            elif delivery.count <= SMALL:
                offsets = delivery.offsets()
                deadlines, delivery.versions = self._pages.few.leases_of(offsets)
                ends_ns = [deadline_ns + later_ns for deadline_ns in deadlines]
                self._journal.held_few(holder, name, offsets, delivery.tries(), ends_ns, delivery.versions)
            else:
                picked = first + rows
                attempts, until_ns, versions = self._pages.leases(picked)
                delivery.versions = versions.tolist()
                self._journal.held(holder, name, picked, attempts, until_ns + later_ns, versions)

    def current(self, offsets: Offsets, versions: Offsets, holder: int) -> npt.NDArray[np.bool_]:
        """Tell which rows a holder has on lease in these versions."""
        mask: npt.NDArray[np.bool_] = self._pages.leased(offsets, holder) & (self._pages.versions(offsets) == versions)
        return mask

    def last(self, offsets: Offsets, versions: Offsets) -> npt.NDArray[np.bool_]:
        """Tell which rows came back from the leases of these versions and did not go out since."""
        state = self._pages.details(offsets)[0]
        mask: npt.NDArray[np.bool_] = ((state == READY) | (state == WAITING)) & (
            self._pages.versions(offsets) == versions + 1
        )
        return mask

    def note_rows(self, holder: int, offsets: Offsets, deadline_ns: int, now: Instant) -> None:
        """Note when the leases of rows end that a holder has had for a while."""
        ends_ns = np.full(len(offsets), now.wall_ns + deadline_ns - now.monotonic_ns)
        attempts, versions = self._pages.attempts(offsets).astype(np.int64), self._pages.versions(offsets)
        self._journal.held(holder, self._names[holder], offsets, attempts, ends_ns, versions)
