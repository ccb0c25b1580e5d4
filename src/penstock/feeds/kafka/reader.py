"""The thread that reads one Kafka: librdkafka's consumer, whole lists of records, and what they are handed on as.

Owns the consumer. It never touches the node: it asks the loop where to begin, hands it loads, and waits while the loop
has too many of them. What goes wrong with Kafka is told, and tried again.
Invariant: whoever waits for the loop is let go when the node stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from threading import Condition, Thread
from typing import Any, Protocol, TypeAlias

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.budget import Share
from penstock.feeds.kafka.config import FeedConfig, properties, text_of
from penstock.feeds.kafka.positions import source_of
from penstock.feeds.kafka.records import Limits, Load, load_of, unseen

#: Kafka is asked this long for positions, ids and ends of partitions.
ASK_S = 20.0
#: How long the reader waits for the first record, and for room, before it looks around.
IDLE_S = 0.2
#: Without room for so long, partitions are paused; what was fetched ahead of them is fetched again.
FULL_S = 1.0
#: A consumer that failed is made anew after this, then after twice as long each time.
AGAIN_S = 1.0
AGAIN_S_MAX = 30.0
#: Records of more bytes than this are handed on in several loads.
LOAD_BYTES_MAX = 4 << 20
#: What the id of a topic is where brokers give none: 128 bits that are 0.
NO_ID = "A" * 22

#: Has something done on the loop, from any thread.
CallSoon: TypeAlias = Callable[[Callable[[], None]], object]

_log = logging.getLogger("penstock.kafka")

_AUTHENTICATION = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_AWAY = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE}
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


class Begun(msgspec.Struct, frozen=True):
    """How one of Kafka's topics is read on."""

    #: Partition -> offset of the next record, of those that have a position here.
    positions: dict[int, int]
    #: How many shards the node's topic has.
    shards: int


class Side(Protocol):
    """What the reader needs of the loop; all of it is called there."""

    def begin(self, sources: Mapping[str, bytes], done: Callable[[Mapping[str, Begun]], None]) -> None:
        """Tell where these topics are to be read on."""

    def started(self, topic: str, positions: Mapping[int, int]) -> None:
        """Take note of where partitions are read from."""

    def take(self, load: Load) -> None:
        """Store a load, in its turn."""

    def settle(self, done: Callable[[dict[tuple[str, int], int]], None]) -> None:
        """Store nothing more of what was handed over, and tell what positions are on disk."""

    def say(self, subject: str, text: str) -> None:
        """Take note of what is wrong with something; empty = nothing any more."""

    def moved(self, topic: str, partition: int, position: int, missed: int) -> None:
        """Go on with a partition elsewhere, and count what Kafka dropped before it was read."""

    def measured(self, behind: int, partitions: int, ahead_bytes: int) -> None:
        """Take note of how far behind it is, and of how much librdkafka has fetched ahead."""


class _Anew(Exception):
    """The consumer is to be made anew."""


