"""The one writer of a slot: librdkafka's producer inside of a transaction that stays open.

An open transaction is a fence: whoever begins one with the same id shuts this one out, and finds all that it was told
is kept. Nobody reads by commits; a transaction is ended and begun anew only because Kafka ends one that lasts too long.
Owns the producer, and the thread that takes its answers. Invariant: after the first error nothing is sent any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.config.tree import SharedLogConfig
from penstock.log.kafka.ending import CONNECT_S, end_earlier
from penstock.log.kafka.properties import RECORD_BYTES_MAX, error_of, may_pass, properties
from penstock.log.kafka.store import AwayError, Partition, Record

#: Kafka ends a transaction after this; its own limit is 15 minutes unless it is told otherwise.
TRANSACTION_MS = 600_000
#: A transaction in which something was sent is ended after this.
ROLL_S = 240.0
#: How long the thread waits for answers before it looks around.
POLL_S = 0.5
#: How long the last transaction is waited for.
CLOSE_S = 2.0
#: A queue that is full is tried again after this.
FULL_S = 0.002
#: What librdkafka would print is told to those who wait.
_silent = logging.Logger("librdkafka")
_silent.addHandler(logging.NullHandler())
#: A coordinator that is not ready is asked again after this.
AGAIN_S = 0.1


class KafkaWriter:
    """The only one who writes under its name."""

    def __init__(self, config: SharedLogConfig, name: str) -> None:
        self.name = name
        self._config = config
        self._patience_s = config.patience_ns / 1e9
        self._trouble = _Trouble()
        wait_ms = min(int(self._patience_s * 1000), TRANSACTION_MS)
        self._producer = Producer(
            properties(
                config,
                transactional__id=name,
                transaction__timeout__ms=TRANSACTION_MS,
                acks="all",
                linger__ms=0,
                message__timeout__ms=wait_ms,
                message__max__bytes=RECORD_BYTES_MAX,
                # A topic that was made a moment ago is waited for; one that was deleted, no longer than this.
                topic__metadata__propagation__max__ms=min(10_000, wait_ms),
                queue__buffering__max__kbytes=1 << 20,
                compression__type=config.compression,
                # Not this one's own method: both would be gone only when the collector comes by, some day, and with
                # them librdkafka's threads and connections.
                error_cb=self._trouble.hear,
            ),
            logger=_silent,
        )
        #: What ended it.
        self._dead: OSError | None = None
        self._changed = threading.Condition()
        #: What is sent and not answered.
        self._under_way: set[_Group] = set()
        self._rolling = False
        #: When something was first sent in this transaction.
        self._used_s: float | None = None
        self._closed = False
        self._begin()
        threading.Thread(target=self._answer, name=f"penstock {name}", daemon=True).start()

    def send(self, partition: Partition, records: Sequence[Record]) -> Sequence[int]:
        """Return the offsets of records once all are kept for good, in this order."""
        deadline = time.monotonic() + self._patience_s
        group = _Group(len(records))
        with self._changed:
            while self._rolling and self._dead is None:
                self._changed.wait(max(0.0, deadline - time.monotonic()))
                if time.monotonic() >= deadline:
                    raise self._end(AwayError(f"Kafka did not end the transaction of {self.name} in time"))
            if self._dead is not None:
                raise self._dead
            self._under_way.add(group)
            self._used_s = self._used_s or time.monotonic()
        try:
            for number, record in enumerate(records):
                self._produce(partition, record, partial(group.told, number), deadline)
            if not group.done.wait(max(0.0, deadline - time.monotonic())):
                raise AwayError(
                    f"Kafka did not take what was sent to {partition.topic} within {self._patience_s:.1f} s"
                    f"{self._trouble.text and f': {self._trouble.text}'}"
                )
            if isinstance(group.error, OSError):
                raise group.error
            if group.error is not None:
                raise error_of(group.error, f"{partition.topic} partition {partition.number}")
        except OSError as error:
            raise self._end(error) from None
        finally:
            with self._changed:
                self._under_way.discard(group)
        return group.offsets

    def send_soon(self, partition: Partition, record: Record, told: Callable[[int | OSError], None]) -> bool:
        """Send a record without waiting; `told` hears on the thread that takes Kafka's answers, or who ends this."""
        if not self._changed.acquire(blocking=False):
            return False
        try:
            if self._rolling or self._dead is not None:
                return False
            group = _Group(1, partial(self._answered, partition, told))
            try:
                self._producer.produce(
                    partition.topic,
                    record.value,
                    partition=partition.number,
                    headers=dict(record.headers),
                    on_delivery=partial(group.told, 0),
                )
            except (BufferError, KafkaException):  # `send` waits, or says what it is
                return False
            self._under_way.add(group)
            self._used_s = self._used_s or time.monotonic()
        finally:
            self._changed.release()
        return True

    def _answered(self, partition: Partition, told: Callable[[int | OSError], None], group: _Group) -> None:
        """Hand on what became of a send that nobody waits for; librdkafka itself gives up after the patience."""
        with self._changed:
            self._under_way.discard(group)
        error = group.error
        if isinstance(error, KafkaError):
            error = self._end(error_of(error, f"{partition.topic} partition {partition.number}"))
        told(group.offsets[0] if error is None else error)

    def close(self) -> None:
        """Write nothing more; what was sent stays."""
        with self._changed:
            well = self._dead is None
            dead = self._dead = self._dead or AwayError(f"the writer {self.name} was closed")
            self._closed = True
            self._changed.notify_all()
        # The thread is not waited for, which would take half a second: it does nothing any more but to look around.
        with suppress(KafkaException):  # one that was shut out says so once more
            if well:  # the next writer need not end it then
                self._producer.commit_transaction(CLOSE_S)
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.flush(0)
        self._end(dead)

    def _produce(self, partition: Partition, record: Record, told: Any, deadline: float) -> None:
        while True:
            try:
                self._producer.produce(
                    partition.topic,
                    record.value,
                    partition=partition.number,
                    headers=dict(record.headers),
                    on_delivery=told,
                )
                return
            except BufferError:
                if time.monotonic() >= deadline:
                    raise AwayError(f"Kafka takes less than is sent to {partition.topic}") from None
                time.sleep(FULL_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION or time.monotonic() >= deadline:
                    raise error_of(error, f"{partition.topic} partition {partition.number}") from error
                self._learn(partition.topic)

    def _learn(self, topic: str) -> None:
        """Ask how many partitions a topic has: it may have got more since this producer last heard of it."""
        with suppress(KafkaException):  # whoever sends tries again, and knows until when
            self._producer.list_topics(topic, AGAIN_S * 10)
        time.sleep(AGAIN_S)

    def _end(self, error: OSError) -> OSError:
        """Send nothing more, and let nobody wait; return what to tell."""
        with self._changed:
            dead = self._dead = self._dead or error
            left = list(self._under_way)
            self._changed.notify_all()
        for group in left:
            group.fail(dead)
        return dead

    # --- the thread -----------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Take Kafka's answers, and end transactions in time."""
        while not self._closed:
            self._poll(POLL_S)
            if self._used_s is not None and time.monotonic() - self._used_s > ROLL_S and self._dead is None:
                self.roll()

    def _poll(self, wait_s: float) -> None:
        try:
            self._producer.poll(wait_s)
        except KafkaException as error:  # a fatal one
            self._end(error_of(error, self.name))
            time.sleep(AGAIN_S)

    def roll(self) -> None:
        """End the transaction and begin another, between sends."""
        with self._changed:
            self._rolling = True
        try:
            while self._under_way and self._dead is None:
                self._poll(0.01)
            deadline = time.monotonic() + self._patience_s
            while self._dead is None:
                try:
                    self._producer.commit_transaction(self._patience_s)
                    self._producer.begin_transaction()
                    self._used_s = None
                    return
                except KafkaException as error:
                    if not may_pass(error) or time.monotonic() > deadline:
                        self._end(error_of(error, f"the transaction of {self.name}"))
        finally:
            with self._changed:
                self._rolling = False
                self._changed.notify_all()

    def _begin(self) -> None:
        """Shut earlier writers out, and begin."""
        deadline = time.monotonic() + self._patience_s
        end_earlier(self._config, self.name, TRANSACTION_MS)
        with suppress(KafkaException):
            # One that knows no broker yet was seen to look for the coordinator only after half a second.
            self._producer.list_topics(self.name, min(CONNECT_S, self._patience_s))
        while True:
            try:
                self._producer.init_transactions(max(0.1, deadline - time.monotonic()))
                self._producer.begin_transaction()
                return
            except KafkaException as error:
                if not may_pass(error) or time.monotonic() >= deadline:
                    text = f"Kafka does not let {self.name} begin"
                    raise error_of(error, text + (f" ({self._trouble.text})" if self._trouble.text else "")) from error
                time.sleep(AGAIN_S)


class _Trouble:
    """What librdkafka last said about its brokers."""

    def __init__(self) -> None:
        self.text = ""

    def hear(self, error: KafkaError) -> None:
        """Take note."""
        self.text = error.str()


class _Group:
    """Records that are waited for together."""

    __slots__ = ("_left", "_lock", "_then", "done", "error", "offsets")

    def __init__(self, count: int, then: Callable[[_Group], None] | None = None) -> None:
        self.offsets = [-1] * count
        self.error: KafkaError | OSError | None = None
        self.done = threading.Event()
        self._left = count
        #: Called once, when it is done.
        self._then = then
        self._lock = threading.Lock()
        if not count:
            self.done.set()

    def fail(self, error: OSError) -> None:
        """Let nobody wait for it."""
        self._finish(error)

    def told(self, number: int, error: KafkaError | None, message: Message) -> None:
        """Take the answer to one of them; on the thread that polls."""
        if error is None:
            self.offsets[number] = message.offset() or 0
        with self._lock:  # who closes the writer takes answers, too
            self._left -= 1
            is_last = not self._left
        if is_last or error is not None:
            self._finish(error)

    def _finish(self, error: KafkaError | OSError | None) -> None:
        with self._lock:
            if self.done.is_set():
                return
            self.error = error
            self.done.set()
        if self._then is not None:
            self._then(self)
