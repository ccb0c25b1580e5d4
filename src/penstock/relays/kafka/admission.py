"""Which messages can be sent at all: those of a topic that Kafka has, short enough, and within the rate of their topic.

What cannot is thrown away, and told.
"""

from __future__ import annotations

from penstock.clock import Clock
from penstock.discards import Reason
from penstock.relays.kafka.assembly import MESSAGE_BYTES
from penstock.relays.kafka.books import Books
from penstock.relays.kafka.group import Group
from penstock.relays.kafka.lane import Lane


class Admission:
    """Judges messages before they are sent."""

    def __init__(self, message_bytes_max: int, books: Books, clock: Clock) -> None:
        self._message_bytes_max = message_bytes_max
        self._books = books
        self._clock = clock

    def valid(self, lane: Lane, group: Group) -> Group | None:
        """Return the messages that can be sent."""
        if lane.known is None:
            self._books.discard(group, "bad_topic")
            return None
        too_long = group.sizes + MESSAGE_BYTES > self._message_bytes_max
        if too_long.any():
            self._books.discard(group.picked(too_long), "too_long")
            group = group.picked(~too_long)
        if lane.spread is None:
            self._books.discard(group, "no_available_partitions")
            return None
        return group if group.count else None

    def new(self, lane: Lane, group: Group) -> Group | None:
        """Return those that can, of messages that were never sent: as many as the rate allows."""
        valid = self.valid(lane, group)
        if valid is None or lane.window is None:
            return valid
        count = lane.window.admit(valid.count, self._clock.monotonic())
        if count < valid.count:
            self._books.discard(valid.cut(count, valid.count), "rate_limit")
        return valid.cut(0, count) if count else None

    def reconcile(self, lane: Lane) -> None:
        """Throw away what waits for company and cannot be sent any more."""
        if lane.batcher is not None and lane.batcher.groups and lane.spread is None:
            reason: Reason = "bad_topic" if lane.known is None else "no_available_partitions"
            for group in lane.batcher.flush():
                self._books.discard(group, reason)
