"""From lanes to lines: messages go to the brokers that are to have them, at once or when they have company."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np

from penstock.clock import MILLISECOND, Clock, Timer
from penstock.columns import Offsets
from penstock.relays.kafka.config import KafkaRelayConfig
from penstock.relays.kafka.group import Group
from penstock.relays.kafka.lane import Lane
from penstock.relays.kafka.line import Line

#: What a batch of several topics is called.
COMBINED = ""


class Routes:
    """All lanes and lines, and the batches that wait between them."""

    def __init__(self, config: KafkaRelayConfig, clock: Clock, may_send: Callable[[], bool]) -> None:
        self.lanes: dict[str, Lane] = {}
        self.lines: dict[int, Line] = {}
        self._config = config
        self._clock = clock
        self._may_send = may_send
        self._batch_timer: Timer | None = None
        self._batch_ns: int | None = None

    def close(self) -> None:
        """Let nothing go any more."""
        if self._batch_timer is not None:
            self._batch_timer.cancel()

    # --- what is in hand ------------------------------------------------------------------------------------------

    def queues(self) -> Iterator[tuple[str, int, int, int]]:
        """Return the topics of which something is in hand: how many messages in a batch, to be sent, and sent."""
        batched = {name: lane.batched for name, lane in self.lanes.items()}
        for line in self.lines.values():
            for batcher in line.batchers.values():
                for group in batcher.groups:
                    batched[group.topic] = batched.get(group.topic, 0) + group.count
        for name, lane in self.lanes.items():
            if lane.held:
                yield name, batched[name], max(lane.held - lane.ack_wait - batched[name], 0), lane.ack_wait

    def groups(self) -> Iterator[Group]:
        """Yield what lanes and lines have: first what waits for answers, or is to go again."""
        for line in self.lines.values():
            for part in (*chain.from_iterable(line.out), *line.again, *line.returned):
                yield from part.groups
        for line in self.lines.values():
            yield from line.unsent()
        for lane in self.lanes.values():
            if lane.batcher is not None:
                yield from lane.batcher.groups

    # --- on the way -----------------------------------------------------------------------------------------------

    def route(self, lane: Lane, group: Group, *, batches: bool) -> None:
        """Bring messages to the brokers that are to have them, at once or (`batches`) with others."""
        keyed = group.routes
        if keyed is None:
            self._spread(lane, group, batches=batches)
            return
        values, has_key = keyed
        if not has_key.all():
            self._spread(lane, group.picked(~has_key), batches=batches)
            group, values = group.picked(has_key), values[has_key]
        self._send_keyed(lane, group, values, batches=batches)

    def _spread(self, lane: Lane, group: Group, *, batches: bool) -> None:
        """Send messages without a key: as whole batches in turn, or else one by one in turn."""
        spread = lane.spread
        if spread is None:
            raise RuntimeError(f"topic {lane.name} has no partition to send to")
        if batches and lane.batcher is not None:
            for batch in lane.batcher.add(group, self._clock.now()):
                self.lines[spread.next()].put(batch)
            self._arm_batches(lane.batcher.deadline_ns)
            return
        combines = batches and lane.manner.batching == "combined"
        only = spread.only
        if only is not None:
            self._put(self.lines[only], group, combines=combines)
            return
        turns = spread.many(group.count)
        for broker in dict.fromkeys(turns.tolist()):
            self._put(self.lines[broker], group.picked(turns == broker), combines=combines)

    def _send_keyed(self, lane: Lane, group: Group, values: Offsets, *, batches: bool) -> None:
        keys = lane.keys
        if keys is None:
            raise RuntimeError(f"topic {lane.name} has no partition to send to")
        partitions = keys.partitions(values)
        for partition in np.unique(partitions).tolist():
            some = group.picked(partitions == partition)
            some.partition = partition
            line = self.lines[keys.leader(partition)]
            if batches and lane.batcher is not None:
                line.batch(lane.name, lane.manner.batch, some, self._clock.now())
                self._arm_batches(line.deadline_ns)
            else:
                self._put(line, some, combines=batches and lane.manner.batching == "combined")

    def _put(self, line: Line, group: Group, *, combines: bool) -> None:
        if combines and self._config.combined.is_set:
            line.batch(COMBINED, self._config.combined, group, self._clock.now())
            self._arm_batches(line.deadline_ns)
        else:
            line.put((group,))

    # --- batches that are complete by time ------------------------------------------------------------------------

    def _arm_batches(self, deadline_ns: int | None) -> None:
        if deadline_ns is None or (self._batch_ns is not None and self._batch_ns <= deadline_ns):
            return
        if self._batch_timer is not None:
            self._batch_timer.cancel()
        self._batch_ns = deadline_ns
        self._batch_timer = self._after(max(deadline_ns - self._clock.now(), 0), self._expire)

    def _expire(self) -> None:
        self._batch_ns = self._batch_timer = None
        now_ns = self._clock.now()
        if self._may_send():
            self.let_go(now_ns)
        batchers = chain(
            (lane.batcher for lane in self.lanes.values() if lane.batcher is not None),
            (batcher for line in self.lines.values() for batcher in line.batchers.values()),
        )
        ends = [each.deadline_ns for each in batchers if each.deadline_ns is not None]
        if ends:  # while nothing is sent, look again in a while
            self._arm_batches(max(min(ends), now_ns + (10 * MILLISECOND if min(ends) <= now_ns else 0)))

    def let_go(self, now_ns: int | None) -> None:
        """Send batches that waited long enough, or with no time, all."""
        for lane in self.lanes.values():
            batcher, spread = lane.batcher, lane.spread
            if batcher is None or spread is None or not batcher.groups:
                continue
            deadline_ns = batcher.deadline_ns
            if now_ns is None or (deadline_ns is not None and deadline_ns <= now_ns):
                self.lines[spread.next()].put(batcher.flush())
        for line in self.lines.values():
            line.expire(now_ns)

    def _after(self, wait_ns: int, call: Callable[[], None]) -> Timer:
        return self._clock.call_at(self._clock.monotonic() + wait_ns, call)
