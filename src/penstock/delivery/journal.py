"""What a subscription writes down about a shard, and how its state comes back from that.

Five numbers an entry: (op, first, last, attempts, due). A range of finished rows gives the reason as op and the
number of rows really in it as `attempts` (offsets may have holes); START begins anew at `first`; RELEASED and HELD
keep attempts and due time of rows that are not finished, and above the attempts' 16 bits the lease's version and, for
HELD, the number of its holder, whose name NAMED told before; COUNT carries a total through a snapshot; SKIPPED are
rows that were removed before the cursor came to them, and that it finishes when it does.

Invariant: finishing is final. So entries of one flush may be written releases first, finished ranges after, and a
replay in any cut of whole frames gives a state that was true at some moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from penstock.columns import SMALL, Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.source import Entry, JournalFile
from penstock.errors import Refusal
from penstock.message import Done

START, ACKED, FILTERED, EXPIRED, DEAD, REMOVED, HOLE, RELEASED, HELD, COUNT, SKIPPED, NAMED = range(12)

#: The reasons a row can be finished for; both sums of the ledger are made of these.
FINISHED = (ACKED, FILTERED, EXPIRED, DEAD, REMOVED)
NAMES = {ACKED: "acked", FILTERED: "filtered", EXPIRED: "expired", DEAD: "dead_lettered", REMOVED: "removed"}
#: Those of them that end a row which no consumer acked or failed too often.
DISCARDED = (FILTERED, EXPIRED, REMOVED)

#: Where a version and a holder's number stand above the attempts; number 0 is the unnamed holder of older journals.
VERSION_AT = 16
HOLDER_AT = 47
#: The name that such leases belong to.
UNNAMED = "api"
#: A name is told in pieces of two numbers.
_NAME_BYTES = 16


#: Makes the entries that say everything anew.
Snapshot: TypeAlias = Callable[[Instant], "npt.NDArray[np.int64]"]


class State(NamedTuple):
    """A subscription's state over one shard, as replayed."""

    #: First row never handed out.
    cursor: int
    #: Rows below the cursor that are not finished, ascending, with attempts and the time they are due (0: now).
    rows: Offsets
    attempts: Offsets
    due_ns: Offsets
    versions: Offsets
    #: Which of them are on a lease that outlives connections: its holder's place in `names`, else -1; `due_ns` is then
    #: the lease's wall-clock deadline.
    holder: Offsets
    names: list[str]
    counts: dict[int, int]
    #: Rows from the cursor on that are not wanted any more, first and end of each range.
    skips: list[tuple[int, int]]

    def only(self, keep: npt.NDArray[np.bool_]) -> State:
        """Return the same with some of its rows."""
        return self._replace(
            rows=self.rows[keep],
            attempts=self.attempts[keep],
            due_ns=self.due_ns[keep],
            versions=self.versions[keep],
            holder=self.holder[keep],
        )


def ranges(offsets: Offsets) -> tuple[Offsets, Offsets]:
    """Return ascending, distinct offsets as (first, last) of each run without a gap."""
    if offsets[-1] - offsets[0] == len(offsets) - 1:
        return offsets[:1], offsets[-1:]
    cuts = np.flatnonzero(np.diff(offsets) != 1)
    first = offsets[np.concatenate(([0], cuts + 1))]
    last = offsets[np.concatenate((cuts, [len(offsets) - 1]))]
    return first, last


def finished(op: int, offsets: Offsets) -> list[Entry]:
    """Return the entries that finish these rows for one reason."""
    return finished_ranges(op, *ranges(offsets))


def finished_ranges(op: int, first: Offsets, last: Offsets) -> list[Entry]:
    """Return the entries that finish these ranges for one reason."""
    return [(op, a, b, b - a + 1, 0) for a, b in zip(first.tolist(), last.tolist(), strict=True)]


def table(op: int, first: Offsets, last: Offsets, rows: int | Offsets) -> npt.NDArray[np.int64]:
    """Return entries of one kind as an array, for when there are many."""
    out = np.zeros((len(first), 5), np.int64)
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = op, first, last, rows
    return out


