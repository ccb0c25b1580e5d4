"""A rack is lost: `python examples/rack_loss.py`.

A node of its own, a timeline that is dealt with regard to racks, messages due every few milliseconds, and consumers in
two racks, each a process. Once half of the messages came one rack is killed. The other one goes on at once: what nobody
had on lease yet does not wait, and what the dead had comes again when its lease ends.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from own_node import own_node

from penstock.client import Timeline

TOPIC = "rack-loss"
RACKS = {"a1": "rack A", "a2": "rack A", "b1": "rack B", "b2": "rack B"}
#: Longer than a busy machine takes for what a consumer has at a time, so that only the dead let leases end.
LEASE_S = 5
BUFFER = 5
#: Due one after the other, so far apart.
STEP_MS = 5
#: When nothing has come for so long, nothing will.
PATIENCE_S = 60


class Taken(NamedTuple):
    """One delivery."""

    message_id: str
    due_ms: int
    taken_ms: float
    consumer: str


def consume(url: str, name: str) -> None:
    """Be one consumer: print what comes, until killed."""
    with (
        Timeline(TOPIC, url) as timeline,
        timeline.consumer(name, rack=RACKS[name], lease=LEASE_S, buffer=BUFFER) as consumer,
    ):
        for message in consumer:
            print(message.id.decode(), message.due_ms, time.time() * 1000, name, flush=True)
            message.delete()
            consumer.flush()  # at once, so that the dead leave as little as may be


def lose_a_rack(url: str, seconds: float = 6.0) -> dict[str, float]:
    """Kill rack B in the middle of messages due over so many seconds; return what came of it."""
    taken: list[Taken] = []
    total = int(seconds * 1000 / STEP_MS)

    def listen(consumer: subprocess.Popen[str]) -> None:
        for line in consumer.stdout or ():
            message_id, due, at, name = line.split()
            taken.append(Taken(message_id, int(due), float(at), name))

    consumers: dict[str, subprocess.Popen[str]] = {}
    threads: list[threading.Thread] = []
    with Timeline(TOPIC, url) as timeline:
        timeline.create(dealer="rack", bucket_count=64, time_window_ms=500)
        try:
            for name in RACKS:
                command = [sys.executable, __file__, "--consume", url, name]
                consumers[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                threads.append(threading.Thread(target=listen, args=(consumers[name],), daemon=True))
                threads[-1].start()
            while timeline.info().get("consumers", 0) < len(RACKS):
                if any(consumer.poll() is not None for consumer in consumers.values()):
                    raise SystemExit("a consumer ended before there was anything to consume")
                time.sleep(0.05)
            began_ns = time.time_ns() + 1_000_000_000
            with timeline.producer("shop") as producer:
                for row in range(total):
                    producer.add(b"an order", due=began_ns + row * STEP_MS * 1_000_000)
            # Not at a time: how far consumers are by then is the machine's affair.
            wait_until(lambda: len(taken) >= total / 2, taken)
            killed_ms = time.time() * 1000
            for name, rack in RACKS.items():
                if rack == "rack B":
                    consumers[name].kill()
            wait_until(lambda: timeline.count() == 0, taken)
        finally:
            for consumer in consumers.values():
                consumer.kill()
                consumer.wait()
            for thread in threads:
                thread.join()
            for consumer in consumers.values():
                if consumer.stdout is not None:
                    consumer.stdout.close()
    return summed_up(taken, killed_ms, total)


def wait_until(holds: Callable[[], bool], taken: list[Taken]) -> None:
    """Wait until something is so, for as long as messages come."""
    seen, since_s = 0, time.monotonic()
    while not holds():
        if len(taken) > seen:
            seen, since_s = len(taken), time.monotonic()
        if time.monotonic() - since_s > PATIENCE_S:
            raise SystemExit(f"after {seen} messages nothing came for {PATIENCE_S} s")
        time.sleep(0.05)


def summed_up(taken: list[Taken], killed_ms: float, total: int) -> dict[str, float]:
    """Return the gap, and the rest of what is worth knowing."""
    waits_ms = {each: each.taken_ms - max(each.due_ms, killed_ms) for each in taken if each.taken_ms >= killed_ms}
    # What waited for most of a lease, the dead had: theirs began a little before.
    after = sorted(each.taken_ms for each, wait_ms in waits_ms.items() if wait_ms < LEASE_S * 500)
    gaps = [later - earlier for earlier, later in pairwise([killed_ms, *after])]
    held = [wait_ms for wait_ms in waits_ms.values() if wait_ms >= LEASE_S * 500]
    return {
        "messages": total,
        "delivered": len({each.message_id for each in taken}),
        "twice": len(taken) - len({each.message_id for each in taken}),
        "early": sum(each.taken_ms < each.due_ms for each in taken),
        "by rack B": sum(RACKS[each.consumer] == "rack B" for each in taken),
        "gap ms": round(max(gaps, default=0.0), 1),
        "held by the dead, latest ms": round(max(held, default=0.0), 1),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--consume"]:
        consume(sys.argv[2], sys.argv[3])
    else:
        with own_node() as address:
            for what, value in lose_a_rack(address).items():
                print(f"{what}: {value:g}")
