"""One broker: what is to go to it, what went and waits for its answer.

Sends when it may and no sooner; what an answer means is decided elsewhere.
Invariant: a message is in the queue, in a batch that grows, in a set that is to go again, or in a request that is out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, TypeAlias

from penstock.clock import Clock
from penstock.relays.kafka.assembly import assemble
from penstock.relays.kafka.batching import Batcher, BatchLimits
from penstock.relays.kafka.choice import Rotation
from penstock.relays.kafka.cluster import Broker, Cluster
from penstock.relays.kafka.config import KafkaRelayConfig
from penstock.relays.kafka.group import Group
from penstock.relays.kafka.sequences import Place
from penstock.relays.kafka.sets import MessageSet, Request

_log = logging.getLogger("penstock.kafka")

#: How a connection fails: it cannot be had, it ends, it is silent, its answers are wrong, or it breaks.
Trouble: TypeAlias = Literal["connect", "closed", "silent", "answer", "error"]


class Wire(Protocol):
    """The connection to the broker."""

    @property
    def is_ready(self) -> bool:
        """Whether something can be asked."""

    def produce(self, request: Request) -> bool:
        """Send; the answer comes to the line. False: it is not written yet, and the line hears when it is."""

    def close(self) -> None:
        """Hang up."""


class Judge(Protocol):
    """Who decides what answers mean."""

    def number(self, sets: Sequence[MessageSet]) -> None:
        """Give new sets their numbers."""

    def sent(self, request: Request) -> None:
        """Hear of messages that were sent."""

    def answered(self, line: Line, part: MessageSet, code: int) -> None:
        """Hear what a broker says of one set."""

    def trouble(self, line: Line, why: str, kind: Trouble) -> None:
        """Hear that a broker cannot be spoken to."""

    def settled(self, line: Line) -> None:
        """Hear that no answer is waited for any more."""


class Line:
    """The queue of one broker."""

    def __init__(self, broker: Broker, cluster: Cluster, sizes: KafkaRelayConfig, clock: Clock, judge: Judge) -> None:
        self.broker = broker
        self.wire: Wire | None = None
        #: Messages that may go.
        self.queue: deque[Group] = deque()
        #: Sets that go before everything else, once nothing that was sent before them is out.
        self.again: deque[MessageSet] = deque()
        #: Sets that go again, but not from here.
        self.returned: list[MessageSet] = []
        self.out: deque[Request] = deque()
        #: Batches of keyed messages, by topic, and the one of all topics.
        self.batchers: dict[str, Batcher[Group]] = {}
        self.is_stopped = False
        self._rotation = Rotation(cluster, broker.id)
        self._sizes = sizes
        self._clock = clock
        self._judge = judge
        self._is_full = False
        self._is_woken = False
        self._settling = False
        #: The last request that is out is not written yet, and nothing may go before it.
        self._is_packing = False

    # --- what is to go --------------------------------------------------------------------------------------------

    def put(self, groups: Sequence[Group]) -> None:
        """Let messages go."""
        self.queue.extend(groups)
        self.wake()

    def batch(self, name: str, limits: BatchLimits, group: Group, now_ns: int) -> None:
        """Let messages wait for others."""
        batcher = self.batchers.get(name)
        if batcher is None:
            batcher = self.batchers[name] = Batcher(limits)
        for batch in batcher.add(group, now_ns):
            self.put(batch)

    def expire(self, now_ns: int | None) -> None:
        """Let those go who waited long enough, or with no time, all."""
        for batcher in self.batchers.values():
            deadline_ns = batcher.deadline_ns
            if batcher.groups and (now_ns is None or (deadline_ns is not None and deadline_ns <= now_ns)):
                self.put(batcher.flush())

    def put_again(self, sets: Sequence[MessageSet]) -> None:
        """Let sets go again, before everything else, in the order in which they first went."""
        self.again = deque(sorted((*self.again, *sets), key=lambda each: each.number))
        self._settling = bool(self.out)
        self.wake()

    def later(self, part: MessageSet) -> list[MessageSet]:
        """Return the sets of the same partition that were sent after one."""
        known = (*self.again, *self.returned, *(each for request in self.out for each in request))
        return [each for each in known if each.place == part.place and each.number > part.number]

    def awaits(self, place: Place, before: int) -> bool:
        """Tell whether an earlier set of a partition is to go again."""
        return any(each.place == place and each.number < before for each in (*self.again, *self.returned))

    # --- sending --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Send what there is once this turn has brought all of it."""
        if not self._is_woken:
            self._is_woken = True
            self._clock.call_soon(self._woken)

    def hold(self, full: bool) -> None:
        """Send nothing more while what was sent does not leave."""
        self._is_full = full
        if not full:
            self.wake()

    def _woken(self) -> None:
        self._is_woken = False
        if self._may_send():
            self._send()
            self.wake()  # in another turn: packing and compressing a megabyte takes tens of milliseconds

    def _may_send(self) -> bool:
        return (
            self.wire is not None
            and self.wire.is_ready
            and not self.is_stopped
            and not self._is_full
            and not self._settling
            and not self._is_packing
            and len(self.out) < self._sizes.requests
            and bool(self.again or self.queue)
            and not self._must_hear()
        )

    def _must_hear(self) -> bool:
        """Tell whether numbered messages have to be answered before others go.

        Of a producer that it does not know, a broker takes any number: what is behind the first messages would be taken
        in their stead. And it knows the last five batches again: no more may be behind one that it may have.
        """
        return any(each.is_alone for each in self.out) or any(each.sequence >= 0 for each in self.returned)

    def _send(self) -> None:
        is_again = bool(self.again)
        sets = self._sent_before() if is_again else self._new()
        is_alone = any(each.sequence == 0 or (is_again and each.sequence > 0) for each in sets)
        request = Request(sorted(sets, key=lambda each: each.place), is_alone=is_alone)
        if self.wire is None:
            raise RuntimeError(f"broker {self.broker.id} has no connection to send on")
        try:
            self._is_packing = not self.wire.produce(request)
        except Exception as error:  # nothing was written, and nothing will be answered: the next one would be
            _log.exception("messages for broker %d could not be sent", self.broker.id)
            self.returned += sets
            self.failed(f"messages could not be sent to it: {error!r}")
            return
        self.out.append(request)
        self._judge.sent(request)

    def _sent_before(self) -> list[MessageSet]:
        """Take sets that go again; a request has a partition once."""
        places: set[Place] = set()
        sets = []
        while self.again and self.again[0].place not in places:
            places.add(self.again[0].place)
            sets.append(self.again.popleft())
        return sets

    def _new(self) -> list[MessageSet]:
        sizes = self._sizes
        taken = assemble(self.queue, self._rotation.current, sizes.request_bytes, sizes.message_max_bytes)
        sets = [MessageSet(topic, partition, groups) for (topic, partition), groups in taken.items()]
        for topic in {each.topic for each in sets if any(group.partition is None for group in each.groups)}:
            self._rotation.used(topic)
        self._judge.number(sets)
        return sets

    def written(self) -> None:
        """Go on behind a request that took its time."""
        self._is_packing = False
        self.wake()

    # --- answers --------------------------------------------------------------------------------------------------

    def answered(self, codes: dict[Place, int]) -> None:
        """Take the answer to the oldest request."""
        request = self.out[0]
        if codes.keys() != request.sets.keys():
            self.failed("it answered for other partitions than it was asked for", "answer")
            return
        self.out.popleft()
        if not self.out:
            self._settling = False
        for place, code in codes.items():
            self._judge.answered(self, request.sets[place], code)
        if not self.out:
            self._judge.settled(self)
        self.wake()

    def failed(self, why: str, kind: Trouble = "error") -> None:
        """Give the connection up; what is out may have arrived or not."""
        self.stop()
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.close()
        self._judge.trouble(self, why, kind)

    # --- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Send nothing more; answers still come."""
        self.is_stopped = True

    @property
    def is_settled(self) -> bool:
        """Whether no answer is waited for, or can be."""
        return not self.out or self.wire is None

    def close(self) -> None:
        """Hang up."""
        self.stop()
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.close()

    def unsent(self) -> Iterator[Group]:
        """Yield what was not sent, in order."""
        yield from self.queue
        for batcher in self.batchers.values():
            yield from batcher.groups

    @property
    def deadline_ns(self) -> int | None:
        """When the first batch that grows is complete whatever comes, in unix time."""
        ends = [each.deadline_ns for each in self.batchers.values() if each.deadline_ns is not None]
        return min(ends, default=None)
