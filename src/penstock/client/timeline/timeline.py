"""Timelines from a program's side: messages that are due at a time.

    with Timeline("reminders") as timeline:
        timeline.create()
        with timeline.producer("shop") as producer:
            producer.create(b"pay the bill", due="5s")
        with timeline.consumer("worker 1", stop_after=1) as consumer:
            for message in consumer:
                print(message.body)
                message.delete()

`AsyncTimeline` is the same for asyncio.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

from penstock.client.connection import DEFAULT_URL, Access, Connection, token_in
from penstock.client.incoming import Span, milliseconds
from penstock.client.keywords import hinted
from penstock.client.nodes import Nodes
from penstock.client.outgoing import Moment
from penstock.client.timeline import wire
from penstock.client.timeline.consumer import Clock, Consumer, Habits
from penstock.client.timeline.error import TimelineError
from penstock.client.timeline.link import MILLISECOND_NS, Document, Link, act
from penstock.client.timeline.outgoing import time_of
from penstock.client.timeline.producer import BATCH_BYTES, BATCH_MESSAGES, Producer
from penstock.client.timeline.wire import Kind
from penstock.errors import Refusal

PATIENCE_S = 30.0


class Timeline:
    """One topic of a node; several threads may use one."""

    def __init__(
        self,
        topic: str,
        url: str = DEFAULT_URL,
        *,
        cluster: str = "",
        token: str = "",
        token_file: str = "",
        tls_roots: bytes = b"",
        patience: Span = PATIENCE_S,
    ) -> None:
        """Take the topic, where a node is, and what it is shown: a token or `user:secret`, or the file it is in.

        A cluster that is named must be the node's. Several nodes of one have commas between them.
        """
        _check_text("topic", topic)
        _check_text("cluster", cluster, empty=True)
        self.topic = topic
        self._cluster = cluster
        self._access = Access(url, token or (token_in(token_file) if token_file else ""), tls_roots)
        self._patience_s = milliseconds(patience) / 1000
        self._nodes = Nodes(self._access)

    def __enter__(self) -> Timeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; producers and consumers are closed by themselves."""
        self._nodes.close()

    def _act(self, name: str, document: object, kind: type[Document]) -> Document:
        """Carry out an action at the node that has the topic."""

        def once(connection: Connection) -> Document:
            try:
                return act(connection, name, document, kind)
            except TimelineError as error:
                if error.kind == Kind.CLUSTER_OFFLINE and self._nodes.are_several:  # the topic changes its node
                    told_ns = error.error.throttled_ms * MILLISECOND_NS
                    raise Refusal("unavailable", str(error), told_ns) from error
                raise

        try:
            return self._nodes.call(self.topic, once, self._patience_s)
        except Refusal as refusal:
            if isinstance(refusal.__cause__, TimelineError):
                raise refusal.__cause__ from None
            raise

    # --- the topic ------------------------------------------------------------------------------------------------

    @hinted
    def create(
        self,
        *,
        max_seconds_future: int | None = None,
        max_seconds_lease: int = 0,
        max_body_bytes: int = 0,
        rqs_limit_per_client: int = 0,
        bucket_count: int = 0,
        time_window_ms: int = 0,
        prefetch_max_ms: int | None = None,
        prefetch_max_count: int = 0,
        dealer: str = "",
        checksum_bodies: bool = False,
    ) -> None:
        """Make the topic; one that is there with the same settings is found. 0 is the default of each setting.

        `max_seconds_future=0` lets messages be due at any time, `prefetch_max_ms=0` pushes nothing ahead of time.
        `dealer` is simple, rack or gladiator.
        """
        asked = wire.TimelineCreate(
            id=self.topic,
            cluster=self._cluster,
            max_seconds_future_allowed=max_seconds_future,
            max_seconds_lease=max_seconds_lease,
            max_body_size_bytes=max_body_bytes,
            rqs_limit_per_client=rqs_limit_per_client,
            bucket_count=bucket_count,
            time_window_ms=time_window_ms,
            prefetch_max_ms=prefetch_max_ms,
            prefetch_max_count=prefetch_max_count,
            dealer=dealer,
            checksum_bodies=checksum_bodies,
        )
        self._act("create", asked, wire.Done)

    def delete(self) -> None:
        """Drop the topic with all of its messages."""
        self._act("delete", wire.TimelineDeleteTopic(id=self.topic, cluster=self._cluster), wire.Done)

    def redeal(self) -> bool:
        """Deal the buckets anew from the next window on, without a thought for who had which.

        That makes whole ranges of what joins and leaves have scattered. False if nobody is there to deal to.
        """
        return self._act("redeal", wire.Redeal(topic_id=self.topic, cluster=self._cluster), wire.Redealt).is_dealt

    def info(self) -> dict[str, Any]:
        """Return what the node knows of the topic."""
        found = self._act("info", wire.Info(topic_id=self.topic, cluster=self._cluster), wire.Informed)
        return found.topics[0] if found.topics else {}

    def count(self, status: str = "all", *, start: Moment | None = None, end: Moment | None = None) -> int:
        """Return how many messages there are: all, available, waiting or processing, and due from `start` to `end`."""
        asked = wire.Count(
            topic_id=self.topic,
            cluster=self._cluster,
            status=status,
            from_ms=self._time("start", start),
            to_ms=self._time("end", end),
        )
        return self._act("count", asked, wire.Counted).n

    def _time(self, name: str, value: Moment | None) -> int | None:
        if value is None:
            return None
        time_ms, relative = time_of(value, name)
        if not relative:
            return time_ms
        return time_ms + self._act("ping", wire.Ping(local_ts_ms=0), wire.Pong).partner_ts_ms

    # --- in and out -----------------------------------------------------------------------------------------------

    @hinted
    def producer(
        self,
        group: str,
        *,
        producer_id: str = "",
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int = BATCH_BYTES,
        on_drift: Callable[[float], object] | None = None,
    ) -> Producer:
        """Become a producer of a group, which owns what it creates. An id of its own is made where none is given.

        `on_drift` hears how many milliseconds the node's clock is ahead once that is more than 100; times that do not
        count from now on are meant by that clock. What it raises comes out of the call that sent messages.
        """
        _check_text("group", group)
        _check_number("batch_messages", batch_messages)
        _check_number("batch_bytes", batch_bytes)
        greeting = wire.ProducerHandshake(
            topic_id=self.topic,
            producer_group_id=group,
            producer_id=producer_id or uuid.uuid4().hex,
            cluster=self._cluster,
        )
        link = Link(self._access, greeting, self._patience_s)
        try:
            link.patiently(link.session)
        except BaseException:
            link.close()
            raise
        return Producer(link, batch_messages=batch_messages, batch_bytes=batch_bytes, on_drift=on_drift)

    @hinted
    def consumer(
        self,
        consumer_id: str,
        *,
        rack: str = "",
        lease: Span = 60,
        buffer: int = 100,
        status_tick: Span = 1,
        stop_after: int | None = None,
        auto_extend: bool = False,
        delete_batch: int = 100,
        follow: bool = True,
        on_status: Callable[[wire.TopicStatus], object] | None = None,
        on_drift: Callable[[float], object] | None = None,
        clock: Clock | None = None,
    ) -> Consumer:
        """Become a consumer; whoever comes back under the same id within its leases goes on with them.

        `lease`: how long a message may be held, from when it is due. `buffer`: so many are pushed ahead of the program.
        `auto_extend`: what the program has stays its own while it lives. `on_status` hears how the topic is, `on_drift`
        how many milliseconds the node's clock is ahead once that is more than 100. `follow`: go to another node when
        one is suggested. `clock`: milliseconds since 1970, for tests.
        """
        _check_text("consumer_id", consumer_id)
        _check_text("rack", rack, empty=True)
        for name, value in (("buffer", buffer), ("delete_batch", delete_batch), ("stop_after", stop_after)):
            if value is not None:
                _check_number(name, value)
        lease_ms = milliseconds(lease)
        greeting = wire.ConsumerHandshake(
            topic_id=self.topic,
            consumer_id=consumer_id,
            cluster=self._cluster,
            lease_timeout_ms=lease_ms,
            rack_id=rack,
        )
        habits = Habits(
            buffer=buffer,
            status_tick_ms=max(milliseconds(status_tick), 1),
            lease_ms=lease_ms,
            auto_extend=auto_extend,
            delete_batch=delete_batch,
            stop_after=stop_after,
            follow=follow,
            on_status=on_status,
            on_drift=on_drift,
            clock=clock,
        )
        consumer = Consumer(Link(self._access, greeting, self._patience_s), habits)
        consumer.start()
        return consumer


def _check_text(name: str, value: object, *, empty: bool = False) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; it takes a str")
    if not value and not empty:
        raise ValueError(f"{name} is empty")


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it takes an int")
    if value < 1:
        raise ValueError(f"{name} is {value}; it is 1 or more")
