"""From messages that were read at one input to rows of topics: what is kept, and what becomes of the rest.

Owns the topics of one input, the pool's say, and every count and report of what is thrown away. Knows nothing of
sockets. Nobody is ever answered: what is not stored is counted with a reason, and that is all its sender can learn.
Invariant: every message that was read is stored, or is told to the node's discards once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.callers import Caller
from penstock.clock import MILLISECOND, SECOND
from penstock.columns import place_of
from penstock.dialects.dory.codec import Fault, Group, Kind, Places, decode
from penstock.dory.message import ANY_PARTITION
from penstock.errors import Refusal
from penstock.intake.gather import content_bytes
from penstock.intake.receipt import PartRefusal, Receipt
from penstock.intake.spread import picked
from penstock.message import Rows
from penstock.node.topic import Topic
from penstock.peers.far import FarTopic, Target, target

if TYPE_CHECKING:
    from penstock.dialects.dory.running import Dory

#: Topics that one input remembers; beyond it, it asks again.
TOPICS_MAX = 4096
#: A name that was refused is refused for so long without asking.
REFUSED_NS = SECOND

Sizes: TypeAlias = "list[int] | npt.NDArray[np.int64]"
#: Why messages are given up, as the node's discards name it.
Reason: TypeAlias = Literal["no_memory", "bad_topic", "too_long", "rate_limit", "shutdown"]
#: Messages for a topic, their blocks, their sizes, and who publishes them.
Waiting: TypeAlias = "tuple[Group, int, Sizes, object]"


class ShardKeeper:
    """A shard of a memory topic, as the pool asks for it."""

    __slots__ = ("number", "topic")

    def __init__(self, topic: Topic, number: int) -> None:
        self.topic = topic
        self.number = number

    def __hash__(self) -> int:
        return hash((id(self.topic), self.number))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardKeeper) and other.topic is self.topic and other.number == self.number

    def needed_from(self) -> int | None:
        """Return the first offset that somebody needs; None where the shard is gone."""
        if self.topic.deleted:
            return None
        shard = self.topic.shards[self.number]
        return self.topic.storage.unfinished_from(shard)


class Door:
    """One input."""

    def __init__(self, service: Dory, listener: str, prefix: str, address: str) -> None:
        """Take what serves it, its endpoint's key, how its counters begin, and where its clients are."""
        self._service = service
        self._node = service.node
        self._clock = service.node.clock
        self._counters = service.counters
        self.listener = listener
        self.prefix = prefix
        self.caller = Caller(service.node.gate, address, listener)
        self.caller.on_change = self._changed
        service.node.gate.follow(self.caller)
        self._topics: dict[bytes, Target] = {}
        #: Names that were refused, and until when they are not asked for again: a sender does not know, and goes on.
        self._refused: dict[bytes, tuple[Exception, int]] = {}
        #: What came for topics that are being made.
        self._early: dict[bytes, list[Waiting]] = {}

    def close(self) -> None:
        """End; what waits for a topic is told when that comes, or does not."""
        self.caller.on_change = None
        self._node.gate.leave(self.caller)

    # --- in -------------------------------------------------------------------------------------------------------

    def take(self, data: bytes, starts: Places, stops: Places, publisher: object, *, room: bool = True) -> None:
        """Store what was read, if there is room for it."""
        groups, faults = decode(data, starts, stops, self._clock.now() // MILLISECOND)
        if faults:
            self.refuse(faults)
        for group in groups:
            if room:
                self._enter(group, publisher)
            else:
                self._without_room(group, [], [])

    def _enter(self, group: Group, publisher: object) -> None:
        sizes = _sizes(group.rows)
        most = self._node.config.node.message_bytes
        if (max(sizes) if isinstance(sizes, list) else int(sizes.max())) > most:
            group, sizes = self._without_long(group, sizes, most)
        if not group.rows.count:
            return
        blocks, found_room = self._service.pool.take(sizes)
        if found_room is not None:
            group, sizes = self._without_room(group, sizes, found_room)
            if not group.rows.count:
                return
        topic = self._topics.get(group.topic)
        is_known = topic is not None and not topic.deleted
        if not is_known:
            group, sizes = self._held(group, sizes)
        count = group.rows.count
        self._counters[f"{self.prefix}ForwardMsg"] += count
        self._counters["MsgCreate"] += count
        if topic is not None and is_known:
            self._publish(topic, group, blocks, sizes, publisher)
        elif count:
            self._ask((group, blocks, sizes, publisher))

    def _held(self, group: Group, sizes: Sizes) -> tuple[Group, Sizes]:
        """Count messages of nothing, which have no block, while they wait for their topic; return what has room."""
        empty = np.flatnonzero(np.asarray(sizes) == 0)
        room = self._service.pool.hold(len(empty))
        if room == len(empty):
            return group, sizes
        lost = set(empty[room:].tolist())
        return self._without_room(group, sizes, [row for row in range(group.rows.count) if row not in lost])

    def _ask(self, waiting: Waiting) -> None:
        """Have a topic for messages, made if there is none."""
        name = waiting[0].topic
        if name in self._early:
            self._early[name].append(waiting)
            return
        self._early[name] = [waiting]
        refused = self._refused.get(name)
        if refused is not None:
            if self._clock.monotonic() < refused[1]:
                self._no_topic(name, refused[0])
                return
            del self._refused[name]
        try:
            asked = self._node.obtain_for(self.caller, "publish", name.decode())
        except UnicodeDecodeError:
            self._no_topic(name, Refusal("bad_name", f"{name!r} is no topic name: it is not UTF-8 text"))
            return
        except Refusal as refusal:
            self._no_topic(name, refusal)
            return
        target(self._node, asked).then(partial(self._told, name))

    def _told(self, name: bytes, topic: Target | None, error: Exception | None) -> None:
        if topic is None:
            self._no_topic(name, error or Refusal("unavailable", "there is no topic"))
            return
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
        self._topics[name] = topic
        for group, blocks, sizes, publisher in self._early.pop(name):
            self._service.pool.let_go(_empty(sizes))
            self._publish(topic, group, blocks, sizes, publisher)

    def _no_topic(self, name: bytes, why: Exception) -> None:
        """Give up what cannot have a topic here, whatever its name would be to others."""
        code = why.code if isinstance(why, Refusal) else "unavailable"
        if name not in self._refused:
            if len(self._refused) >= TOPICS_MAX:
                self._refused.clear()
            self._refused[name] = (why, self._clock.monotonic() + REFUSED_NS)
        shown = name.decode("utf-8", "surrogateescape")
        for group, blocks, sizes, _ in self._early.pop(name):
            self._service.pool.let_go(_empty(sizes))
            self._service.pool.give(blocks)
            self._node.ledger.add(f"dory:{code}", "", group.rows.count, self._clock.now(), f"{self.caller}: {why}")
            self._lose("bad_topic", shown, group, None)

    def _publish(self, topic: Target, group: Group, blocks: int, sizes: Sizes, publisher: object) -> None:
        done = partial(self._stored, topic, group, blocks, sizes)
        meter = self.caller.meter
        if meter is not None:  # nobody can be asked to wait: what is too much is refused
            try:
                meter.take(group.rows.count, content_bytes(group.rows), self._clock.monotonic())
            except Refusal as refusal:
                topic.intake.refuse(refusal, group.rows.count, done)
                return
        topic.publish(group.rows, publisher, done)

    def _stored(
        self,
        topic: Target,
        group: Group,
        blocks: int,
        sizes: Sizes,
        receipt: Receipt | None,
        error: BaseException | None,
    ) -> None:
        pool = self._service.pool
        if receipt is None:
            pool.give(blocks)
            stored = error.ids if isinstance(error, PartRefusal) else {}
            lost = [row for row in range(group.rows.count) if row not in stored] if stored else None
            code = error.code if isinstance(error, Refusal) else ""
            self._lose(_REASONS.get(code, "no_memory"), topic.name, group, lost)
        elif isinstance(topic, FarTopic) or topic.settings.durability != "memory":
            pool.give(blocks)
        elif receipt.batch is not None and not receipt.elsewhere:
            shard, first = place_of(receipt.first_id)
            pool.keep(ShardKeeper(topic, shard), first, sizes)
        else:
            for id_, size in zip(receipt.ids(), sizes, strict=True):
                shard, first = place_of(id_)
                pool.keep(ShardKeeper(topic, shard), first, [int(size)])

    def _changed(self) -> None:
        """Ask anew who may publish what: users have changed."""
        self._topics.clear()
        self._refused.clear()

    # --- what is thrown away --------------------------------------------------------------------------------------

    def refuse(self, faults: Mapping[Fault, list[bytes]]) -> None:
        """Count bytes that were no message; nothing else happens to whoever sent them."""
        for (kind, number, api_key), contents in faults.items():
            self._counters[_counter(kind, api_key)] += len(contents)
            self.tell(kind, contents, number)

    def tell(self, kind: Kind, contents: Sequence[bytes], number: int | None = None) -> None:
        """Report bytes that were no message."""
        self._node.discards.add_raw(kind, contents, number)
        text = f"{self.caller}: {len(contents)} times; bytes {bytes(contents[-1][:32]).hex()}"
        self._node.ledger.add(f"dory:{kind}", "", len(contents), self._clock.now(), text)

    def _without_long(self, group: Group, sizes: Sizes, most: int) -> tuple[Group, Sizes]:
        """Give up messages that no topic takes."""
        short = np.asarray(sizes) <= most
        long = np.flatnonzero(~short).tolist()
        text = f"{self.caller}: above node.message_bytes = {most}"
        self._node.ledger.add("dory:message_too_big", "", len(long), self._clock.now(), text)
        self._lose("too_long", _shown(group.topic), group, long)
        return _some(group, sizes, np.flatnonzero(short).tolist())

    def _without_room(self, group: Group, sizes: Sizes, kept: list[int]) -> tuple[Group, Sizes]:
        """Give up messages that found no room in the pool."""
        room = set(kept)
        lost = [row for row in range(group.rows.count) if row not in room]
        text = f"{self.caller}: {self._service.pool.bound} is full"
        topic = group.topic.decode("utf-8", "replace")
        self._node.ledger.add("memory_full", topic, len(lost), self._clock.now(), text)
        self._lose("no_memory", _shown(group.topic), group, lost)
        return _some(group, sizes, kept)

    def _lose(self, reason: Reason, topic: str, group: Group, lost: list[int] | None) -> None:
        """Report messages of one topic, all or some."""
        if reason == "no_memory":
            self._counters["InputAgentDiscardMsgNoMem"] += group.rows.count if lost is None else len(lost)
        times = group.times_ms if lost is None else [int(group.times_ms[row]) for row in lost]
        discards = self._node.discards
        if not discards.is_heard and reason != "too_long":
            discards.add(reason, topic, times)
            return
        rows = group.rows
        whole, keys = memoryview(rows.body), rows.columns.get("key")
        if keys is not None and not isinstance(keys, list):
            keys = keys.to_pylist()
        picks = range(rows.count) if lost is None else lost
        bodies = [bytes(whole[int(rows.cuts[row]) : int(rows.cuts[row + 1])]) for row in picks]
        names: list[bytes | None] = [keys[row] if keys is not None else None for row in picks]  # type: ignore[misc]
        discards.add(reason, topic, times, names, bodies)


#: What a refusal of the node is in a report of discards; what is not here was the moment's: no room, no disk.
_REASONS: dict[str, Reason] = {
    "rate_limited": "rate_limit",
    "message_too_big": "too_long",
    "gone": "bad_topic",
    "not_found": "bad_topic",
    "forbidden": "bad_topic",
    "stopping": "shutdown",
}


def _counter(kind: Kind, api_key: int) -> str:
    if kind == "malformed":
        return "InputAgentDiscardMsgMalformed"
    if kind == "unsupported_api_key":
        return "InputAgentDiscardMsgUnsupportedApiKey"
    name = "AnyPartition" if api_key == ANY_PARTITION else "PartitionKey"
    return f"InputAgentDiscard{name}MsgUnsupportedApiVersion"


def _shown(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")


def _sizes(rows: Rows) -> Sizes:
    """Return key and value of each message together, in bytes."""
    keys = rows.columns.get("key")
    if isinstance(rows.cuts, list):
        sizes = [end - start for start, end in zip(rows.cuts, rows.cuts[1:], strict=False)]
        if keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
        return sizes
    lengths: npt.NDArray[np.int64] = np.diff(rows.cuts).astype(np.int64)
    if keys is not None and not isinstance(keys, list):
        edges = np.frombuffer(keys.buffers()[1], np.int32, rows.count + 1)
        lengths += edges[1:] - edges[:-1]
    return lengths


def _empty(sizes: Sizes) -> int:
    """Return how many messages have neither key nor value."""
    return sizes.count(0) if isinstance(sizes, list) else int(np.count_nonzero(sizes == 0))


def _some(group: Group, sizes: Sizes, kept: list[int]) -> tuple[Group, Sizes]:
    if not kept:
        return group._replace(rows=Rows(0, [0], b"", group.rows.source)), []
    times = [int(group.times_ms[row]) for row in kept]
    return Group(group.topic, picked(group.rows, kept), times), [int(sizes[row]) for row in kept]
