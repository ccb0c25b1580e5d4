"""Partitions: equal parts of the ids of a queue, each locked for a while after it gave rows, oldest use first.

Pure: times are passed in. Which rows are in a partition is the policy's affair.
Invariants: there are never fewer than `least` partitions nor more than `most`; they are numbered without holes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets
from penstock.settings import HOUR_NS, SECOND_NS

#: A partition that was never used counts as used before all times.
_NEVER_NS = -(1 << 62)


class Partitions:
    """When each was used and looked at, and which are locked."""

    def __init__(self, seed: int) -> None:
        #: As many there are at the start, and at most; see `configure`.
        self.least, self.most = 1, 10
        #: One that gave rows is locked for more than this ...
        self.visibility_ns = 30 * SECOND_NS
        #: ... and one that nobody looked into for more than this may go.
        self.age_ns = 120 * HOUR_NS
        self._random = np.random.default_rng(seed)
        self._used_ns: Offsets = np.empty(0, np.int64)
        self._locked: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        #: When it was last looked into, or made; before time is known, `_NEVER_NS`.
        self._touched_ns: Offsets = np.empty(0, np.int64)
        #: Locked until then by rows that were out when the process before this one ended.
        self._kept_ns: Offsets = np.empty(0, np.int64)
        self._add(self.least, _NEVER_NS)

    def __len__(self) -> int:
        return len(self._used_ns)

    # --- one look -------------------------------------------------------------------------------------------------

    def free(self, now_ns: int) -> npt.NDArray[np.bool_]:
        """Tell which may be used."""
        open_ = ~self._locked | (now_ns - self._used_ns > self.visibility_ns)
        return open_ & (now_ns > self._kept_ns)

    def oldest(self, now_ns: int, among: Sequence[int]) -> list[int]:
        """Return those of some that may be used, the one that was used longest ago first."""
        free = self.free(now_ns)
        found = np.array([number for number in among if free[number]], np.int64)
        ordered: list[int] = found[np.argsort(self._used_ns[found], kind="stable")].tolist()
        return ordered

    def grow(self, now_ns: int) -> bool:
        """Add one if none may be used and there may be more; tell whether that was done."""
        if len(self) >= self.most or self.free(now_ns).any():
            return False
        self._add(1, now_ns)
        return True

    def served(self, number: int, now_ns: int) -> None:
        """Lock one that gave rows."""
        self._used_ns[number] = self._touched_ns[number] = now_ns
        self._locked[number] = True
        self._kept_ns[number] = 0

    def unlock(self, number: int) -> None:
        """Let one be used at once."""
        self._locked[number] = False

    def passed(self, now_ns: int) -> bool:
        """Note a look that found nothing: the one used longest ago has had it. False if none may be used."""
        free = np.flatnonzero(self.free(now_ns))
        if len(free) == 0:
            return False
        number = free[int(np.argmin(self._used_ns[free]))]
        self._used_ns[number] = now_ns - self.visibility_ns
        self._touched_ns[number] = now_ns
        self._locked[number] = False
        return True

    def opens_ns(self, now_ns: int) -> int | None:
        """Return when the next one may be used that may not be now."""
        shut = ~self.free(now_ns)
        if not shut.any():
            return None
        return int(np.maximum(self._used_ns[shut] + self.visibility_ns, self._kept_ns[shut]).min()) + 1

    # --- how many -------------------------------------------------------------------------------------------------

    def configure(self, least: int, most: int, visibility_ns: int, age_ns: int, now_ns: int) -> None:
        """Go by these from now on, and have as many as they say; what nobody looks into goes."""
        self.least, self.most, self.visibility_ns, self.age_ns = least, most, visibility_ns, age_ns
        self._touched_ns[self._touched_ns == _NEVER_NS] = now_ns
        count = max(min(len(self), most), least)
        aged = int((now_ns - self._touched_ns[:count] > age_ns).sum())
        count = max(least, count - aged)
        if count > len(self):
            self._add(count - len(self), now_ns)
        elif count < len(self):
            self._merge(count)

    def keep(self, ends_ns: Offsets) -> None:
        """Lock each until a time, if that is to come; 0 for those that are not."""
        self._kept_ns = ends_ns

    def _add(self, count: int, now_ns: int) -> None:
        """Add some that were never used, in no order among themselves."""
        order = self._random.permutation(count)
        self._used_ns = np.concatenate((self._used_ns, _NEVER_NS + order))
        self._locked = np.concatenate((self._locked, np.zeros(count, np.bool_)))
        self._touched_ns = np.concatenate((self._touched_ns, np.full(count, now_ns)))
        self._kept_ns = np.concatenate((self._kept_ns, np.zeros(count, np.int64)))

    def _merge(self, count: int) -> None:
        """Have fewer: each takes the latest use, with its lock, of those it overlaps."""
        before = len(self)
        latest = np.empty(count, np.int64)
        touched, kept = np.empty(count, np.int64), np.empty(count, np.int64)
        for number in range(count):
            overlapped = slice(number * before // count, -(-(number + 1) * before // count))
            latest[number] = overlapped.start + int(np.argmax(self._used_ns[overlapped]))
            touched[number] = self._touched_ns[overlapped].max()
            kept[number] = self._kept_ns[overlapped].max()
        self._used_ns, self._locked = self._used_ns[latest], self._locked[latest]
        self._touched_ns, self._kept_ns = touched, kept
