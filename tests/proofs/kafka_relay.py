"""Proof that a relay to Kafka loses nothing and sends nothing twice while brokers die under load.

Three brokers, a topic with three copies of each of its partitions. While messages are published, the leader of a
partition is killed as by `kill -9`, started again, and then the next one, several times; at last a broker is asked to
stop, which moves its leaderships. Then everything that was published must be in Kafka, once, and the books balance.

    python -m tests.proofs.kafka_relay [--kills 3] [--rate 2000]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

from bench import supply
from tests.cli.program import Node
from tests.kafka.brokers import Brokers
from tests.kafka.test_out import figures, relayed
from tests.m3msg.test_out import published
from tests.proofs.checks import Checks

KILLS, RATE, PARTITIONS = 3, 2000, 6
TOPIC = "proof"
#: A leader that was killed is noticed after 6 s, and what it led is led by others then.
DEAD_S, ALIVE_S = 9.0, 6.0
PATIENCE_S = 300.0


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--rate", type=int, default=RATE)
    options = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder:
        home = Path(folder)
        (home / "kafka").mkdir()
        (home / "node").mkdir()
        kafka = Brokers(supply.kafka(), home / "kafka", 3)
        try:
            kafka.create(TOPIC, PARTITIONS, 3, min_insync_replicas=2)
            more = '[kafka_relay.error_actions]\n19 = "pause"\n20 = "pause"'
            with relayed(home / "node", kafka, TOPIC, more=more) as node:
                sent = troubled(node, kafka, options.kills, options.rate)
                books(checks, node, sent)
                found = Counter(message.value() or b"" for message in kafka.read(TOPIC))
                checks.check(node.end() == 0, "the node ends well")
        finally:
            kafka.close()
    missing = [f"message {number}" for number in range(sent) if not found[b"%d" % number]]
    checks.check(not missing, f"all {sent} messages are in Kafka, after {options.kills} kills and a stop", *missing)
    twice = [f"{body!r}: {times} times" for body, times in found.items() if times > 1]
    checks.check(not twice, "and none of them twice", *twice)
    return checks.code()


def troubled(node: Node, kafka: Brokers, kills: int, rate: int) -> int:
    """Publish while brokers die, and return how many messages there were."""
    over = threading.Event()
    count = 0

    def publish() -> None:
        nonlocal count
        step = max(rate // 10, 1)
        while not over.wait(0.1):
            published(node, TOPIC, [b"%d" % number for number in range(count, count + step)])
            count += step

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for number in range(kills):
            over.wait(ALIVE_S)
            kafka.leader(TOPIC, number % PARTITIONS).kill()
            over.wait(DEAD_S)
            kafka.heal()
        kafka.leader(TOPIC).stop()
        over.wait(DEAD_S)
        kafka.heal()
        over.wait(ALIVE_S)
    finally:
        over.set()
        publisher.join()
    return count


def books(checks: Checks, node: Node, sent: int) -> None:
    """Wait until everything was taken and nothing is in hand, and compare."""
    over = threading.Event()
    for _ in range(int(PATIENCE_S)):
        found = figures(node)
        if found["taken_total"] >= sent and not found["held"]:
            break
        over.wait(1)
    acked, discarded = found["acked_total"], found["discarded_total"]
    checks.check(found["pauses_total"] > 0, f"sending paused {found['pauses_total']} times")
    checks.check(
        (found["taken_total"], acked, discarded, found["held"]) == (sent, sent, 0, 0),
        f"the books: {sent} published, {found['taken_total']} taken, {acked} acked, {discarded} thrown away",
    )


if __name__ == "__main__":
    sys.exit(main())
