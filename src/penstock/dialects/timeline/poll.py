"""A consumer that asks once: what it has on lease already, else what there is, else what comes within a time.

For clients without a stream. It sits in the consumer's place for that long, so nobody else can under the same name.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.client.timeline.wire import PUSHED, Kind
from penstock.clock import MILLISECOND, Timer
from penstock.delivery.seat import Lease, Seat
from penstock.delivery.source import Delivery
from penstock.dialects.timeline import pushes
from penstock.dialects.timeline.errors import Fault
from penstock.dialects.timeline.reading import Found, read
from penstock.dialects.timeline.report import Report
from penstock.dialects.timeline.sessions import Session
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.dialects.timeline.timeline import Timeline


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
        self.answer: Answer[pa.RecordBatch] = Answer()

    def begin(self, wait_ms: int, *, fresh: bool) -> Answer[pa.RecordBatch]:
        """Look, and wait for so long; `fresh` passes by what is on lease here already."""
        timeline, session = self._timeline, self._session
        if session.stream is not None:
            raise Fault(Kind.PROTOCOL, f"consumer {session.member!r} has a stream, or asks already")
        subscription, clock = timeline.subscription, timeline.node.clock
        subscription.expire(timeline.node.now())
        self._seat = subscription.holder(session.member)
        session.stream = self
        held = self._seat.leases(self._limit) if not fresh else []
        if held:
            subscription.keeping.wait(partial(self._again, held))
            return self.answer
        self._timer = clock.call_at(clock.monotonic() + max(wait_ms, 1) * MILLISECOND, self._give_up)
        self._look = self._seat.look(self._limit, session.lease_ns, self._deliver)
        return self.answer

    def end(self, why: str, kind: Kind = Kind.UNKNOWN_SESSION) -> None:
        """Answer that it is over."""
        self._refuse(Fault(kind, why))

    def _again(self, held: list[Lease], error: BaseException | None) -> None:
        """Answer with what is on lease here already, once that is kept."""
        if error is not None:
            self._refuse(Fault(Kind.STORAGE, str(error)))
        elif not self.answer.is_given:
            read(self._timeline.topic, np.array([lease.id for lease in held], np.int64), self._found)

    def _found(self, found: list[Found]) -> None:
        if not self.answer.is_given:
            timeline = self._timeline
            batch, _ = pushes.of_leases(timeline, self._session.member.encode(), found, timeline.node.now())
            self._close()
            self.answer.give(batch)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if not deliveries:
            gone = self._timeline.topic.deleted and not self._timeline.topic.is_leaving
            said = f"topic {self._session.topic} was deleted" if gone else "leases could not be written down; ask again"
            self._refuse(Fault(Kind.TOPIC_DELETING if gone else Kind.STORAGE, said))
            return
        timeline, clock = self._timeline, self._timeline.node.clock
        batch, _ = pushes.of_deliveries(timeline, self._session.member.encode(), deliveries, timeline.node.now())
        timeline.note_delivered(batch)
        self._report.pushed(self._session.topic, batch)
        if self._timer is not None:
            self._timer.cancel()
        # What came ahead of its time is kept for the client until then.
        wait_ns = max(int(np.asarray(batch.column("timestamp_ms"), np.int64).max()) * MILLISECOND - clock.now(), 0)
        self._timer = clock.call_at(clock.monotonic() + wait_ns, lambda: self._give(batch))

    def _give(self, batch: pa.RecordBatch) -> None:
        if not self.answer.is_given:
            self._close()
            self.answer.give(batch)

    def _give_up(self) -> None:
        self._timer = None
        if self._look is not None and self._look.unheard:
            return  # something is there, and comes once its lease is kept
        self._give(_nothing())

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
