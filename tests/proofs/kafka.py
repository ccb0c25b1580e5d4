"""Proof that what goes from Kafka through a node to Kafka is lost nowhere, and comes into the node once.

A producer sends numbers under keys to a topic of a real Kafka. A node brings them in (`kafka_feed`) and sends them on
to another topic of it (`kafka_relay`). The node is killed as by `kill -9` at random moments and started again, and then
Kafka is. At the end the node has each number once and in the order of its key. The other topic has each at least once:
again only what was on its way when the node was killed, and nothing again because Kafka was.

    python -m tests.proofs.kafka [--kills 10] [--broker-kills 2] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import supply
from penstock.client import Client
from tests.kafka.brokers import Brokers, wait_for
from tests.proofs.checks import Checks
from tests.proofs.process import Process

KILLS, BROKER_KILLS = 10, 2
FIRST, LAST = "numbers", "relayed"
PARTITIONS, KEYS = 4, 32
#: Numbers a second; what is on its way at any moment is some of them.
RATE = 5_000
#: What waits while Kafka is away.
QUEUED_MAX = 50_000
#: A node lives for so long at most.
LIFE_S = 2.5
PATIENCE_S = 300.0


class Sender(threading.Thread):
    """Sends numbers, each under its key, until it is told to end; Kafka's acks tell which are sent."""

    def __init__(self, brokers: str) -> None:
        super().__init__(daemon=True)
        settings = {"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer({**settings, "message.timeout.ms": int(PATIENCE_S * 1000)})
        self._ending = threading.Event()
        self.sent = 0
        self.failed: list[str] = []

    def run(self) -> None:
        began = time.monotonic()
        while not self._ending.wait(0.01):
            while self.sent < (time.monotonic() - began) * RATE and len(self._producer) < QUEUED_MAX:
                number = b"%08d" % self.sent
                self._producer.produce(FIRST, number, key=b"key %d" % (self.sent % KEYS), on_delivery=self._told)
                self.sent += 1
            self._producer.poll(0)

    def _told(self, error: object, _: object) -> None:
        if error is not None:
            self.failed.append(str(error))

    def end(self) -> None:
        """Send nothing more, and wait until all is sent."""
        self._ending.set()
        self.join()
        left = self._producer.flush(PATIENCE_S)
        if left:
            self.failed.append(f"{left} were not acked in {PATIENCE_S:.0f} s")


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--broker-kills", type=int, default=BROKER_KILLS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random, checks = Random(options.seed), Checks()
    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder:
        kafka = Brokers(supply.kafka(), Path(folder), 1)
        node = Process(Path(folder) / "node" / "data", *settings(kafka))
        try:
            for topic in (FIRST, LAST):
                kafka.create(topic, PARTITIONS)
            node.start()
            through(checks, kafka, node, random, options.kills, options.broker_kills)
        finally:
            node.abandon()
            kafka.close()
    return checks.code()


def settings(kafka: Brokers) -> list[str]:
    """Return what the node is told."""
    properties = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "reconnect.backoff.max.ms": 500}
    feed = {"name": "proof", "brokers": [kafka.addresses], "topics": [FIRST], "into": LAST, "properties": properties}
    return [
        f"kafka_feed.feeds={json.dumps([feed])}",
        "kafka_feed.commit_interval=700ms",
        "kafka_feed.batch=500",
        f"kafka_relay.topics={LAST}",
        f"kafka_relay.brokers={kafka.addresses}",
    ]


def through(checks: Checks, kafka: Brokers, node: Process, random: Random, kills: int, broker_kills: int) -> None:
    """Send through a node that is killed, and through a Kafka that is; then look what is where."""
    sender = Sender(kafka.addresses)
    sender.start()
    for _ in range(kills):
        time.sleep(random.uniform(0.05, LIFE_S))  # the moments at which it dies are what is tried
        node.kill()
        node.start()
    settled = sender.sent
    wait_for(lambda: count(kafka) >= settled, "the relay to catch up", PATIENCE_S)
    for _ in range(broker_kills):
        time.sleep(random.uniform(0.5, LIFE_S))
        kafka.members[0].kill()
        kafka.heal()
    sender.end()
    checks.check(not sender.failed, f"all {sender.sent} numbers were sent", *sender.failed)
    wait_for(lambda: is_all_there(kafka, sender.sent), f"{sender.sent} numbers in {LAST}", PATIENCE_S)
    here(checks, node, sender.sent, kills)
    there(checks, relayed(kafka), sender.sent, settled, kills, broker_kills)
    balanced(checks, node)
    checks.check(node.stop() == 0, "the node ended in order")


