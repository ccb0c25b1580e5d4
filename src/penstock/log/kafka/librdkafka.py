"""A cluster's shared log on Kafka, through librdkafka.

Owns the clients that make topics and read them; each slot's producer is its writer's. Everything blocks, on threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from penstock.config.tree import SharedLogConfig
from penstock.errors import Refusal
from penstock.log.kafka.properties import RECORD_BYTES_MAX, error_of, is_unknown, may_pass, properties
from penstock.log.kafka.store import AwayError, GoneError, Partition, Stored
from penstock.log.kafka.writer import KafkaWriter

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Copies of each partition where Kafka has as many brokers, up or down, and nothing else was said.
REPLICATION = 3
#: Consumers that are kept for the next who reads.
IDLE_MAX = 16
#: Records taken in one go.
READ_RECORDS = 500
#: A broker is asked again, or another one, after this.
ASK_S = 2.0
#: How long a look takes before the next.
LOOK_S = 0.05

_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(RECORD_BYTES_MAX),
}


class KafkaStore:
    """Ordered records in Kafka's partitions."""

    def __init__(self, config: SharedLogConfig, cluster: str) -> None:
        self._config = config
        self._cluster = cluster
        self._patience_s = config.patience_ns / 1e9
        self._ask_s = min(ASK_S, self._patience_s)
        self._lock = threading.Lock()
        self._admin_client: AdminClient | None = None
        self._idle: list[Consumer] = []
        self._closed = False
        self._has_warned = False

    def make(self, topic: str, partitions: int) -> None:
        """Make a topic, or give one that is there more partitions; Refusal if it could not keep a log."""
        there = self.partitions(topic)
        if not there:
            self._create(topic, partitions)
        else:
            self._check(topic)
            if there < partitions:
                grown = [NewPartitions(topic, partitions)]
                self._asked(lambda: self._admin.create_partitions(grown)[topic], f"more partitions of {topic}")
        deadline = time.monotonic() + self._patience_s
        while self.partitions(topic) < partitions:
            if time.monotonic() > deadline:
                raise AwayError(f"{topic} has not got {partitions} partitions within {self._patience_s:.1f} s")
            time.sleep(LOOK_S)
        self._warn_few(topic)

    def drop(self, topic: str) -> None:
        """Remove a topic; nothing happens if it is gone already."""
        try:
            self._asked(lambda: self._admin.delete_topics([topic])[topic], f"the end of {topic}")
        except GoneError:
            return

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, once all have a leader; 0 if there is no such topic."""
        return self._tried(lambda: self._partitions(topic), f"what {topic} has")

    def _partitions(self, topic: str) -> int:
        known = self._admin.list_topics(topic, timeout=self._ask_s).topics[topic]
        if known.error is not None and is_unknown(known.error):
            return 0
        if known.error is not None:
            raise KafkaException(known.error)
        if not all(partition.leader >= 0 for partition in known.partitions.values()):
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return len(known.partitions)

    def topics(self) -> Sequence[str]:
        """Return the names of all topics of this cluster's."""
        found = self._tried(lambda: self._admin.list_topics(timeout=self._ask_s), "what topics there are")
        return sorted(name for name in found.topics if self._is_ours(name))

    def _is_ours(self, name: str) -> bool:
        return name.startswith(f"{self._cluster}.") and name.endswith((".log", ".state"))

    def writer(self, name: str) -> KafkaWriter:
        """Return the one writer of a name, and shut every earlier one out first."""
        return KafkaWriter(self._config, name)

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the offset of the first record that is kept, and the one behind the last."""
        what = f"the ends of {partition.topic} partition {partition.number}"
        deadline = time.monotonic() + self._patience_s
        while True:
            found = self._tried(lambda: self._bounds(partition), what)
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                raise AwayError(f"Kafka did not tell {what}")
            time.sleep(LOOK_S)

    def _bounds(self, partition: Partition) -> tuple[int, int] | None:
        place = TopicPartition(partition.topic, partition.number)
        try:
            with _Lent(self) as consumer:
                return consumer.get_watermark_offsets(place, timeout=self._ask_s, cached=False)
        except KafkaException as error:
            self._forget_idle()  # they would ask the same broker, which may be gone
            if is_unknown(error) and self.partitions(partition.topic) > partition.number:
                return None  # that broker has not heard of it yet
            raise

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Stored]:
        """Yield the records from `start` on, before `end`; AwayError where Kafka shows fewer than it had."""
        if start >= end:
            return
        shown = start
        with _Lent(self) as consumer:
            with suppress(KafkaException):
                # One that had not met a topic was seen to wait up to a second for its leader; asked first, mostly not.
                consumer.list_topics(partition.topic, timeout=self._ask_s)
            consumer.assign([TopicPartition(partition.topic, partition.number, start)])
            heard = time.monotonic()
            while True:
                first = consumer.poll(LOOK_S)  # which comes at once with what there is, other than the next
                if first is None:
                    if time.monotonic() - heard > self._patience_s:
                        where = f"{partition.topic} partition {partition.number}"
                        raise AwayError(
                            f"Kafka said nothing more of {where} for {self._patience_s:.1f} s: "
                            f"it is to be read up to {end}, and was shown up to {shown}"
                        )
                    continue
                for message in (first, *consumer.consume(READ_RECORDS, timeout=0)):
                    error = message.error()
                    if error is None:
                        heard = time.monotonic()
                        offset = message.offset() or 0
                        shown = offset + 1
                        if offset >= end:
                            return
                        headers: Any = message.headers() or ()
                        yield Stored(offset, message.value() or b"", {key: value or b"" for key, value in headers})
                        if offset == end - 1:
                            return
                    elif error.code() == KafkaError._PARTITION_EOF:
                        shown = message.offset() or shown  # which counts the marks of transactions, too
                        if shown >= end:
                            return
                        # A broker that has just become the leader may not know yet how far the last one was.
                    elif is_unknown(error) and self.partitions(partition.topic) > partition.number:
                        continue  # that broker has not heard of it yet
                    elif not may_pass(error):
                        raise error_of(error, f"{partition.topic} partition {partition.number} from {start}")

    def cut(self, partition: Partition, before: int) -> None:
        """Let records before an offset go."""
        place = TopicPartition(partition.topic, partition.number, before)
        what = f"the beginning of {partition.topic} partition {partition.number}"
        self._asked(lambda: self._admin.delete_records([place])[place], what)

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._closed = True
            self._admin_client = None
        self._forget_idle()

    def _forget_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for consumer in idle:
            consumer.close()

    # --- making ---------------------------------------------------------------------------------------------------

    def _create(self, topic: str, partitions: int) -> None:
        copies = self._config.replication
        if copies:
            if self._is_created(topic, partitions, copies):
                return
            text = f"Kafka has too few brokers for the {copies} copies of {topic} that shared_log.replication asks for"
            raise Refusal("unavailable", f"{text}; add brokers, or set it to fewer")
        # One that is down is a broker all the same, and only Kafka knows of it: how many answer now says nothing.
        if not self._is_created(topic, partitions, REPLICATION):
            brokers = len(self._tried(lambda: self._admin.list_topics(timeout=self._ask_s), "its brokers").brokers)
            self._is_created(topic, partitions, min(REPLICATION, brokers))

    def _is_created(self, topic: str, partitions: int, copies: int) -> bool:
        """Make a topic with so many copies; False if Kafka has not as many brokers."""
        in_sync = str(max(1, copies - 1) if copies > 2 else 1)
        new = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=copies,
            config={**_SETTINGS, "min.insync.replicas": in_sync},
        )
        try:
            self._asked(lambda: self._admin.create_topics([new])[topic], f"the topic {topic}")
        except AwayError as error:
            cause = error.__cause__
            code = cause.args[0].code() if isinstance(cause, KafkaException) else None
            if code == KafkaError.INVALID_REPLICATION_FACTOR:
                return False
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return True
            if isinstance(cause, KafkaException) and not may_pass(cause):
                raise Refusal("unavailable", f"Kafka did not make {topic}: {cause.args[0].str()}") from error
            raise
        return True

    @property
    def _wanted(self) -> int:
        return self._config.replication or REPLICATION

    def few(self) -> dict[str, int]:
        """Return the topics of this cluster's with fewer copies than there should be, and how many each has."""
        found = self._tried(lambda: self._admin.list_topics(timeout=self._ask_s), "what topics there are")
        copies = {name: _copies(known) for name, known in found.topics.items() if self._is_ours(name)}
        return {name: count for name, count in sorted(copies.items()) if 0 < count < self._wanted}

    def _warn_few(self, topic: str) -> None:
        """Say once that what is written is not as safe as it could be."""
        if self._has_warned:
            return
        known = self._tried(lambda: self._admin.list_topics(topic, timeout=self._ask_s), f"what {topic} has")
        copies = _copies(known.topics[topic])
        if 0 < copies < self._wanted:
            self._has_warned = True
            _log.warning(
                "%s has %d %s in Kafka, not %d, and others may have no more: what was acknowledged goes with the disks "
                "of so few brokers. Give them more copies there (kafka-reassign-partitions), or set "
                "shared_log.replication to that if it is enough",
                topic,
                copies,
                "copy" if copies == 1 else "copies",
                self._wanted,
            )

    def _check(self, topic: str) -> None:
        """Refuse a topic that would not keep what is written to it."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found: Any = self._asked(lambda: self._admin.describe_configs([resource])[resource], f"the settings of {topic}")
        values = {name: entry.value for name, entry in found.items()}
        # Less is enough for most records, and one that is larger would end the writer of all topics of a slot.
        if int(values.get("max.message.bytes") or RECORD_BYTES_MAX) < RECORD_BYTES_MAX:
            wrong, right = "max.message.bytes", str(RECORD_BYTES_MAX)
        elif "compact" in (values.get("cleanup.policy") or ""):
            wrong, right = "cleanup.policy", "delete"
        elif values.get("retention.ms") not in (None, "-1"):
            wrong, right = "retention.ms", "-1"
        elif values.get("retention.bytes") not in (None, "-1"):
            wrong, right = "retention.bytes", "-1"
        else:
            return
        raise Refusal(
            "unavailable",
            f"{topic} in Kafka has {wrong}={values[wrong]}, and would lose or refuse what is written to it. "
            f"Set {wrong}={right} for that topic.",
        )

    # --- asking ---------------------------------------------------------------------------------------------------

    @property
    def _admin(self) -> AdminClient:
        with self._lock:
            if self._admin_client is None:
                self._admin_client = AdminClient(properties(self._config))
            return self._admin_client

    def _tried(self, ask: Callable[[], T], what: str) -> T:
        """Return an answer, asked for again while that may help."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return ask()
            except KafkaException as error:
                if not may_pass(error) or time.monotonic() >= deadline:
                    raise error_of(error, f"Kafka did not tell {what}") from error
                time.sleep(LOOK_S)

    def _asked(self, ask: Callable[[], Future[T]], what: str) -> T:
        try:
            return self._tried(lambda: ask().result(self._patience_s), what)
        except NotInTime:
            raise AwayError(f"Kafka did not answer within {self._patience_s:.1f} s: {what}") from None

    def lend(self) -> Consumer:
        """Return a consumer that nobody uses."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Consumer(
            properties(
                self._config,
                group__id="penstock-unused",
                enable__auto__commit=False,
                # What a writer was told is kept counts, whether its transaction ends in a commit or not.
                isolation__level="read_uncommitted",
                auto__offset__reset="error",
                enable__partition__eof=True,
                check__crcs=True,
                # The end is waited for in vain after each fence: a mark of it is there, and no record.
                fetch__wait__max__ms=5,
                fetch__message__max__bytes=8 << 20,
                receive__message__max__bytes=1 << 28,
                fetch__max__bytes=64 << 20,
                queued__max__messages__kbytes=64 << 10,
            )
        )

    def take_back(self, consumer: Consumer, *, is_well: bool) -> None:
        """Keep a consumer for the next one."""
        if is_well:
            consumer.unassign()
            with self._lock:
                if not self._closed and len(self._idle) < IDLE_MAX:
                    self._idle.append(consumer)
                    return
        consumer.close()


def _copies(known: TopicMetadata) -> int:
    """Return how many copies each partition of a topic has at least; 0 where there are none."""
    return min((len(each.replicas) for each in known.partitions.values()), default=0)


class _Lent:
    """A consumer for one use."""

    def __init__(self, store: KafkaStore) -> None:
        self._store = store
        self._consumer = store.lend()

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._store.take_back(self._consumer, is_well=kind is None or kind is GeneratorExit)
