"""A node in this process that is filled with waiting messages through its intake, for the row `due`.

Prints one line of JSON when everything is stored, serves NSQ until its standard input ends. It stands where a
dialect would: it hands rows to a topic and hears when they are stored.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from random import Random

import msgspec
import numpy as np
import pyarrow as pa
import uvloop

from penstock.clock import LoopClock
from penstock.config import Config
from penstock.dialects import DIALECTS
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tcp.server import Server
from penstock.disk import LocalDisk
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.node import Node
from penstock.node.topic import Topic

DAY_NS = 86_400 * 1_000_000_000
BODY_BYTES = 100
#: What one MPUB brings.
BATCH = 1_000
#: Batches made and then inserted at a stretch; making them is not measured.
STRETCH = 100


class Filled(msgspec.Struct, frozen=True):
    """What the row learns from this process."""

    port: int
    seconds: float


async def life(data_dir: str, topic_name: str, channel: str, count: int) -> None:
    """Fill a node and serve it."""
    loop = asyncio.get_running_loop()
    config = Config(data_dir=data_dir)
    node = Node(config, LoopClock(loop), LocalDisk(loop), Random(1), dialects=DIALECTS)
    acceptor = await loop.create_server(Server(node, config.of(NsqConfig)).connect, "127.0.0.1", 0)
    topic = node.create_topic(topic_name).now()
    topic.subscribe(channel).now()
    seconds = 0.0
    draw = np.random.default_rng(1)
    for start in range(0, count, BATCH * STRETCH):
        batches = [waiting(draw) for _ in range(min(STRETCH, (count - start) // BATCH))]
        seconds += await insert(topic, batches)
    port = acceptor.sockets[0].getsockname()[1]
    print(msgspec.json.encode(Filled(port, seconds)).decode(), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def waiting(draw: np.random.Generator) -> Rows:
    """Return one batch of messages due at random times of the next day; each body begins with its due time."""
    due_ns = time.time_ns() + draw.integers(0, DAY_NS, BATCH, dtype=np.int64)
    bodies = np.full((BATCH, BODY_BYTES), ord("x"), np.uint8)
    bodies[:, :8] = due_ns.view(np.uint8).reshape(BATCH, 8)
    cuts = np.arange(0, (BATCH + 1) * BODY_BYTES, BODY_BYTES, dtype=np.int32)
    return Rows(BATCH, cuts, bodies.tobytes(), "bench", {"due": pa.array(due_ns)})


async def insert(topic: Topic, batches: list[Rows]) -> float:
    """Publish batches and return the seconds until the last one was stored."""
    stored = asyncio.get_running_loop().create_future()
    left = len(batches)

    def done(receipt: Receipt | None, error: BaseException | None) -> None:
        nonlocal left
        left -= 1
        if error is not None and not stored.done():
            stored.set_exception(error)
        elif left == 0:
            stored.set_result(None)

    start = time.perf_counter()
    for rows in batches:
        topic.publish(rows, stored, done)
        await asyncio.sleep(0)  # one batch a turn, as one read of a socket brings it
    await stored
    return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A node full of waiting messages.")
    parser.add_argument("data_dir")
    parser.add_argument("topic")
    parser.add_argument("channel")
    parser.add_argument("count", type=int)
    asked = parser.parse_args()
    uvloop.run(life(asked.data_dir, asked.topic, asked.channel, asked.count))
