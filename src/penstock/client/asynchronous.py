"""The client for asyncio: the same calls, awaited.

    async with AsyncClient() as client:
        await client.publish("orders", b"hello", key="customer 7")
        async with client.subscribe("orders", "billing") as subscription:
            async for message in subscription.messages():
                message.ack()

Single publishes of one moment go out together: they are gathered while the one before is on its way, for at least a
millisecond (ruling 20). Blocking calls run in threads; nothing here blocks the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa

from penstock.client import wire
from penstock.client.client import CREDIT, PATIENCE_S, Client, asked, check_name
from penstock.client.connection import DEFAULT_URL, token_in
from penstock.client.consumer import Consumer
from penstock.client.incoming import Batch, Message, Span, milliseconds
from penstock.client.keywords import hinted
from penstock.client.nodes import Nodes
from penstock.client.outgoing import BATCH_ROWS_MAX, Bytes, Moment, Outgoing, Properties, Publishable, check
from penstock.client.publisher import Receipt
from penstock.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.settings import Choice, Compression, Durability, Home, QuotaFull

#: A lone publish waits this long for company.
GATHER_S = 0.001
#: Calls that may be blocked at the same time.
THREADS = 16

Result = TypeVar("Result")
_Waiting: TypeAlias = "tuple[Outgoing, asyncio.Future[Receipt]]"


class AsyncClient:
    """A node, from an asyncio program's side."""

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
        token = token or (token_in(token_file) if token_file else "")
        self._patience_s = milliseconds(patience) / 1000
        self._client = Client(url, token=token, tls_roots=tls_roots, patience=patience)
        self._threads = ThreadPoolExecutor(THREADS, "penstock")
        self._gathers: dict[tuple[str, bool, int | None], _Gather] = {}

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what is still gathered, and hang up."""
        for gather in list(self._gathers.values()):
            await gather.flushed()
        await self._call(self._client.close)
        self._threads.shutdown(wait=False)

    @hinted
    async def publish(
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
        """Publish one message, many, or Arrow batches; returns once they are stored. See `Client.publish`."""
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
        if topic is not None and isinstance(messages, bytes | bytearray | memoryview | str):
            message = Outgoing(messages, properties)
            check(message)  # alone: what is wrong with it is not the fault of its company
            return await self._gather(topic, create, shard).add(message)
        return await self._call(partial(self._client.send, topic, messages, properties, create=create, shard=shard))

    def _gather(self, topic: str, create: bool, shard: int | None) -> _Gather:
        key = (topic, create, shard)
        gather = self._gathers.get(key)
        if gather is None:

            async def send(messages: list[Outgoing]) -> Receipt:
                return await self._call(partial(self._client.publish, topic, messages, create=create, shard=shard))

            gather = self._gathers[key] = _Gather(send)
        return gather

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
    ) -> AsyncSubscription:
        """Become a consumer; at most `credit` messages are with the program at a time. See `Client.subscribe`."""
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
        return AsyncSubscription(self._client.nodes, what, credit, self._patience_s)

    @hinted
    async def read(
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
    ) -> AsyncIterator[pa.RecordBatch]:
        """Yield rows of a shard straight from the log. See `Client.read`."""
        batches = self._client.read(
            topic,
            shard=shard,
            start=start,
            end=end,
            from_ns=from_ns,
            until_ns=until_ns,
            columns=columns,
            tags=tags,
            traffic=traffic,
            buckets=buckets,
            skip_lost=skip_lost,
            incarnation=incarnation,
        )
        while (batch := await self._call(partial(next, batches, None))) is not None:
            yield batch

    async def topics(self) -> list[wire.TopicInfo]:
        """Return what the node has."""
        return await self._call(self._client.topics)

    async def topic(self, name: str) -> wire.TopicInfo:
        """Return one topic."""
        return await self._call(partial(self._client.topic, name))

    async def routing(self) -> wire.Routing:
        """Return which bit each traffic type is."""
        return await self._call(self._client.routing)

    @hinted
    async def create_topic(
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
        """Make a topic; what is not chosen is as the node's configuration has it. See `Client.create_topic`."""
        make = partial(
            self._client.create_topic,
            name,
            shards=shards,
            durability=durability,
            log=log,
            retention_age_ns=retention_age_ns,
            retention_bytes=retention_bytes,
            retention_hard=retention_hard,
            quota_bytes=quota_bytes,
            quota_full=quota_full,
            compression=compression,
            segment_bytes=segment_bytes,
            memory_rows=memory_rows,
            dedup_window_ns=dedup_window_ns,
            rate=rate,
            max_due_ns=max_due_ns,
            ordered=ordered,
            ephemeral=ephemeral,
            dialects=dialects,
        )
        return await self._call(make)

    async def delete_topic(self, name: str) -> None:
        """Drop a topic with everything in it."""
        await self._call(partial(self._client.delete_topic, name))

    async def seek(
        self, topic: str, subscription: str, *, offset: int | None = None, time_ns: int | None = None
    ) -> None:
        """Let a subscription go on from an offset or a time, in all shards."""
        await self._call(partial(self._client.seek, topic, subscription, offset=offset, time_ns=time_ns))

    async def _call(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


class AsyncSubscription:
    """A consumer that is iterated with `async for`: batch by batch, or with `messages` one by one."""

    def __init__(self, nodes: Nodes, what: wire.Subscribe, credit: int, patience_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Batch | PenstockError | None] = asyncio.Queue()
        self._consumer = Consumer(nodes, what, credit, patience_s, self._told)
        self._ended = False
        self._consumer.start()

    def _told(self, item: Batch | PenstockError | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def __aenter__(self) -> AsyncSubscription:
        await self._loop.run_in_executor(None, self._consumer.wait)
        if self._consumer.refusal is not None:
            self._ended = True
            raise self._consumer.refusal
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        while True:
            batch = await self.take()
            if batch is None:
                return
            yield batch

    async def messages(self) -> AsyncIterator[Message]:
        """Yield single messages; each is to be acked, released, or comes again when its lease ends."""
        async for batch in self:
            for message in batch:
                yield message

    async def take(self, timeout: Span | None = None) -> Batch | None:
        """Return the next batch; None at the end, or if nothing came in time."""
        if self._ended:
            return None
        try:
            async with asyncio.timeout(None if timeout is None else milliseconds(timeout) / 1000):
                item = await self._queue.get()
        except TimeoutError:
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

    async def close(self) -> None:
        """Leave; what was not acked goes to others."""
        self._ended = True
        await self._loop.run_in_executor(None, self._consumer.close)


class _Gather:
    """Single messages to one topic, sent together while the ones before are on their way."""

    def __init__(self, send: Callable[[list[Outgoing]], Awaitable[Receipt]]) -> None:
        self._send = send
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, message: Outgoing) -> Receipt:
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await future

    async def flushed(self) -> None:
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        await asyncio.sleep(GATHER_S)
        while self._waiting:
            some, self._waiting = self._waiting[:BATCH_ROWS_MAX], self._waiting[BATCH_ROWS_MAX:]
            if not await self._publish(some, alone=len(some) == 1):
                for one in some:  # one of them is refused, and all were with it
                    await self._publish([one], alone=True)

    async def _publish(self, some: list[_Waiting], *, alone: bool) -> bool:
        """Send messages and tell their publishers; False if nobody was told, because one of several is refused."""
        try:
            receipt = await self._send([message for message, _ in some])
        except Exception as error:
            if isinstance(error, Refusal) and not alone:
                return False
            for _, future in some:
                if not future.done():
                    future.set_exception(error)
            return True
        for (_, future), place in zip(some, _each(receipt), strict=True):
            if not future.done():
                future.set_result(place)
        return True


def _each(receipt: Receipt) -> list[Receipt]:
    """Return the receipt of each message of several."""
    return [
        Receipt([(topic, shard, first + row, 1)]) for topic, shard, first, rows in receipt.places for row in range(rows)
    ]
