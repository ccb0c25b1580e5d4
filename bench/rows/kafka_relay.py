"""Kafka out: a topic of the log sent to Kafka, beside confluent-kafka's own producer that is fed from memory."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pyarrow as pa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.generator import LoadFailed
from bench.kafka_writer import POOL, bodies
from bench.measure import Sample, cpu_ns, interleaved
from bench.peers import Kafka, Penstock, fleet
from bench.plan import Plan
from bench.report import Result, at_least, at_most, cpu, rate, ratio, result
from bench.supply import ROOT
from penstock.client import Client

SIZE, PARTITIONS = 100, 2
#: A look costs the node some milliseconds.
LOOK_S = 0.1
PATIENCE_S = 300.0
_acked = re.compile(r"^penstock_kafka_relay_acked_total ([0-9.e+]+)$", re.MULTILINE).search


class Relaying(Penstock):
    """The same node, which can be told to relay a topic when it starts next."""

    def relay(self, kafka: Kafka, topic: str) -> None:
        """Relay a topic from the next start on."""
        self._settings().write_text(f'[kafka_relay]\ntopics = ["{topic}"]\nbrokers = ["127.0.0.1:{kafka.port}"]\n')

    def command(self) -> list[str]:
        there = self._settings().exists()
        return [*super().command(), *(("--config", str(self._settings())) if there else ())]

    def acked(self) -> int:
        """Return how many messages Kafka has acked."""
        with urlopen(f"http://127.0.0.1:{7070 + self.offset}/metrics", timeout=PATIENCE_S) as answer:
            found = _acked(answer.read().decode())
        return int(float(found[1])) if found else 0

    def _settings(self) -> Path:
        return self.data / "penstock.toml"


def run(plan: Plan) -> Iterator[Result]:
    """Send as many messages to a new topic in each turn; the clock starts with the first that are acked."""
    count = plan.deliver_ours
    with fleet(Kafka) as made:
        kafka = made.servers.get("kafka")
        numbers = {}
        if isinstance(kafka, Kafka):
            turns = {"penstock": lambda: relayed(kafka, count), "producer": lambda: produced(kafka, count)}
            numbers = interleaved(plan.rounds, turns)
        goals = [
            at_least(1, ratio(rate(numbers, "penstock"), rate(numbers, "producer"))),
            at_most(0.5, ratio(cpu(numbers, "penstock"), cpu(numbers, "producer")), what="CPU a message "),
        ]
        work = f"Kafka out, stored {SIZE}-byte messages, acks=all; peer: confluent-kafka's producer, tuned, from memory"
        yield result("kafka-out", work, numbers, goals, made.missing)


def made_in(kafka: Kafka) -> str:
    """Return a new topic of Kafka's."""
    topic = kafka.topic()
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{kafka.port}", "log_level": 0})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])[topic].result(60)
    return topic


def relayed(kafka: Kafka, count: int) -> Sample:
    """Let a node have messages, start it anew with a relay, and wait until Kafka has acked all of them."""
    topic, server = made_in(kafka), Relaying()
    try:
        server.start()
        fill(server, topic, count)
        server.stop()
        server.relay(kafka, topic)
        server.start()
        return sent(server, count)
    finally:
        server.remove()


def fill(server: Relaying, topic: str, count: int) -> None:
    """Store messages in batches of 10,000, of the bodies that the producer has, too."""
    batch = pa.record_batch({"body": pa.array(bodies(SIZE) * 10, pa.binary())})
    with Client(f"grpc://127.0.0.1:{server.flight_port}") as client:
        for _ in range(count // (10 * POOL)):
            client.publish(topic, batch)


def sent(server: Relaying, count: int) -> Sample:
    """Wait until everything is acked, and return what it took from the first acks on."""
    end = time.monotonic() + PATIENCE_S
    before = 0
    while not before and time.monotonic() < end:
        time.sleep(LOOK_S / 5)
        before = server.acked()
    began, spent_ns = time.monotonic(), cpu_ns(server.pid)
    found = before
    while found < count and time.monotonic() < end:
        time.sleep(LOOK_S)
        found = server.acked()
    seconds = time.monotonic() - began
    if found != count or before == count:
        raise LoadFailed(f"Kafka acked {found} of {count} messages, {before} of them before the clock started")
    return Sample((found - before) / seconds, (cpu_ns(server.pid) - spent_ns) / 1000 / (found - before))


def produced(kafka: Kafka, count: int) -> Sample:
    """Let the producer send everything, in a process of its own."""
    words = [
        sys.executable,
        "-m",
        "bench.kafka_writer",
        f"127.0.0.1:{kafka.port}",
        made_in(kafka),
        str(count),
        str(SIZE),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    if done.returncode:
        raise LoadFailed(f"the producer failed: {done.stderr.strip()[-300:]}")
    told = msgspec.json.decode(done.stdout)
    return Sample(count / told["seconds"], told["cpu"] * 1e6 / count)
