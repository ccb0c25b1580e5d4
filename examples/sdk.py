"""Publish and consume with the SDK: run `make up`, then `python examples/sdk.py`."""

from __future__ import annotations

import asyncio
import sys

from penstock.client import AsyncClient, Client

URL = sys.argv[1] if len(sys.argv) > 1 else "grpc://127.0.0.1:7071"


def blocking() -> None:
    with Client(URL) as client:
        client.publish("orders", b"a shirt", key="customer 7", tag="eu", headers={"lang": "fr"})
        client.publish("orders", b"a hat, later", tag="eu", due="1s")
        # The first subscription of a topic begins with what is there; later ones at the end, or with `earliest`.
        with client.subscribe("orders", "billing", desired_tag="eu", lease="30s") as subscription:
            for message in subscription.messages():
                print(f"{message.body.decode()} (key {message.key!r}, headers {message.headers})")
                message.ack()  # or message.extend("30s"), message.release(delay="5s")
                if b"hat" in message.body:
                    break


async def together() -> None:
    async with AsyncClient(URL) as client, client.subscribe("clicks", "count", create_topic=True) as subscription:
        # Published in one moment, they travel together.
        await asyncio.gather(*(client.publish("clicks", f"click {n}") for n in range(1000)))
        seen = 0
        async for batch in subscription:
            seen += len(batch)  # batch.arrow, batch.to_polars(), batch.to_pandas()
            batch.ack()
            if seen >= 1000:
                break
        print(f"{seen} clicks")


if __name__ == "__main__":
    blocking()
    asyncio.run(together())
