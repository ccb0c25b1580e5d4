"""What a subscription refuses before dispatch: traffic types, time to live, rows not yet due.

`sift` judges the rows of one batch, once, when the cursor passes them (ruling 12). Pure: columns in, row numbers out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets
from penstock.filters.traffic import Rules as TrafficRules
from penstock.filters.traffic import TrafficFilter
from penstock.message import Batch, int64s
from penstock.settings import SubscriptionSettings

_NONE = np.empty(0, np.int64)


class TrafficTest(NamedTuple):
    """The routing policy's answer for one subscription."""

    #: One verdict per row of a batch, not to be written to.
    judge: Callable[[Batch], npt.NDArray[np.bool_]]
    #: The verdict on rows without traffic bits.
    untyped: bool


class Sifted(NamedTuple):
    """Offsets of one batch by what happens to them next."""

    ready: Offsets
    waiting: Offsets
    waiting_due_ns: Offsets
    filtered: Offsets
    expired: Offsets

    def without(self, skipped: Offsets) -> Sifted:
        """Return the same less some offsets."""
        later = ~np.isin(self.waiting, skipped)
        return Sifted(
            np.setdiff1d(self.ready, skipped, assume_unique=True),
            self.waiting[later],
            self.waiting_due_ns[later],
            np.setdiff1d(self.filtered, skipped, assume_unique=True),
            np.setdiff1d(self.expired, skipped, assume_unique=True),
        )


class Rules(NamedTuple):
    """The tests of one subscription; None and 0 mean that a test is not asked for."""

    traffic: TrafficTest | None = None
    ttl_ns: int = 0
    max_attempts: int = 0
    #: One row of the shard out at a time, the next after its ack.
    ordered: bool = False
    #: So many rows of a key out at a time; 0 = keys are not looked at.
    key_run: int = 0

    @property
    def looks(self) -> bool:
        """Whether every row must be looked at, whatever its batch brings."""
        return (
            self.ttl_ns > 0
            or self.ordered
            or self.key_run > 0
            or (self.traffic is not None and not self.traffic.untyped)
        )

    def concerns(self, batch: Batch) -> bool:
        """Tell whether any row of the batch could be held back, so that the common batch needs no look at its rows."""
        columns = batch.columns
        if self.traffic is not None and ("traffic" in columns or not self.traffic.untyped):
            return True
        return self.ttl_ns > 0 or (bool(columns) and ("due" in columns or "expires" in columns))

    def ages(self, batch: Batch) -> bool:
        """Tell whether a verdict on a row of the batch may be another one later."""
        return self.ttl_ns > 0 or (bool(batch.columns) and "expires" in batch.columns)

    def expired(self, batch: Batch, rows: slice | Offsets, now_ns: int) -> npt.NDArray[np.bool_]:
        """Tell which rows are too old to be delivered."""
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        over = np.zeros(count, np.bool_)
        if self.ttl_ns:
            taken = batch.timestamp
            over |= (taken if isinstance(taken, int) else np.asarray(taken)[rows]) + self.ttl_ns <= now_ns
        column = batch.columns.get("expires")
        if column is not None:
            expires, valid = int64s(column)
            over |= valid[rows] & (expires[rows] <= now_ns)
        return over

    def sift(self, batch: Batch, start: int, stop: int, now_ns: int) -> Sifted:
        """Judge rows start .. stop - 1 of a batch."""
        rows = slice(start, stop)
        offsets = np.arange(batch.first + start, batch.first + stop)
        passed = np.ones(len(offsets), np.bool_)
        filtered = expired = _NONE
        if self.traffic is not None:
            passed = self.traffic.judge(batch)[rows].copy()
            filtered = offsets[~passed]
        if self.ttl_ns or "expires" in batch.columns:
            over = self.expired(batch, rows, now_ns) & passed
            expired = offsets[over]
            passed &= ~over
        column = batch.columns.get("due")
        if column is None:
            return Sifted(offsets[passed], _NONE, _NONE, filtered, expired)
        due, valid = int64s(column)
        later = valid[rows] & (due[rows] > now_ns) & passed
        return Sifted(offsets[passed & ~later], offsets[later], due[rows][later], filtered, expired)


def rules_of(settings: Mapping[str, SubscriptionSettings], mapping: Mapping[str, int]) -> dict[str, Rules]:
    """Return the rules of all subscriptions of a topic, by name; their traffic filters look at a batch together."""
    filters = {
        name: TrafficFilter(one.traffic.allowed, one.traffic.is_default)
        for name, one in settings.items()
        if one.traffic is not None
    }
    together = TrafficRules(list(filters.values()), mapping)
    untyped = together.verdict(0)
    tests = {name: TrafficTest(partial(_judged, together, row), untyped[row]) for row, name in enumerate(filters)}
    return {
        name: Rules(
            tests.get(name),
            one.ttl_ns,
            one.max_attempts,
            one.order == "shard",
            one.key_run if one.order == "key" else 0,
        )
        for name, one in settings.items()
    }


def _judged(filters: TrafficRules, row: int, batch: Batch) -> npt.NDArray[np.bool_]:
    """Return one filter's verdicts on a batch; the first to ask makes them for all."""
    if batch.verdicts is None or batch.verdicts[0] is not filters:
        column = batch.columns.get("traffic")
        bits = np.zeros(batch.count, np.int64) if column is None else int64s(column)[0]
        batch.verdicts = (filters, filters.verdicts(bits))
    verdicts: npt.NDArray[np.bool_] = batch.verdicts[1][row]
    return verdicts
