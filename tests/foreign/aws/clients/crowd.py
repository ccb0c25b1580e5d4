"""aiobotocore: many consumers of one queue in one process.

Each receives one message and waits until all have one, so that all of them are served at the same time; then they take
the rest in tens. Prints what was received how often, by how many, and what is left.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

import aiobotocore.config
import aiobotocore.session


async def main(name: str, consumers: int, count: int) -> dict[str, Any]:
    config = aiobotocore.config.AioConfig(max_pool_connections=2 * consumers, retries={"total_max_attempts": 1})
    async with aiobotocore.session.get_session().create_client("sqs", config=config) as sqs:
        made = await sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "120"})
        url = made["QueueUrl"]
        seen: Counter[str] = Counter()
        wrong: list[str] = []
        deleted = 0
        all_have_one, all_deleted = asyncio.Barrier(consumers), asyncio.Event()

        async def take(most: int) -> None:
            nonlocal deleted
            found = await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=most, WaitTimeSeconds=20)
            messages = found.get("Messages", [])
            if not messages:
                return
            seen.update(message["Body"] for message in messages)
            handles = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(messages)]
            if most == 1:
                await all_have_one.wait()
            done = await sqs.delete_message_batch(QueueUrl=url, Entries=handles)
            wrong.extend(each["Code"] for each in done.get("Failed", []))
            deleted += len(done["Successful"])
            if deleted == count:
                all_deleted.set()

        async def consume() -> None:
            await take(1)
            while True:
                await take(10)

        async def produce(start: int) -> None:
            entries = [{"Id": str(at), "MessageBody": f"message {at}"} for at in range(start, start + 10)]
            await sqs.send_message_batch(QueueUrl=url, Entries=entries)

        tasks = [asyncio.create_task(consume()) for _ in range(consumers)]
        await asyncio.gather(*(produce(start) for start in range(0, count, 10)))
        await asyncio.wait_for(all_deleted.wait(), 60)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        wrong.extend(repr(each) for each in ended if not isinstance(each, asyncio.CancelledError))
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        left = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)
    return {"bodies": len(seen), "received": sum(seen.values()), "wrong": wrong, "left": left["Attributes"]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
