"""A rack is lost: `python examples/rack_loss.py`.

A node of its own, a timeline that is dealt with regard to racks, messages due every few milliseconds, and consumers in
two racks, each a process. In the middle one rack is killed. The other one goes on at once: what nobody had on lease
yet does not wait, and what the dead had comes again when its lease ends.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import NamedTuple

from own_node import own_node

from penstock.client import Timeline

TOPIC = "rack-loss"
RACKS = {"a1": "rack A", "a2": "rack A", "b1": "rack B", "b2": "rack B"}
LEASE_S = 2
#: Due one after the other, so far apart.
STEP_MS = 5


class Taken(NamedTuple):
    """One delivery."""

    message_id: str
    due_ms: int
    taken_ms: float
    consumer: str


def consume(url: str, name: str) -> None:
    """Be one consumer: print what comes, until killed."""
    with Timeline(TOPIC, url) as timeline, timeline.consumer(name, rack=RACKS[name], lease=LEASE_S) as consumer:
        for message in consumer:
            print(message.id.decode(), message.due_ms, time.time() * 1000, name, flush=True)
            message.delete()
            consumer.flush()  # at once, so that the dead leave as little as may be


def lose_a_rack(url: str, seconds: float = 6.0) -> dict[str, float]:
    """Kill rack B in the middle of so many seconds; return what came of it."""
    taken: list[Taken] = []

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
                time.sleep(0.05)
            total = int(seconds * 1000 / STEP_MS)
            began_ns = time.time_ns() + 1_000_000_000
            with timeline.producer("shop") as producer:
                for row in range(total):
                    producer.add(b"an order", due=began_ns + row * STEP_MS * 1_000_000)
            time.sleep(max(began_ns / 1e9 + seconds / 2 - time.time(), 0))
            killed_ms = time.time() * 1000
            for name, rack in RACKS.items():
                if rack == "rack B":
                    consumers[name].kill()
            while timeline.count() and time.time() < began_ns / 1e9 + seconds + 60:
                time.sleep(0.05)
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


def summed_up(taken: list[Taken], killed_ms: float, total: int) -> dict[str, float]:
    """Return the gap, and the rest of what is worth knowing."""
    # What was due before the rack was lost and came later waited for the leases of the dead.
    after = sorted(each.taken_ms for each in taken if each.taken_ms >= killed_ms and each.due_ms >= killed_ms)
    gaps = [later - earlier for earlier, later in zip([killed_ms, *after], after, strict=False)]
    held = [each.taken_ms - each.due_ms for each in taken if each.due_ms < killed_ms <= each.taken_ms]
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