class Reader:
    """One feed's thread."""

    def __init__(
        self,
        feed: FeedConfig,
        side: Side,
        call_soon: CallSoon,
        limits: Limits,
        batch: int,
        linger_s: float,
        bytes_max: int,
        memory: Share,
    ) -> None:
        self._feed = feed
        self._side = side
        self._call_soon = call_soon
        self._limits = limits
        self._batch = batch
        self._linger_s = linger_s
        self._bytes_max = bytes_max
        #: The loop counts in it; here it is only looked at.
        self._memory = memory
        self._changed = Condition()
        self._held_bytes = 0
        self._ended = False
        self._to_commit: dict[tuple[str, int], int] = {}
        self._waiting: Future[Any] | None = None
        #: Of each topic that is read: its source, the positions behind what was handed over, and the node's shards.
        self._sources: dict[str, bytes] = {}
        self._positions: dict[str, dict[int, int]] = {}
        self._shards: dict[str, int] = {}
        #: The node has no room for more.
        self.is_paused = False
        self._again_s = AGAIN_S
        #: What went wrong while librdkafka called us.
        self._broken: Exception | None = None
        #: What the last broker said that went, and what is wrong with all of them.
        self._trouble = ""
        self._brokers_wrong = ""
        self._thread = Thread(target=self._run, name=f"kafka {feed.name}", daemon=True)

    # --- for the loop ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def end(self) -> None:
        """Leave the group, as soon as that can be."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def let_go(self) -> None:
        """Wait for the loop no longer: it does nothing more."""
        self.end()
        if self._waiting is not None:
            _settle(self._waiting, None, _Anew())

    def join(self, seconds: float) -> bool:
        """Wait until it has ended; blocking."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def free(self, size_bytes: int) -> None:
        """Take back the room of a load."""
        with self._changed:
            self._held_bytes -= size_bytes
            self._changed.notify()

    def commit(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Tell Kafka positions, soon."""
        with self._changed:
            self._to_commit.update(positions)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                self._read()
            except _Anew:
                pass
            except (KafkaException, OSError, RuntimeError) as error:
                self._say("consumer", text_of(error))
            except Exception as error:  # a bug of ours must not end the feed in silence
                _log.exception("feed %s failed and begins anew", self._feed.name)
                self._say("consumer", repr(error))
            with self._changed:
                self._changed.wait_for(lambda: self._ended, self._again_s)
            self._again_s = min(2 * self._again_s, AGAIN_S_MAX)

    def _read(self) -> None:
        self._broken = None
        consumer = Consumer(
            {
                **properties(self._feed, ahead_bytes=self._bytes_max),
                "error_cb": partial(self._guarded, self._failed),
                "stats_cb": partial(self._guarded, self._measured),
                "logger": _quiet(),
            }
        )
        try:
            consumer.subscribe(
                list(self._feed.topics),
                on_assign=partial(self._guarded, self._assigned),
                on_revoke=partial(self._guarded, self._revoked),
                on_lost=partial(self._guarded, self._lost),
            )
            while not self._ended:
                self._commit(consumer)
                if self._has_room(consumer):
                    self._turn(consumer)
                if self._broken is not None:
                    raise self._broken
        finally:
            consumer.close()

    def _turn(self, consumer: Consumer) -> None:
        first = consumer.poll(IDLE_S)
        if first is not None:
            self._hand_over(consumer, [first, *consumer.consume(self._batch - 1, self._linger_s)])

    def _guarded(self, call: Callable[..., None], *given: object) -> None:
        """Do what librdkafka calls us for; what that raises cannot pass through it, and ends the consumer later."""
        try:
            call(*given)
        except Exception as error:
            self._broken = self._broken or error

    def _has_room(self, consumer: Consumer) -> bool:
        """Wait for room, for a while; without any, partitions are paused, and Kafka still keeps us in the group."""
        with self._changed:
            self._changed.wait_for(lambda: self._can_hold_more() or self._ended, FULL_S)
            has_room = self._can_hold_more()
        if has_room and self.is_paused:
            self.is_paused = False
            consumer.resume(consumer.assignment())
        elif not has_room:
            if not self.is_paused:
                self.is_paused = True
                consumer.pause(consumer.assignment())
            stray = consumer.poll(0)
            if stray is not None:
                self._hand_over(consumer, [stray])
        return has_room

    def _can_hold_more(self) -> bool:
        """Tell whether there is room: here, and in the node's memory, unless nothing is held here."""
        memory = self._memory
        return not self._held_bytes or (self._held_bytes < self._bytes_max and memory.used < memory.bytes_max)

    def _hand_over(self, consumer: Consumer, messages: list[Message]) -> None:
        if any(map(Message.error, messages)):
            for message in messages:
                if (error := message.error()) is not None:
                    self._heard(consumer, message, error)
            messages = [message for message in messages if message.error() is None]
        for some in _chunks(messages):
            for topic, those in _by_topic(some):
                self._hand_on(topic, those)

    def _hand_on(self, topic: str, messages: Sequence[Message]) -> None:
        positions = self._positions.get(topic, {})
        messages = unseen(messages, positions)
        if not messages:
            return
        load = load_of(topic, messages, self._sources[topic], self._shards[topic], self._limits)
        for part in load.parts:
            positions.update(part.positions)
        with self._changed:
            self._held_bytes += load.size_bytes
        self._call_soon(partial(self._side.take, load))

    # --- partitions come and go -----------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.is_paused = False
        self._sources, self._positions, self._shards = {}, {}, {}
        if not partitions:
            consumer.assign([])
            return
        topics = sorted({each.topic for each in partitions})
        self._sources = self._ids(topics)
        begun = self._ask(lambda done: self._side.begin(self._sources, partial(done, error=None)))
        self._shards = {topic: found.shards for topic, found in begun.items()}
        for each, offset in self._starts(consumer, partitions, begun):
            each.offset = offset
            self._positions.setdefault(each.topic, {})[each.partition] = offset
        for topic in topics:
            self._call_soon(partial(self._side.started, topic, dict(self._positions[topic])))
        consumer.assign(partitions)
        self._again_s = AGAIN_S
        for topic in topics:
            self._say(f"topic {topic}", "")
        self._say("consumer", "")
        self._say("brokers", "")

    def _starts(
        self, consumer: Consumer, partitions: Sequence[TopicPartition], begun: Mapping[str, Begun]
    ) -> Iterable[tuple[TopicPartition, int]]:
        """Yield where each partition is to be read on: where the rows here end, or where another node of the group was.

        A partition without any position is begun where the feed says, unless its topic is known: then it is a new one,
        and everything in it is.
        """
        asked = [TopicPartition(each.topic, each.partition) for each in partitions]
        committed = {(each.topic, each.partition): each for each in consumer.committed(asked, ASK_S)}
        met = {topic for (topic, _), told in committed.items() if told.offset >= 0}
        met.update(topic for topic, found in begun.items() if found.positions)
        for each in partitions:
            told = committed[each.topic, each.partition]
            # Of a topic that was deleted and made anew, Kafka may still know where the group was in the one before.
            is_of_it = not told.metadata or told.metadata == self._sources[each.topic].hex()
            offset = max(begun[each.topic].positions.get(each.partition, -1), told.offset if is_of_it else -1)
            if offset < 0:
                low, high = consumer.get_watermark_offsets(each, ASK_S)
                offset = high if self._feed.start == "latest" and each.topic not in met else low
            yield each, offset

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Write down how far each came, before another node of the group goes on from there."""
        self._positions = {}
        try:
            settled = self._ask(lambda done: self._side.settle(partial(done, error=None)))
        except _Anew:
            return
        offsets = self._places(
            {(each.topic, each.partition): settled.get((each.topic, each.partition)) for each in partitions}
        )
        if offsets and not self._brokers_wrong:
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                _log.debug("feed %s: its positions were not committed: %s", self._feed.name, text_of(error))

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Somebody else may have them already: what is not stored yet is not stored by us."""
        self._positions = {}
        try:
            self._ask(lambda done: self._side.settle(partial(done, error=None)))
        except _Anew:
            return

    def _ids(self, topics: Sequence[str]) -> dict[str, bytes]:
        """Return the source of each topic; one that was deleted and made anew is another one."""
        admin = AdminClient({**properties(self._feed), "log_level": 0})
        cluster = str(admin.list_topics(topics[0], timeout=ASK_S).cluster_id)
        found = admin.describe_topics(TopicCollection(list(topics)), request_timeout=ASK_S)
        sources = {}
        for topic, told in found.items():
            id_ = str(told.result(2 * ASK_S).topic_id)
            sources[topic] = source_of(self._feed.group, cluster, topic, "" if id_ == NO_ID else id_)
        return sources

    def _commit(self, consumer: Consumer) -> None:
        with self._changed:
            wanted, self._to_commit = self._to_commit, {}
        offsets = self._places(
            {place: at for place, at in wanted.items() if place[1] in self._positions.get(place[0], {})}
        )
        if offsets:
            try:
                consumer.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                _log.debug("feed %s: its positions were not committed: %s", self._feed.name, text_of(error))

    def _places(self, offsets: Mapping[tuple[str, int], int | None]) -> list[TopicPartition]:
        """Return what to commit; with it goes of which topic it is, because Kafka knows them by name alone."""
        return [
            TopicPartition(topic, partition, offset, self._sources[topic].hex())
            for (topic, partition), offset in offsets.items()
            if offset is not None and topic in self._sources
        ]

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def _heard(self, consumer: Consumer, message: Message, error: KafkaError) -> None:
        """Act on an error that came among the records."""
        code, topic, partition = error.code(), message.topic() or "", message.partition() or 0
        if code == KafkaError._AUTO_OFFSET_RESET:
            self._passed_over(consumer, topic, partition)
        elif code in _MISSING or code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._say(f"topic {topic}" if topic else "topics", error.str())
        elif error.fatal():
            raise KafkaException(error)
        else:
            self._failed(error)

    def _passed_over(self, consumer: Consumer, topic: str, partition: int) -> None:
        """Begin anew where a partition begins now: what was before is gone, or it is another topic of that name."""
        position = self._positions.get(topic, {}).get(partition)
        if position is None:
            return
        if self._ids([topic])[topic] != self._sources[topic]:
            raise _Anew
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), ASK_S)
        start = low if position < low else min(position, high)
        self._call_soon(partial(self._side.moved, topic, partition, start, max(start - position, 0)))
        raise _Anew

    def _failed(self, error: KafkaError) -> None:
        """Take note of an error that concerns no record."""
        code = error.code()
        if code in _AUTHENTICATION:
            self._say("brokers", f"they refuse this client: {error.str()}")
            self._broken = self._broken or _Anew()  # the password is read again
        elif code in _AWAY:
            # One broker that is gone is no trouble while there are others.
            self._trouble = error.str() if code != KafkaError._ALL_BROKERS_DOWN else self._trouble or error.str()
            if code == KafkaError._ALL_BROKERS_DOWN and not self._brokers_wrong:
                self._say("brokers", self._trouble)
        elif not error.retriable():
            self._say("consumer", error.str())

    def _measured(self, text: str) -> None:
        """Take in librdkafka's own figures: who is up, and how far behind we are."""
        told = msgspec.json.decode(text, type=_Stats)
        if self._brokers_wrong and any(each.state == "UP" for each in told.brokers.values()):
            self._say("brokers", "")
        behind = partitions = ahead_bytes = 0
        for topic, positions in self._positions.items():
            ends = told.topics[topic].partitions if topic in told.topics else {}
            partitions += len(positions)
            for partition, position in positions.items():
                end = ends.get(str(partition))
                if end is not None:
                    behind += max(end.ls_offset - position, 0)
                    # All partitions have one queue, and each tells of all that is in it.
                    ahead_bytes = max(ahead_bytes, end.fetchq_size)
        self._call_soon(partial(self._side.measured, behind, partitions, ahead_bytes))

    def _say(self, subject: str, text: str) -> None:
        if subject == "brokers":
            self._brokers_wrong = text
        self._call_soon(partial(self._side.say, subject, text))

    def _ask(self, work: Callable[[Callable[..., None]], None]) -> Any:
        """Start something on the loop and wait for what comes of it."""
        future: Future[Any] = Future()
        self._waiting = future
        self._call_soon(partial(work, partial(_settle, future)))
        try:
            return future.result()
        finally:
            self._waiting = None


