"""Timelines for asyncio: the same calls, awaited.

    async with AsyncTimeline("reminders") as timeline:
        async with await timeline.producer("shop") as producer:
            await producer.create(b"pay the bill", due="5s")
        async with await timeline.consumer("worker 1") as consumer:
            async for message in consumer:
                await message.delete()

Thin over the blocking ones, whose calls run in threads; nothing here blocks the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from penstock.client.connection import DEFAULT_URL
from penstock.client.incoming import Span
from penstock.client.keywords import hinted
from penstock.client.outgoing import Bytes, Moment
from penstock.client.timeline.consumer import Clock, Consumer, Message
from penstock.client.timeline.outgoing import Schedulable
from penstock.client.timeline.producer import BATCH_BYTES, BATCH_MESSAGES, Producer
from penstock.client.timeline.timeline import PATIENCE_S, Timeline
from penstock.client.timeline.wire import TopicStatus

#: Calls that may be blocked at the same time.
THREADS = 16

Result = TypeVar("Result")


class _Threads:
    """Where blocking calls run."""

    def __init__(self, count: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(count, "penstock")

    async def call(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        return self._pool.submit(call)

    def close(self) -> None:
        self._pool.shutdown(wait=False)


class AsyncTimeline:
    """One topic of a node, from an asyncio program's side. See `Timeline`."""

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
        """Take the topic, where a node is, and what it is shown."""
        self._timeline = Timeline(
            topic,
            url,
            cluster=cluster,
            token=token,
            token_file=token_file,
            tls_roots=tls_roots,
            patience=patience,
        )
        self._threads = _Threads()

    async def __aenter__(self) -> AsyncTimeline:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up; producers and consumers are closed by themselves."""
        await self._threads.call(self._timeline.close)
        self._threads.close()

    @hinted
    async def create(
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
        """Make the topic. See `Timeline.create`."""
        make = partial(
            self._timeline.create,
            max_seconds_future=max_seconds_future,
            max_seconds_lease=max_seconds_lease,
            max_body_bytes=max_body_bytes,
            rqs_limit_per_client=rqs_limit_per_client,
            bucket_count=bucket_count,
            time_window_ms=time_window_ms,
            prefetch_max_ms=prefetch_max_ms,
            prefetch_max_count=prefetch_max_count,
            dealer=dealer,
            checksum_bodies=checksum_bodies,
        )
        await self._threads.call(make)

    async def delete(self) -> None:
        """Drop the topic with all of its messages."""
        await self._threads.call(self._timeline.delete)

    async def redeal(self) -> bool:
        """Deal the buckets anew from the next window on. See `Timeline.redeal`."""
        return await self._threads.call(self._timeline.redeal)

    async def info(self) -> dict[str, Any]:
        """Return what the node knows of the topic."""
        return await self._threads.call(self._timeline.info)

    async def count(self, status: str = "all", *, start: Moment | None = None, end: Moment | None = None) -> int:
        """Return how many messages there are."""
        return await self._threads.call(partial(self._timeline.count, status, start=start, end=end))

    @hinted
    async def producer(
        self,
        group: str,
        *,
        producer_id: str = "",
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int = BATCH_BYTES,
        on_drift: Callable[[float], object] | None = None,
    ) -> AsyncProducer:
        """Become a producer. See `Timeline.producer`."""
        become = partial(
            self._timeline.producer,
            group,
            producer_id=producer_id,
            batch_messages=batch_messages,
            batch_bytes=batch_bytes,
            on_drift=on_drift,
        )
        return AsyncProducer(await self._threads.call(become))

    @hinted
    async def consumer(
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
        on_status: Callable[[TopicStatus], object] | None = None,
        on_drift: Callable[[float], object] | None = None,
        clock: Clock | None = None,
    ) -> AsyncConsumer:
        """Become a consumer. See `Timeline.consumer`."""
        become = partial(
            self._timeline.consumer,
            consumer_id,
            rack=rack,
            lease=lease,
            buffer=buffer,
            status_tick=status_tick,
            stop_after=stop_after,
            auto_extend=auto_extend,
            delete_batch=delete_batch,
            follow=follow,
            on_status=on_status,
            on_drift=on_drift,
            clock=clock,
        )
        return AsyncConsumer(await self._threads.call(become))


class AsyncProducer:
    """Creates messages. See `Producer`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._threads = _Threads(1)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def create(self, messages: Schedulable, *, due: Moment | None = None) -> list[bytes]:
        """Create messages, and return their ids once they are stored."""
        return await self._threads.call(partial(self._producer.create, messages, due=due))

    async def delete(self, message_ids: Bytes | Iterable[Bytes]) -> int:
        """Delete messages of this group that nobody has on lease; return how many there were."""
        return await self._threads.call(partial(self._producer.delete, message_ids))

    async def close(self) -> None:
        """End the session."""
        await self._threads.call(self._producer.close)
        self._threads.close()


class AsyncConsumer:
    """Takes messages, iterated with `async for`. See `Consumer`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        # One takes, others change what was taken.
        self._takes = _Threads(1)
        self._changes = _Threads(4)

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[AsyncMessage]:
        while (message := await self.take()) is not None:
            yield message

    async def take(self, timeout: Span | None = None) -> AsyncMessage | None:
        """Return the next message once it is due; None at the end, or if nothing was due in time."""
        taking = self._takes.submit(partial(self._consumer.take, timeout))
        try:
            message = await asyncio.shield(asyncio.wrap_future(taking))
        except asyncio.CancelledError:
            taking.add_done_callback(self._untaken)
            raise
        return None if message is None else AsyncMessage(message, self._changes)

    def _untaken(self, taking: Future[Message | None]) -> None:
        """Put back what came for somebody who did not wait for it."""
        if not taking.cancelled() and taking.exception() is None and (message := taking.result()) is not None:
            self._consumer.give_back(message)

    async def flush(self) -> None:
        """Send the deletes that wait, and return once they are done."""
        await self._changes.call(self._consumer.flush)

    async def close(self) -> None:
        """Send the deletes that wait, give back what nobody took, and leave."""
        await self._changes.call(self._consumer.close)
        self._takes.close()
        self._changes.close()


class AsyncMessage:
    """One message on lease. See `Message`."""

    __slots__ = ("_changes", "_message")

    def __init__(self, message: Message, changes: _Threads) -> None:
        self._message = message
        self._changes = changes

    def __repr__(self) -> str:
        return repr(self._message)

    @property
    def id(self) -> bytes:
        """What it is called in its topic."""
        return self._message.id

    @property
    def body(self) -> bytes:
        """What was sent."""
        return self._message.body

    @property
    def due_ms(self) -> int:
        """When it was due."""
        return self._message.due_ms

    @property
    def expires_ms(self) -> int:
        """When the lease ends, by the clock of the node."""
        return self._message.expires_ms

    async def delete(self) -> None:
        """Finish it; sent with others, after a second at the latest."""
        await self._changes.call(self._message.delete)

    async def extend(self, lease: Span) -> None:
        """Hold it this much longer, from now."""
        await self._changes.call(partial(self._message.extend, lease))

    async def release(self, due: Moment | None = None) -> None:
        """Give it back, to be due again at a time, or at once."""
        await self._changes.call(partial(self._message.release, due))
