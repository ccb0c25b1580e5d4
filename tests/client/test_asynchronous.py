"""The client for asyncio publishes together what comes together, and hands out batches to `async for`."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client import AsyncClient, Refusal
from tests.cli.program import Node

PATIENCE_S = 30.0


def test_single_publishes_of_one_moment_are_stored_together(node: Node, url: str, topic: str) -> None:
    async def work() -> None:
        async with AsyncClient(url) as client:
            receipts = await asyncio.gather(*(client.publish(topic, b"%d" % n, key=b"k") for n in range(500)))
            assert sorted(id_ for receipt in receipts for id_ in receipt.ids()) == list(range(1, 501))
            got = []
            async with client.subscribe(topic, "s", earliest=True) as subscription:
                async for message in subscription.messages():
                    got.append(message.body)
                    message.ack()
                    if len(got) == 500:
                        break
            assert got == [b"%d" % n for n in range(500)]

    asyncio.run(work())


def test_refused_message_does_not_refuse_its_company(url: str, topic: str) -> None:
    async def work() -> None:
        async with AsyncClient(url) as client:
            sizes = [10, 2 << 20, 20]
            some = await asyncio.gather(*(client.publish(topic, bytes(n)) for n in sizes), return_exceptions=True)
            assert [type(each).__name__ for each in some] == ["Receipt", "Refusal", "Receipt"]
            rows = [batch.num_rows async for batch in client.read(topic, columns=["offset"])]
            assert sum(rows) == 2

    asyncio.run(work())


def test_wrong_type_is_told_to_its_publisher_and_costs_nobody_else(url: str, topic: str) -> None:
    async def work() -> None:
        async with AsyncClient(url) as client:
            calls = [client.publish(topic, b"a"), client.publish(topic, b"b", key=5), client.publish(topic, b"c")]  # type: ignore[arg-type]
            some = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each).__name__ for each in some] == ["Receipt", "TypeError", "Receipt"]
            with pytest.raises(TypeError, match=r"publish\(\) has no 'kye'; did you mean 'key'\?"):
                await client.publish(topic, b"a", kye="k")  # type: ignore[call-arg]
            with pytest.raises(Refusal, match="none"):
                async with client.subscribe(f"{topic}.none", "s"):
                    pass

    asyncio.run(work())


def test_loop_goes_on_while_a_subscription_waits(url: str, topic: str) -> None:
    async def work() -> None:
        async with AsyncClient(url) as client, client.subscribe(topic, "s", create_topic=True) as subscription:
            waiting = asyncio.create_task(subscription.take(PATIENCE_S))
            assert await subscription.take(0.01) is None
            await client.publish(topic, b"a")
            batch = await waiting
            assert batch is not None
            assert [message.body for message in batch] == [b"a"]
            batch.ack()

    asyncio.run(work())


def test_topics_are_made_described_and_dropped(url: str, topic: str) -> None:
    async def work() -> None:
        async with AsyncClient(url) as client:
            await client.create_topic(topic)
            await client.publish(topic, [b"a", b"b"])
            assert (await client.topic(topic)).shards[0].rows == 2
            assert topic in [each.name for each in await client.topics()]
            assert (await client.routing()).traffic_types == {}
            await client.seek(topic, (await made(client, topic)), offset=1)
            await client.delete_topic(topic)
            with pytest.raises(Refusal):
                await client.topic(topic)

    async def made(client: AsyncClient, topic: str) -> str:
        async with client.subscribe(topic, "s", create_topic=True) as subscription:
            await subscription.take(PATIENCE_S)
        return "s"

    asyncio.run(work())
