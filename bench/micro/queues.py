"""What requests about queues cost inside the process: python -m bench.micro.queues [profile]

Drives the real connection class without sockets. With `profile` it prints where the time goes instead.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import pstats
import re
import sys
import tempfile
import time
from collections.abc import Callable
from random import Random
from typing import Any, cast

import msgspec
import uvloop

from bench.micro.lone import Wire
from penstock.clock import LoopClock
from penstock.config import Config
from penstock.dialects import DIALECTS
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.http import Http
from penstock.dialects.dynamiq.queues import Queues
from penstock.dialects.sqs.api import Api
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.sqs.names import Names
from penstock.dialects.sqs.sns.endpoints import Allowed
from penstock.disk import LocalDisk
from penstock.http import App, Connection, Listener
from penstock.node.node import Node

BODY = "x" * 64
ROUNDS = 1000
QUEUE_URL = "http://localhost:9324/000000000000/micro"
HEAD = (
    "POST / HTTP/1.1\r\nHost: localhost:9324\r\nAccept-Encoding: identity\r\nX-Amz-Target: AmazonSQS.{operation}\r\n"
    "Content-Type: application/x-amz-json-1.0\r\nx-amzn-query-mode: true\r\nUser-Agent: Boto3/1.44.0 md/Botocore#1.44.0"
    " ua/2.1 os/linux#6.18 md/arch#x86_64 lang/python#3.11.7 md/pyimpl#CPython\r\nX-Amz-Date: 20261116T091436Z\r\n"
    "Authorization: AWS4-HMAC-SHA256 Credential=any/20261116/us-east-1/sqs/aws4_request, SignedHeaders=content-type;"
    "host;x-amz-date;x-amz-target;x-amzn-query-mode, Signature={number:064x}\r\namz-sdk-request: attempt=1; max=1\r\n"
    "Content-Length: {size}\r\n\r\n"
)
_handles = re.compile(rb'"ReceiptHandle":"([^"]+)"').findall


class Desk:
    """A node with one connection to an application."""

    def __init__(self, node: Node, key: str, app: App) -> None:
        self._listener = Listener(key, app, node.clock, node.budget, node.gate)
        self._connection: Connection = self._listener.connect()
        self._wire = Wire()
        self._connection.connection_made(cast(Any, self._wire))
        self._number = 0

    def ask(self, request: bytes) -> bytes:
        """Send a request; return its answer, which is there at once."""
        self._wire.last = b""
        self._connection.data_received(request)
        if not self._wire.last.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(f"{request[:60]!r} was answered {self._wire.last!r}")
        return self._wire.last

    def sqs(self, operation: str, **fields: object) -> bytes:
        """Carry out an operation of SQS; no head is like the one before."""
        body = msgspec.json.encode({"QueueUrl": QUEUE_URL, **fields})
        self._number += 1
        head = HEAD.format(operation=operation, number=self._number, size=len(body))
        return self.ask(head.encode() + body)


async def cost(name: str, work: Callable[[], object], *, profile: bool) -> None:
    """Print what a call costs, or where its time goes."""
    if profile:
        profiler = cProfile.Profile()
        for _ in range(ROUNDS):
            profiler.enable()
            work()
            profiler.disable()
            await asyncio.sleep(0)
        print(f"--- {name}")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(32)
        return
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        work()
        rounds.append((time.perf_counter_ns() - start) / 1000)
        await asyncio.sleep(0)  # the node has a turn
    print(f"{name:<44} {sorted(rounds)[ROUNDS // 4]:7.1f} us", flush=True)


async def main(*, profile: bool = False) -> None:
    """Measure and print."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as path:
        config = Config(data_dir=path)
        node = Node(config, LoopClock(loop), LocalDisk(loop), Random(1), dialects=DIALECTS)
        desk = Desk(node, "sqs.port", Api(node, Names.of(config.of(SqsConfig)), 1 << 20, Allowed(())))
        desk.sqs("CreateQueue", QueueName="micro")
        entries = [{"Id": str(number), "MessageBody": BODY} for number in range(10)]
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        await cost("SendMessage", lambda: desk.sqs("SendMessage", MessageBody=BODY), profile=profile)
        await cost("SendMessageBatch of 10", lambda: desk.sqs("SendMessageBatch", Entries=entries), profile=profile)
        taken: list[list[dict[str, str]]] = []

        def receive() -> None:
            found = _handles(desk.sqs("ReceiveMessage", MaxNumberOfMessages=10))
            if found:
                taken.append([{"Id": str(number), "ReceiptHandle": text.decode()} for number, text in enumerate(found)])

        await cost("ReceiveMessage of 10", receive, profile=profile)
        await cost(
            "DeleteMessageBatch of 10",
            lambda: desk.sqs("DeleteMessageBatch", Entries=taken.pop() if len(taken) > 1 else taken[0]),
            profile=profile,
        )
        queues = Queues(node, config.of(DynamiqConfig).sync_interval_ns)
        other = Desk(node, "dynamiq.port", Http(node, config, queues, None))
        other.ask(b"PUT /v1/queues/other HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        enqueue = (
            b"PUT /v1/queues/other/message HTTP/1.1\r\nHost: localhost\r\nContent-Length: 64\r\n\r\n" + BODY.encode()
        )
        await cost("Dynamiq enqueue", lambda: other.ask(enqueue), profile=profile)
        queues.close()
        node.close()


if __name__ == "__main__":
    uvloop.run(main(profile="profile" in sys.argv[1:]))
