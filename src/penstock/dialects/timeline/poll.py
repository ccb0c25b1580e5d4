"""A consumer that asks once: what it has on lease already, else what there is, else what comes within a time.

For clients without a stream. It sits in the consumer's place for that long, so nobody else can under the same name.
Invariant: nothing is answered before it is due. What the name got ahead of its time, by a stream it had, waits here.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.client.timeline.wire import PUSHED, Kind
from penstock.clock import MILLISECOND, Timer
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.dialects.timeline import pushes
from penstock.dialects.timeline.errors import Fault
from penstock.dialects.timeline.reading import Found, read
from penstock.dialects.timeline.report import Report
from penstock.dialects.timeline.sessions import Session
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.dialects.timeline.timeline import Timeline

#: Among so many leases of its name it looks for those that end first.
HELD_MAX = 16_384


class Poll:
    """One question; it is the stream of its session while it waits."""

    def __init__(self, report: Report, timeline: Timeline, session: Session, limit: int) -> None:
        self._report = report
        self._timeline = timeline
        self._session = session
        self._limit = limit
        self._seat: Seat | None = None
        self._look: Seat | None = None
        self._timer: Timer | None = None
        self._until_ns = 0
        self.answer: Answer[pa.RecordBatch] = Answer()

    def begin(self, wait_ms: int, *, fresh: bool) -> Answer[pa.RecordBatch]:
        """Look, and wait for so long; `fresh` passes by what is on lease here already."""
        timeline, session = self._timeline, self._session
        if session.stream is not None:
            raise Fault(Kind.PROTOCOL, f"consumer {session.member!r} has a stream, or asks already")
        self._until_ns = timeline.node.clock.monotonic() + max(wait_ms, 1) * MILLISECOND
        timeline.subscription.expire(timeline.node.now())
        self._seat = timeline.subscription.holder(session.member)
        session.stream = self
        if fresh:
            self._wait()
        else:
            self._look_at_held(self._seat)
        return self.answer

    def end(self, why: str, kind: Kind = Kind.UNKNOWN_SESSION) -> None:
        """Answer that it is over."""
        self._refuse(Fault(kind, why))

    def give_up(self) -> None:
        """Answer with nothing: whoever asked hung up, which is no failure."""
        self._give(_nothing())

    # --- what it has already --------------------------------------------------------------------------------------

    def _look_at_held(self, seat: Seat) -> None:
        leases = sorted(seat.leases(HELD_MAX), key=attrgetter("ends_ns"))
        if leases:
            held = [lease.id for lease in leases[: self._limit]]
            self._timeline.subscription.keeping.wait(partial(self._kept, held))
        else:
            self._wait()

    def _kept(self, held: list[int], error: BaseException | None) -> None:
        if error is not None:
            self._refuse(Fault(Kind.STORAGE, str(error)))
        elif not self.answer.is_given:
            read(self._timeline.topic, np.array(held, np.int64), self._found)

    def _found(self, found: list[Found]) -> None:
        """Answer with what is due of that; else wait, at most until the first of it is."""
        if self.answer.is_given:
            return
        timeline = self._timeline
        due_ms = [pushes.due_ms(timeline, each, each.rows) for each in found]
        first_ms = min((int(times.min()) for times in due_ms), default=None)
        now_ms = timeline.now_ms()
        if first_ms is None or first_ms > now_ms:
            self._wait(None if first_ms is None else (first_ms - now_ms) * MILLISECOND)
            return
        due = [each.picked(times <= now_ms) for each, times in zip(found, due_ms, strict=True)]
        name = pushes.Name(self._session.member)
        there = [each for each in due if len(each.rows)]
        self._give(pushes.of_leases(timeline, name, there, timeline.node.now()).batch)

    # --- what comes -----------------------------------------------------------------------------------------------

    def _wait(self, held_ns: int | None = None) -> None:
        """Wait for what comes; what is held is due after so long."""
        seat, session, clock = self._seat, self._session, self._timeline.node.clock
        if seat is None:
            return
        at_ns = self._until_ns if held_ns is None else min(self._until_ns, clock.monotonic() + held_ns)
        self._timer = clock.call_at(at_ns, partial(self._go_on, seat))
        if self._look is None:
            self._look = seat.look(self._limit, session.lease_ns, self._deliver)

    def _go_on(self, seat: Seat) -> None:
        """Answer with what is held and due by now, or with nothing once it has waited long enough."""
        self._timer = None
        if self._look is not None and self._look.unheard:
            return  # something is there, and comes once its lease is kept
        if self._timeline.node.clock.monotonic() >= self._until_ns:
            self._give(_nothing())
        else:
            self._look_at_held(seat)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if not deliveries:
            gone = self._timeline.topic.deleted and not self._timeline.topic.is_leaving
            said = f"topic {self._session.topic} was deleted" if gone else "leases could not be written down; ask again"
            self._refuse(Fault(Kind.TOPIC_DELETING if gone else Kind.STORAGE, said))
            return
        timeline, began_ns = self._timeline, self._timeline.node.clock.monotonic()
        name = pushes.Name(self._session.member)
        batch = pushes.of_deliveries(timeline, name, deliveries, timeline.node.now()).batch
        timeline.note_delivered(batch)
        self._report.pushed(self._session.topic, batch, began_ns)
        self._give(batch)

    def _give(self, batch: pa.RecordBatch) -> None:
        if not self.answer.is_given:
            self._close()
            self.answer.give(batch)

    def _refuse(self, fault: Fault) -> None:
        if not self.answer.is_given:
            self._close()
            self.answer.refuse(fault)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._session.stream is self:
            self._session.stream = None
        if self._look is not None:
            self._look.close()
        if self._seat is not None:
            self._seat.kept = False  # the name is free for a stream again
            self._timeline.subscription.holders.rest(self._seat)


def _nothing() -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in PUSHED], PUSHED)
