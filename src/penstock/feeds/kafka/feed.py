"""One feed on the node's loop: loads that its reader hands over are stored one after the other, and positions noted.

A load is begun once the one before is stored: were a later one let in while an earlier one is refused, its position
would say of rows that they are there. What the node refuses is tried again until it is taken, whatever the reason; the
reader stops by itself meanwhile. What was read and is not stored counts in the node's memory for bodies, because what
is being stored takes from that for input: a feed must not wait for memory that it has itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from penstock.clock import MILLISECOND, SECOND, Timer
from penstock.errors import PenstockError
from penstock.feeds.kafka.config import FeedConfig, KafkaFeedConfig
from penstock.feeds.kafka.positions import Note, key_of, latest, prefix_of
from penstock.feeds.kafka.reader import Begun, CallSoon, Reader
from penstock.feeds.kafka.records import Limits, Load, Part
from penstock.intake.receipt import Receipt
from penstock.log.shard import Shard
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.registry.answer import Answer

#: What the node refuses is tried again after this, then after twice as long each time.
RETRY_NS = 50 * MILLISECOND
RETRY_NS_MAX = 5 * SECOND

_log = logging.getLogger("penstock.kafka")


class _Known:
    """One of Kafka's topics, as far as it was read."""

    def __init__(self, source: bytes, topic: Topic, positions: dict[int, int]) -> None:
        self.source = source
        self.topic = topic
        self.positions = positions
        #: What is on disk and written down.
        self.noted: dict[int, int] = {}


