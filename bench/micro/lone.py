"""What a lone message costs inside the process: python -m bench.micro.lone [callers | quotas]

Drives the real connection class without sockets, so the kernel's share is left out. Prints the lower quartile of many
short rounds, because the machine is shared, the same with caches that hold something else, and how many Python
functions are called on the way. With `callers` the same by users who have to show who they are, with `quotas` by some
whose rate is counted, too.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any, cast

import numpy as np
import uvloop

from penstock.callers.book import Book, Token, User
from penstock.callers.quota import NO_QUOTA, UserQuota
from penstock.callers.rights import Rule
from penstock.callers.secret import digest, made
from penstock.clock import LoopClock
from penstock.config import CallersConfig, Config
from penstock.dialects import DIALECTS
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tcp.server import Connection, Server
from penstock.disk import LocalDisk
from penstock.message import Rows
from penstock.node.node import Node

BODY = b"x" * 100
PUB = b"PUB lone\n" + struct.pack(">I", len(BODY)) + BODY
ROUNDS, PER_ROUND = 200, 50
#: Four times a core's own caches: what another process leaves behind between two wake-ups; the cache that cores share
#: keeps most of what it had.
COLD_BYTES, COLD_ROUNDS = 8 << 20, 400


class Wire:
    """The far end of a connection: keeps the last thing written."""

    def __init__(self) -> None:
        self.last = b""

    def set_write_buffer_limits(self, high: int) -> None:
        """Take any limit."""

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        """Name a peer."""
        return ("127.0.0.1", 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        """Keep what was written."""
        self.last = data

    def is_closing(self) -> bool:
        """Never close."""
        return False

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """Nothing is read here."""

    def write_eof(self) -> None:
        """Hang up without a wire."""

    def abort(self) -> None:
        """Hang up without a wire."""


def connected(server: Server, token: bytes = b"") -> tuple[Connection, Wire]:
    """Return a greeted connection and its far end."""
    connection, wire = server.connect(), Wire()
    connection.connection_made(cast(Any, wire))
    feed(connection, b"  V2")
    if token:
        feed(connection, b"AUTH\n" + struct.pack(">I", len(token)) + token)
    return connection, wire


def with_user(path: str, quota: UserQuota = NO_QUOTA) -> bytes:
    """Put a user there that may publish and consume some topics; return its token."""
    token = made().encode()
    rules = (Rule("publish", "orders.*"), Rule("publish", "lo*"), Rule("consume", "lo*"))
    Book([User("bench", rules, tokens=(Token("bench", digest(token)),), quota=quota)]).write(f"{path}/users.json")
    return token


def feed(connection: Connection, data: bytes) -> None:
    """Deliver one read."""
    connection.data_received(data)


def cost_us(work: Callable[[], object]) -> float:
    """Return the lower quartile of the microseconds a call takes."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(PER_ROUND):
            work()
        rounds.append((time.perf_counter_ns() - start) / PER_ROUND / 1000)
    return sorted(rounds)[ROUNDS // 4]


def cold_us(work: Callable[[], object]) -> float:
    """Return the median of the microseconds a call takes when the caches hold something else, as after a wake-up."""
    other = np.ones(COLD_BYTES // 8, np.int64)
    rounds = []
    for _ in range(COLD_ROUNDS):
        other.sum()
        start = time.perf_counter_ns()
        work()
        rounds.append((time.perf_counter_ns() - start) / 1000)
    return sorted(rounds)[COLD_ROUNDS // 2]


def calls(work: Callable[[], object]) -> int:
    """Return how many Python functions one call enters."""
    count = 0

    def seen(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


#: More than anything here publishes.
PLENTY = UserQuota(messages_per_second=1_000_000_000, bytes_per_second=1 << 40)


class Lone:
    """A node with one who publishes and one who receives, and the way of one message between them."""

    def __init__(self, path: str, *, callers: bool = False, quotas: bool = False) -> None:
        loop = asyncio.get_running_loop()
        token = with_user(path, PLENTY if quotas else NO_QUOTA) if callers else b""
        config = Config(data_dir=path, callers=CallersConfig(anonymous="off" if callers else "loopback"))
        self.node = Node(config, LoopClock(loop), LocalDisk(loop), Random(1), dialects=DIALECTS)
        server = Server(self.node, self.node.config.of(NsqConfig))
        self._producer, _ = connected(server, token)
        self._consumer, self._received = connected(server, token)

    def publish(self) -> None:
        """PUB, and its OK."""
        feed(self._producer, PUB)

    def receive(self) -> None:
        """Subscribe at the end of what is there."""
        topic = self.node.topics["lone"]
        feed(self._consumer, b"SUB lone ch\n")
        feed(self._consumer, b"RDY 1\n")
        topic.subscription("ch").seek(0, topic.shards[0].end)
        self.cycle()

    def cycle(self) -> None:
        """PUB, OK, delivery and FIN."""
        feed(self._producer, PUB)
        feed(self._consumer, b"FIN " + bytes(self._received.last[18:34]) + b"\n")

    def functions(self) -> int:
        """Return how many Python functions are called on that way; what a timer does in between is not on it."""
        for _ in range(PER_ROUND):
            self.cycle()
        return min(calls(self.cycle) for _ in range(PER_ROUND))


async def main(*, callers: bool = False, quotas: bool = False) -> None:
    """Measure and print; with `callers` by users who showed a token, with `quotas` by some with a rate."""
    with tempfile.TemporaryDirectory() as path:
        lone = Lone(path, callers=callers, quotas=quotas)
        await asyncio.sleep(0)
        lone.publish()
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        rows = Rows(1, [0, len(BODY)], BODY, "nsq")
        shard = lone.node.topics["lone"].shards[0]
        print(f"append to the log                    {cost_us(lambda: shard.append(rows, 1)):6.1f} us")
        print(f"PUB to OK, nobody subscribed         {cost_us(lone.publish):6.1f} us")
        lone.receive()
        print(f"PUB, OK, delivery and FIN            {cost_us(lone.cycle):6.1f} us")
        print(f"the same with cold caches            {cold_us(lone.cycle):6.1f} us")
        print(f"Python functions called on that way  {lone.functions():6d}")
        lone.node.close()


if __name__ == "__main__":
    counted = "quotas" in sys.argv[1:]
    uvloop.run(main(callers=counted or "callers" in sys.argv[1:], quotas=counted))
