"""A consumer: a stream that says what it has room for, and gets leases of messages as they are due.

It holds under its own name, so what it has survives the stream and the process: whoever comes back under the name is
pushed that first, as it was. Rows are dealt by the core; what it may get is what it last said, less what it got since.
Invariant: nothing is pushed before the first word, and no more than there is room for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.callers import Caller
from penstock.client.timeline.wire import ConsumerStatus, Down, Kind, Ping, Pong, TopicStatus, Up
from penstock.client.wire import decoded, encoded
from penstock.clock import MILLISECOND, Timer
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.dialects.timeline import pushes
from penstock.dialects.timeline.errors import Fault, of_refusal
from penstock.dialects.timeline.reading import Found, read
from penstock.dialects.timeline.sessions import Session
from penstock.dialects.timeline.timeline import Timeline
from penstock.errors import Refusal
from penstock.offers import Stream

if TYPE_CHECKING:
    from penstock.dialects.timeline.reception import Reception

#: A consumer that answers pings and then says nothing for so many of them is gone, whatever its connection says.
PINGS_MISSED = 3

#: A stream into which nothing more has gone for so many ticks takes no pushes.
STUCK_TICKS = 2

#: What was pushed is looked up by its id until it is deleted; beyond twice what is on lease, it is cleaned up.
_STALE_MAX = 1024


class Consumer:
    """One open stream."""

    def __init__(self, reception: Reception, caller: Caller, stream: Stream) -> None:
        self._reception = reception
        self._clock = reception.node.clock
        self._caller = caller
        self._stream = stream
        self.session: Session | None = None
        self.timeline: Timeline | None = None
        self.seat: Seat | None = None
        #: Its id, as pushes carry it.
        self._name = pushes.Name("")
        #: Message id -> core id of what was pushed here.
        self.held: dict[bytes, int] = {}
        #: Its active leases were pushed, so that it may get others.
        self.is_hydrated = False
        self.joined_ns = self._clock.now()
        #: When it asked for what it has on lease.
        self._opened_ns = 0
        self.status: ConsumerStatus | None = None
        #: How much may still be pushed before it says something again.
        self._room = 0
        self._ended = False
        #: Ticks since it said anything; whether it answers pings.
        self._silent = 0
        self._has_ponged = False
        #: Ticks at which its stream was full, one after the other.
        self._full = 0
        first_ns = self._clock.monotonic() + reception.config.first_status_ns
        self._patience: Timer | None = self._clock.call_at(first_ns, self._lose_patience)
        self._ticker: Timer | None = None

    @property
    def caller(self) -> Caller:
        """Who it is."""
        return self._caller

    @property
    def is_busy(self) -> bool:
        """Whether it has no room, or does not read what was pushed."""
        return self._full >= STUCK_TICKS or (self.status is not None and self.status.available_buffer_size == 0)

    # --- what it says ---------------------------------------------------------------------------------------------

    def received(self, batch: pa.RecordBatch | None, metadata: bytes) -> None:
        """Take a word."""
        if self._ended:
            return
        self._silent = 0
        try:
            if batch is not None:
                raise Fault(Kind.PROTOCOL, "consumers send words as metadata, and no batches")
            words = decoded(metadata, Up)
            if words.status is not None:
                self._take_status(words.status)
            elif self.session is None:
                raise Fault(Kind.PROTOCOL, "the first word of a consumer is its status")
            if words.pong is not None:
                self._has_ponged = True
                self._reception.ponged(self, words.pong)
            if words.ping is not None:
                pong = Pong(local_ts_ms=words.ping.local_ts_ms, partner_ts_ms=self._clock.now() // MILLISECOND)
                self._say(Down(pong=pong))
        except (Fault, Refusal) as error:
            self._fail(error if isinstance(error, Fault) else of_refusal(error))

    def _take_status(self, status: ConsumerStatus) -> None:
        if status.max_buffer_size < 1 or not 0 <= status.available_buffer_size <= 0xFFFFFFFF:
            raise Fault(Kind.PROTOCOL, "a consumer has a buffer of 1 or more, and room in it for 0 or more")
        session = self._reception.sessions.find(status.session_id, "consumer")
        self.status = status
        self._room = status.available_buffer_size
        if self.session is None:
            self._open(session)
        elif session is not self.session:
            raise Fault(Kind.PROTOCOL, "a stream is for one session")
        self._reception.heard(self)
        self.grant()

    def _open(self, session: Session) -> None:
        """Become the consumer that a session is for."""
        self._stream.needs("receive", session.topic)
        timeline = self._reception.topics.find(session.topic)
        if session.stream is not None:
            raise Fault(Kind.PROTOCOL, f"consumer {session.member!r} has a stream already; close that one first")
        self.seat = timeline.topic.attach(
            timeline.subscription,
            self._deliver,
            lease_ns=session.lease_ns,
            holder=session.member,
            evict=self._evict,
            consumer=session.member,
            rack=session.rack,
        )
        self.session, self.timeline = session, timeline
        self._opened_ns = self._clock.monotonic()
        self._reception.report.consumed(session.topic, None)
        self._name = pushes.Name(session.member)
        session.stream = self
        timeline.consumers[session.member] = self
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        timeline.subscription.expire(timeline.node.now())
        timeline.subscription.keeping.wait(self._recall)
        self._tick()

    def _recall(self, error: BaseException | None) -> None:
        """Read what it has on lease already, which is kept."""
        if self._ended or self.timeline is None or self.seat is None:
            return
        if error is not None:
            self._reception.report.lease_failed(self.timeline.topic.name)
            self._fail(Fault(Kind.STORAGE, str(error)))
            return
        ids = np.array([lease.id for lease in self.seat.leases()], np.int64)
        read(self.timeline.topic, ids, self._hydrate)

    def _hydrate(self, found: list[Found]) -> None:
        """Push what it has on lease already, as it was; then it takes part."""
        if self._ended or self.timeline is None or self.session is None:
            return
        if found:
            self._push(pushes.of_leases(self.timeline, self._name, found, self.timeline.node.now()))
        self.is_hydrated = True
        self._reception.report.hydrated(self.session.topic, self._opened_ns)
        self._say(Down(hydrated=True))
        self._reception.hydrated(self)
        self.grant()

    def grant(self) -> None:
        """Let it have what it has room for."""
        seat = self.seat
        if seat is None or not self.is_hydrated:
            return
        room = self._reception.room(self, self._room - seat.unheard)
        if room <= 0 or self._stream.is_full:
            seat.block()
            return
        seat.credit = seat.in_flight + room
        seat.unblock()

    # --- what it gets ---------------------------------------------------------------------------------------------

    def _deliver(self, deliveries: list[Delivery]) -> None:
        timeline, session = self.timeline, self.session
        if timeline is None or session is None:
            return
        began_ns = self._clock.monotonic()
        push = pushes.of_deliveries(timeline, self._name, deliveries, timeline.node.now())
        timeline.note_delivered(push.batch)
        self._reception.report.pushed(session.topic, push.batch, began_ns)
        self._push(push)

    def _push(self, push: pushes.Push) -> None:
        batch, ids, names = push
        self.held.update(zip(names, ids.tolist(), strict=True))
        self._room -= len(batch)
        self._stream.send(batch)
        if self.seat is not None and (self._room <= 0 or self._stream.is_full):
            self.seat.block()
        if self.seat is not None and len(self.held) > 2 * self.seat.in_flight + _STALE_MAX:
            live = {lease.id for lease in self.seat.leases()} | set(ids.tolist())
            self.held = {name: id_ for name, id_ in self.held.items() if id_ in live}

    def forget(self, names: list[bytes]) -> None:
        """Know messages no more that it deleted."""
        for name in names:
            self.held.pop(name, None)

    def drained(self) -> None:
        """Go on where a full stream stopped it."""
        if not self._ended:
            self._note_full(0)
            self.grant()

    def _note_full(self, ticks: int) -> None:
        was_busy, self._full = self.is_busy, ticks
        if self.is_busy != was_busy:
            self._reception.heard(self)

    def _tick(self) -> None:
        """Tell how the topic is, now and again."""
        if self._ended or self.timeline is None:
            return
        self._silent += 1
        self._note_full(self._full + 1 if self._stream.is_full else 0)
        if self._has_ponged and self._silent > PINGS_MISSED:
            # Its buckets would wait for it for as long as nobody notices.
            self._fail(Fault(Kind.NO_CONNECTION, f"no answer to {PINGS_MISSED} pings"))
            return
        next_ns = self._clock.monotonic() + self._reception.config.status_tick_ns
        self._ticker = self._clock.call_at(next_ns, self._tick)
        if not self._stream.is_full:
            ping = Ping(local_ts_ms=self._clock.now() // MILLISECOND)
            self._say(Down(status=self.topic_status(), ping=ping))

    def topic_status(self) -> TopicStatus:
        """Return how the topic is."""
        return self.timeline.status() if self.timeline is not None else TopicStatus()

    def _say(self, words: Down) -> None:
        self._stream.send(None, encoded(words))

    def say(self, words: Down) -> None:
        """Tell it something that nobody asked for."""
        if not self._ended:
            self._say(words)

    # --- the end --------------------------------------------------------------------------------------------------

    def _lose_patience(self) -> None:
        self._patience = None
        seconds = self._reception.config.first_status_ns // 1_000_000_000
        self._fail(Fault(Kind.PROTOCOL, f"no status came within {seconds} s"))

    def _evict(self) -> None:
        topic = self.session.topic if self.session is not None else ""
        if self.timeline is not None and self.timeline.topic.is_leaving:
            self._fail(Fault(Kind.CLUSTER_OFFLINE, f"topic {topic} went to another node; greet that one"))
            return
        self._fail(Fault(Kind.TOPIC_DELETING, f"topic {topic} was deleted"))

    def _fail(self, fault: Fault) -> None:
        if not self._ended:
            report = self._reception.report
            report.failed(self.session.topic if self.session is not None else "")
            if self.session is None:
                report.consumed("", fault)
            self._say(Down(error=fault.error("consume"), end=str(fault)))
            self._stream.end(str(fault))
            self.closed()

    def end(self, why: str, kind: Kind = Kind.UNKNOWN_SESSION) -> None:
        """End the stream for a reason of the reception's."""
        self._fail(Fault(kind, why))

    def closed(self) -> None:
        """Be no consumer any more; what it holds stays on lease under its name."""
        if self._ended:
            return
        self._ended = True
        for timer in (self._patience, self._ticker):
            if timer is not None:
                timer.cancel()
        session, timeline, seat = self.session, self.timeline, self.seat
        if session is not None and session.stream is self:
            session.stream = None
            session.used_ns = self._clock.monotonic()
        if timeline is not None and session is not None and timeline.consumers.get(session.member) is self:
            del timeline.consumers[session.member]
            self._reception.left(self)
        if seat is not None:
            seat.close()
