"""What a topic keeps of its log, and what goes when time or room runs out.

Owns retention (ruling 13) and the quotas. Puts together what the subscriptions, the holds of readers outside and the
log know; the segments themselves are the shards' business.
Invariant: what goes unread is counted, in the ledger and in every subscription that had not finished it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from penstock.clock import MILLISECOND
from penstock.columns import Offsets
from penstock.errors import Refusal
from penstock.log.memory import MemoryShard
from penstock.log.quota import Quota
from penstock.log.shard import Shard
from penstock.units.quantity import format_size

if TYPE_CHECKING:
    from penstock.node.topic import Topic

#: A topic that found no room looks for some again after this long: publishers who try again must not cost more.
RETRY_NS = 50 * MILLISECOND


class Storage:
    """How much one topic holds, and what gives way."""

    def __init__(self, topic: Topic, quota: Quota) -> None:
        self.quota = quota
        self._topic = topic
        self._node = topic.node
        self._retry_ns = 0

    def watched(self, shard: Shard) -> Shard:
        """Make room for a shard, and tell it what waits; return it."""
        if isinstance(shard, MemoryShard):
            shard.on_full = self._node.squeeze
        shard.make_room = self.make_room
        shard.waiting = partial(self._waiting, shard)
        shard.on_readable = self._topic.pump_all
        return shard

    def count_dropped(self, shard: Shard) -> None:
        """Count what went because memory was full."""
        for reason, rows in shard.dropped.items():
            self._count(reason, rows)
        shard.dropped.clear()

    def unread(self, shard: Shard) -> int:
        """Return the rows of a shard that the next first subscription would get."""
        return shard.rows_between(max(self._topic.record.orphan_from[shard.number], shard.start), shard.end)

    def unfinished_from(self, shard: Shard) -> int:
        """Return the offset below which every row is finished by all subscriptions, or gone."""
        topic, number = self._topic, shard.number
        floors = [subscription.cursors[number].floor for subscription in topic.subscriptions.values()]
        return max(min(floors) if floors else topic.record.orphan_from[number], shard.start)

    def retain(self, room: int = 0) -> None:
        """Drop history that is neither needed nor young (ruling 13), and more of it where so many bytes are needed."""
        now_ns = self._node.steady.now()
        for shard in self._topic.shards:
            needed_from = self._needed_from(shard)
            held = shard.stored_bytes()
            if needed_from is not None:
                shard.retain(needed_from, now_ns, room)
            else:
                unread = self.unread(shard)
                shard.retain(None, now_ns, room)
                self._count("retention", unread - self.unread(shard))
            room -= held - shard.stored_bytes()

    def make_room(self, size: int) -> None:
        """Let go of what gives way to `size` bytes more; refuse them if that is not enough."""
        quota, now_ns = self.quota, self._node.clock.monotonic()
        if now_ns >= self._retry_ns:
            self._release(size)
            if quota.left() < size:
                self._node.make_room(size, self._topic)
            while quota.left() < size and self._topic.settings.quota_full == "drop" and self._drop_oldest():
                pass
        if quota.left() < size:
            self._retry_ns = max(self._retry_ns, now_ns + RETRY_NS)
            raise self._refusal(size)

    def give_way(self, size: int) -> None:
        """Let go of history for other topics; what of the open segment nobody needs can go the next time."""
        self._release(size)
        for shard in self._topic.shards:
            if self._needed_from(shard) == shard.end:
                shard.roll()

    def _release(self, size: int) -> None:
        missing = size - self.quota.left()
        if missing > 0:
            self.retain(missing)

    def _needed_from(self, shard: Shard) -> int | None:
        """Return the offset from which on somebody needs everything; None where nobody has said so."""
        topic, number = self._topic, shard.number
        needed = [subscription.cursors[number].position.offset for subscription in topic.subscriptions.values()]
        needed += [offsets[number] for offsets in self._node.holds.floors(topic.record)]
        if not topic.subscriptions and not topic.settings.retention_hard:
            needed.append(topic.record.orphan_from[number])
        return min(needed) if needed else None

    def _waiting(self, shard: Shard, first: int, end: int) -> Offsets | None:
        """Return the rows of a range that subscriptions have passed and not finished; None if one has not passed it."""
        needed_from = self._needed_from(shard)
        if needed_from is not None and needed_from < end:
            return None
        return self._held(shard, first, end)

    def _held(self, shard: Shard, first: int, end: int) -> Offsets:
        cursors = [subscription.cursors[shard.number] for subscription in self._topic.subscriptions.values()]
        held = [cursor.states.held_between(first, end) for cursor in cursors]
        return np.unique(np.concatenate([np.empty(0, np.int64), *held]))

    def _drop_oldest(self) -> bool:
        """Drop the oldest segment of any shard, whoever needs it; False if there is none that could go."""
        found = [(oldest[2], shard.number, oldest) for shard in self._topic.shards if (oldest := shard.oldest())]
        if not found:
            return False
        _, number, (first, end, _) = min(found)
        shard = self._topic.shards[number]
        lost = self._unfinished(shard, first, end)
        for subscription in self._topic.subscriptions.values():
            subscription.drop_below(number, end)
        shard.drop_oldest()
        self._count("quota_dropped", lost)
        return True

    def _unfinished(self, shard: Shard, first: int, end: int) -> int:
        """Return how many rows of a range somebody has not finished, or nobody has had."""
        topic, number = self._topic, shard.number
        cursors = [subscription.cursors[number] for subscription in topic.subscriptions.values()]
        if not cursors:
            return shard.rows_between(max(first, topic.record.orphan_from[number]), end)
        unread_from = min(max(min(cursor.position.offset for cursor in cursors), first), end)
        return len(self._held(shard, first, unread_from)) + shard.rows_between(unread_from, end)

    def _count(self, reason: str, rows: int) -> None:
        if rows:
            self._node.ledger.add(reason, self._topic.name, rows, self._node.clock.now())

    def _refusal(self, size: int) -> Refusal:
        name, here, node = self._topic.name, self.quota, self._node.quota
        owner = self._topic.record.owner
        account = self._node.gate.accounts.named(owner) if owner else None
        if here.bytes_max and here.bytes_max - here.used < size:
            text = (
                f"topic {name} holds its quota_bytes of {format_size(here.bytes_max)}: the message was not stored. "
                "Acks make room; or raise the quota, or let the oldest go: "
                f"penstock topic set {name} --quota-bytes SIZE --quota-full drop"
            )
        elif account is not None and 0 < account.stored.bytes_max < account.stored.used + size:
            account.refused["stored"] += 1
            text = (
                f"the topics that user {owner} made hold its quota of {format_size(account.stored.bytes_max)}: "
                "the message was not stored. Acks and retention make room; or delete a topic, or raise it: "
                f"penstock user quota {owner} --stored SIZE"
            )
        else:
            text = (
                f"the node holds its node.quota_bytes of {format_size(node.bytes_max)}: the message was not stored. "
                "Acks and retention make room; or raise the quota, or delete topics that nobody needs"
            )
        return Refusal("quota_full", text)
