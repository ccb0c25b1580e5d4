"""What holders and owners may do to messages: delete, extend, release; each message by itself, all of them at once.

Conditions are asked for and acted on in one turn of the loop, by the node's clock, in the order in which errors are
promised: not there, somebody else's, over, another version, a bad time.
Invariant: a lease that is in force is broken by nobody; it is over when clients were told that it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.timeline.wire import Kind
from penstock.columns import OFFSET_BITS, Offsets
from penstock.delivery.page import DONE, LEASED, READY
from penstock.dialects.timeline import columns
from penstock.dialects.timeline.reading import Found, read
from penstock.dialects.timeline.sessions import Session
from penstock.dialects.timeline.timeline import MS, Kinds, Timeline
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.delivery.cursor import Cursor
    from penstock.delivery.instant import Instant
    from penstock.delivery.seat import Seat
    from penstock.delivery.subscription import Subscription

#: A time that is nearer than this is as good as now.
NEAR_MS = 5

_MASK = (1 << OFFSET_BITS) - 1


class Changed(NamedTuple):
    """What became of each message."""

    #: 0, or why not.
    kinds: Kinds
    #: When its lease ends now; 0 where it has none.
    expiration_ms: Offsets | int = 0
    #: 0 where it has no new one.
    versions: Offsets | int = 0


class Look(NamedTuple):
    """How rows are, one entry each."""

    state: Offsets
    attempts: Offsets
    #: Of a lease, when clients were told that it ends.
    expiration_ms: Offsets
    holder: Offsets
    #: The core's.
    versions: Offsets

    @property
    def wire_versions(self) -> Offsets:
        """Versions as clients know them."""
        return columns.wire_versions(self.versions, self.attempts)


def look(subscription: Subscription, ids: Offsets) -> Look:
    """Return how rows are, by their core ids; 0 is none."""
    now = subscription.host.now()
    if _ascend(ids) and len(subscription.cursors) == 1:
        return Look(*_looked(subscription.cursors[0], ids - 1, now))
    out = np.zeros((5, len(ids)), np.int64)
    for cursor in subscription.cursors:
        mine = np.flatnonzero((ids > 0) & (ids - 1 >> OFFSET_BITS == cursor.source.number))
        if not len(mine):
            continue
        offsets = ids[mine] - 1 & _MASK
        order = np.argsort(offsets, kind="stable")
        out[:, mine[order]] = _looked(cursor, offsets[order], now)
    return Look(*out)


def _looked(cursor: Cursor, offsets: Offsets, now: Instant) -> tuple[Offsets, ...]:
    """Return how rows of one shard are, by their ascending offsets."""
    state, attempts, times_ns, holder = cursor.states.pages.details(offsets)
    if offsets[-1] >= cursor.position.offset:  # stored, and nobody came to them yet
        ahead = offsets >= cursor.position.offset
        state[ahead] = np.where(np.isin(offsets[ahead], cursor.unfinished(np.unique(offsets[ahead]))), READY, DONE)
    times_ms = (times_ns + (now.wall_ns - now.monotonic_ns)) // MS
    return state, attempts, times_ms, holder, cursor.states.pages.versions(offsets)


def _ascend(ids: Offsets) -> bool:
    """Tell whether ids are of the first shard, in order, each once."""
    return bool(len(ids) and ids[0] > 0 and ids[-1] <= _MASK and (ids[1:] > ids[:-1]).all())


# --- for those who hold -------------------------------------------------------------------------------------------


def delete(timeline: Timeline, session: Session, ids: pa.BinaryArray, versions: Offsets) -> Answer[Changed]:
    """Remove messages: those that a consumer holds, or that a producer's group owns and nobody holds."""
    if session.role == "producer":
        return _delete_owned(timeline, session.group.encode(), ids)

    names = columns.values(ids)

    def act(found: Offsets) -> Changed:
        kinds = _judged(timeline, session, found, versions)
        _settle_repeated(found, kinds, Kind.MESSAGE_NOT_FOUND)
        rows, gone, forgotten = found, ids, names
        if kinds.any():
            good = kinds == 0
            rows, gone = found[good], ids.filter(pa.array(good))
            forgotten = columns.values(gone)
        if len(rows):
            _with_seat(timeline, session, lambda seat: seat.ack(rows), len(rows))
            _forget(timeline, rows, gone)
            consumer = timeline.consumers.get(session.member)
            if consumer is not None:
                consumer.forget(forgotten)
        return Changed(kinds)

    return _rows(timeline, session, ids, names).then_make(act)


