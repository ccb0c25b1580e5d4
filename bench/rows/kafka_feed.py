"""Kafka in: a topic brought into the log, beside confluent-kafka's own consumer that throws what it reads away."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.request import urlopen

import msgspec
from confluent_kafka import Producer

from bench.generator import LoadFailed
from bench.kafka_reader import PARTITIONS
from bench.measure import Sample, cpu_ns, interleaved
from bench.peers import Kafka, Penstock, fleet
from bench.plan import Plan
from bench.report import Result, rate, ratio, result, shown
from bench.supply import ROOT

SIZE = 100
#: A look costs the node some milliseconds.
LOOK_S = 0.1
PATIENCE_S = 300.0
_count = re.compile(r'^penstock_kafka_feed_messages_total\{feed="bench"\} ([0-9.e+]+)$', re.MULTILINE).search


class PenstockFeed(Penstock):
    """The same node, with a feed from one topic of Kafka's."""

    def feed_from(self, kafka: Kafka, topic: str) -> None:
        """Have it read a topic from its beginning when it starts."""
        feed = (
            f'name = "bench"\nbrokers = ["127.0.0.1:{kafka.port}"]\ntopics = ["{topic}"]\ngroup = "{self.data.name}"\n'
        )
        (self.data / "penstock.toml").write_text(f"[[kafka_feed.feeds]]\n{feed}")

    def command(self) -> list[str]:
        return [*super().command(), "--config", str(self.data / "penstock.toml")]

    def read(self) -> int:
        """Return how many records it has brought in."""
        with urlopen(f"http://127.0.0.1:{7070 + self.offset}/metrics", timeout=PATIENCE_S) as answer:
            found = _count(answer.read().decode())
        return int(float(found[1])) if found else 0


def run(plan: Plan) -> Iterator[Result]:
    """Read the same topic again and again, each time by somebody new; the clock starts with the first records."""
    count = plan.deliver_ours // 2
    with fleet(Kafka) as made:
        kafka = made.servers.get("kafka")
        numbers = {}
        if isinstance(kafka, Kafka):
            topic = kafka.topic()
            fill(kafka, topic, count)
            turns = {"penstock": lambda: brought_in(kafka, topic, count), "consumer": lambda: read(kafka, topic, count)}
            numbers = interleaved(plan.rounds, turns)
        goals = [shown("beside the consumer", ratio(rate(numbers, "penstock"), rate(numbers, "consumer")))]
        work = f"Kafka in, stored, {SIZE}-byte records with keys; peer: confluent-kafka's consumer, all thrown away"
        yield result("kafka-in", work, numbers, goals, made.missing)


def fill(kafka: Kafka, topic: str, count: int) -> None:
    """Publish records of SIZE bytes with keys of 8, over all partitions."""
    producer = Producer(
        {"bootstrap.servers": f"127.0.0.1:{kafka.port}", "linger.ms": 20, "batch.size": 1_000_000, "log_level": 0}
    )
    body = b"x" * (SIZE - 10)
    for number in range(count):
        while True:
            try:
                producer.produce(topic, b"%010d" % number + body, b"%08d" % number, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(PATIENCE_S):
        raise LoadFailed("Kafka did not take the records")


def brought_in(kafka: Kafka, topic: str, count: int) -> Sample:
    """Start a node that knows nothing yet, and wait until it has everything."""
    server = PenstockFeed()
    server.feed_from(kafka, topic)
    try:
        server.start()
        end = time.monotonic() + PATIENCE_S
        before = 0
        while not before and time.monotonic() < end:
            time.sleep(LOOK_S)
            before = server.read()
        began, spent_ns = time.monotonic(), cpu_ns(server.pid)
        found = before
        while found < count and time.monotonic() < end:
            time.sleep(LOOK_S)
            found = server.read()
        seconds = time.monotonic() - began
        if found != count or before == count:
            raise LoadFailed(f"the node has {found} of {count} records")
        return Sample((found - before) / seconds, (cpu_ns(server.pid) - spent_ns) / 1000 / (found - before))
    finally:
        server.remove()


def read(kafka: Kafka, topic: str, count: int) -> Sample:
    """Let the consumer read everything, in a process of its own."""
    words = [sys.executable, "-m", "bench.kafka_reader", f"127.0.0.1:{kafka.port}", topic, str(count)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    if done.returncode:
        raise LoadFailed(f"the consumer failed: {done.stderr.strip()[-300:]}")
    told = msgspec.json.decode(done.stdout)
    return Sample(count / told["seconds"], told["cpu"] * 1e6 / count)