class _End(msgspec.Struct):
    ls_offset: int = -1
    fetchq_size: int = 0


class _Topic(msgspec.Struct):
    partitions: dict[str, _End] = {}


class _Broker(msgspec.Struct):
    state: str = ""


class _Stats(msgspec.Struct):
    brokers: dict[str, _Broker] = {}
    topics: dict[str, _Topic] = {}


def _settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    try:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
    except InvalidStateError:
        return


def _chunks(messages: list[Message]) -> Iterable[list[Message]]:
    """Yield records in pieces that are short steps to store."""
    if sum(map(len, messages)) <= LOAD_BYTES_MAX:
        if messages:
            yield messages
        return
    start = size = 0
    for place, message in enumerate(messages):
        size += len(message)
        if size >= LOAD_BYTES_MAX or place == len(messages) - 1:
            yield messages[start : place + 1]
            start, size = place + 1, 0


def _by_topic(messages: list[Message]) -> Iterable[tuple[str, list[Message]]]:
    names = list(map(Message.topic, messages))
    distinct = set(names)
    if len(distinct) == 1:
        return [(names[0] or "", messages)]
    return [
        (name or "", [message for message, each in zip(messages, names, strict=True) if each == name])
        for name in sorted(distinct, key=str)
    ]


def _quiet() -> logging.Logger:
    """Return where librdkafka's own lines go: what matters of them is told once by the feed."""
    found = logging.getLogger("penstock.kafka.librdkafka")
    found.setLevel(logging.ERROR + 1)
    return found
