"""Makes the data of a node with many queues: python -m bench.many DIRECTORY COUNT

Without syncing anything: made by requests they would be the same, and cost a few syncs of the disk each.
"""

from __future__ import annotations

import asyncio
import os
import sys
from random import Random

import uvloop

from penstock.clock import LoopClock
from penstock.config import Config
from penstock.dialects import DIALECTS
from penstock.dialects.sqs.attributes import fresh
from penstock.dialects.sqs.queues import QUEUE
from penstock.disk import LocalDisk
from penstock.node.node import Node


async def main(path: str, count: int) -> None:
    """Make queues as SQS does."""
    loop = asyncio.get_running_loop()
    node = Node(Config(data_dir=path), LoopClock(loop), LocalDisk(loop), Random(1), dialects=DIALECTS)
    for number in range(count):
        kept = fresh(f"many{number:04}")
        topic = await node.obtain(f"many{number:04}", kept.choices.put(node.config.topic.settings()))
        await topic.subscribe(QUEUE, kept.settings)
    node.close()


if __name__ == "__main__":
    for name in ("fsync", "fdatasync"):
        setattr(os, name, lambda _: None)
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
