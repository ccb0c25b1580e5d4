"""What a subscription refuses before dispatch: by its filters, its time to live, rows not yet due.

`sift` judges the rows of one batch, once, when the cursor passes them (ruling 12). Pure: columns in, row numbers out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets, id_of
from penstock.filters.acceptance import ROUTING, Acceptance, Part
from penstock.filters.traffic import Rules as TrafficRules
from penstock.message import Batch, int64s
from penstock.settings import SubscriptionSettings

#: (a batch, the shard it is of) -> a verdict on each of its rows, not to be written to.
Judge: TypeAlias = Callable[[Batch, int], npt.NDArray[np.bool_]]

_NONE = np.empty(0, np.int64)


class RowTest(NamedTuple):
    """What the filters of one subscription say, together."""

    #: One verdict for each of some rows of a batch of a shard.
    judge: Callable[[Batch, slice, int], npt.NDArray[np.bool_]]
    #: The verdict on rows that have none of the columns it reads ...
    plain: bool
    #: ... which are these.
    reads: tuple[str, ...] = ("traffic",)
    #: It depends on which row it is, whatever that carries.
    each: bool = False


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

    test: RowTest | None = None
    ttl_ns: int = 0
    max_attempts: int = 0
    #: One row of the shard out at a time, the next after its ack.
    ordered: bool = False
    #: So many rows of a key out at a time; 0 = keys are not looked at.
    key_run: int = 0
    #: The shard whose rows it judges.
    shard: int = 0

    @property
    def looks(self) -> bool:
        """Whether every row must be looked at, whatever its batch brings."""
        return (
            self.ttl_ns > 0
            or self.ordered
            or self.key_run > 0
            or (self.test is not None and (self.test.each or not self.test.plain))
        )

    def concerns(self, batch: Batch) -> bool:
        """Tell whether any row of the batch could be held back, so that the common batch needs no look at its rows."""
        columns = batch.columns
        test = self.test
        if test is not None and (test.each or not test.plain or any(name in columns for name in test.reads)):
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

    def all_go(self, batch: Batch, start: int, stop: int, now_ns: int) -> bool:
        """Tell whether rows may all go out now, where that is seen without judging each; False says nothing."""
        columns = batch.columns
        if self.test is not None or (columns and ("due" in columns or "expires" in columns)):
            return False
        if not self.ttl_ns:
            return True
        taken = batch.timestamp
        if isinstance(taken, int):
            return taken + self.ttl_ns > now_ns
        times = taken[start:stop]
        return min(times if isinstance(times, list) else times.tolist()) + self.ttl_ns > now_ns

    def sift(self, batch: Batch, start: int, stop: int, now_ns: int) -> Sifted:
        """Judge rows start .. stop - 1 of a batch."""
        rows = slice(start, stop)
        offsets = np.arange(batch.first + start, batch.first + stop)
        passed = np.ones(len(offsets), np.bool_)
        filtered = expired = _NONE
        if self.test is not None:
            passed = self.test.judge(batch, rows, self.shard)
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


def rules_of(
    settings: Mapping[str, SubscriptionSettings],
    mapping: Mapping[str, int],
    refused: Mapping[str, dict[str, int]] | None = None,
) -> dict[str, Rules]:
    """Return the rules of all subscriptions of a topic, by name; their traffic filters look at a batch together.

    What they refuse is added to `refused`, by subscription and by kind of filter.
    """
    accepted = {name: _accepted(one) for name, one in settings.items()}
    filters = {name: one.traffic for name, one in accepted.items() if one.traffic is not None}
    together = TrafficRules(list(filters.values()), mapping)
    untyped = dict(zip(filters, together.verdict(0), strict=True))
    rows = {name: row for row, name in enumerate(filters)}
    tests: dict[str, RowTest] = {}
    for name, one in accepted.items():
        parts = one.parts()
        judges: list[tuple[str, Judge]] = [(part.kind, partial(_apart, part)) for part in parts]
        reads = [part.reads for part in parts if part.reads]
        if name in filters:
            judges.append((ROUTING, partial(_together, together, rows[name])))
            reads.append("traffic")
        if judges:
            counts = refused[name] if refused is not None else {}
            each = any(not part.reads for part in parts)
            tests[name] = RowTest(partial(_passed, judges, counts), untyped.get(name, True), tuple(reads), each)
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


def _accepted(settings: SubscriptionSettings) -> Acceptance:
    """Return the filters that are looked at here: of `routed` ones the shards are, where it is known what these are."""
    found = Acceptance.of(settings)
    return msgspec.structs.replace(found, shard_set="") if settings.policy == "routed" else found


def _passed(
    judges: Sequence[tuple[str, Judge]], refused: dict[str, int], batch: Batch, rows: slice, shard: int
) -> npt.NDArray[np.bool_]:
    """Return which rows all filters take; the first that does not is the one that refused."""
    passed = np.ones(rows.stop - rows.start, np.bool_)
    left = len(passed)
    for kind, judge in judges:
        passed &= judge(batch, shard)[rows]
        taken = int(np.count_nonzero(passed))
        if taken < left:
            refused[kind] = refused.get(kind, 0) + left - taken
            left = taken
    return passed


def _apart(part: Part, batch: Batch, shard: int) -> npt.NDArray[np.bool_]:
    return part.judge(batch.columns, id_of(shard, batch.first), batch.count)


def _together(filters: TrafficRules, row: int, batch: Batch, _: int) -> npt.NDArray[np.bool_]:
    """Return one traffic filter's verdicts on a batch; the first to ask makes them for all."""
    if batch.verdicts is None or batch.verdicts[0] is not filters:
        column = batch.columns.get("traffic")
        bits = np.zeros(batch.count, np.int64) if column is None else int64s(column)[0]
        batch.verdicts = (filters, filters.verdicts(bits))
    verdicts: npt.NDArray[np.bool_] = batch.verdicts[1][row]
    return verdicts