class Feed:
    """What is brought in from one Kafka."""

    def __init__(self, node: Node, config: FeedConfig, section: KafkaFeedConfig, call_soon: CallSoon) -> None:
        self.name = config.name
        self.rows = 0
        self.bytes = 0
        self.skipped = 0
        self.refused = 0
        #: Records that Kafka dropped before they were read.
        self.missed = 0
        self.retried = 0
        self.behind = 0
        self.partitions = 0
        #: What was read and is not stored, and what librdkafka has fetched ahead of that.
        self.held_bytes = self.ahead_bytes = 0
        #: What is wrong, by what it concerns.
        self.wrong: dict[str, str] = {"consumer": "it has no partitions yet"}
        self._node = node
        self._config = config
        self._interval_ns = section.commit_interval_ns
        self._known: dict[str, _Known] = {}
        self._loads: deque[Load] = deque()
        self._load: Load | None = None
        self._left = 0
        #: Parts of it that were refused, each with when it is tried again.
        self._refused: dict[Part, Timer] = {}
        self._retry_ns = RETRY_NS
        self._touched: dict[Shard, None] = {}
        #: Told once nothing is being stored any more.
        self._settled: list[Callable[[], None]] = []
        limits = Limits(node.config.node.message_bytes, config.tombstones == "keep")
        linger_s = section.linger_ns / SECOND
        memory = self._memory = node.budget.body
        # All feeds together leave clients the better part of it, with what librdkafka fetches ahead and one turn more.
        most = min(section.in_flight_bytes, memory.bytes_max // 4 // len(section.feeds))
        self.reader = Reader(config, self, call_soon, limits, section.batch, linger_s, most, memory)
        self._noting = False
        self._timer = self._in(self._interval_ns, self._tick)

    @property
    def state(self) -> str:
        """What it is doing, in a word."""
        if not self.wrong:
            return "reading"
        return next((word for subject, word in _STATES.items() if subject in self.wrong), "missing")

    def close(self) -> None:
        """Do nothing more."""
        self._timer.cancel()
        self._drop()
        self._count_ahead(0)
        self.reader.let_go()

    # --- what the reader asks -------------------------------------------------------------------------------------

    def begin(self, sources: Mapping[str, bytes], done: Callable[[Mapping[str, Begun]], None]) -> None:
        """Tell where these topics are to be read on: the topics of the node are made if they are not there."""
        found: dict[str, Begun] = {}
        self._begin(dict(sources), found, done)

    def _begin(
        self, sources: dict[str, bytes], found: dict[str, Begun], done: Callable[[Mapping[str, Begun]], None]
    ) -> None:
        if not sources:
            self.say("node", "")
            done(found)
            return
        topic = next(iter(sources))

        def told(into: Topic | None, error: Exception | None) -> None:
            if into is None:
                self.say("node", str(error))
                self._in(RETRY_NS_MAX, partial(self._begin, sources, found, done))
                return
            known = self._known[topic] = self._recalled(topic, sources.pop(topic), into)
            found[topic] = Begun(dict(known.positions), len(into.shards))
            self._begin(sources, found, done)

        self._obtain(topic).then(told)

    def _recalled(self, name: str, source: bytes, topic: Topic) -> _Known:
        """Return how far a topic was read, by what is remembered, noted and stored with the rows."""
        before = self._known.get(name)
        if before is not None and before.source == source and before.topic is topic:
            return before
        positions: dict[int, int] = {}
        key = key_of(source)
        note = self._node.catalog.reader.read(key, self._node.registry.get(key), Note)
        # Where it cannot be read, what is stored with the rows tells, as far as that goes back.
        if note is not None and (note.into, note.incarnation) == (topic.name, topic.incarnation):
            positions = note.positions
        for partition, offset in latest(source, topic.intake.sequences(prefix_of(source))).items():
            positions[partition] = max(offset, positions.get(partition, 0))
        return _Known(source, topic, positions)

    def started(self, topic: str, positions: Mapping[int, int]) -> None:
        """Take note of where partitions are read from, so that one is not begun anew before its first record comes."""
        _advance(self._known[topic].positions, positions)

    def take(self, load: Load) -> None:
        """Store a load, in its turn."""
        self._loads.append(load)
        self.held_bytes += load.size_bytes
        self._memory.used += load.size_bytes
        if self._load is None:
            self._next()

    def settle(self, done: Callable[[dict[tuple[str, int], int]], None]) -> None:
        """Store nothing more of what was handed over, and tell what positions are on disk."""
        self._drop()

        def over() -> None:
            self._note(partial(self._tell_noted, done))

        if self._load is None:
            over()
        else:
            self._settled.append(over)

    def _tell_noted(self, done: Callable[[dict[tuple[str, int], int]], None]) -> None:
        done({(topic, each): at for topic, known in self._known.items() for each, at in known.noted.items()})

    def say(self, subject: str, text: str) -> None:
        """Take note of what is wrong with something, and log it once; empty = nothing any more."""
        before = self.wrong.get(subject, "")
        if not text:
            self.wrong.pop(subject, None)
            if before:
                _log.info("feed %s: %s: well again", self.name, subject)
            return
        self.wrong[subject] = text
        if not before or (subject != "brokers" and before != text):
            _log.warning("feed %s: %s: %s", self.name, subject, text)

    def moved(self, topic: str, partition: int, position: int, missed: int) -> None:
        """Go on with a partition elsewhere, and count what Kafka dropped before it was read."""
        self._known[topic].positions[partition] = position
        self.missed += missed
        text = f"partition {partition}: {missed} records were gone before they were read; it goes on at {position}"
        _log.error("feed %s: topic %s: %s", self.name, topic, text)
        into = self._config.target(topic)
        self._node.ledger.add("kafka_feed:missed", into, missed, self._node.clock.now(), f"{topic}: {text}")

    def measured(self, behind: int, partitions: int, ahead_bytes: int) -> None:
        """Take note of how far behind it is, and of how much librdkafka has fetched ahead."""
        self.behind, self.partitions = behind, partitions
        self._count_ahead(ahead_bytes)

    def _count_ahead(self, ahead_bytes: int) -> None:
        self._memory.used += ahead_bytes - self.ahead_bytes
        self.ahead_bytes = ahead_bytes

    # --- storing --------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        if not self._loads:
            return
        load = self._load = self._loads.popleft()
        self._count_refused(load)
        self._left = 1
        for part in load.parts:
            self._left += 1
            self._store(load, part)
        self._over(load)

    def _store(self, load: Load, part: Part) -> None:
        self._refused.pop(part, None)
        if not part.rows.count:
            self._stored(load, part, None, None, None)
            return
        self._obtain(load.topic).then(partial(self._publish, load, part))

    def _publish(self, load: Load, part: Part, topic: Topic | None, error: Exception | None) -> None:
        if topic is None:
            self._stored(load, part, None, None, error)
            return
        shard = part.shard % len(topic.shards)
        topic.publish(part.rows, self, partial(self._stored, load, part, topic), shard)

    def _stored(
        self, load: Load, part: Part, topic: Topic | None, _: Receipt | None, error: BaseException | None
    ) -> None:
        if error is not None:
            self._refuse(load, part, error)
            return
        known = self._known[load.topic]
        if topic is not None:
            known.topic = topic  # it may have been deleted and made anew
            self._touched[topic.shards[part.shard % len(topic.shards)]] = None
            self.rows += part.rows.count
            self.bytes += len(part.rows.body)
        _advance(known.positions, part.positions)
        self._over(load)

    def _refuse(self, load: Load, part: Part, error: BaseException) -> None:
        """Try a part again later; or, where all is to be dropped, let it go: it will be read again."""
        if not isinstance(error, PenstockError):
            self._node.report_bug(f"feed {self.name}", error)
        if self._settled:
            self._over(load)
            return
        self.retried += 1
        self.say("node", str(error))
        self._refused[part] = self._in(self._retry_ns, partial(self._store, load, part))
        self._retry_ns = min(2 * self._retry_ns, RETRY_NS_MAX)

    def _over(self, load: Load) -> None:
        self._left -= 1
        if self._left:
            return
        self._load = None
        self._retry_ns = RETRY_NS
        self._free(load)
        if self._settled:
            told, self._settled = self._settled, []
            for each in told:
                each()
        elif "node" in self.wrong:
            self.say("node", "")
        self._next()

    def _drop(self) -> None:
        """Let go what was not stored yet."""
        for load in self._loads:
            self._free(load)
        self._loads.clear()
        refused, self._refused = self._refused, {}
        for timer in refused.values():
            timer.cancel()
        under_way = self._load
        if under_way is not None:
            for _ in refused:
                self._over(under_way)

    def _free(self, load: Load) -> None:
        self.held_bytes -= load.size_bytes
        self._memory.used -= load.size_bytes
        self.reader.free(load.size_bytes)

    def _count_refused(self, load: Load) -> None:
        self.skipped += load.skipped
        if load.refused:
            self.refused += len(load.refused)
            times_ms = [message.timestamp()[1] for message in load.refused]
            keys = [message.key() for message in load.refused]
            values = [message.value() or b"" for message in load.refused]
            self._node.discards.add("too_long", self._config.target(load.topic), times_ms, keys, values)

    # --- positions ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = self._in(self._interval_ns, self._tick)
        if not self._noting:
            self._note(lambda: None)

    def _note(self, then: Callable[[], None]) -> None:
        """Write down how far each topic was read, once its rows are on disk, and have it told to Kafka."""
        changed = {name: dict(known.positions) for name, known in self._known.items() if known.positions != known.noted}
        if not changed:
            then()
            return
        self._noting = True
        shards, self._touched = list(self._touched), {}
        left = len(shards) + 1
        failed: list[BaseException] = []

        def synced(shard: Shard | None, error: BaseException | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                failed.append(error)
            if error is not None and shard is not None:
                self._touched[shard] = None
            if not left:
                if failed:
                    self._noted(then, failed[0])
                else:
                    self._write(changed, then)

        for shard in shards:
            shard.sync(partial(synced, shard))
        synced(None, None)

    def _write(self, changed: dict[str, dict[int, int]], then: Callable[[], None]) -> None:
        if not changed:
            self._noted(then, None)
            return
        name, positions = changed.popitem()
        known = self._known[name]
        note = Note(
            group=self._config.group,
            topic=name,
            into=known.topic.name,
            incarnation=known.topic.incarnation,
            positions=positions,
        )

        def written(_: None, error: Exception | None) -> None:
            if error is not None:
                self._noted(then, error)
                return
            known.noted = positions
            self.reader.commit({(name, partition): offset for partition, offset in positions.items()})
            self._write(changed, then)

        self._node.catalog.put(key_of(known.source), msgspec.msgpack.encode(note)).then(written)

    def _noted(self, then: Callable[[], None], error: BaseException | None) -> None:
        self._noting = False
        if error is not None:
            _log.warning("feed %s: its positions are not written down yet: %s", self.name, error)
        then()

    def _obtain(self, topic: str) -> Answer[Topic]:
        try:
            return self._node.obtain(self._config.target(topic))
        except PenstockError as refusal:
            return Answer.refused(refusal)

    def _in(self, delay_ns: int, call: Callable[[], None]) -> Timer:
        clock = self._node.clock
        return clock.call_at(clock.monotonic() + delay_ns, call)


#: What a feed is doing while something is wrong with these, the worst first; `missing` is a topic that is not there.
_STATES = {"brokers": "away", "consumer": "waiting", "node": "held"}


def _advance(positions: dict[int, int], new: Mapping[int, int]) -> None:
    for partition, offset in new.items():
        if offset > positions.get(partition, -1):
            positions[partition] = offset
