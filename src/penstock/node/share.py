"""A node's share of a cluster: which topics are here, whose the others are, and what a new one must be to be here.

Knows no wire: who is asked for a topic that is not here learns whose it is. How topics come and go with their slots is
`holdings`' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import SECOND, Timer
from penstock.cluster.places import name_of
from penstock.cluster.slots import NodeRecord, slot_of
from penstock.disk import Disk, replace_file
from penstock.errors import Elsewhere, Refusal
from penstock.log.kafka.engine import Engine
from penstock.log.shard import Shard
from penstock.node.clearing import Clearing
from penstock.node.holdings import Holdings
from penstock.node.making import Made
from penstock.node.strangers import Strangers
from penstock.node.topic import Topic
from penstock.registry.answer import Answer
from penstock.registry.catalog import TOPICS
from penstock.registry.records import DeletedTopic, TopicRecord
from penstock.registry.registry import Event, Figure
from penstock.rescue.directories import MEMBER
from penstock.settings import TopicSettings

if TYPE_CHECKING:
    from penstock.node.node import Node

#: Publishers are refused, and taken again, a moment after the store began to be away, or came back.
LOOK_NS = SECOND // 4
#: Where the files of topics are that live on the store: a cache, which a start removes.
CACHE = "shared"


class ClusterShare:
    """What of a cluster's topics is here."""

    def __init__(self, node: Node, engine: Engine, random: Random) -> None:
        self._node = node
        self.name = name_of(node.config.cluster)
        cache = f"{node.config.data_dir}/{CACHE}"
        node.disk.remove(cache)
        # The texts tell this process from an earlier one of the same name, and that one had the same disk.
        life, disk = random.randbytes(8).hex(), _disk_name(node.disk, f"{node.config.data_dir}/{MEMBER}", random)
        self.holdings = Holdings(node, engine, life, disk, cache, self.refusal)
        self.slots = self.holdings.slots
        self._clearing = Clearing(node, engine)
        self._strangers = Strangers(node, engine)
        #: Since when shards wait for the store; and topics that take nothing for it.
        self._waiting: dict[Shard, int] = {}
        self._stalling: set[Topic] = set()
        #: It has just come and owns nothing; one that is dealt nothing for so long serves what others have.
        self._is_new = False
        self._new_until_ns = 0
        self._timer: Timer | None = None
        self._unwatch: Callable[[], None] = _nothing

    # --- what is where --------------------------------------------------------------------------------------------

    def is_home(self, record: TopicRecord) -> bool:
        """Tell whether a topic's files are on this node's own disk."""
        return record.settings.log == "local" and record.home == self.name

    def place(self, name: str) -> NodeRecord | None:
        """Return the node that has a topic, None where nobody has it or there is none."""
        record = self._node.catalog.known(name)
        return self._place(record) if record is not None else None

    def _place(self, record: TopicRecord) -> NodeRecord | None:
        if record.settings.log == "local":
            return self.slots.places.nodes.get(record.home)
        return self.slots.owner(slot_of(record.incarnation, self.slots.count))

    def refusal(self, name: str) -> Refusal | None:
        """Return why a topic that is not open here cannot be had here; None if the cluster does not know it."""
        try:
            record = self._node.catalog.topic(name)
        except Refusal as unreadable:
            return unreadable
        if record is None:
            return None
        found = self._place(record)
        if found is not None and found.name != self.name:
            return Elsewhere(name, found.name)
        if record.settings.log == "local" and record.home != self.name:
            text = f"topic {name} is on the disk of node {record.home}, which is not there"
            return Refusal("unavailable", text, SECOND)
        why = "nobody has it yet" if found is None else self._why(record) or "it is being opened"
        return Refusal("unavailable", f"topic {name} cannot be used now: {why}; try again", SECOND)

    def _why(self, record: TopicRecord) -> str:
        lifecycle = self._node.lifecycle
        missing = lifecycle.absent.missing.get(record.name)
        return missing or self.holdings.why(record) or lifecycle.unopened.get(record.name, "")

    def address(self, node: str) -> str | None:
        """Return HOST:PORT where other nodes reach this one, None if it is not there."""
        record = self.slots.places.nodes.get(node)
        return record.address if record is not None else None

    def listeners(self, node: str) -> Mapping[str, str]:
        """Return HOST:PORT where clients reach a node, by the keys of its endpoints."""
        record = self.slots.places.nodes.get(node)
        return record.listeners if record is not None else {}

    def find(self, name: str) -> Answer[Topic] | None:
        """Answer with a topic that comes, or with whose it is; None if the cluster does not know it."""
        coming = self.holdings.coming.get(name)
        if coming is not None:
            return coming
        refusal = self.refusal(name)
        return Answer.refused(refusal) if refusal is not None else None

    # --- what is made here ----------------------------------------------------------------------------------------

    def settled(self, settings: TopicSettings) -> TopicSettings:
        """Return the settings as they can be: what need not outlast a process is not on the store, all else is safe."""
        if settings.log == "local":
            return settings
        if settings.ephemeral or settings.durability == "memory":
            return msgspec.structs.replace(settings, log="local")
        return msgspec.structs.replace(settings, durability="fsync", compression="none")

    def home_of(self, settings: TopicSettings) -> str:
        """Return the node whose disk a new topic is on, empty for one on the store."""
        return self.name if settings.log == "local" else ""

    def fitting(self, settings: TopicSettings) -> Callable[[int], bool] | None:
        """Return which incarnations a new topic may have, so that it is here: any, where it is on the own disk."""
        if settings.log == "local":
            return None
        ready = self.holdings.ready
        if not ready:
            text = f"node {self.name} owns nothing of the cluster yet: ask another node, or again"
            raise Refusal("unavailable", text, SECOND)
        return lambda incarnation: slot_of(incarnation, self.slots.count) in ready

    def open_new(self, record: TopicRecord) -> Answer[tuple[TopicRecord, Made | None]]:
        """Answer with the files of a topic that was just recorded in a slot of this node."""
        return self.holdings.open_new(record)

    def asked_again(self, name: str, settings: TopicSettings | None, owner: str) -> Answer[Topic] | None:
        """Answer with a topic whose making was answered with "try again"; None if this is not one."""
        record = self._node.catalog.known(name)
        wanted = self.settled(settings or self._node.config.topic.settings())
        if record is None or record.is_told or record.settings != wanted or record.owner != owner:
            return None
        topic = self._node.topics.get(name)
        found = Answer.of(topic) if topic is not None else self.find(name)

        def told(topic: Topic) -> Answer[Topic]:
            return self._node.catalog.update_topic(name, is_told=True).then_make(lambda _: topic)

        return found.then_ask(told) if found is not None else None

    def or_elsewhere(self, name: str, made: Answer[Topic]) -> Answer[Topic]:
        """Answer with a topic that is made, or whose it is if another node made it first."""
        answer: Answer[Topic] = Answer()

        def told(topic: Topic | None, error: Exception | None) -> None:
            if topic is not None:
                answer.give(topic)
            elif isinstance(error, Refusal) and error.code == "conflict" and name not in self._node.topics:
                answer.refuse(self.refusal(name) or error)
            else:
                answer.refuse(error or Refusal("unavailable", f"topic {name} was not made"))

        made.then(told)
        return answer

    def cleared(self, deleted: Sequence[DeletedTopic]) -> list[DeletedTopic]:
        """Return deleted topics whose rest is for this node to remove, and of which nothing is left but on its disk."""
        mine = [each for each in deleted if self._is_heir(each)]
        return [each for each in mine if each.log == "local" or self._clearing.is_done(each)]

    def _is_heir(self, deleted: DeletedTopic) -> bool:
        if deleted.log == "local":
            return deleted.home == self.name
        return slot_of(deleted.incarnation, self.slots.count) in self.holdings.ready

    # --- the life of it -------------------------------------------------------------------------------------------

    def start(self, listeners: Mapping[str, str]) -> Answer[None]:
        """Take part: `listeners` say where others reach what is served here, by name."""
        self._is_new = True
        self._new_until_ns = self._node.clock.monotonic() + self._node.config.cluster.lease_ns
        registry = self._node.catalog.registry
        self._unwatch = registry.watch(TOPICS, registry.revision, self._changed)
        self.slots.say(listeners)
        self._look()
        return self.slots.start()

    def _changed(self, events: Sequence[Event]) -> None:
        """Look at each topic of which the registry says something else; one that fails costs no other its turn."""
        for event in events:
            name = event.key[len(TOPICS) :]
            self._node.guarded(f"topic {name}", partial(self._heard, name))

    def _heard(self, name: str) -> None:
        """Open what another node made in a slot of this one, and let go of what another node deleted."""
        catalog, topic = self._node.catalog, self._node.topics.get(name)
        record = catalog.known(name)
        if record is None:
            self.holdings.vanished(name)
            if f"{TOPICS}{name}" in catalog.unreadable():
                return  # what is open stays open: nobody said that it was deleted
        if topic is not None and (record is None or record.incarnation != topic.incarnation):
            self._node.lifecycle.vanished(topic)
        if record is not None:
            self.holdings.heard(record)
            self._node.lifecycle.absent.heard(record)

    def problems(self) -> list[str]:
        """Return what keeps topics from being open or taken, one sentence each."""
        found = [self.slots.problem] if self.slots.problem else []
        if self._is_new:
            found.append("this node has no part of the cluster yet")
        found += [f"{what}: {why}" for what, why in sorted(self.holdings.unusable.items())]
        found += self._strangers.problems()
        return found + [f"topic {topic.name}: {why}" for topic, why in self._stalled()]

    def unreadable(self) -> list[str]:
        """Return what the registry has of topics that cannot be read, one sentence each."""
        return self._node.lifecycle.problems()

    def figures(self) -> Iterator[Figure]:
        """Return what there is to measure."""
        yield from self.slots.figures()
        yield Figure("troubles", "gauge", "Slots and topics that could not be opened.", len(self.holdings.unusable))
        kept = self.holdings.kept
        yield Figure("cache_bytes", "gauge", "Closed segments of topics on Kafka that are on this disk.", kept.bytes)
        text = "Bytes of closed segments that came from Kafka because somebody read them."
        yield Figure("cache_fetched_bytes_total", "counter", text, kept.fetched_bytes)
        text = "Bytes of closed segments that went from this disk, and are on Kafka."
        yield Figure("cache_evicted_bytes_total", "counter", text, kept.evicted_bytes)

    def _stalled(self) -> Iterator[tuple[Topic, str]]:
        now_ns, patience_ns = self._node.clock.monotonic(), self._node.config.shared_log.patience_ns
        for topic in self._node.topics.values() if self._waiting else ():
            since_ns = min([self._waiting.get(shard, now_ns) for shard in topic.shards])
            if now_ns - since_ns > patience_ns:
                yield topic, f"the shared log has taken nothing for {(now_ns - since_ns) // SECOND} s"

    def _look(self) -> None:
        """Refuse publishers while the store takes nothing, and take them again when it does."""
        now_ns = self._node.clock.monotonic()
        self._strangers.look_at_times(self.holdings.ready, self.slots.count)
        self._is_new = self._is_new and not self.holdings.ready and now_ns < self._new_until_ns
        for topic in list(self._node.topics.values()):
            for shard in topic.shards if topic.settings.log == "kafka" else ():
                if shard.readable_end < shard.end and shard not in self._waiting:
                    self._waiting[shard] = now_ns
                    shard.sync(partial(self._kept, shard))  # it says so at once if there is nothing to wait for
        stalled = {topic for topic, _ in self._stalled()}
        for topic in stalled:
            topic.intake.closed = topic.intake.closed or "unavailable"
        for topic in self._stalling - stalled:
            if not (topic.deleted or topic.is_leaving):
                topic.intake.closed = "stopping" if self._node.stopping else None
        self._stalling = stalled
        self._timer = self._node.clock.call_at(self._node.clock.monotonic() + LOOK_NS, self._look)

    def _kept(self, shard: Shard, _: BaseException | None) -> None:
        self._waiting.pop(shard, None)

    def leave(self) -> Answer[None]:
        """Give everything to others, before the node ends."""
        return self.slots.drain()

    def close(self) -> Answer[None]:
        """Take no part any more; topics are closed."""
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        self.holdings.close()
        return self.slots.close()


def _nothing() -> None:
    return


def _disk_name(disk: Disk, path: str, random: Random) -> str:
    """Return what a data directory is called, the same for every life of a node on it."""
    if not disk.exists(path):
        replace_file(disk, path, random.randbytes(8).hex().encode())
    file = disk.open(path)
    try:
        return file.read(0, 64).decode(errors="replace").strip()
    finally:
        file.close()
