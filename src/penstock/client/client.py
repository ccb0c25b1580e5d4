"""The blocking client: publish, subscribe, read.

    with Client("grpc://127.0.0.1:7071") as client:
        client.publish("orders", b"hello", key="customer 7", tag="blue")
        with client.subscribe("orders", "billing") as subscription:
            for message in subscription.messages():
                print(message.body)
                message.ack()

`AsyncClient` is the same for asyncio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.client import wire
from penstock.client.connection import DEFAULT_URL, Access, Connection, Unreachable, token_in
from penstock.client.consumer import Consumer
from penstock.client.incoming import Batch, Message, Span, milliseconds
from penstock.client.keywords import hinted
from penstock.client.nodes import Nodes
from penstock.client.outgoing import Bytes, Moment, Properties, Publishable, batches_of
from penstock.client.publisher import Publisher, Receipt
from penstock.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.settings import Choice, Compression, Durability, Home, QuotaFull

#: How long a call waits for a node that does not answer, by default.
PATIENCE_S = 30.0
#: Messages a subscription may have with the program, by default.
CREDIT = 1000


class Client:
    """A node, from a program's side; several threads may use one."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str = "",
        token_file: str = "",
        tls_roots: bytes = b"",
        patience: Span = PATIENCE_S,
    ) -> None:
        """Take where the node is, and what it is shown: a token or `user:secret`, or the file that it is in.

        Of a cluster any node will do; several, with commas between, are asked in turn while one is away.
        """
        self._patience_s = milliseconds(patience) / 1000
        access = Access(url, token or (token_in(token_file) if token_file else ""), tls_roots)
        #: Shared by everything that this client makes.
        self.nodes = Nodes(access, is_watchful=True)
        self._publisher = Publisher(self.nodes, self._patience_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; subscriptions are closed by themselves."""
        self._publisher.close()
        self.nodes.close()

    # --- in -------------------------------------------------------------------------------------------------------

    @hinted
    def publish(
        self,
        topic: str | None,
        messages: Publishable,
        *,
        create: bool = True,
        shard: int | None = None,
        key: Bytes | None = None,
        headers: Mapping[str, Any] | Bytes | None = None,
        tag: str | None = None,
        traffic: int | None = None,
        due: Moment | None = None,
        expires: Moment | None = None,
        event_time: Moment | None = None,
        dedup: Bytes | None = None,
        bucket: int | None = None,
        route: int | None = None,
        message_id: Bytes | None = None,
        trace: int | None = None,
        group: Bytes | None = None,
    ) -> Receipt:
        """Publish one message, many, or Arrow batches, and return where they are once they are stored.

        What a single message does not say itself it takes from the keywords, which `Properties` explains. Without a
        topic, batches name it in a column `topic`. A value of the wrong type raises before anything is sent. While the
        node does not answer, it is tried again for `patience`; nothing is stored twice.
        """
        check_name("topic", topic)
        properties = Properties(
            key=key,
            headers=headers,
            tag=tag,
            traffic=traffic,
            due=due,
            expires=expires,
            event_time=event_time,
            dedup=dedup,
            bucket=bucket,
            route=route,
            message_id=message_id,
            trace=trace,
            group=group,
        )
        return self.send(topic, messages, properties, create=create, shard=shard)

    def send(
        self,
        topic: str | None,
        messages: Publishable,
        properties: Properties,
        *,
        create: bool = True,
        shard: int | None = None,
    ) -> Receipt:
        """Publish with what `Properties` says; `publish` is the same with keywords."""
        return self._publisher.publish(topic, batches_of(messages, properties), create=create, shard=shard)

    # --- out ------------------------------------------------------------------------------------------------------

    @hinted
    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        credit: int = CREDIT,
        desired_tag: str | None = None,
        header_filter: Mapping[str, Any] | None = None,
        sample_percent: int | None = None,
        lease: Span | None = None,
        shard: int | None = None,
        columns: Sequence[str] | None = None,
        create: bool = True,
        create_topic: bool = False,
        earliest: bool = False,
        consumer: str | None = None,
        rack: str | None = None,
    ) -> Subscription:
        """Become a consumer; at most `credit` messages are with the program at a time.

        The subscription is made where there is none (not with `create=False`): the first of a topic begins with what
        the topic kept for it, a later one at the end, and with `earliest` each begins with everything that is there.
        The topic must exist unless `create_topic` says otherwise.

        `desired_tag`: only messages with this tag, which nobody else gets meanwhile. `header_filter`, `sample_percent`:
        what they refuse is finished for the subscription. `lease`: how long a message may be held, if not the
        subscription's own time. `consumer`, `rack`: to whom buckets are dealt, where the subscription deals them.
        Returns once the node knows of the consumer: what is published from then on is its own.
        """
        what = asked(
            topic,
            subscription,
            desired_tag=desired_tag,
            header_filter=header_filter,
            sample_percent=sample_percent,
            lease=lease,
            shard=shard,
            columns=columns,
            create=create,
            create_topic=create_topic,
            earliest=earliest,
            consumer=consumer,
            rack=rack,
        )
        return Subscription(self.nodes, what, credit, self._patience_s)

    @hinted
    def read(
        self,
        topic: str,
        *,
        shard: int = 0,
        start: int | None = None,
        end: int | None = None,
        from_ns: int | None = None,
        until_ns: int | None = None,
        columns: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        traffic: int | None = None,
        buckets: Sequence[int] | None = None,
        skip_lost: bool = False,
        incarnation: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of a shard straight from the log, without a subscription.

        By offsets (`start`, `end`) or by the times at which they were stored. `tags`, `traffic` (any of these bits) and
        `buckets` (from, to) choose rows; `skip_lost` begins at what is kept where `start` is not kept any more.
        """
        check_name("topic", topic)
        return self.nodes.read(
            wire.Read(
                topic=topic,
                shard=shard,
                incarnation=incarnation,
                start=start,
                end=end,
                from_ns=from_ns,
                until_ns=until_ns,
                columns=names_of("columns", columns),
                tags=names_of("tags", tags),
                traffic=traffic,
                buckets=list(buckets) if buckets is not None else None,
                skip_lost=skip_lost,
            ),
            self._patience_s,
        )

    # --- about ----------------------------------------------------------------------------------------------------

    def topics(self) -> list[wire.TopicInfo]:
        """Return what the node has, or all nodes of its cluster."""
        return self.nodes.topics(self._patience_s)

    def topic(self, name: str) -> wire.TopicInfo:
        """Return one topic."""
        return self.nodes.call(name, lambda connection: connection.topic(name), self._patience_s)

    def routing(self) -> wire.Routing:
        """Return which bit each traffic type is."""
        return self.nodes.call(None, lambda connection: connection.routing(), self._patience_s)

    @hinted
    def create_topic(
        self,
        name: str,
        *,
        shards: int | None = None,
        durability: Durability | None = None,
        log: Home | None = None,
        retention_age_ns: int | None = None,
        retention_bytes: int | None = None,
        retention_hard: bool | None = None,
        quota_bytes: int | None = None,
        quota_full: QuotaFull | None = None,
        compression: Compression | None = None,
        segment_bytes: int | None = None,
        memory_rows: int | None = None,
        dedup_window_ns: int | None = None,
        rate: int | None = None,
        max_due_ns: int | None = None,
        ordered: bool | None = None,
        ephemeral: bool | None = None,
        dialects: Mapping[str, Mapping[str, Choice]] | None = None,
    ) -> wire.TopicInfo:
        """Make a topic; what is not chosen is as the node's configuration has it. `TopicSettings` explains each."""
        check_name("name", name)
        chosen = {
            "shards": shards,
            "durability": durability,
            "log": log,
            "retention_age_ns": retention_age_ns,
            "retention_bytes": retention_bytes,
            "retention_hard": retention_hard,
            "quota_bytes": quota_bytes,
            "quota_full": quota_full,
            "compression": compression,
            "segment_bytes": segment_bytes,
            "memory_rows": memory_rows,
            "dedup_window_ns": dedup_window_ns,
            "rate": rate,
            "max_due_ns": max_due_ns,
            "ordered": ordered,
            "ephemeral": ephemeral,
            "dialects": dialects,
        }
        settings = {key: value for key, value in chosen.items() if value is not None}
        unsure = False

        def create(connection: Connection) -> wire.TopicInfo:
            nonlocal unsure
            try:
                found = connection.act("create-topic", {"name": name, "settings": settings})
            except Unreachable:
                unsure = True
                raise
            except Refusal as refusal:
                if refusal.code != "conflict" or not unsure:
                    raise
                return self.topic(name)  # a try before this one made it
            return wire.made(found, wire.TopicInfo)

        return self.nodes.call(None, create, self._patience_s)

    def delete_topic(self, name: str) -> None:
        """Drop a topic with everything in it."""
        unsure = False

        def delete(connection: Connection) -> None:
            nonlocal unsure
            try:
                connection.act("delete-topic", {"name": name})
            except Unreachable:
                unsure = True
                raise
            except Refusal as refusal:
                if refusal.code != "not_found" or not unsure:
                    raise

        self.nodes.call(name, delete, self._patience_s)

    def seek(self, topic: str, subscription: str, *, offset: int | None = None, time_ns: int | None = None) -> None:
        """Let a subscription go on from an offset or a time, in all shards."""
        where = {"offset": offset} if offset is not None else {"time_ns": time_ns}
        asked = {"topic": topic, "subscription": subscription, **where}
        self.nodes.call(topic, lambda connection: connection.act("seek", asked), self._patience_s)


class Subscription:
    """A consumer that is iterated: batch by batch, or with `messages` one by one."""

    def __init__(self, nodes: Nodes, what: wire.Subscribe, credit: int, patience_s: float) -> None:
        self._queue: SimpleQueue[Batch | PenstockError | None] = SimpleQueue()
        self._consumer = Consumer(nodes, what, credit, patience_s, self._queue.put)
        self._ended = False
        self._consumer.start()
        self._consumer.wait()
        # One that cannot be had says so now. Later errors come with the messages that are there before them.
        if self._consumer.refusal is not None:
            self._ended = True
            raise self._consumer.refusal

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


def asked(
    topic: str,
    subscription: str,
    *,
    desired_tag: str | None,
    header_filter: Mapping[str, Any] | None,
    sample_percent: int | None,
    lease: Span | None,
    shard: int | None,
    columns: Sequence[str] | None,
    create: bool,
    create_topic: bool,
    earliest: bool,
    consumer: str | None,
    rack: str | None,
) -> wire.Subscribe:
    """Return what a consumer asks the node for."""
    check_name("topic", topic)
    check_name("subscription", subscription)
    return wire.Subscribe(
        topic=topic,
        subscription=subscription,
        tag=desired_tag,
        filter=dict(header_filter) if header_filter is not None else None,
        sample_percent=sample_percent,
        lease_ms=milliseconds(lease) if lease is not None else None,
        shard=shard,
        columns=names_of("columns", columns),
        create=create,
        create_topic=create_topic,
        earliest=earliest,
        consumer=consumer,
        rack=rack,
    )


def check_name(what: str, name: object) -> None:
    """Refuse what cannot be a name; None is said where there is no topic to name."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{what} is {name!r}; it takes a str")


def names_of(what: str, names: Sequence[str] | None) -> list[str] | None:
    """Return names as a list; one text is no list of its letters."""
    if isinstance(names, str):
        raise TypeError(f"{what} is {names!r}; it takes a list of str: [{names!r}]")
    return None if names is None else list(names)
