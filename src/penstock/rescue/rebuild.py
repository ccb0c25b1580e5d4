"""A registry made anew from what is on disk: labels, shards and journals, and what an old registry file still tells.

For an operator, while no node runs. A registry that can be read is only added to (what stands in `lost/`), unless it is
told to distrust it. Nothing is deleted: an old registry is renamed, a lost directory moved back.
Invariant: directories move before the new registry is in place, so a crash in between loses none of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import Any, TypeVar

import msgspec

from penstock.clock import Clock
from penstock.disk import Disk, replace_file
from penstock.errors import ConfigError, CorruptionError
from penstock.fanout.fanouts import FANOUTS
from penstock.fanout.record import FanoutRecord, Target
from penstock.log import label
from penstock.log.label import Label
from penstock.registry.catalog import (
    DELETED,
    INCARNATION_BITS,
    SUBSCRIPTIONS,
    TOPICS,
)
from penstock.registry.counters import SUBSCRIPTION_COUNTER, TOPIC_COUNTER
from penstock.registry.frames import HEADER, Change, frame, mark, salvage, scan
from penstock.registry.records import DeletedTopic, SubscriptionRecord, TopicRecord, encoded, read
from penstock.rescue import fanouts
from penstock.rescue.directories import Directories, filled, journals, number_in, shards, variants
from penstock.settings import SubscriptionSettings, TopicSettings

REGISTRY = "registry"

Record = TypeVar("Record", bound=msgspec.Struct)


class Found(msgspec.Struct):
    """One topic of the new registry, and where it came from."""

    topic: str
    number: int
    shards: int
    subscriptions: list[str]
    #: What had to be made up, in words; empty where everything was found.
    remarks: list[str]


class Rebuilt(msgspec.Struct):
    """What became of it."""

    topics: list[Found]
    #: The names of the fan-outs that were added.
    fanouts: list[str]
    #: Files of fan-outs that cannot be read.
    damaged: list[str]
    #: Where the old registry is now; None if there was none.
    kept: str | None


def rebuild(disk: Disk, clock: Clock, random: Random, data_dir: str, *, force: bool = False) -> Rebuilt:
    """Make the registry of a data directory that no node uses; ConfigError where there is nothing to do."""
    path = f"{data_dir}/{REGISTRY}"
    content = _content(disk, path)
    old, is_good = _entries(content, path)
    work = _Rebuild(Directories(disk, data_dir), clock, random, old, is_good and not force)
    found = [work.take(place, name) for place, name in work.unknown()]
    kept_fanouts, damaged = fanouts.read(disk, data_dir)
    copied = work.take_fanouts(kept_fanouts)
    if is_good and not force and not found and not copied:
        raise ConfigError(
            f"{path} can be read and knows every directory below {data_dir}: there is nothing to rebuild. "
            "With --force it is made from the directories alone all the same"
        )
    new = work.entries()
    data = bytearray(HEADER)
    revision = 1 + max((change.revision for change in salvage(content or b"")), default=0)
    # One frame each: a value may be as large as a frame.
    for key in sorted(new):
        data += frame(Change(revision, ((key, new[key]),)), len(data))
        revision += 1
    data += frame(Change(revision, ()), len(data))
    data += mark(revision, len(data))
    kept = _put_aside(disk, path) if content is not None else None
    replace_file(disk, path, bytes(data))
    return Rebuilt(found, copied, damaged, kept)


class _Rebuild:
    """One rebuild under way."""

    def __init__(
        self, directories: Directories, clock: Clock, random: Random, old: dict[str, bytes], is_trusted: bool
    ) -> None:
        self._directories = directories
        self._disk = directories.disk
        self._clock = clock
        self._random = random
        self._topics: dict[str, TopicRecord] = {}
        #: By the numbers that labels have.
        self._labelled: dict[int, TopicRecord] = {}
        self._subscriptions: dict[str, SubscriptionRecord] = {}
        #: What an old registry says; only what a label does not say is taken from it, unless it is trusted.
        self._old_topics = _records(old, TOPICS, TopicRecord)
        self._old_subscriptions = _records(old, SUBSCRIPTIONS, SubscriptionRecord)
        self._deleted = {each.number: each for each in _records(old, DELETED, DeletedTopic).values()}
        self._others = {
            key: value
            for key, value in old.items()
            if not key.startswith((TOPICS, SUBSCRIPTIONS)) and key not in (TOPIC_COUNTER, SUBSCRIPTION_COUNTER)
        }
        values = [old.get(counter, b"") for counter in (TOPIC_COUNTER, SUBSCRIPTION_COUNTER)]
        counted = [int(value) if value.isdigit() else 0 for value in values]
        seen = directories.numbers()
        self._topic_counter = max(counted[0], seen[0])
        self._subscription_counter = max(counted[1], seen[1])
        if is_trusted:
            self._topics = {record.name: record for record in self._old_topics.values()}
            self._subscriptions = dict(self._old_subscriptions)

    def unknown(self) -> Iterator[tuple[str, str]]:
        """Yield (place, name) of each directory to make a topic of."""
        for place in (self._directories.topics, self._directories.lost):
            known = {str(record.number) for record in self._topics.values()} if place.endswith("topics") else set()
            for name in self._disk.list(place):
                deleted = self._deleted.get(number_in(name))
                found = label.read(self._disk, f"{place}/{name}")
                gone = deleted is not None and (found is None or found.incarnation == deleted.incarnation)
                if name not in known and not gone:
                    yield place, name

    def take(self, place: str, name: str) -> Found:
        """Make a record of a directory, and bring it where the record says."""
        found = label.read(self._disk, f"{place}/{name}")
        remarks: list[str] = []
        record = self._topic(f"{place}/{name}", name, found, remarks)
        target = self._directories.of(record.number)
        if f"{place}/{name}" != target:
            self._disk.make(self._directories.topics)
            self._disk.rename(f"{place}/{name}", target)
            self._disk.sync_directory(self._directories.topics)
            self._disk.sync_directory(place)
        self._topics[record.name] = record
        if found is not None:
            self._labelled[found.number] = record
        names = self._take_subscriptions(record, found, remarks)
        return Found(record.name, record.number, record.settings.shards, names, remarks)

    def take_fanouts(self, kept: list[FanoutRecord]) -> list[str]:
        """Take in the fan-outs that the registry does not tell of; what they copied to and is not there they lose."""
        known = {record.number: record for record in self._topics.values()} | self._labelled
        new = [record for record in kept if FANOUTS + record.name not in self._others]
        for record in new:
            there = [known[each.number] for each in record.targets if each.number in known]
            targets = tuple(Target(topic.name, topic.number) for topic in there)
            self._others[FANOUTS + record.name] = encoded(msgspec.structs.replace(record, targets=targets))
        return [record.name for record in new]

    def entries(self) -> dict[str, bytes]:
        """Return everything that the new registry holds."""
        return {
            **self._others,
            TOPIC_COUNTER: b"%d" % self._topic_counter,
            SUBSCRIPTION_COUNTER: b"%d" % self._subscription_counter,
            **{TOPICS + record.name: encoded(record) for record in self._topics.values()},
            **{
                f"{SUBSCRIPTIONS}{record.topic_number}/{record.name}": encoded(record)
                for record in self._subscriptions.values()
            },
        }

    def _topic(self, path: str, name: str, found: Label | None, remarks: list[str]) -> TopicRecord:
        number = found.number if found is not None else number_in(name)
        if not number or any(record.number == number for record in self._topics.values()):
            self._topic_counter += 1
            remarks.append(f"its number was {number or 'not known'} and is {self._topic_counter} now")
            number = self._topic_counter
        record = _decoded(found.record, TopicRecord) if found is not None else None
        if record is None:
            record = self._guessed(path, name, found, remarks)
        record = self._with_shards(path, record, found, remarks)
        free = next(each for each in variants(record.name) if each not in self._topics)
        if free != record.name:
            remarks.append(f"there is another topic {record.name!r}, so it is named {free!r} now")
        self._topic_counter = max(self._topic_counter, number)
        # It is for a node that is alone, also where its disk was that of a cluster's.
        return msgspec.structs.replace(record, name=free, number=number, home="")

    def _with_shards(self, path: str, record: TopicRecord, found: Label | None, remarks: list[str]) -> TopicRecord:
        """Return the record with all shards that are there: it may be from before it got more of them."""
        known = record.settings.shards
        labelled = found.shards if found is not None else 0
        more = max([known, labelled, *(shard + 1 for shard in filled(self._disk, path))]) - known
        if not more:
            return record
        remarks.append(f"it has {known + more} shards on disk, and its record knew {known}: its keys may move")
        return msgspec.structs.replace(
            record,
            settings=msgspec.structs.replace(record.settings, shards=known + more),
            orphan_from=(*record.orphan_from, *(0,) * more),
            gate=(*record.gate, *(0,) * more) if record.gate is not None else None,
        )

    def _guessed(self, path: str, name: str, found: Label | None, remarks: list[str]) -> TopicRecord:
        """Return a record where no label has one: from the old registry, or from what can be seen."""
        incarnation = found.incarnation if found is not None else None
        for record in self._old_topics.values():
            if record.incarnation == incarnation or (found is None and str(record.number) == name):
                return record
        if found is None:
            remarks.append("it has no label: its name is made up, and so are its settings")
        else:
            remarks.append("its settings, beside shards and durability, are the defaults")
        count = max([found.shards if found is not None else 1, *(shard + 1 for shard in shards(self._disk, path))])
        durability = found.durability if found is not None else "os"
        settings = msgspec.convert({"shards": count, "durability": durability}, TopicSettings)
        return TopicRecord(
            name=found.name if found is not None else f"lost-{number_in(name) or name}",
            number=0,
            incarnation=self._random.getrandbits(INCARNATION_BITS) if incarnation is None else incarnation,
            settings=settings,
            orphan_from=(0,) * count,
            created_ns=self._clock.now(),
        )

    def _take_subscriptions(self, record: TopicRecord, found: Label | None, remarks: list[str]) -> list[str]:
        number = found.number if found is not None else record.number
        if found is not None and found.subscriptions is not None:
            labelled = [_decoded(each, SubscriptionRecord) for each in found.subscriptions]
        else:
            labelled = [each for each in self._old_subscriptions.values() if each.topic_number == number]
        taken = {each.number: each for each in labelled if each is not None}
        for left in sorted(journals(self._disk, self._directories.of(record.number)) - set(taken)):
            name = f"recovered-{left}"
            remarks.append(f"subscription number {left} has a journal and no name: it is named {name!r}")
            taken[left] = SubscriptionRecord(
                topic_number=record.number,
                name=name,
                number=left,
                settings=SubscriptionSettings(),
                starts=(0,) * record.settings.shards,
                created_ns=self._clock.now(),
            )
        for each in taken.values():
            self._subscription_counter = max(self._subscription_counter, each.number)
            key = f"{record.number}/{each.name}"
            self._subscriptions[key] = msgspec.structs.replace(each, topic_number=record.number)
        return sorted(each.name for each in taken.values())


def _content(disk: Disk, path: str) -> bytes | None:
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def _entries(content: bytes | None, path: str) -> tuple[dict[str, bytes], bool]:
    """Return what a registry file says, as far as it can be read, and whether that is all of it."""
    if content is None:
        return {}, False
    try:
        changes, is_good = [change for change, _ in scan(content, path).changes], True
    except CorruptionError:
        changes, is_good = salvage(content), False
    entries: dict[str, bytes] = {}
    for change in changes:
        for key, value in change.edits:
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
    return entries, is_good and bool(changes)


def _records(entries: dict[str, bytes], prefix: str, kind: type[Record]) -> dict[str, Record]:
    found = {}
    for key, value in entries.items():
        if key.startswith(prefix):
            try:
                found[key[len(prefix) :]] = read(msgspec.msgpack.decode(value), kind)
            except msgspec.MsgspecError:
                continue
    return found


def _decoded(content: dict[str, Any] | None, kind: type[Record]) -> Record | None:
    if content is None:
        return None
    try:
        return read(content, kind)
    except msgspec.MsgspecError:
        return None


def _put_aside(disk: Disk, path: str) -> str:
    target = next(each for each in variants(f"{path}.old") if not disk.exists(each))
    disk.rename(path, target)
    disk.sync_directory(os.path.dirname(path))
    return target
