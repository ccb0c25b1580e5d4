"""The catalog: topics, subscriptions and the routing mapping, kept in a registry.

Owns the names of the keys and what changes in one step, so that a crash leaves nothing half made that anybody could
see. Knows nothing of logs or delivery.
Invariants: a number is given to one topic, or one subscription, ever; the record of a topic goes in the step that says
that it was deleted; a record that cannot be read is never told as none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

import msgspec

from penstock.clock import Clock
from penstock.errors import CorruptionError, Refusal
from penstock.m3 import routing
from penstock.registry.answer import Answer
from penstock.registry.attempt import Compose, Draft, attempt
from penstock.registry.counters import COUNTERS, SUBSCRIPTION_COUNTER, TOPIC_COUNTER, Counters
from penstock.registry.reader import Reader
from penstock.registry.records import (
    DeletedTopic,
    Growth,
    Measured,
    RoutingMapping,
    SubscriptionRecord,
    TopicRecord,
    check_name,
    check_subscription_settings,
    check_topic_settings,
    decoded,
    encoded,
    mapping_clashes,
    replaced_mapping,
)
from penstock.registry.registry import Cancel, Entry, Event, Registry
from penstock.settings import Measure, SubscriptionSettings, TopicSettings

TOPICS = "topic/"
SUBSCRIPTIONS = "subscription/"
#: Topics that are gone and whose data may not be, by number.
DELETED = "deleted/"
MAPPING = "routing/mapping"
#: With the sign bit free, an incarnation fits every int64 column and offset document.
INCARNATION_BITS = 63
#: What is to be done about a record that cannot be read.
WAY_OUT = (
    "Run a version that understands it, or put back what was there: a snapshot of etcd has it, and on a node that is "
    "alone `penstock registry rebuild --force` makes it from what is on disk; or remove the key, if what it stands for "
    "is not wanted"
)
PASSED_OVER = f"It is passed over, and nothing is removed for it. {WAY_OUT}"
#: Keys that one change removes at a time, well below what a registry takes.
REMOVE_KEYS_MAX = 100
#: Records that one change puts at a time: they are larger.
EDITS_MAX = 50

T = TypeVar("T")
Record = TypeVar("Record", bound=msgspec.Struct)


class Catalog:
    """Everything a node knows by name."""

    def __init__(self, registry: Registry, clock: Clock, random: Random) -> None:
        self.registry = registry
        self._clock = clock
        self._random = random
        #: Tells what cannot be read, whoever met it.
        self.reader = Reader()
        self.counters = Counters(registry, self.reader)

    def topics(self) -> list[TopicRecord]:
        """Return all topics whose records can be read, by name."""
        listed = self.registry.list(TOPICS).items()
        return [record for key, entry in listed if (record := self._read(key, entry)) is not None]

    def topic(self, name: str) -> TopicRecord | None:
        """Return the topic of this name, None if there is none; Refusal if what there is cannot be read."""
        key = TOPICS + name
        entry = self.registry.get(key)
        return self._readable(key, entry) if entry else None

    def known(self, name: str) -> TopicRecord | None:
        """Return the topic of this name, None if there is none or its record cannot be read.

        For those who go on to nothing that a topic which is gone would allow.
        """
        key = TOPICS + name
        entry = self.registry.get(key)
        return self._read(key, entry) if entry else None

    def unreadable(self) -> dict[str, str]:
        """Return why each key cannot be read that was met here."""
        self.counters.look()
        return self.reader.unreadable(self.registry)

    def problems(self) -> list[str]:
        """Return what cannot be read, one sentence each."""
        return [self._told(key, why) for key, why in self.unreadable().items()]

    def each(self, prefix: str, kind: type[Record]) -> dict[str, Record]:
        """Return what others keep below a prefix, by key, as far as it can be read."""
        listed = self.registry.list(prefix).items()
        return {key: record for key, entry in listed if (record := self.reader.read(key, entry, kind)) is not None}

    def get(self, key: str, kind: type[Record]) -> Record | None:
        """Return what others keep under a key, None if there is nothing; Refusal if what there is cannot be read."""
        entry = self.registry.get(key)
        record = self.reader.read(key, entry, kind)
        if record is None and entry is not None:
            raise self._unread(key)
        return record

    def _unread(self, key: str) -> Refusal:
        return Refusal("unavailable", self._told(key, self.unreadable()[key]))

    def _told(self, key: str, why: str) -> str:
        # Whoever removed a counter would have its numbers given a second time.
        return why if key.startswith(COUNTERS) else f"{why}. {PASSED_OVER}"

    def _read(self, key: str, entry: Entry) -> TopicRecord | None:
        record = self.reader.read(key, entry, TopicRecord)
        if record is not None and TOPICS + record.name != key:
            self.reader.note(key, entry, f"registry entry {key} holds the record of another topic, {record.name}")
            return None
        return record

    def _readable(self, key: str, entry: Entry) -> TopicRecord:
        record = self._read(key, entry)
        if record is None:
            raise self._unread(key)
        return record

    def create_topic(
        self,
        name: str,
        settings: TopicSettings,
        measure: Measure | None = None,
        owner: str = "",
        home: str = "",
        fits: Callable[[int], bool] | None = None,
    ) -> Answer[TopicRecord]:
        """Make a topic with a number and an incarnation of its own, one that `fits` where that is asked."""
        incarnation = self._random.getrandbits(INCARNATION_BITS)
        while fits is not None and not fits(incarnation):
            incarnation = self._random.getrandbits(INCARNATION_BITS)

        def compose() -> Draft[TopicRecord]:
            check_name(name)
            check_topic_settings(settings)
            if self.registry.get(TOPICS + name):
                raise Refusal("conflict", f"topic {name} exists already")
            number, counted, guards = self._number(TOPIC_COUNTER)
            record = TopicRecord(
                name=name,
                number=number,
                incarnation=incarnation,
                settings=settings,
                orphan_from=(0,) * settings.shards,
                measures=(Measured(measure or Measure()),),
                owner=owner,
                home=home,
                is_told=settings.log == "local",
                created_ns=self._clock.now(),
            )
            key = TOPICS + name
            return Draft(record, {key: encoded(record), **counted}, (), {key: 0, **guards}, proof=(key,))

        return self.attempt(compose)

    def update_topic(
        self,
        name: str,
        *,
        settings: TopicSettings | None = None,
        orphan_from: Sequence[int] | None = None,
        gate: Sequence[int] | msgspec.UnsetType | None = msgspec.UNSET,
        measured: Measured | None = None,
        grown: Sequence[Growth] | None = None,
        is_made: bool = False,
        is_told: bool = False,
    ) -> Answer[TopicRecord]:
        """Change what is given and answer with the new record; `gate=None` takes the gate away.

        `measured` says what rows weigh from some offsets on, if that is something else than before. More shards come
        together with `grown`, whose last entry tells how many there were; alone it puts right what that says.
        """
        key = TOPICS + name

        def compose() -> Draft[TopicRecord]:
            entry = self.registry.get(key)
            if entry is None:
                raise Refusal("not_found", f"there is no topic {name}")
            record = self._readable(key, entry)
            if settings is not None:
                check_topic_settings(settings)
                record = _grown(record, settings.shards, grown) if grown is not None else record
                if settings.shards != record.settings.shards:
                    raise Refusal("conflict", f"topic {name} has {record.settings.shards} shards by now; try again")
                record = msgspec.structs.replace(record, settings=settings)
            elif grown is not None:
                record = msgspec.structs.replace(record, grown=tuple(grown))
            if orphan_from is not None:
                record = msgspec.structs.replace(record, orphan_from=_per_shard(record, orphan_from))
            if gate is not msgspec.UNSET:
                record = msgspec.structs.replace(record, gate=None if gate is None else _per_shard(record, gate))
            if measured is not None and measured.measure != record.measures[-1].measure:
                record = msgspec.structs.replace(record, measures=(*record.measures, measured))
            if is_made:
                record = msgspec.structs.replace(record, is_made=True)
            if is_told:
                record = msgspec.structs.replace(record, is_told=True)
            if encoded(record) == entry.value:
                return Draft(record)
            return Draft(record, {key: encoded(record)}, (), {key: entry.revision})

        return self.attempt(compose)

    def mark_made(self, records: Sequence[TopicRecord]) -> Answer[None]:
        """Write down of any number of topics, some at a time, that their files were made; some may be gone already."""
        some, rest = records[:EDITS_MAX], records[EDITS_MAX:]

        def compose() -> Draft[None]:
            puts, guards = {}, {}
            for each in some:
                current, entry = self.topic(each.name), self.registry.get(TOPICS + each.name)
                if current is not None and entry is not None and current.incarnation == each.incarnation:
                    puts[TOPICS + each.name] = encoded(msgspec.structs.replace(current, is_made=True))
                    guards[TOPICS + each.name] = entry.revision
            return Draft(None, puts, (), guards)

        marked = self.attempt(compose)
        return marked.then_ask(lambda _: self.mark_made(rest)) if rest else marked

    def delete_topic(self, name: str) -> Answer[TopicRecord]:
        """Remove a topic with its subscriptions and answer with what it was."""

        def compose() -> Draft[TopicRecord]:
            entry = self.registry.get(TOPICS + name)
            if entry is None:
                raise Refusal("not_found", f"there is no topic {name}")
            record = self._readable(TOPICS + name, entry)
            gone = DeletedTopic(
                name=name,
                number=record.number,
                incarnation=record.incarnation,
                deleted_ns=self._clock.now(),
                home=record.home,
                log=record.settings.log,
            )
            # More than that goes with `forget_deleted`: they belong to a number nobody has any more.
            subscriptions = list(self.registry.list(_subscriptions_of(record)))[:REMOVE_KEYS_MAX]
            return Draft(
                record,
                {f"{DELETED}{record.number}": encoded(gone)},
                [TOPICS + name, *subscriptions],
                {TOPICS + name: entry.revision},
            )

        return self.attempt(compose)

    def deleted(self) -> list[DeletedTopic]:
        """Return the topics that were deleted and are not forgotten yet."""
        listed = self.registry.list(DELETED).items()
        return [gone for key, entry in listed if (gone := self.reader.read(key, entry, DeletedTopic)) is not None]

    def forget_deleted(self, numbers: Sequence[int]) -> Answer[None]:
        """Forget deleted topics of which nothing is left on disk, for good, and what is left of them here."""
        left = [key for number in numbers for key in self.registry.list(f"{SUBSCRIPTIONS}{number}/")]
        return self.remove([*left, *(f"{DELETED}{number}" for number in numbers)])

    def subscriptions(self, topic: TopicRecord) -> list[SubscriptionRecord]:
        """Return the subscriptions of a topic, by name; CorruptionError if one cannot be read.

        None is passed over: what a topic does without one of them it cannot take back.
        """
        listed = self.registry.list(_subscriptions_of(topic))
        try:
            return [decoded(entry.value, SubscriptionRecord, key) for key, entry in listed.items()]
        except CorruptionError as error:
            raise CorruptionError(f"{error}. Topic {topic.name} is not opened without it. {WAY_OUT}") from None

    def subscription(self, topic: TopicRecord, name: str) -> SubscriptionRecord | None:
        """Return the subscription of this name, or None."""
        key = _subscriptions_of(topic) + name
        entry = self.registry.get(key)
        return decoded(entry.value, SubscriptionRecord, key) if entry else None

    def create_subscription(
        self, topic: TopicRecord, name: str, settings: SubscriptionSettings, starts: Sequence[int]
    ) -> Answer[SubscriptionRecord]:
        """Make a subscription with a number of its own that begins at these offsets, one per shard."""
        key = _subscriptions_of(topic) + name

        def compose() -> Draft[SubscriptionRecord]:
            check_name(name, "subscription")
            check_subscription_settings(settings)
            current = self.topic(topic.name)
            if current is None or current.number != topic.number:
                raise Refusal("not_found", f"there is no topic {topic.name} any more")
            if self.registry.get(key):
                raise Refusal("conflict", f"topic {topic.name} has a subscription {name} already")
            number, counted, guards = self._number(SUBSCRIPTION_COUNTER)
            record = SubscriptionRecord(
                topic_number=topic.number,
                name=name,
                number=number,
                settings=settings,
                starts=_per_shard(topic, starts),
                created_ns=self._clock.now(),
            )
            guards |= {key: 0, **self._guard(TOPICS + topic.name)}
            return Draft(record, {key: encoded(record), **counted}, (), guards, proof=(key,))

        return self.attempt(compose)

    def update_subscription(
        self, topic: TopicRecord, name: str, settings: SubscriptionSettings
    ) -> Answer[SubscriptionRecord]:
        """Change the settings and answer with the new record."""
        key = _subscriptions_of(topic) + name

        def compose() -> Draft[SubscriptionRecord]:
            check_subscription_settings(settings)
            entry = self.registry.get(key)
            if entry is None:
                raise Refusal("not_found", f"topic {topic.name} has no subscription {name}")
            record = msgspec.structs.replace(decoded(entry.value, SubscriptionRecord, key), settings=settings)
            if encoded(record) == entry.value:
                return Draft(record)
            return Draft(record, {key: encoded(record)}, (), {key: entry.revision})

        return self.attempt(compose)

    def delete_subscription(
        self, topic: TopicRecord, name: str, orphan_from: Sequence[int] | None = None
    ) -> Answer[SubscriptionRecord]:
        """Remove a subscription and answer with what it was; the next may begin elsewhere from then on."""
        key, topic_key = _subscriptions_of(topic) + name, TOPICS + topic.name

        def compose() -> Draft[SubscriptionRecord]:
            entry = self.registry.get(key)
            if entry is None:
                raise Refusal("not_found", f"topic {topic.name} has no subscription {name}")
            puts, guards = {}, {key: entry.revision}
            current = self.registry.get(topic_key)
            if orphan_from is not None and current is not None:
                record = self._readable(topic_key, current)
                record = msgspec.structs.replace(record, orphan_from=_per_shard(record, orphan_from))
                puts[topic_key], guards[topic_key] = encoded(record), current.revision
            return Draft(decoded(entry.value, SubscriptionRecord, key), puts, [key], guards, proof=(key,))

        return self.attempt(compose)

    def put(
        self, key: str, value: bytes, replaced: Sequence[str] = (), check: Callable[[], None] | None = None
    ) -> Answer[None]:
        """Set what others keep here, over whatever is there, and remove what it takes the place of.

        `check` may refuse it by what the registry shows then.
        """

        def compose() -> Draft[None]:
            if check is not None:
                check()
            return Draft(None, {key: value}, replaced, self._guard(key), proof=(key,))

        return self.attempt(compose)

    def remove(self, keys: Sequence[str]) -> Answer[None]:
        """Remove any number of keys, some at a time; some may be gone already."""
        some, rest = keys[:REMOVE_KEYS_MAX], keys[REMOVE_KEYS_MAX:]

        def compose() -> Draft[None]:
            there = {key: entry.revision for key in some if (entry := self.registry.get(key))}
            return Draft(None, {}, list(there), there)

        removed = self.attempt(compose)
        return removed.then_ask(lambda _: self.remove(rest)) if rest else removed

    def attempt(self, compose: Compose[T]) -> Answer[T]:
        """Make a change that is composed from what the registry shows, until it is known what became of it."""
        return attempt(self.registry, self._clock, compose)

    def mapping(self) -> RoutingMapping:
        """Return the routing mapping; one without types where none is set. Refusal if it cannot be read."""
        return self.get(MAPPING, RoutingMapping) or RoutingMapping()

    def mapping_or_none(self) -> RoutingMapping:
        """Return the routing mapping; one without types also where what is set cannot be read."""
        return self.reader.read(MAPPING, self.registry.get(MAPPING), RoutingMapping) or RoutingMapping()

    def set_mapping(
        self, traffic_types: Mapping[str, int], *, force: bool = False, before: Mapping[str, int] | None = None
    ) -> Answer[RoutingMapping]:
        """Replace the routing mapping, if it is what it was before; to move or reuse a bit only with `force`."""

        def compose() -> Draft[RoutingMapping]:
            if problems := routing.problems(traffic_types):
                raise Refusal("bad_request", "the routing mapping cannot be used: " + "; ".join(problems))
            old = self.mapping_or_none() if force else self.mapping()
            if before is not None and before != old.traffic_types:
                raise Refusal(
                    "conflict", "somebody else changed the routing mapping at the same time; look at it and try again"
                )
            if not force and (clashes := mapping_clashes(old, traffic_types)):
                raise Refusal(
                    "conflict",
                    "producers and consumers would disagree: " + "; ".join(clashes) + ". Choose free bits, or force it",
                )
            mapping = replaced_mapping(old, traffic_types)
            if mapping == old and MAPPING not in self.unreadable():
                return Draft(mapping)
            return Draft(mapping, {MAPPING: encoded(mapping)}, (), self._guard(MAPPING))

        return self.attempt(compose)

    def take_mapping(self, traffic_types: Mapping[str, int]) -> Answer[RoutingMapping]:
        """Remember a mapping that somebody else decides on."""

        def compose() -> Draft[RoutingMapping]:
            old = self.mapping_or_none()
            mapping = replaced_mapping(old, traffic_types)
            return (
                Draft(mapping)
                if mapping == old and MAPPING not in self.unreadable()
                else Draft(mapping, {MAPPING: encoded(mapping)}, (), self._guard(MAPPING))
            )

        return self.attempt(compose)

    def watch_mapping(self, on_mapping: Callable[[RoutingMapping], None]) -> Cancel:
        """Report each new mapping from now on; one that cannot be read is told, and the last one stays."""

        def on_events(events: Sequence[Event]) -> None:
            last = next((event for event in reversed(events) if event.key == MAPPING), None)
            if last is None:
                return
            entry = Entry(last.value, last.revision) if last.value is not None else None
            mapping = self.reader.read(MAPPING, entry, RoutingMapping)
            if mapping is not None or entry is None:
                on_mapping(mapping or RoutingMapping())

        return self.registry.watch(MAPPING, self.registry.revision, on_events)

    def _number(self, counter: str) -> tuple[int, dict[str, bytes], dict[str, int]]:
        """Return a number that was never given, what to put together with what gets it, and the guard of that."""
        found = self.counters.next(counter)
        if found is None:
            raise self._unread(counter)
        number, revision = found
        return number, {counter: b"%d" % number}, {counter: revision}

    def _guard(self, key: str) -> dict[str, int]:
        entry = self.registry.get(key)
        return {key: entry.revision if entry else 0}


def _subscriptions_of(topic: TopicRecord) -> str:
    return f"{SUBSCRIPTIONS}{topic.number}/"


def _grown(record: TopicRecord, shards: int, grown: Sequence[Growth]) -> TopicRecord:
    """Return the record with more shards, which begin empty."""
    if grown[-1].shards != record.settings.shards or shards <= record.settings.shards:
        raise Refusal("conflict", f"topic {record.name} has {record.settings.shards} shards by now; try again")
    more = (0,) * (shards - record.settings.shards)
    return msgspec.structs.replace(
        record,
        settings=msgspec.structs.replace(record.settings, shards=shards),
        orphan_from=record.orphan_from + more,
        gate=record.gate + more if record.gate is not None else None,
        grown=tuple(grown),
    )


def _per_shard(record: TopicRecord, offsets: Sequence[int]) -> tuple[int, ...]:
    """Return one offset per shard; a shard that came since they were looked at was empty then."""
    if not 0 < len(offsets) <= record.settings.shards or any(offset < 0 for offset in offsets):
        raise Refusal("bad_offset", f"topic {record.name} takes {record.settings.shards} offsets, one per shard")
    return (*offsets, *(0,) * (record.settings.shards - len(offsets)))
