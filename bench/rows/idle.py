"""What a node costs that has nothing to do: alone, with many quiet topics, and with a message out for long."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from urllib.request import Request, urlopen

from bench import measure
from bench.generator import LoadFailed
from bench.peers import Penstock
from bench.plan import Plan
from bench.report import Result, at_most, table_row
from bench.supply import Missing

#: Half a percent of a core: a node on a laptop, or a hundred of them on one machine, are not felt.
CPU_PERCENT_MAX = 0.5
TOPICS = 300
#: A node looks after a topic for some seconds after the last message.
QUIET_SECONDS = 8.0


def run(plan: Plan) -> Iterator[Result]:
    """Watch a node for half a minute (a third of that in a quick run) in each of three states."""
    try:
        node = Penstock()
        node.start()
    except Missing as reason:
        yield table_row("idle", "a node without clients", {}, [], {"penstock": str(reason)})
        return
    seconds = 10.0 * plan.rounds
    with contextlib.ExitStack() as stack:
        stack.callback(node.remove)
        yield _watched(node, "a node without clients", seconds)
        for number in range(TOPICS):
            _post(node, f"/topic/create?topic=idle{number}")
            _post(node, f"/channel/create?topic=idle{number}&channel=ch")
            _post(node, f"/pub?topic=idle{number}", b"x" * 100)
        yield _watched(node, f"{TOPICS} quiet topics, each with a subscription and a message", seconds)
        for number in range(0, TOPICS, 3):
            stack.enter_context(_holding(node.port, f"idle{number}"))
        yield _watched(node, f"the same, {len(range(0, TOPICS, 3))} of the messages out on lease", seconds)


def _watched(node: Penstock, work: str, seconds: float) -> Result:
    time.sleep(QUIET_SECONDS)
    before_ns, began_ns = measure.cpu_ns(node.pid), time.monotonic_ns()
    time.sleep(seconds)
    percent = (measure.cpu_ns(node.pid) - before_ns) / (time.monotonic_ns() - began_ns) * 100
    said = {"penstock": f"{percent:.2g} % of a core"}
    return table_row("idle", work, said, [at_most(CPU_PERCENT_MAX, percent, " %")], {})


def _post(node: Penstock, path: str, body: bytes = b"") -> None:
    with urlopen(Request(f"http://127.0.0.1:{node.http_port}{path}", body, method="POST"), timeout=10) as answer:
        answer.read()


def _holding(port: int, topic: str) -> socket.socket:
    """Return a connection that has taken a message and keeps it for a quarter of an hour."""
    line = socket.create_connection(("127.0.0.1", port), 10)
    asked = b'{"heartbeat_interval": 60000, "msg_timeout": 900000}'
    line.sendall(b"  V2IDENTIFY\n" + struct.pack(">I", len(asked)) + asked + b"SUB %b ch\nRDY 1\n" % topic.encode())
    heard = b""
    while b"x" * 100 not in heard:
        more = line.recv(65536)
        if not more:
            raise LoadFailed(f"penstock hung up: {heard!r}")
        heard += more
    return line
