"""The blocking client: publish, subscribe, read.

    with Client("grpc://127.0.0.1:7071") as client:
        client.publish("orders", b"hello", key="customer 7", tag="blue")
        with client.subscribe("orders", "billing") as subscription:
            for batch in subscription:
                print(batch.to_polars())
                batch.ack()

`AsyncClient` is the same for asyncio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypedDict, Unpack

import pyarrow as pa

from penstock.client import wire
from penstock.client.connection import DEFAULT_URL, Access, Connection
from penstock.client.consumer import Consumer
from penstock.client.incoming import Batch, Message, Span, milliseconds
from penstock.client.outgoing import Properties, PropertyValues, Publishable, batches_of
from penstock.client.publisher import Publisher, Receipt
from penstock.errors import PenstockError

#: How long a call waits for a node that does not answer, by default.
PATIENCE_S = 30.0
#: Messages a subscription may have with the program, by default.
CREDIT = 1000


class Wanted(TypedDict, total=False):
    """What a consumer may ask for beside its messages."""

    #: Only messages with this tag, which nobody else gets meanwhile.
    desired_tag: str | None
    #: What it refuses is finished for the subscription.
    header_filter: Mapping[str, Any] | None
    sample_percent: int | None
    #: How long a message may be held; the subscription's own time if nothing is said.
    lease: Span | None
    shard: int | None
    columns: Sequence[str] | None
    #: Make topic and subscription where there are none; on unless said otherwise.
    create: bool
    #: A subscription made now begins with everything that is kept, not at the end.
    earliest: bool


class Client:
    """A node, from a program's side; several threads may use one."""

    def __init__(
        self, url: str = DEFAULT_URL, *, token: str = "", tls_roots: bytes = b"", patience: Span = PATIENCE_S
    ) -> None:
        self._access = Access(url, token, tls_roots)
        self._patience_s = milliseconds(patience) / 1000
        self._connection = Connection(self._access)
        self._publisher = Publisher(self._connection, self._patience_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; subscriptions are closed by themselves."""
        self._publisher.close()
        self._connection.close()

    # --- in -------------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str | None,
        messages: Publishable,
        *,
        create: bool = True,
        shard: int | None = None,
        **properties: Unpack[PropertyValues],
    ) -> Receipt:
        """Publish one message, many, or Arrow batches, and return where they are once they are stored.

        What a single message does not say itself it takes from the keywords: key, headers, tag, traffic, due, expires,
        event_time, dedup and the rest of `Properties`. Without a topic, batches name it in a column `topic`. While the
        node does not answer, it is tried again for `patience`; nothing is stored twice.
        """
        batches = batches_of(messages, Properties(**properties))
        return self._publisher.publish(topic, batches, create=create, shard=shard)

    # --- out ------------------------------------------------------------------------------------------------------

    def subscribe(
        self, topic: str, subscription: str, *, credit: int = CREDIT, **wanted: Unpack[Wanted]
    ) -> Subscription:
        """Become a consumer; at most `credit` messages are with the program at a time. `Wanted` has the keywords.

        Returns once the node knows of it: what is published from then on is its own. A subscription that cannot be had
        says why at the first `take`.
        """
        return Subscription(self._access, subscribe_of(topic, subscription, wanted), credit, self._patience_s)

    def read(
        self,
        topic: str,
        *,
        shard: int = 0,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        **more: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of a shard straight from the log, without a subscription; `more` is the rest of `wire.Read`."""
        names = list(columns) if columns is not None else None
        return self._connection.read(wire.Read(topic=topic, shard=shard, start=start, end=end, columns=names, **more))

    # --- about ----------------------------------------------------------------------------------------------------

    def topics(self) -> list[wire.TopicInfo]:
        """Return what the node has."""
        return self._connection.topics()

    def topic(self, name: str) -> wire.TopicInfo:
        """Return one topic."""
        return self._connection.topic(name)

    def routing(self) -> wire.Routing:
        """Return which bit each traffic type is."""
        return self._connection.routing()

    def create_topic(self, name: str, **settings: Any) -> wire.TopicInfo:
        """Make a topic; settings are those of the admin API."""
        return wire.made(self._connection.act("create-topic", {"name": name, "settings": settings}), wire.TopicInfo)

    def delete_topic(self, name: str) -> None:
        """Drop a topic with everything in it."""
        self._connection.act("delete-topic", {"name": name})

    def seek(self, topic: str, subscription: str, *, offset: int | None = None, time_ns: int | None = None) -> None:
        """Let a subscription go on from an offset or a time, in all shards."""
        where = {"offset": offset} if offset is not None else {"time_ns": time_ns}
        self._connection.act("seek", {"topic": topic, "subscription": subscription, **where})


class Subscription:
    """A consumer that is iterated: batch by batch, or with `messages` one by one."""

    def __init__(self, access: Access, what: wire.Subscribe, credit: int, patience_s: float) -> None:
        self._queue: SimpleQueue[Batch | PenstockError | None] = SimpleQueue()
        self._consumer = Consumer(access, what, credit, patience_s, self._queue.put)
        self._ended = False
        self._consumer.start()
        self._consumer.wait()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self.take()
            if batch is None:
                return
            yield batch

    def messages(self) -> Iterator[Message]:
        """Yield single messages; each is to be acked, released, or comes again when its lease ends."""
        for batch in self:
            yield from batch

    def take(self, timeout: Span | None = None) -> Batch | None:
        """Return the next batch; None at the end, or if nothing came in time."""
        if self._ended:
            return None
        try:
            item = self._queue.get(timeout=None if timeout is None else milliseconds(timeout) / 1000)
        except Empty:
            return None
        if isinstance(item, Batch):
            return item
        self._ended = True
        if item is not None:
            raise item
        return None

    def set_credit(self, credit: int) -> None:
        """Let this many messages be with the program at a time from now on; 0 pauses."""
        self._consumer.set_credit(credit)

    def close(self) -> None:
        """Leave; what was not acked goes to others."""
        self._consumer.close()
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        self._ended = True


def subscribe_of(topic: str, subscription: str, wanted: Wanted) -> wire.Subscribe:
    """Return what a consumer asks the node for."""
    header_filter, lease, columns = wanted.get("header_filter"), wanted.get("lease"), wanted.get("columns")
    return wire.Subscribe(
        topic=topic,
        subscription=subscription,
        tag=wanted.get("desired_tag"),
        filter=dict(header_filter) if header_filter is not None else None,
        sample_percent=wanted.get("sample_percent"),
        lease_ms=milliseconds(lease) if lease is not None else None,
        shard=wanted.get("shard"),
        columns=list(columns) if columns is not None else None,
        create=wanted.get("create", True),
        earliest=wanted.get("earliest", False),
    )
