"""What the delivery history costs: python -m bench.micro.events

The same messages through three nodes in one process, with the history off, sampled and full, in turns, so that a
busy machine does the same to all of them. No sockets, so the kernel's share is left out: what is printed is the
largest share the history can have. Prints CPU time, the lower decile of many short rounds.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable
from random import Random

import uvloop

from bench.micro.lone import PUB, connected, feed
from penstock.clock import LoopClock
from penstock.config import Config, EventsConfig
from penstock.dialects import DIALECTS
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tcp.server import Server
from penstock.disk import LocalDisk
from penstock.node.node import Node

#: Every event of the full mode is to be noted, not dropped.
MODES = {
    "off": EventsConfig(mode="off"),
    "sampled": EventsConfig(),
    "full": EventsConfig(mode="full", rate_max=1 << 40),
}
ROUNDS = 400
LONE = 25
#: About what fits in one read of a connection.
PIPELINED = 2000


class Line:
    """One node with a producer and a consumer."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self.node = Node(config, LoopClock(loop), LocalDisk(loop), Random(1), dialects=DIALECTS)
        server = Server(self.node, self.node.config.of(NsqConfig))
        self.producer, _ = connected(server)
        self.consumer, self.received = connected(server)
        self.pipelined = PUB * PIPELINED
        self._id = 0
        feed(self.consumer, b"SUB lone ch\n")
        feed(self.consumer, b"RDY 2500\n")

    def lone(self) -> None:
        """Publish, deliver and finish some messages, each by itself."""
        for _ in range(LONE):
            feed(self.producer, PUB)
            feed(self.consumer, self._fins(1))

    async def many(self) -> None:
        """Publish, deliver and finish many messages at once."""
        feed(self.producer, self.pipelined)
        await asyncio.sleep(0)
        feed(self.consumer, self._fins(PIPELINED))

    def _fins(self, count: int) -> bytes:
        first = self._id + 1
        self._id += count
        return b"".join([b"FIN %016x\n" % id_ for id_ in range(first, first + count)])

    def finished(self) -> bool:
        """Tell whether every message was finished."""
        counts = self.node.topics["lone"].subscription("ch").counts()
        return counts["acked"] == self._id and counts["held"] == 0


def report(name: str, spent: dict[str, list[int]], per: int, flushes: dict[str, float]) -> None:
    """Print the lower decile of each mode, and its share above `off`; flushes are spread over the messages."""
    cost = {mode: sorted(times)[len(times) // 10] / per / 1000 for mode, times in spent.items()}
    print(name)
    for mode, us in cost.items():
        writing = flushes.get(mode, 0.0)
        share = (us + writing) / cost["off"] * 100 - 100
        print(f"  {mode:8} {us:8.3f} us a message, {writing:6.3f} to write events {share:+6.1f} %")


def flush_us(line: Line, messages: int) -> float:
    """Return what writing down the events costs a message."""
    if line.node.events is None:
        return 0.0
    start = time.thread_time_ns()
    line.node.events.flush()
    return (time.thread_time_ns() - start) / messages / 1000


async def main() -> None:
    """Measure and print."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as path:
        lines = {mode: Line(Config(data_dir=f"{path}/{mode}", events=events), loop) for mode, events in MODES.items()}
        for line in lines.values():  # once, so that the topic of the history exists
            for _ in range(10):
                line.lone()
            if line.node.events is not None:
                line.node.events.flush()
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        await measured("lone: PUB, OK, delivery, FIN", lines, LONE, Line.lone, ROUNDS)
        await measured(f"pipelined: {PIPELINED} at once", lines, PIPELINED, Line.many, ROUNDS)
        for line in lines.values():
            line.node.close()


async def measured(name: str, lines: dict[str, Line], per: int, work: Callable[[Line], object], rounds: int) -> None:
    """Run all lines in turns and report."""
    spent: dict[str, list[int]] = {mode: [] for mode in lines}
    order = list(lines.items())
    for _ in range(rounds):
        order.append(order.pop(0))
        for mode, line in order:
            start = time.thread_time_ns()
            waiting = work(line)
            if asyncio.iscoroutine(waiting):
                await waiting
            spent[mode].append(time.thread_time_ns() - start)
    report(name, spent, per, {mode: flush_us(line, per * rounds) for mode, line in lines.items()})
    for mode, line in lines.items():
        if not line.finished():
            raise RuntimeError(f"{mode}: not every message was finished")


if __name__ == "__main__":
    uvloop.run(main())
