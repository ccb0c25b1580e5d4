"""The directory: which node produces which topic and channel, as the lookup service remembers it.

Pure state, in memory: no sockets, no clock (monotonic time is passed in), no wire form. A name outlives its
producers until somebody deletes it; a producer is shown while it was heard of lately and carries no fresh tombstone.
Invariant: who produces a channel produces its topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from penstock.errors import Refusal

#: Names that end so live as long as somebody produces them.
EPHEMERAL = "#ephemeral"


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as it introduced itself."""

    id: str
    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str = ""
    topology_region: str = ""
    distributed_id: str = ""


class Far(NamedTuple):
    """A topic that another node of a cluster has, which did not register here."""

    peer: Peer
    channels: list[str]
    partitions: int


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic was made with; clients of the extended protocol ask for it."""

    partition_num: int = 1
    #: As asked for; there is one replica, whatever this says.
    replica: int = 1
    extend_support: bool = False
    ordered: bool = False
    multi_part: bool = False
    disable_channel_auto_create: bool = False


class Presence(NamedTuple):
    """A node as `nodes` shows it: with its topics, and whether a tombstone hides it there."""

    peer: Peer
    topics: list[tuple[str, bool, list[int]]]


class Record(NamedTuple):
    """One producer under one name, for people who look for what is wrong."""

    category: str
    topic: str
    channel: str
    peer: Peer
    heard_ns: int
    tombstone_ns: int | None


class _Production:
    """One producer of one topic."""

    __slots__ = ("partitions", "tombstone_ns")

    def __init__(self) -> None:
        self.partitions: set[int] = set()
        self.tombstone_ns: int | None = None


class _Topic:
    """A name with its producers and channels, each by the producer's id."""

    __slots__ = ("channels", "described", "meta", "producers")

    def __init__(self) -> None:
        self.producers: dict[str, _Production] = {}
        self.channels: dict[str, dict[str, None]] = {}
        #: What each node says of it, by the node's id; and what holds while none does.
        self.described: dict[str, Meta] = {}
        self.meta: Meta | None = None

    def told(self) -> Meta | None:
        """Return what all together say of it: one that needs a client to know more is enough."""
        said, known = self.described.values(), self.meta or Meta()
        if not said:
            return self.meta
        return Meta(
            partition_num=max(each.partition_num for each in said),
            replica=max(each.replica for each in said),
            extend_support=any(each.extend_support for each in said),
            ordered=any(each.ordered for each in said),
            multi_part=known.multi_part,
            disable_channel_auto_create=known.disable_channel_auto_create,
        )

    def forget(self, peer: str) -> None:
        """Let a node's word count no longer; that of the last one stays."""
        if len(self.described) == 1 and peer in self.described:
            self.meta = self.told()
        self.described.pop(peer, None)


