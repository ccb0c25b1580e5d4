"""Exact counts: how many messages each topic took, and what became of them in each subscription, interval by interval.

The delivery history is a sample and gives shapes; how many there were is told here. A lone message costs some
additions. Intervals are written to a topic of the node's own, soon after things happen where little does, every ten
seconds where much does. Invariant: what is counted is in exactly one interval, also of topics that are deleted; only a
process that is killed takes what it had not written with it, and then its last interval does not say `ended`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.clock import SECOND, Timer
from penstock.cluster.places import name_of
from penstock.intake.ledger import OTHER_TOPICS
from penstock.message import Rows
from penstock.settings import HOUR_NS, TopicSettings
from penstock.tally import TOPIC, Counted, Interval

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

#: What the messages say of where they came from.
SOURCE = "penstock"
#: Under this reason the ledger counts intervals that were not written.
DROPPED = "counts_dropped"

#: Looks at what was counted come at whole seconds; while much happens an interval is so long, and ends at a multiple.
LOOK_NS = SECOND
INTERVAL_NS = 10 * SECOND
#: One message tells of so many topics and subscriptions at most: each takes about 100 bytes.
ENTRIES_MAX = 1000
#: Discards are told apart by topic, subscription and reason up to so many an interval; clients may invent names.
DISCARDS_MAX = 1024

#: A busy node with ten subscriptions writes 6 MB a day.
RETENTION_BYTES = 64 << 20
RETENTION_AGE_NS = 32 * 24 * HOUR_NS
SEGMENT_BYTES = 4 << 20


class Tally:
    """What is counted of a topic, or of a subscription to it, since it was last written."""

    __slots__ = (
        "_counts", "acked", "again", "busy", "dead", "delivered", "expired", "published", "published_bytes", "released",
        "subscription", "topic",
    )  # fmt: skip

    def __init__(self, counts: Counts, topic: str, subscription: str | None) -> None:
        self._counts = counts
        self.topic = topic
        self.subscription = subscription
        #: Whether it is in the list of those that have something to tell; whoever adds to it looks.
        self.busy = False
        self._clear()

    def _clear(self) -> None:
        self.published = self.published_bytes = self.delivered = self.again = 0
        self.acked = self.released = self.expired = self.dead = 0

    def touch(self) -> None:
        """Have it written with the interval that is counted now."""
        self.busy = True
        self._counts.touch(self)

    def moves(self) -> int:
        """Return a number that grows with whatever is counted."""
        return self.published + self.delivered + self.acked + self.released + self.expired + self.dead

    def take(self) -> Counted:
        """Return what was counted, and begin anew."""
        found = Counted(
            topic=self.topic,
            subscription=self.subscription,
            published=self.published,
            published_bytes=self.published_bytes,
            delivered=self.delivered,
            again=self.again,
            acked=self.acked,
            released=self.released,
            expired=self.expired,
            dead=self.dead,
        )
        self.busy = False
        self._clear()
        return found


class Counts:
    """The counts of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clock = node.clock
        #: Intervals that could not be written since the node started.
        self.dropped = 0
        self._busy: list[Tally] = []
        self._discards: dict[tuple[str, str | None, str], int] = {}
        self._begun_ns = 0
        self._written_ns = 0
        #: What had been counted when it was last looked at.
        self._moves = 0
        self._timer: Timer | None = None
        self._closed = False

    def settings(self) -> TopicSettings:
        """Return what the topic of the counts starts with."""
        return TopicSettings(
            durability="os",
            retention_bytes=RETENTION_BYTES,
            retention_hard=True,
            retention_age_ns=RETENTION_AGE_NS,
            segment_bytes=SEGMENT_BYTES,
            compression="zstd",
        )

    # --- counting -------------------------------------------------------------------------------------------------

    def touch(self, tally: Tally) -> None:
        """Hear that a tally has something to tell."""
        self._begin()
        self._busy.append(tally)

    def discard(self, topic: str, subscription: str | None, reason: str, count: int) -> None:
        """Count messages that will not be delivered."""
        self._begin()
        key = (topic, subscription, reason)
        if key not in self._discards and len(self._discards) >= DISCARDS_MAX:
            key = (OTHER_TOPICS, None, reason)
        self._discards[key] = self._discards.get(key, 0) + count

    def _begin(self) -> None:
        if not self._begun_ns:
            self._begun_ns = self._clock.now()
            self._moves = 0
        if self._timer is None and not self._closed:
            self._arm()

    def _arm(self) -> None:
        wait_ns = LOOK_NS - self._clock.now() % LOOK_NS
        self._timer = self._clock.call_at(self._clock.monotonic() + wait_ns, self._look)

    def _look(self) -> None:
        """Write the interval if it is over, if nothing was written for long, or if nothing happened any more."""
        self._timer = None
        now_ns = self._clock.now()
        moves = sum([tally.moves() for tally in self._busy]) + sum(self._discards.values())
        is_over = now_ns // INTERVAL_NS != self._begun_ns // INTERVAL_NS
        if is_over or now_ns - self._written_ns >= INTERVAL_NS or moves == self._moves:
            self.flush()
        else:
            self._moves = moves
            self._arm()

    # --- writing --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what there is, and that this was all."""
        if not self._closed:
            self._closed = True
            self.flush(ended=True)

    def flush(self, *, ended: bool = False) -> None:
        """Write what there is, at once; of a node that stops only where the topic exists."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = self._clock.now()
        busy, self._busy = self._busy, []
        begun_ns, self._begun_ns = self._begun_ns or now_ns, 0
        counted = [*self._backlogs(busy), *map(self._told, busy), *self._discarded()]
        if not counted and not (ended and self._written_ns):
            return
        self._written_ns = now_ns
        cluster = self._node.config.cluster
        groups = [counted[first : first + ENTRIES_MAX] for first in range(0, len(counted), ENTRIES_MAX)] or [[]]
        self._publish(
            [
                Interval(
                    node=name_of(cluster) if cluster.name else "",
                    started_us=self._node.started_ns // 1000,
                    from_us=begun_ns // 1000,
                    until_us=max(now_ns, begun_ns) // 1000,
                    counts=group,
                    ended=ended and group is groups[-1],
                )
                for group in groups
            ]
        )

    def _told(self, tally: Tally) -> Counted:
        """Return what was counted of one, and where its dead letters went."""
        counted = tally.take()
        topic = self._node.topics.get(tally.topic) if counted.dead else None
        subscription = topic.subscriptions.get(tally.subscription or "") if topic is not None else None
        if subscription is None:
            return counted
        return msgspec.structs.replace(counted, dead_letter=subscription.settings.dead_letter)

    def _backlogs(self, busy: list[Tally]) -> list[Counted]:
        """Return how much every subscription has before it to whose topic something happened."""
        found = []
        for name in dict.fromkeys(tally.topic for tally in busy):
            topic = self._node.topics.get(name)
            if topic is None or topic.deleted:
                continue
            for subscription in topic.subscriptions.values():
                backlog = subscription.depth() + subscription.in_flight()
                found.append(Counted(topic=name, subscription=subscription.name, backlog=backlog))
        return found

    def _discarded(self) -> list[Counted]:
        discards, self._discards = self._discards, {}
        found: dict[tuple[str, str | None], dict[str, int]] = {}
        for (topic, subscription, reason), count in discards.items():
            found.setdefault((topic, subscription), {})[reason] = count
        return [Counted(topic=topic, subscription=name, discarded=each) for (topic, name), each in found.items()]

    def _publish(self, intervals: list[Interval]) -> None:
        rows = Rows.of([msgspec.json.encode(each) for each in intervals], SOURCE)

        def told(topic: Topic | None, error: Exception | None) -> None:
            if topic is None:
                self._drop(len(intervals), str(error))
            else:  # A stopping node takes nothing more from anybody else.
                topic.intake.take(
                    rows, self, lambda _, error: self._drop(len(intervals), str(error)) if error else None
                )
                topic.intake.flush()

        self._node.obtain(self._node.own_name(TOPIC)).then(told)

    def _drop(self, intervals: int, why: str) -> None:
        self.dropped += intervals
        self._node.ledger.add(DROPPED, TOPIC, intervals, self._clock.now(), why)