def pending(
    op: int, offsets: Offsets, attempts: Offsets, due_ns: Offsets, versions: Offsets | int = 0, holder: int = -1
) -> list[Entry]:
    """Return the entries that keep rows with their attempts and due time, equal neighbours as one range."""
    if len(offsets) == 0:
        return []
    told = attempts.astype(np.int64) + (np.asarray(versions, np.int64) << VERSION_AT) + ((holder + 1) << HOLDER_AT)
    if bool((told == told[0]).all()) and bool((due_ns == due_ns[0]).all()):  # as what goes out together mostly is
        first, last = ranges(offsets)
        return [(op, *ends, int(told[0]), int(due_ns[0])) for ends in zip(first.tolist(), last.tolist(), strict=True)]
    breaks = (np.diff(offsets) != 1) | (np.diff(told) != 0) | (np.diff(due_ns) != 0)
    cuts = np.flatnonzero(breaks)
    heads, tails = np.concatenate(([0], cuts + 1)), np.concatenate((cuts, [len(offsets) - 1]))
    columns = (offsets[heads], offsets[tails], told[heads], due_ns[heads])
    return [(op, *entry) for entry in zip(*(column.tolist() for column in columns), strict=True)]


def pending_few(
    op: int, offsets: list[int], attempts: list[int], due_ns: list[int], versions: list[int], holder: int = -1
) -> list[Entry]:
    """Return the entries that `pending` would, of a few rows."""
    entries: list[Entry] = []
    above = (holder + 1) << HOLDER_AT
    first = last = told = due = -1
    for offset, times, due_at, version in zip(offsets, attempts, due_ns, versions, strict=True):
        tells = times + (version << VERSION_AT) + above
        if offset != last + 1 or tells != told or due_at != due:
            if last >= 0:
                entries.append((op, first, last, told, due))
            first, told, due = offset, tells, due_at
        last = offset
    if last >= 0:
        entries.append((op, first, last, told, due))
    return entries


def finished_few(op: int, offsets: list[int]) -> list[Entry]:
    """Return the entries that finish a few rows, ascending and distinct, for one reason."""
    entries: list[Entry] = []
    first = last = offsets[0]
    for offset in offsets[1:]:
        if offset != last + 1:
            entries.append((op, first, last, last - first + 1, 0))
            first = offset
        last = offset
    entries.append((op, first, last, last - first + 1, 0))
    return entries


def named(holder: int, name: str) -> list[Entry]:
    """Return the entries that give a holder's number its name."""
    data = name.encode()
    data += b"\0" * (-len(data) % _NAME_BYTES)
    return [
        (
            NAMED,
            holder,
            at,
            int.from_bytes(data[at : at + 8], "big", signed=True),
            int.from_bytes(data[at + 8 : at + 16], "big", signed=True),
        )
        for at in range(0, len(data), _NAME_BYTES)
    ]


def replay(entries: npt.NDArray[np.int64], start: int) -> State:
    """Return the state that entries describe; a subscription that wrote none begins at `start`."""
    counts = dict.fromkeys(FINISHED, 0)
    if len(entries) == 0:  # of many queues most were never used
        none = np.empty(0, np.int64)
        return State(start, none, none, none, none, none, [], counts, [])
    ops = entries[:, 0]
    starts = np.flatnonzero(ops == START)
    if len(starts):
        start = int(entries[starts[-1], 1])
        entries = entries[starts[-1] + 1 :]
        ops = entries[:, 0]
    for _, kind, value, _, _ in entries[ops == COUNT].tolist():
        counts[kind] = value
    for op in FINISHED:
        counts[op] += int(entries[ops == op, 3].sum())
    is_done = (ops >= ACKED) & (ops <= HOLE)
    done_first, done_last = _merged(entries[is_done, 1], entries[is_done, 2], start)
    kept = entries[(ops == RELEASED) | (ops == HELD)]
    cursor = max([start, *(done_last[-1:] + 1).tolist(), *(kept[:, 2] + 1).tolist()[-1:]])
    if len(kept):
        cursor = max(cursor, int(kept[:, 2].max()) + 1)
    rows = _gaps(start, done_first, done_last, cursor)
    attempts, due_ns, versions = np.zeros((3, len(rows)), np.int64)
    holder = np.full(len(rows), -1, np.int64)
    names = [UNNAMED.encode()]
    place_of = {-1: 0}
    for op, first, last, told, due in entries[(ops == RELEASED) | (ops == HELD) | (ops == NAMED)].tolist():
        if op == NAMED:
            _name(names, place_of, first, last, told, due)
            continue
        low, high = np.searchsorted(rows, (first, last + 1))
        attempts[low:high] = told & (1 << VERSION_AT) - 1
        versions[low:high] = told >> VERSION_AT & (1 << HOLDER_AT - VERSION_AT) - 1
        due_ns[low:high] = due
        holder[low:high] = place_of.get((told >> HOLDER_AT) - 1, 0) if op == HELD else -1
    skipped = entries[ops == SKIPPED].tolist()
    skips = [(max(first, cursor), last + 1) for _, first, last, _, _ in skipped if last >= cursor]
    texts = [name.decode("utf-8", "replace") for name in names]
    return State(cursor, rows, attempts, due_ns, versions, holder, texts, counts, skips)


