"""Ten messages sent, received and deleted by one client: SQS, SQS with groups that share fairly, and Dynamiq's v2."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import msgspec

from bench import measure
from bench.asking import Asking
from bench.generator import LoadFailed
from bench.peers import Penstock, fleet
from bench.plan import Plan
from bench.report import Result, ratio, shown, table_row

BATCH = 10
BODY = "x" * 64
WARM = 100
#: What other ways are compared with.
PLAIN = "SQS"
FAIR = "SQS, a group each"
V2 = "Dynamiq v2"


def run(plan: Plan) -> Iterator[Result]:
    """Let one client go around, each way for as long; time is the client's and the node's, CPU the node's alone."""
    readings: dict[str, str] = {}
    costs: dict[str, float] = {}
    with fleet(Penstock) as made:
        for server in made.servers.values():
            assert isinstance(server, Penstock)
            with Asking(server.sqs_port) as sqs, Asking(server.dynamiq_port) as dynamiq:
                ways = {PLAIN: _sqs(sqs, "tens-plain", fair=False), FAIR: _sqs(sqs, "tens-fair", fair=True)}
                ways[V2] = _v2(dynamiq, "tens-v2")
                words = []
                for name, around in ways.items():
                    took_ms, costs[name] = _measured(server.pid, around, plan.rounds * plan.seconds)
                    words.append(f"{name}: {took_ms:.3g} ms, CPU {costs[name]:.3g} µs a message")
            readings[server.name] = "; ".join(words)
    goals = [shown(f"CPU of {name}, of {PLAIN}'s", ratio(costs.get(name), costs.get(PLAIN))) for name in (FAIR, V2)]
    work = f"{BATCH} messages sent, received and deleted by one client, keep-alive"
    yield table_row("tens", work, readings, goals, made.missing)


def _measured(pid: int, around: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Return the median time of going around once, in ms, and the node's CPU for each message, in µs."""
    for _ in range(WARM):
        around()
    times: list[float] = []
    before_ns, end = measure.cpu_ns(pid), time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        around()
        times.append(time.perf_counter() - start)
    spent_ns = measure.cpu_ns(pid) - before_ns
    return median(times) * 1e3, spent_ns / 1e3 / (len(times) * BATCH)


def _sqs(asking: Asking, queue: str, *, fair: bool) -> Callable[[], None]:
    url = asking.sqs("CreateQueue", QueueName=queue)["QueueUrl"]
    entries = [{"Id": str(number), "MessageBody": BODY} for number in range(BATCH)]
    if fair:
        entries = [{**entry, "MessageGroupId": f"tenant-{number}"} for number, entry in enumerate(entries)]

    def around() -> None:
        asking.sqs("SendMessageBatch", QueueUrl=url, Entries=entries)
        left = BATCH
        while left:
            found = asking.sqs("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=BATCH)["Messages"]
            handles = [{"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]} for number, one in enumerate(found)]
            if len(asking.sqs("DeleteMessageBatch", QueueUrl=url, Entries=handles)["Successful"]) != len(found):
                raise LoadFailed(f"not all of {len(found)} messages of queue {queue} were deleted")
            left -= len(found)

    return around


def _v2(asking: Asking, queue: str) -> Callable[[], None]:
    path = f"/v2/queues/{queue}"
    asking.call("POST", "/v2/queues", msgspec.json.encode({"name": queue}))
    messages = msgspec.json.encode({"messages": [{"body": BODY}] * BATCH})
    wanted = msgspec.json.encode({"max": BATCH})

    def around() -> None:
        asking.call("POST", f"{path}/messages", messages)
        left = BATCH
        while left:
            found: list[dict[str, Any]]
            found = msgspec.json.decode(asking.call("POST", f"{path}/leases", wanted))["data"]["messages"]
            done = msgspec.json.encode({"receipts": [one["receipt"] for one in found]})
            if msgspec.json.decode(asking.call("POST", f"{path}/leases/delete", done))["data"]["held"] != len(found):
                raise LoadFailed(f"not all of {len(found)} messages of queue {queue} were deleted")
            left -= len(found)

    return around
