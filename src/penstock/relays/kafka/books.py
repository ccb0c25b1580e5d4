"""The books of a relay: what is in hand, what Kafka has, and what was given up and why.

Invariant: taken = acked + discarded + held; what is held counts in the node's memory for output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, get_args

from penstock.budget import Share
from penstock.clock import Clock
from penstock.delivery.source import Delivery
from penstock.discards import Discards, Reason
from penstock.relays.kafka.group import Group
from penstock.relays.kafka.lane import Lane
from penstock.relays.kafka.line import Trouble
from penstock.relays.kafka.sets import MessageSet, Request

Stage = Literal["receive", "send", "got_ack"]
#: Hears of messages of one topic: times of their producers in ms, keys, bodies.
Watch = Callable[[Stage, str, Sequence[int], Sequence[bytes | None], Sequence[bytes]], None]


class Counts:
    """What became of messages, and of those who were asked."""

    def __init__(self) -> None:
        self.taken = 0
        self.sent = 0
        self.requests = 0
        self.acked = 0
        self.discarded = 0
        self.duplicates = 0
        self.resent = 0
        self.pauses = 0
        self.metadata_fetched = 0
        self.metadata_failed = 0
        #: Of those that were asked again while all was well.
        self.metadata_changed = 0
        self.metadata_unchanged = 0
        self.connection_failures: dict[Trouble, int] = dict.fromkeys(get_args(Trouble), 0)
        #: Answers with an error, by its code.
        self.errors: dict[int, int] = {}


class Books:
    """Every message that is taken in is finished here."""

    def __init__(self, clock: Clock, discards: Discards, memory: Share, freed: Callable[[], None]) -> None:
        self.counts = Counts()
        #: Told of single messages; None = nobody listens.
        self.watch: Watch | None = None
        #: Messages in hand, also of topics that are gone, and their bytes.
        self.held = self.held_bytes = 0
        self._clock = clock
        self._discards = discards
        self._memory = memory
        #: Told whenever messages were finished.
        self._freed = freed

    def take(self, lane: Lane, delivery: Delivery) -> Group:
        """Take messages in hand."""
        group = Group.of(lane, delivery)
        size_bytes = group.bytes
        lane.held += group.count
        self.held += group.count
        self.held_bytes += size_bytes
        self._memory.used += size_bytes
        self.counts.taken += group.count
        return group

    def sent(self, request: Request) -> None:
        """Count messages that were sent, and now wait for an answer."""
        self.counts.requests += 1
        for part in request:
            count = part.count
            self.counts.sent += count
            part.groups[0].lane.ack_wait += count
            self.show("send", part.groups)

    def heard(self, part: MessageSet) -> None:
        """Note that a set waits for no answer any more."""
        part.groups[0].lane.ack_wait -= part.count

    def deliver(self, part: MessageSet) -> None:
        """Be done with messages that Kafka has."""
        self.show("got_ack", part.groups)
        self.counts.acked += part.count
        self._finish(part.groups)

    def discard(self, group: Group, reason: Reason) -> None:
        """Give messages up, and say why."""
        if not group.count:
            return
        self.counts.discarded += group.count
        keys, bodies = _contents(group) if self._discards.is_heard or reason == "too_long" else ([], [])
        self._discards.add(reason, group.topic, group.times_ms, keys, bodies)
        # Not from inside what handed them out.
        self._clock.call_soon(partial(self._finish, [group]))

    def doubt(self, part: MessageSet) -> None:
        """Say that messages may be in Kafka already, and are sent again."""
        self.counts.duplicates += part.count
        for group in part.groups:
            keys, bodies = _contents(group) if self._discards.is_heard else ([], [])
            self._discards.add_duplicates(group.topic, group.times_ms, keys, bodies)

    def show(self, stage: Stage, groups: Iterable[Group]) -> None:
        """Show single messages to whoever looks."""
        if self.watch is not None:
            for group in groups:
                keys, bodies = _contents(group)
                self.watch(stage, group.topic, group.times_ms.tolist(), keys, bodies)

    def _finish(self, groups: Sequence[Group]) -> None:
        by_lane: dict[int, list[Group]] = {}
        for group in groups:
            size_bytes = group.bytes
            self.held -= group.count
            self.held_bytes -= size_bytes
            self._memory.used -= size_bytes
            by_lane.setdefault(id(group.lane), []).append(group)
        for some in by_lane.values():
            some[0].lane.finish(some)
        self._freed()


def _contents(group: Group) -> tuple[list[bytes | None], list[bytes]]:
    pairs = list(group.contents())
    return [key for key, _ in pairs], [body for _, body in pairs]