def extend(
    timeline: Timeline, session: Session, ids: pa.BinaryArray, versions: Offsets, new_ms: Offsets
) -> Answer[Changed]:
    """Let leases end later, or sooner."""

    def act(found: Offsets) -> Changed:
        kinds = _judged(timeline, session, found, versions)
        now_ms = timeline.now_ms()
        most = now_ms + timeline.choices.max_seconds_lease * 1000
        kinds[(kinds == 0) & ((new_ms <= now_ms + NEAR_MS) | (new_ms > most))] = Kind.TIME_OUT_OF_RANGE
        _settle_repeated(found, kinds, Kind.VERSION_MISMATCH)
        good = kinds == 0

        def do(seat: Seat) -> None:
            now_ns = timeline.node.clock.now()
            for time_ms in np.unique(new_ms[good]).tolist():
                chosen = good & (new_ms == time_ms)
                seat.extend(found[chosen], time_ms * MS - now_ns, renew=True)

        if good.any():
            _with_seat(timeline, session, do, 0)
        return _after(timeline, found, kinds)

    return _rows(timeline, session, ids, columns.values(ids)).then_make(act)


def release(
    timeline: Timeline, session: Session, ids: pa.BinaryArray, versions: Offsets, new_ms: Offsets
) -> Answer[Changed]:
    """Give messages back, to be due at another time."""

    def act(found: Offsets) -> Changed:
        kinds = _judged(timeline, session, found, versions)
        now_ms = timeline.now_ms()
        far = timeline.choices.max_seconds_future
        if far:
            kinds[(kinds == 0) & (new_ms > now_ms + far * 1000)] = Kind.TIME_OUT_OF_RANGE
        _settle_repeated(found, kinds, Kind.NOT_THE_HOLDER)
        good = kinds == 0
        due_ms = np.maximum(new_ms, now_ms + NEAR_MS)

        def do(seat: Seat) -> None:
            now_ns = timeline.node.clock.now()
            for time_ms in np.unique(due_ms[good]).tolist():
                chosen = good & (due_ms == time_ms)
                seat.release(found[chosen], time_ms * MS - now_ns)

        if good.any():
            _with_seat(timeline, session, do, int(good.sum()))
        changed = _after(timeline, found, kinds)
        core = look(timeline.subscription, found[good]).versions
        for id_, time_ms, version in zip(found[good].tolist(), due_ms[good].tolist(), core.tolist(), strict=True):
            timeline.released[id_] = (time_ms, version)
        return changed._replace(expiration_ms=0)

    return _rows(timeline, session, ids, columns.values(ids)).then_make(act)


def _rows(timeline: Timeline, session: Session, ids: pa.BinaryArray, names: list[bytes]) -> Answer[Offsets]:
    """Answer with the rows of messages: what the consumer was pushed it is asked for first."""
    consumer = timeline.consumers.get(session.member)
    if consumer is None:
        return timeline.rows_of(ids)
    held = consumer.held
    found = np.array([held.get(id_, 0) for id_ in names], np.int64)
    if found.all():
        return Answer.of(found)
    missing = np.flatnonzero(found == 0)

    def merged(rest: Offsets) -> Offsets:
        found[missing] = rest
        return found

    return timeline.rows_of(ids.take(pa.array(missing))).then_make(merged)