class Directory:
    """All that is known of a cluster."""

    def __init__(
        self, tombstone_lifetime_ns: int, inactive_timeout_ns: int, names_max: int, registrations_max: int
    ) -> None:
        """Take how much a peer that invents names without end may have it keep."""
        self._names_max = names_max
        self._registrations_max = registrations_max
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        self._inactive_timeout_ns = inactive_timeout_ns
        self._peers: dict[str, Peer] = {}
        self._heard_ns: dict[str, int] = {}
        self._topics: dict[str, _Topic] = {}
        #: The topics of each node: it may leave without a walk through all there are.
        self._produced: dict[str, set[str]] = {}
        self._names = 0
        #: Nodes under topics and under channels.
        self._registrations = 0

    # --- producers ------------------------------------------------------------------------------------------------

    def identify(self, peer: Peer, now_ns: int) -> None:
        """Take note of a node."""
        self._peers[peer.id] = peer
        self._heard_ns[peer.id] = now_ns

    def ping(self, peer: str, now_ns: int) -> None:
        """Take note that a node lives."""
        if peer in self._peers:
            self._heard_ns[peer] = now_ns

    def register(self, peer: str, topic: str, channel: str = "", partition: int | None = None) -> None:
        """A node has a topic, or a channel and so its topic; a tombstone stays."""
        entry = self._topic(topic)
        production = entry.producers.get(peer)
        if production is None:
            self._count_registration()
            production = entry.producers[peer] = _Production()
            self._produced.setdefault(peer, set()).add(topic)
        if channel and peer not in (producers := self._channel(entry, channel)):
            self._count_registration()
            producers[peer] = None
        if partition is not None:
            production.partitions.add(partition)

    def describe(self, peer: str, topic: str, meta: Meta) -> None:
        """A node says what a topic was made with; others may say something else of theirs."""
        entry = self._topic(topic)
        if peer not in entry.described:
            self._count_registration()
            self._produced.setdefault(peer, set()).add(topic)
        entry.described[peer] = meta

    def unregister(self, peer: str, topic: str, channel: str = "", partition: int | None = None) -> None:
        """A node has a channel, a partition or a whole topic no more; an ephemeral name goes with its last producer."""
        entry = self._topics.get(topic)
        if entry is None:
            return
        if channel:
            producers = entry.channels.get(channel, {})
            self._withdraw(producers, peer)
            if not producers and channel.endswith(EPHEMERAL):
                self.remove_channel(topic, channel)
            return
        production = entry.producers.get(peer)
        if partition is not None and production is not None:
            production.partitions.discard(partition)
            if production.partitions:
                return
        self._produce_no_more(peer, topic, entry)
        if not entry.producers and topic.endswith(EPHEMERAL):
            self.remove_topic(topic)

    def leave(self, peer: str) -> None:
        """Forget a node; the names stay."""
        self._peers.pop(peer, None)
        self._heard_ns.pop(peer, None)
        for topic in list(self._produced.get(peer, ())):
            self._produce_no_more(peer, topic, self._topics[topic])

    def tombstone(self, topic: str, node: str, now_ns: int) -> None:
        """Hide the producer at `broadcast_address:http_port` of a topic for a while."""
        entry = self._topics.get(topic)
        for peer, production in entry.producers.items() if entry is not None else ():
            at = self._peers[peer]
            if f"{at.broadcast_address}:{at.http_port}" == node:
                production.tombstone_ns = now_ns

    def restore(self, topic: str, node: str) -> None:
        """Show a producer again before its tombstone is over."""
        entry = self._topics.get(topic)
        for peer, production in entry.producers.items() if entry is not None else ():
            at = self._peers[peer]
            if f"{at.broadcast_address}:{at.http_port}" == node:
                production.tombstone_ns = None

    # --- names ----------------------------------------------------------------------------------------------------

    def add_topic(self, topic: str, meta: Meta | None = None) -> None:
        """Remember a name, with or without producers."""
        entry = self._topic(topic)
        if meta is not None:
            entry.meta = meta

    def add_channel(self, topic: str, channel: str) -> None:
        """Remember the name of a channel and of its topic."""
        self._channel(self._topic(topic), channel)

    def remove_topic(self, topic: str) -> None:
        """Forget a name with its channels and producers."""
        entry = self._topics.pop(topic, None)
        if entry is not None:
            self._names -= 1 + len(entry.channels)
            for peer in [*entry.producers, *entry.described]:
                self._produce_no_more(peer, topic, entry)

    def remove_channel(self, topic: str, channel: str) -> bool:
        """Forget the name of a channel; False if nobody knows it."""
        entry = self._topics.get(topic)
        if entry is None or channel not in entry.channels:
            return False
        self._registrations -= len(entry.channels.pop(channel))
        self._names -= 1
        return True

    def forget_unproduced(self, topic: str, channel: str = "") -> None:
        """Forget a name that has no producer."""
        entry = self._topics.get(topic)
        if entry is None:
            return
        if not channel and not entry.producers:
            self.remove_topic(topic)
        elif channel and not entry.channels.get(channel, {}):
            self.remove_channel(topic, channel)

    # --- questions ------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return every topic, by name."""
        return sorted(self._topics)

    def channels(self, topic: str) -> list[str]:
        """Return the channels of a topic, by name; none of one that nobody knows."""
        entry = self._topics.get(topic)
        return sorted(entry.channels) if entry is not None else []

    def knows(self, topic: str) -> bool:
        """Tell whether a name is known, with or without producers."""
        return topic in self._topics

    def meta(self, topic: str) -> Meta | None:
        """Return what a topic was made with, None where nobody said."""
        entry = self._topics.get(topic)
        return entry.told() if entry is not None else None

    def producers(self, topic: str, now_ns: int) -> list[Peer]:
        """Return the nodes where a topic can be had now, in the order they came."""
        return [self._peers[peer] for peer, _ in self._shown(topic, now_ns)]

    def partitions(self, topic: str, now_ns: int) -> dict[int, Peer]:
        """Return one node for each partition: the first that came. A node that spoke of none has partition 0."""
        found: dict[int, Peer] = {}
        for peer, production in self._shown(topic, now_ns):
            for partition in sorted(production.partitions) or (0,):
                found.setdefault(partition, self._peers[peer])
        return found

    def nodes(self, now_ns: int) -> list[Presence]:
        """Return the nodes that live, tombstones or not."""
        topics: dict[str, list[tuple[str, bool, list[int]]]] = {
            id_: [] for id_ in self._peers if self._lives(id_, now_ns)
        }
        for name, entry in sorted(self._topics.items()):
            for id_, production in entry.producers.items():
                if id_ in topics:
                    topics[id_].append((name, self._is_hidden(production, now_ns), sorted(production.partitions)))
        return [Presence(self._peers[id_], listed) for id_, listed in topics.items()]

    def records(self) -> Iterator[Record]:
        """Yield everything that is registered, the dead and the hidden too."""
        for id_, peer in self._peers.items():
            yield Record("client", "", "", peer, self._heard_ns[id_], None)
        for name, entry in self._topics.items():
            for id_, production in entry.producers.items():
                yield Record("topic", name, "", self._peers[id_], self._heard_ns[id_], production.tombstone_ns)
            for channel, producers in entry.channels.items():
                for id_ in producers:
                    yield Record("channel", name, channel, self._peers[id_], self._heard_ns[id_], None)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _shown(self, topic: str, now_ns: int) -> list[tuple[str, _Production]]:
        entry = self._topics.get(topic)
        if entry is None:
            return []
        return [
            (peer, production)
            for peer, production in entry.producers.items()
            if self._lives(peer, now_ns) and not self._is_hidden(production, now_ns)
        ]

    def _lives(self, peer: str, now_ns: int) -> bool:
        return now_ns - self._heard_ns[peer] <= self._inactive_timeout_ns

    def _is_hidden(self, production: _Production, now_ns: int) -> bool:
        return production.tombstone_ns is not None and now_ns - production.tombstone_ns < self._tombstone_lifetime_ns

    def _topic(self, name: str) -> _Topic:
        entry = self._topics.get(name)
        if entry is None:
            self._count()
            entry = self._topics[name] = _Topic()
        return entry

    def _channel(self, entry: _Topic, name: str) -> dict[str, None]:
        producers = entry.channels.get(name)
        if producers is None:
            self._count()
            producers = entry.channels[name] = {}
        return producers

    def _count(self) -> None:
        if self._names >= self._names_max:
            text = f"the directory holds {self._names_max} names and takes no more; nsq.lookup_names_max may be raised"
            raise Refusal("memory_full", text)
        self._names += 1

    def _count_registration(self) -> None:
        if self._registrations >= self._registrations_max:
            most = f"{self._registrations_max} registrations"
            text = f"the directory holds {most} and takes no more; nsq.lookup_registrations_max may be raised"
            raise Refusal("memory_full", text)
        self._registrations += 1

    def _withdraw(self, producers: dict[str, None] | dict[str, _Production], peer: str) -> None:
        if producers.pop(peer, self) is not self:
            self._registrations -= 1

    def _produce_no_more(self, peer: str, topic: str, entry: _Topic) -> None:
        for producers in entry.channels.values():
            self._withdraw(producers, peer)
        self._withdraw(entry.producers, peer)
        if peer in entry.described:
            self._registrations -= 1
            entry.forget(peer)
        topics = self._produced.get(peer, set())
        topics.discard(topic)
        if not topics:
            self._produced.pop(peer, None)
