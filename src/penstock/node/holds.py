"""Holds: offsets that a reader outside still needs, kept against retention until they run out.

A Spark query reads without a subscription, so it says from where on it needs the log, again and again while it runs.
Owns their records in the registry, and the floor they make together.
Invariant: a hold of another incarnation of a topic holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from penstock.clock import SteadyTime
from penstock.errors import Refusal
from penstock.registry.answer import Answer
from penstock.registry.catalog import Catalog
from penstock.registry.records import TopicRecord

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
    """All holds of a node."""

    def __init__(self, catalog: Catalog, clock: SteadyTime) -> None:
        self._catalog = catalog
        self._clock = clock
        self._records: dict[str, HoldRecord] = {
            key: msgspec.msgpack.decode(entry.value, type=HoldRecord)
            for key, entry in catalog.registry.list(KEYS).items()
        }

    def take_up(self, topic: TopicRecord) -> None:
        """Know what another node was told of a topic that is here now."""
        for key, entry in self._catalog.registry.list(KEYS).items():
            record = msgspec.msgpack.decode(entry.value, type=HoldRecord)
            if record.incarnation == topic.incarnation:
                self._records[key] = record

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
        record = HoldRecord(
            name=name,
            topic=topic.name,
            incarnation=topic.incarnation,
            offsets=(*offsets, *(0,) * (topic.settings.shards - len(offsets))),
            until_ns=self._clock.now() + ttl_ns,
        )
        key = _key(name, topic.name)
        put = self._catalog.put(key, msgspec.msgpack.encode(record))
        return put.then_make(lambda _: self._records.update({key: record}))

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
        return self._drop([key for key, record in self._records.items() if record.until_ns <= now_ns])

    def _drop(self, keys: list[str]) -> Answer[int]:
        return self._catalog.remove(keys).then_make(lambda _: sum(self._forget(key) for key in keys))

    def _forget(self, key: str) -> bool:
        return self._records.pop(key, None) is not None


def _key(name: str, topic: str) -> str:
    return KEYS + blake2b(f"{len(name)} {name}{topic}".encode(), digest_size=16).hexdigest()