def _judged(timeline: Timeline, session: Session, found: Offsets, given: Offsets) -> Kinds:
    """Tell of each message why its holder may not do anything with it; 0 if it may."""
    subscription = timeline.subscription
    now = timeline.node.now()
    subscription.expire(now)
    rows = look(subscription, found)
    seat = subscription.named.get(session.member)
    number = seat.holder if seat is not None else -1
    leased = rows.state == LEASED
    mine = leased & (rows.holder == number)
    over = mine & (rows.expiration_ms * MS <= now.wall_ns)
    kinds = np.zeros(len(found), np.int32)
    if bool((mine & ~over & (rows.wire_versions == given)).all()):
        return kinds
    kinds[~mine] = Kind.NOT_THE_HOLDER
    kinds[_was_held(timeline, rows, found, given, number) & ~leased] = Kind.LEASE_EXPIRED
    kinds[rows.state == DONE] = Kind.MESSAGE_NOT_FOUND
    kinds[over] = Kind.LEASE_EXPIRED
    kinds[mine & ~over & (rows.wire_versions != given)] = Kind.VERSION_MISMATCH
    return kinds


def _was_held(timeline: Timeline, rows: Look, found: Offsets, given: Offsets, number: int) -> npt.NDArray[np.bool_]:
    """Tell which rows nobody has had since this holder's lease of them ended by itself."""
    before = columns.wire_versions(np.maximum(rows.versions - 1, 0), rows.attempts)
    held: npt.NDArray[np.bool_] = (rows.attempts > 0) & ((rows.holder == number) | (before == given))
    released = timeline.released
    if released:
        held &= ~np.array(
            [
                id_ in released and released[id_][1] == version
                for id_, version in zip(found.tolist(), rows.versions.tolist(), strict=True)
            ],
            np.bool_,
        )
    return held


def _settle_repeated(found: Offsets, kinds: Kinds, kind: Kind) -> None:
    """Let a message that is named twice be done once; the second time finds it as the first left it."""
    if _ascend(found):
        return
    good = np.flatnonzero(kinds == 0)
    _, first = np.unique(found[good], return_index=True)
    if len(first) < len(good):
        again = np.ones(len(good), np.bool_)
        again[first] = False
        kinds[good[again]] = kind


def _with_seat(timeline: Timeline, session: Session, act: Callable[[Seat], object], settled: int) -> None:
    """Do something as a consumer: one step, after which it has no more room than it had."""
    subscription = timeline.subscription
    seat = subscription.named[session.member]
    seat.begin()
    try:
        act(seat)
        if settled and seat.credit:
            seat.credit -= settled
    finally:
        seat.end()
        subscription.holders.rest(seat)


def _after(timeline: Timeline, found: Offsets, kinds: Kinds) -> Changed:
    rows = look(timeline.subscription, found)
    good = kinds == 0
    return Changed(kinds, np.where(good, rows.expiration_ms, 0), np.where(good, rows.wire_versions, 0))


def _forget(timeline: Timeline, found: Offsets, ids: pa.BinaryArray) -> None:
    timeline.forget(ids)
    if timeline.released:
        for id_ in found.tolist():
            timeline.released.pop(id_, None)


# --- for those who own --------------------------------------------------------------------------------------------


def _delete_owned(timeline: Timeline, group: bytes, ids: pa.BinaryArray) -> Answer[Changed]:
    return timeline.rows_of(ids).then_ask(lambda found: _owned(timeline, group, ids, found))


def _owned(timeline: Timeline, group: bytes, ids: pa.BinaryArray, found: Offsets) -> Answer[Changed]:
    answer: Answer[Changed] = Answer()
    there = np.flatnonzero(found)

    def act(parts: list[Found]) -> None:
        own = np.zeros(len(ids), np.bool_)
        for part in parts:
            same = pc.equal(columns.groups(part.batch, part.rows), pa.scalar(group, pa.binary()))
            own[there[part.at]] = np.asarray(same)
        now = timeline.node.now()
        timeline.subscription.expire(now)
        rows = look(timeline.subscription, found)
        kinds = np.zeros(len(ids), np.int32)
        active = (rows.state == LEASED) & (rows.expiration_ms * MS > now.wall_ns)
        kinds[~own | active] = Kind.NOT_THE_HOLDER
        kinds[(found == 0) | (rows.state == DONE)] = Kind.MESSAGE_NOT_FOUND
        _settle_repeated(found, kinds, Kind.MESSAGE_NOT_FOUND)
        good = kinds == 0
        if good.any():
            timeline.subscription.remove(np.sort(found[good]))
            _forget(timeline, found[good], ids.filter(pa.array(good)))
        answer.give(Changed(kinds))

    read(timeline.topic, found[there], act)
    return answer
