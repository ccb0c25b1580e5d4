"""Holds: offsets that a reader outside still needs, kept against retention until they run out.

A Spark query reads without a subscription, so it says from where on it needs the log, again and again while it runs.
Owns their records in the registry, and the floor they make together. In a cluster all nodes know all of them, and each
forgets those of its own topics.
Invariant: a hold of another incarnation of a topic holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec

from penstock.clock import SteadyTime
from penstock.errors import Refusal
from penstock.registry.answer import Answer
from penstock.registry.catalog import Catalog
from penstock.registry.records import TopicRecord
from penstock.registry.registry import Entry, Event

KEYS = "hold/"
#: More than any query asks for; a hold is renewed long before.
TTL_NS_MAX = 7 * 24 * 3600 * 1_000_000_000


class HoldRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One hold, as the registry keeps it."""

    name: str
    topic: str
    incarnation: int
    #: One per shard.
    offsets: tuple[int, ...]
    until_ns: int


class Holds:
    """All holds that the registry has."""

    def __init__(self, catalog: Catalog, clock: SteadyTime, is_here: Callable[[str], bool], most: int) -> None:
        self._catalog = catalog
        self._clock = clock
        self._is_here = is_here
        #: So many there are at once: each of them is looked at whenever a topic's retention is.
        self.most = most
        registry = catalog.registry
        self._records = catalog.each(KEYS, HoldRecord)
        #: Keys of holds that the registry is asked to keep, one for each time.
        self._coming: list[str] = []
        #: Hears no more what other nodes are told.
        self.close = registry.watch(KEYS, registry.revision, self._heard)

    def _heard(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.value is None:
                self._records.pop(event.key, None)
                continue
            record = self._catalog.reader.read(event.key, Entry(event.value, event.revision), HoldRecord)
            if record is not None:  # else what was held is held until it runs out
                self._records[event.key] = record

    def __len__(self) -> int:
        return len(self._records)

    def hold(self, name: str, topic: TopicRecord, offsets: Sequence[int], ttl_ns: int) -> Answer[None]:
        """Keep a topic from these offsets on, or renew that."""
        # A reader that has not seen yet that the topic grew needs all of the shards it does not name.
        if not 0 < len(offsets) <= topic.settings.shards or any(offset < 0 for offset in offsets):
            text = f"topic {topic.name} takes {topic.settings.shards} offsets, one per shard"
            return Answer.refused(Refusal("bad_offset", text))
        if not 0 < ttl_ns <= TTL_NS_MAX:
            return Answer.refused(Refusal("bad_request", f"a hold lasts 1 ms to {TTL_NS_MAX // 1_000_000} ms"))
        key = _key(name, topic.name)
        keys = {*self._records, *self._coming}
        if key not in keys and len(keys) >= self.most:
            text = f"there are {self.most} holds already; limits.holds may be raised"
            return Answer.refused(Refusal("limit_reached", text))
        record = HoldRecord(
            name=name,
            topic=topic.name,
            incarnation=topic.incarnation,
            offsets=(*offsets, *(0,) * (topic.settings.shards - len(offsets))),
            until_ns=self._clock.now() + ttl_ns,
        )
        put = self._catalog.put(key, msgspec.msgpack.encode(record))
        self._coming.append(key)
        kept = put.then_make(lambda _: self._records.update({key: record}))
        kept.then(lambda _, __: self._coming.remove(key))
        return kept

    def topics(self, name: str) -> list[str]:
        """Return the topics that holds of a name are on."""
        return sorted(record.topic for record in self._records.values() if record.name == name)

    def release(self, name: str) -> Answer[int]:
        """End all holds of a name; answer with how many there were."""
        return self._drop([key for key, record in self._records.items() if record.name == name])

    def floors(self, topic: TopicRecord) -> list[tuple[int, ...]]:
        """Return the offsets, one per shard, of every hold on a topic that has not run out."""
        now_ns = self._clock.now()
        return [
            (*record.offsets, *(0,) * (topic.settings.shards - len(record.offsets)))
            for record in self._records.values()
            if record.incarnation == topic.incarnation and record.topic == topic.name and record.until_ns > now_ns
        ]

    def sweep(self) -> Answer[int]:
        """Forget what ran out; answer with how many that were."""
        now_ns = self._clock.now()
        return self._drop(
            [key for key, each in self._records.items() if each.until_ns <= now_ns and not self._is_elsewhere(each)]
        )

    def _is_elsewhere(self, record: HoldRecord) -> bool:
        """Tell whether it is for another node to say that a hold ran out, by its clock."""
        if self._is_here(record.topic):
            return False
        try:
            topic = self._catalog.topic(record.topic)
        except Refusal:
            return True  # nobody can tell whose it is, or that it is gone
        return topic is not None and topic.incarnation == record.incarnation

    def _drop(self, keys: list[str]) -> Answer[int]:
        def dropped(_: None) -> int:
            for key in keys:
                self._records.pop(key, None)
            return len(keys)

        return self._catalog.remove(keys).then_make(dropped)


def _key(name: str, topic: str) -> str:
    return KEYS + blake2b(f"{len(name)} {name}{topic}".encode(), digest_size=16).hexdigest()
