"""The delivery history: what happens to messages, written by the node to a topic of its own.

Gathers events in memory, of a sample of the messages or of all, and publishes them now and then, one message per
run of like events; how many there were of all messages is told to `counts.py`. Knows nothing of who reads them;
`Recorder` is all that topics and subscriptions see of it.
Invariant: it disturbs nobody. Events above the rate, or that the topic refuses, are dropped and counted in the ledger;
topics of the node's own are not recorded, so the history does not feed on itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.callers.rights import OWN
from penstock.clock import SECOND, Timer
from penstock.columns import SMALL, Offsets
from penstock.config.tree import EventsConfig
from penstock.delivery.recorder import Attempts, Return
from penstock.delivery.source import Delivery
from penstock.filters.sampler import BITS, STEP, Sampler, base_of
from penstock.intake.ledger import OTHER_TOPICS
from penstock.intake.receipt import Receipt
from penstock.message import Batch, Rows
from penstock.node.counts import SOURCE, Counts, Tally
from penstock.settings import TopicSettings
from penstock.tally import TOPIC as COUNTS

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

PREFIX = OWN
TOPIC = "_penstock.events"
#: The topics that tell what happens to the others, so they are closed last.
HISTORIES = (TOPIC, COUNTS)
#: Under this reason the ledger counts events that were not written.
DROPPED = "events_dropped"

#: One message holds at most so many events: an event takes at most 60 bytes, so a body stays below 256 KiB.
RUN_ROWS_MAX = 4096
#: One turn of the loop writes about so many events, which takes a millisecond; a message counts as some more.
TURN_ROWS_MAX = 8192
MESSAGE_ROWS = 16
#: Discards are told apart by topic, subscription and reason up to so many a flush; clients may invent names.
DISCARDS_MAX = 1024
#: A segment is a part of the history that goes at once; a small part, but of a size worth a file.
SEGMENTS = 8
SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX = 64 << 10, 64 << 20

#: Events of one moment: shard, the first offset or picked ones, how many, when (us), attempts. A plain tuple is made in
#: a third of the time.
Piece: TypeAlias = "tuple[int, int | list[int] | Offsets, int, int, int | Attempts | None]"

#: Beyond so many pieces in one hand they are looked at together.
FEW = 4

#: Reasons of the ledger that are no discarded messages of a topic: events tell of dead letters one by one.
_TOLD_ELSEWHERE = ("bug", "dead_letter")


class Kind(NamedTuple):
    """What the events of one run have in common."""

    event: str
    topic: str
    subscription: str | None = None
    source: str | None = None
    reason: str | None = None


class _Message(NamedTuple):
    topic: str
    event: str
    body: bytes
    events: int


class Events:
    """The history of one node."""

    def __init__(self, node: Node, config: EventsConfig) -> None:
        self.one_in = config.one_in if config.mode == "sampled" else 1
        self.sampler = Sampler(self.one_in)
        #: Events written, and events that could not be, since the node started.
        self.written = 0
        self.dropped = 0
        self._node = node
        self._clock = node.clock
        self._config = config
        self._runs: dict[Kind, list[Piece]] = {}
        self._discards: dict[Kind, int] = {}
        #: Events that may still be noted in this second, when it began, and those that were too many.
        self._left = config.rate_max
        self._second_ns = node.clock.monotonic()
        self._over = 0
        self._timer: Timer | None = None
        #: Messages of earlier flushes, made and published turn by turn.
        self._writing: list[Iterator[_Message]] = []
        self._woken = False
        self._closed = False
        #: Exact, where the events are a sample.
        self.counts = Counts(node)
        node.ledger.on_add = self._counted

    def settings(self) -> TopicSettings:
        """Return what the topic of the history starts with."""
        size = self._config.retention_bytes
        return TopicSettings(
            durability="os",
            retention_bytes=size,
            retention_hard=True,
            segment_bytes=min(max(size // SEGMENTS, SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX),
        )

    # --- what happens ---------------------------------------------------------------------------------------------

    def recorders(self, topic: str, shards: int, subscription: str | None = None) -> list[Recorder] | None:
        """Return who hears of each shard of a topic, or of a subscription to it; None for the node's own topics."""
        if topic.startswith(PREFIX):
            return None
        tally = Tally(self.counts, topic, subscription)
        return [Recorder(self, tally, shard) for shard in range(shards)]

    def note(
        self,
        kind: Kind,
        shard: int,
        offsets: int | list[int] | Offsets,
        count: int,
        attempts: int | Attempts | None = None,
    ) -> None:
        """Keep events until the next flush, as many as the rate allows. Budget: 1 us."""
        if self._timer is None:
            self._arm()
        if count > self._left and count > self._refilled():
            self._over += count - self._left
            count = self._left
            if count == 0:
                return
            offsets = offsets if isinstance(offsets, int) else offsets[:count]
            attempts = attempts[:count] if isinstance(attempts, np.ndarray) else attempts
        self._left -= count
        run = self._runs.get(kind)
        if run is None:
            run = self._runs[kind] = []
        run.append((shard, offsets, count, self._clock.now() // 1000, attempts))

    def _refilled(self) -> int:
        """Return how many events may be noted now; a second that is over makes room for the next one's."""
        now_ns = self._clock.monotonic()
        if now_ns - self._second_ns >= SECOND:
            self._second_ns = now_ns
            self._left = self._config.rate_max
        return self._left

    def discard(self, kind: Kind, count: int) -> None:
        """Count messages that will not be delivered."""
        self.counts.discard(kind.topic, kind.subscription, kind.reason or "", count)
        if kind not in self._discards and len(self._discards) >= DISCARDS_MAX:
            kind = Kind("discarded", OTHER_TOPICS, reason=kind.reason)
        self._discards[kind] = self._discards.get(kind, 0) + count
        if self._timer is None:
            self._arm()

    def _counted(self, reason: str, topic: str, count: int) -> None:
        """Hear what the ledger hears; what clients do wrong (`dialect:code`) concerns no message."""
        if topic and ":" not in reason and reason not in _TOLD_ELSEWHERE and not topic.startswith(PREFIX):
            self.discard(Kind("discarded", topic, reason=reason), count)

    # --- writing --------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        self._refilled()
        if not self._closed:
            self._timer = self._clock.call_at(self._clock.monotonic() + self._config.flush_interval_ns, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._gather()
        if not self._woken:
            self._go_on()

    def close(self) -> None:
        """Write what there is, at once, and nothing from now on."""
        if not self._closed:
            self._closed = True
            self._node.ledger.on_add = None
            self.flush()

    def flush(self) -> None:
        """Write what there is, at once; of a node that stops only where the topic exists."""
        self._gather()
        for messages in self._writing:
            self._publish(list(messages))
        self._writing.clear()
        topic = self._node.topics.get(self._node.own_name(TOPIC))
        if topic is not None and not topic.deleted:
            topic.intake.flush()
        if self._closed:
            self.counts.close()
        else:
            self.counts.flush()

    def _gather(self) -> None:
        """Put what was noted in the line of what is to be written, and begin anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        runs, self._runs = self._runs, {}
        discards, self._discards = self._discards, {}
        if self._over:
            over, self._over = self._over, 0
            self._drop(over, f"more than {self._config.rate_max} events a second (events.rate_max)")
        if runs or discards:
            self._writing.append(_messages(runs, discards, self.one_in))

    def _go_on(self) -> None:
        """Write a turn's worth, and come again while there is more."""
        self._woken = False
        some: list[_Message] = []
        rows = 0
        while self._writing and rows < TURN_ROWS_MAX:
            message = next(self._writing[0], None)
            if message is None:
                del self._writing[0]
            else:
                some.append(message)
                rows += message.events + MESSAGE_ROWS
        if some:
            self._publish(some)
        if self._writing and not self._closed:
            self._woken = True
            self._clock.call_soon(self._go_on)

    def _publish(self, messages: Sequence[_Message]) -> None:
        if not messages:
            return
        events = sum(message.events for message in messages)
        rows = Rows.of(
            [message.body for message in messages],
            SOURCE,
            {
                "key": [message.topic.encode() for message in messages],
                "tag": [message.event for message in messages],
            },
        )

        def told(topic: Topic | None, error: Exception | None) -> None:
            if topic is None:
                self._published(events, None, error)
            else:  # A stopping node takes nothing more from anybody else.
                topic.intake.take(rows, self, partial(self._published, events))

        self._node.obtain(self._node.own_name(TOPIC)).then(told)

    def _published(self, events: int, receipt: Receipt | None, error: BaseException | None) -> None:
        if error is None:
            self.written += events
        else:
            self._drop(events, str(error))

    def _drop(self, events: int, why: str) -> None:
        self.dropped += events
        self._node.ledger.add(DROPPED, TOPIC, events, self._clock.now(), why)


class Recorder:
    """Hears of one shard of a topic, or of one shard in a subscription; counts it, and notes what is in the sample.

    Budget for a lone message that is not: 0.2 us an event, so it asks the sampler's question itself; from 1,000 on
    10 ns each.
    """

    __slots__ = ("_events", "_kinds", "_sampler", "_shard", "_subscription", "_topic", "base", "one_in", "tally")

    def __init__(self, events: Events, tally: Tally, shard: int) -> None:
        self._events = events
        #: Of all shards.
        self.tally = tally
        self._topic = tally.topic
        self._subscription = tally.subscription
        self._shard = shard
        self.base = base_of(tally.topic, shard)
        self.one_in = events.one_in
        self._sampler = events.sampler
        #: By event; those of `published`, the only one of a topic, by source.
        self._kinds: dict[str, Kind] = {}

    def published(self, batch: Batch) -> None:
        """Hear that rows are in the log, as durable as promised."""
        first, count, n = batch.first, batch.count, self.one_in
        tally = self.tally
        tally.published += count
        tally.published_bytes += len(batch.body)
        if not tally.busy:
            tally.touch()
        if count > 1 or first % n == ((self.base + first // n) * STEP & BITS) * n >> 32:
            source = batch.source if isinstance(batch.source, str) else batch.row_source(0)
            self._range(self._kind("published", source), first, count, None)

    def delivered(self, delivery: Delivery) -> None:
        """Hear that rows go to a consumer."""
        rows, first = delivery.rows, delivery.batch.first
        if isinstance(rows, slice):
            self._range(self._kind("delivered"), first + rows.start, delivery.count, delivery.attempts)
        else:
            self._picked(self._kind("delivered"), first + rows, delivery.attempts)

    def delivered_many(self, deliveries: list[Delivery]) -> None:
        """Hear that pieces of several batches go to a consumer together."""
        if not deliveries:
            return
        offsets = np.concatenate([each.batch.first + each.picks() for each in deliveries])
        tries: int | npt.NDArray[np.uint16] = 1
        if any(type(each.attempts) is not int or each.attempts != 1 for each in deliveries):
            each_tries = [np.broadcast_to(np.asarray(each.attempts, np.uint16), each.count) for each in deliveries]
            tries = np.concatenate(each_tries)
        self._picked(self._kind("delivered"), offsets, tries)

    def acked_one(self, offset: int) -> None:
        """Hear that one row was finished by its consumer."""
        n = self.one_in
        tally = self.tally
        tally.acked += 1
        if not tally.busy:
            tally.touch()
        if offset % n == ((self.base + offset // n) * STEP & BITS) * n >> 32:
            self._events.note(self._kind("acked"), self._shard, offset, 1)

    def acked_few(self, offsets: list[int]) -> None:
        """Hear that a few rows were finished by their consumer."""
        tally = self.tally
        tally.acked += len(offsets)
        if not tally.busy:
            tally.touch()
        if self.one_in == 1 or self._sampler.any_of(self.base, offsets):
            self._picked(self._kind("acked"), np.array(sorted(offsets), np.int64), None)

    def acked(self, offsets: Offsets) -> None:
        """Hear that rows, ascending and distinct, were finished by their consumer."""
        count = len(offsets)
        tally = self.tally
        tally.acked += count
        if not tally.busy:
            tally.touch()
        first = int(offsets[0])
        if int(offsets[-1]) - first == count - 1:
            self._range(self._kind("acked"), first, count, None)
        else:
            self._picked(self._kind("acked"), offsets, None)

    def returned(self, event: Return, offsets: Offsets, attempts: Attempts, reason: str | None = None) -> None:
        """Hear that leases ended without an ack, or that rows went to the dead-letter topic."""
        tally, count = self.tally, len(offsets)
        if event == "released":
            tally.released += count
        elif event == "expired":
            tally.expired += count
        else:
            tally.dead += count
        if not tally.busy:
            tally.touch()
        self._picked(Kind(event, self._topic, self._subscription, reason=reason), offsets, attempts)

    def discarded(self, reason: str, count: int) -> None:
        """Hear that rows were finished without being delivered."""
        self._events.discard(Kind("discarded", self._topic, self._subscription, reason=reason), count)

    def _kind(self, event: str, source: str | None = None) -> Kind:
        kind = self._kinds.get(source or event)
        if kind is None:
            kind = self._kinds[source or event] = Kind(event, self._topic, self._subscription, source)
        return kind

    def _range(self, kind: Kind, first: int, count: int, attempts: int | Attempts | None) -> None:
        if self.one_in == 1:
            self._events.note(kind, self._shard, first, count, attempts)
        elif chosen := self._sampler.of_range(self.base, first, count):
            tries = attempts[np.array(chosen) - first] if isinstance(attempts, np.ndarray) else attempts
            self._events.note(kind, self._shard, chosen, len(chosen), tries)

    def _picked(self, kind: Kind, offsets: Offsets, attempts: int | Attempts | None) -> None:
        if self.one_in > 1:
            if len(offsets) <= SMALL and not self._sampler.any_of(self.base, offsets.tolist()):
                return
            chosen = self._sampler.of(self.base, offsets)
            offsets = offsets[chosen]
            attempts = attempts[chosen] if isinstance(attempts, np.ndarray) else attempts
        if len(offsets):
            self._events.note(kind, self._shard, offsets, len(offsets), attempts)


def on_hand(recorders: Sequence[Recorder]) -> Callable[[list[Delivery]], None]:
    """Return who hears of everything that a subscription hands out, given who hears of each shard."""

    n, bases, tally = recorders[0].one_in, [recorder.base for recorder in recorders], recorders[0].tally

    def tell(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            tally.delivered += delivery.count
            if delivery.attempts.__class__ is not int:
                tally.again += int(np.count_nonzero(delivery.attempts != 1))
            elif delivery.attempts != 1:
                tally.again += delivery.count
        if not tally.busy:
            tally.touch()
        if len(deliveries) > FEW:  # pieces of many batches, as those have who ask for a tag
            for recorder in recorders:
                recorder.delivered_many([each for each in deliveries if recorders[each.shard] is recorder])
            return
        for delivery in deliveries:
            shard, rows = delivery.shard, delivery.rows
            if delivery.count == 1:  # mostly not in the sample, and one more call would cost as much as the question
                offset = delivery.batch.first + (rows.start if isinstance(rows, slice) else int(rows[0]))
                if offset % n != ((bases[shard] + offset // n) * STEP & BITS) * n >> 32:
                    continue
            recorders[shard].delivered(delivery)

    return tell


def _messages(runs: dict[Kind, list[Piece]], discards: dict[Kind, int], one_in: int) -> Iterator[_Message]:
    """Yield the messages that tell what was noted, one per run or several of a long one."""
    for kind, pieces in runs.items():
        columns = _columns(pieces)
        count = len(columns["offset"])
        for first in range(0, count, RUN_ROWS_MAX):
            part = {name: column[first : first + RUN_ROWS_MAX] for name, column in columns.items()}
            yield _message(kind, one_in, min(RUN_ROWS_MAX, count - first), part)
    for kind, count in discards.items():
        yield _message(kind, 1, count, {})


def _columns(pieces: list[Piece]) -> dict[str, list[int]]:
    shard: list[int] = []
    offset: list[int] = []
    at_us: list[int] = []
    attempts: list[int] = []
    for number, first, count, time_us, tries in pieces:
        shard += [number] * count
        if isinstance(first, int):
            offset += range(first, first + count)
        else:
            offset += first if isinstance(first, list) else first.tolist()
        at_us += [time_us] * count
        if tries is not None:
            attempts += [tries] * count if isinstance(tries, int) else tries.tolist()
    columns = {"shard": shard, "offset": offset, "at_us": at_us}
    return {**columns, "attempts": attempts} if attempts else columns


def _message(kind: Kind, one_in: int, count: int, columns: dict[str, list[int]]) -> _Message:
    told: dict[str, Any] = {name: value for name, value in kind._asdict().items() if value is not None}
    body = msgspec.json.encode({**told, "one_in": one_in, "count": count, **columns})
    return _Message(kind.topic, kind.event, body, count if columns else 1)