def _name(names: list[bytes], place_of: dict[int, int], number: int, at: int, high: int, low: int) -> None:
    """Read one piece of a name; the first one begins it anew."""
    text = (high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True)).rstrip(b"\0")
    if at == 0:
        place_of[number] = len(names)
        names.append(b"")
    names[place_of[number]] += text


def snapshot(
    floor: int,
    counts: Mapping[int, int],
    gaps: Sequence[Entry],
    kept: Sequence[Entry],
    tables: Sequence[npt.NDArray[np.int64]] = (),
) -> npt.NDArray[np.int64]:
    """Return the entries a journal begins anew with."""
    entries: list[Entry] = [(START, floor, floor, 0, 0)]
    entries.extend((COUNT, op, value, 0, 0) for op, value in counts.items() if value)
    return np.concatenate([np.array([*entries, *gaps, *kept], np.int64).reshape(-1, 5), *tables])


def _merged(first: Offsets, last: Offsets, floor: int) -> tuple[Offsets, Offsets]:
    """Return ranges sorted and joined where they touch, from `floor` on."""
    keep = last >= floor
    first, last = np.maximum(first[keep], floor), last[keep]
    if len(first) == 0:
        return first, last
    order = np.argsort(first, kind="stable")
    first, reach = first[order], np.maximum.accumulate(last[order])
    heads = np.concatenate(([0], np.flatnonzero(first[1:] > reach[:-1] + 1) + 1))
    tails = np.concatenate((heads[1:] - 1, [len(first) - 1]))
    return first[heads], reach[tails]


def _gaps(start: int, first: Offsets, last: Offsets, end: int) -> Offsets:
    """Return every offset from `start` to `end` that is in none of the ranges, which are ascending and apart."""
    lows = np.concatenate(([start], last + 1))
    sizes = np.maximum(np.concatenate((first, [end])) - lows, 0)
    before = np.cumsum(sizes) - sizes
    rows: Offsets = np.repeat(lows - before, sizes) + np.arange(int(sizes.sum()))
    return rows