def count(kafka: Brokers) -> int:
    """Return how many records Kafka's other topic has."""
    consumer = Consumer({"bootstrap.servers": kafka.addresses, "group.id": "unused", "log_level": 0})
    try:
        places = [TopicPartition(LAST, each) for each in range(PARTITIONS)]
        return sum(consumer.get_watermark_offsets(each, PATIENCE_S)[1] for each in places)
    finally:
        consumer.close()


def is_all_there(kafka: Brokers, sent: int) -> bool:
    """Tell whether Kafka's other topic has so many numbers, each of them counted once."""
    return count(kafka) >= sent and len(set(relayed(kafka))) >= sent


def relayed(kafka: Brokers) -> list[bytes]:
    """Return what Kafka's other topic holds, partition by partition."""
    return [message.value() or b"" for message in kafka.read(LAST)]


def here(checks: Checks, node: Process, sent: int, kills: int) -> None:
    """Look at the node's topic."""
    found: Counter[bytes] = Counter()
    by_key: dict[bytes, list[bytes]] = {}
    with Client(f"grpc://127.0.0.1:{node.ports['flight.port']}") as client:
        for batch in client.read(LAST, columns=["key", "body"]):
            for key, body in zip(batch["key"].to_pylist(), batch["body"].to_pylist(), strict=True):
                found[body] += 1
                by_key.setdefault(key, []).append(body)
    missing = [f"number {each}" for each in range(sent) if not found[b"%08d" % each]]
    checks.check(not missing, f"the node has all {sent} of them, after {kills} kills", *missing)
    twice = [f"{body.decode()} {count} times" for body, count in found.items() if count > 1]
    checks.check(not twice and len(found) == sent, "each of them once, and nothing else", *twice)
    unordered = [f"{key.decode()}" for key, bodies in by_key.items() if bodies != sorted(bodies)]
    checks.check(not unordered and len(by_key) == KEYS, "in the order of each key", *unordered)


def there(checks: Checks, found: Sequence[bytes], sent: int, settled: int, kills: int, broker_kills: int) -> None:
    """Look at what was sent on."""
    counted = Counter(found)
    missing = [f"number {each}" for each in range(sent) if not counted[b"%08d" % each]]
    checks.check(not missing, f"Kafka has all {sent} of them again", *missing)
    again = [body for body, count in counted.items() if count > 1]
    late = [body.decode() for body in again if int(body) >= settled]
    checks.check(
        not late, f"none of the last {sent - settled} twice, while Kafka was killed {broker_kills} times", *late
    )
    print(f"     {len(again)} came again of what was on its way when the node was killed ({kills} times)")


def balanced(checks: Checks, node: Process) -> None:
    """Look whether the relay of the node that lives knows what became of everything it took."""
    wait_for(lambda: figure(node, "lag", "kafka_feed") == 0, "the feed to be at the end", PATIENCE_S)
    taken, acked, given_up, held = (
        figure(node, name, "kafka_relay") for name in ("taken_total", "acked_total", "discarded_total", "held")
    )
    text = f"the relay's books balance: {taken} taken = {acked} acked + {given_up} discarded + {held} held"
    checks.check(taken == acked + given_up + held and not given_up, text)


def figure(node: Process, name: str, dialect: str) -> int:
    """Return one of the figures of a running part of the node."""
    for part in node.call("GET", "/dialects")["dialects"]:
        if part["name"] == dialect:
            return sum(int(each["value"]) for each in part["stats"] if each["name"] == name)
    raise LookupError(dialect)


if __name__ == "__main__":
    sys.exit(main())