class JournalWriter:
    """What happened since the last frame, until it is written as the next."""

    __slots__ = ("_acked", "_finished", "_journal", "_kept", "_named", "_written", "acked", "acked_few")

    def __init__(self, journal: JournalFile) -> None:
        self._journal = journal
        self._acked: list[int | Offsets] = []
        #: Notes a row, or ascending rows, that a consumer finished; once a message, so it is the list's own method.
        self.acked = self._acked.append
        #: Notes a few rows.
        self.acked_few = self._acked.extend
        self._kept: list[Entry] = []
        self._finished: list[Entry] = []
        #: Names that this file knows by their numbers.
        self._named: dict[int, str] = {}
        #: Entries written since the last snapshot.
        self._written = 0

    @property
    def dirty(self) -> bool:
        """Whether there is something to write down."""
        return bool(self._acked or self._kept or self._finished)

    def finished(self, op: int, offsets: Offsets) -> None:
        """Note rows that are done for another reason."""
        self._finished += finished(op, offsets)

    def passed(self, op: int, first: int, end: int, rows: int) -> None:
        """Note a range of offsets that is done, with so many rows really in it."""
        self._finished.append((op, first, end - 1, rows, 0))

    def released(self, offsets: Offsets, attempts: Offsets, due_ns: Offsets, versions: Offsets) -> None:
        """Note rows that go out again."""
        self._kept += pending(RELEASED, offsets, attempts, due_ns, versions)

    def held(
        self, holder: int, name: str, offsets: Offsets, attempts: Offsets, ends_ns: Offsets, versions: Offsets
    ) -> None:
        """Note leases that outlive connections."""
        self._name(holder, name)
        self._kept += pending(HELD, offsets, attempts, ends_ns, versions, holder)

    def held_few(
        self, holder: int, name: str, offsets: list[int], attempts: list[int], ends_ns: list[int], versions: list[int]
    ) -> None:
        """Note a few such leases."""
        self._name(holder, name)
        self._kept += pending_few(HELD, offsets, attempts, ends_ns, versions, holder)

    def held_range(
        self, holder: int, name: str, ends: tuple[int, int], attempts: int, end_ns: int, version: int
    ) -> None:
        """Note such leases of a range of rows, its first and its last, that are all alike."""
        self._name(holder, name)
        told = attempts + (version << VERSION_AT) + ((holder + 1) << HOLDER_AT)
        self._kept.append((HELD, *ends, told, end_ns))

    def _name(self, holder: int, name: str) -> None:
        if self._named.get(holder) != name:
            self._named[holder] = name
            self._kept += named(holder, name)

    def forget_leases(self) -> None:
        """Take that leases under a name are not given, which could not be written down."""
        self._kept = [entry for entry in self._kept if entry[0] != HELD]

    def begin(self, offset: int) -> None:
        """Forget everything and begin anew at an offset, at once."""
        self._acked.clear()
        self._kept, self._finished, self._named = [], [], {}
        self._journal.append([(START, offset, offset, 0, 0)])

    def flush(self, held: int, snapshot: Snapshot, now: Instant) -> None:
        """Write down what happened since the last time, in one frame; on a full disk later.

        Not so leases under a name: nobody may hear of them before they are written.
        """
        try:
            self._write(held, snapshot, now)
        except Refusal as refusal:
            if refusal.code != "disk_full" or any(entry[0] == HELD for entry in self._kept):
                raise

    def _write(self, held: int, snapshot: Snapshot, now: Instant) -> None:
        entries: list[Entry] | npt.NDArray[np.int64]
        entries = [*self._kept]
        apart = None
        if len(self._acked) <= SMALL and set(map(type, self._acked)) == {int}:
            entries += finished_few(ACKED, sorted(cast("list[int]", self._acked)))
        elif self._acked:
            single = [offset for offset in self._acked if isinstance(offset, int)]
            parts = [part for part in self._acked if not isinstance(part, int)]
            if single:
                parts.append(np.array(single, np.int64))
            acked = parts[0] if len(parts) == 1 else np.concatenate(parts)
            first, last = ranges(np.sort(acked))
            if len(first) > SMALL:  # who deals by lanes finishes rows far and wide
                apart = table(ACKED, first, last, last - first + 1)
            else:
                entries += finished_ranges(ACKED, first, last)
        entries += self._finished
        if apart is not None:
            entries = np.concatenate([np.array(entries, np.int64).reshape(-1, 5), apart])
        if len(entries):
            self._journal.append(entries)
            self._acked.clear()  # not before: it may have failed
            self._kept, self._finished = [], []
            self._written += len(entries)
            # A snapshot looks at every row that is held, so it must pay for itself.
            if self._journal.bloated and self._written > held >> 3:
                self._written = 0
                self._named = {}
                self._journal.compact(snapshot(now))

    def heal(self, snapshot: Snapshot, now: Instant) -> None:
        """Write everything anew if a sync of the file failed: what is there may be lost."""
        if self._journal.needs_snapshot:
            self._write(0, snapshot, now)
            self._named = {}
            self._journal.compact(snapshot(now))

    def close(self, snapshot: Snapshot, now: Instant) -> None:
        """Write the rest and close the file."""
        self._write(0, snapshot, now)
        self._journal.close(lambda: snapshot(now))

    def keep(self, done: Done) -> None:
        """Call back once everything written survives a power loss, at once if it does."""
        self._journal.keep(done)

    def remove(self) -> None:
        """Delete the file."""
        self._journal.remove()
