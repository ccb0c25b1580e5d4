"""The log on Kafka: publishes beside confluent-kafka's own producer, and beside a node with its log on its own disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import msgspec

from bench.generator import LoadFailed
from bench.measure import Sample, interleaved
from bench.peers import Durability, Kafka, Penstock, Server, fleet
from bench.plan import Plan
from bench.ports import free_port
from bench.report import Result, at_least, at_most, cpu, p99_ms, rate, ratio, result
from bench.supply import ROOT, Missing
from penstock.config.tree import SharedLogConfig
from penstock.log.kafka.librdkafka import KafkaStore
from penstock.log.kafka.store import Partition, Record

SIZE = 100
#: Messages of one turn of the producer.
SENT = 1_000_000
#: Round trips that are timed.
TRIPS = 1000
PATIENCE_S = 120.0


class Etcd(Server):
    """One etcd."""

    name = "etcd"

    @classmethod
    def find(cls) -> Path:
        found = shutil.which("etcd")
        if found is None:
            raise Missing("there is no etcd here")
        return Path(found)

    def command(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        return [
            *(str(self.program), "--data-dir", str(self.data / "etcd")),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
        ]


class PenstockOnKafka(Penstock):
    """A cluster of one node, with an etcd and a Kafka of its own."""

    name = "penstock on Kafka"
    ports = (*Penstock.ports, 7075)

    def __init__(self, durability: Durability = "os") -> None:
        super().__init__(durability)
        self.etcd, self.kafka = Etcd(), Kafka()
        secret = self.data / "secret"
        secret.touch(0o600)
        secret.write_text("everybody knows it\n" * 2)
        (self.data / "penstock.toml").write_text(
            f'[cluster]\nname = "bench"\nnode = "n1"\nslots = 4\n'
            f'secret_file = "{secret}"\n'
            f'[registry]\nkind = "etcd"\nprefix = "bench"\n'
            f'[etcd.zones.default]\nendpoints = ["127.0.0.1:{self.etcd.port}"]\n'
            f'[shared_log]\nbrokers = ["127.0.0.1:{self.kafka.port}"]\n[topic]\nlog = "kafka"\n'
        )

    def command(self) -> list[str]:
        return [*super().command(), "--config", str(self.data / "penstock.toml")]

    def start(self, wait: bool = True) -> None:
        """Start all three; it is ready when it owns its slots."""
        self.etcd.start()
        self.kafka.start()
        super().start(wait)
        end = time.monotonic() + PATIENCE_S
        while wait and not self._is_ready():
            if time.monotonic() > end:
                raise Missing(f"{self.name} did not get its slots: {self._last_words()}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{7070 + self.offset}/readyz", timeout=PATIENCE_S):
                return True
        except OSError:
            return False

    def remove(self) -> None:
        super().remove()
        self.kafka.remove()
        self.etcd.remove()

    def topic(self) -> str:
        """Return the name of a topic that is there: it takes Kafka a moment to make its own."""
        made = super().topic()
        self.load("pub", topic=made, count=1)
        return made


def run(plan: Plan) -> Iterator[Result]:
    """Publish to a topic on Kafka, and what else its place there costs."""
    with fleet(PenstockOnKafka, Penstock) as made:
        node = made.servers.get(PenstockOnKafka.name)
        if not isinstance(node, PenstockOnKafka):
            yield result("shared-log", "the log on Kafka", {}, [], made.missing)
            return
        yield _published(plan, node)
        yield _through(plan, made.turns("flow", {"channels": 1, "seconds": plan.seconds}))
        yield _answered(plan, node)


def _published(plan: Plan, node: PenstockOnKafka) -> Result:
    turns = {
        node.name: lambda: node.sample_fresh("pub", {"seconds": plan.seconds}),
        "producer": lambda: produced(node.kafka),
    }
    numbers = interleaved(plan.rounds, turns)
    goals = [
        at_least(1, ratio(rate(numbers, node.name), rate(numbers, "producer"))),
        at_most(0.4, ratio(cpu(numbers, node.name), cpu(numbers, "producer")), what="CPU of the producer's "),
    ]
    work = f"pipelined PUB, {SIZE} B, log on Kafka, one copy; peer: confluent-kafka's producer, a record per message"
    return result("shared-log", work, numbers, goals, {})


def _through(plan: Plan, turns: dict[str, Callable[[], Sample]]) -> Result:
    numbers = interleaved(plan.rounds, turns)
    goals = [at_least(0.5, ratio(rate(numbers, PenstockOnKafka.name), rate(numbers, "penstock")))]
    return result("shared-log", "publish + deliver + FIN, log on Kafka; peer: log on its disk", numbers, goals, {})


def _answered(plan: Plan, node: PenstockOnKafka) -> Result:
    turns = {
        node.name: lambda: node.sample_fresh("wait", {"connections": 1, "seconds": plan.seconds}),
        "Kafka": lambda: round_trips(node.kafka),
    }
    numbers = interleaved(plan.rounds, turns)
    ours, theirs = p99_ms(numbers, node.name), p99_ms(numbers, "Kafka")
    later = None if ours is None or theirs is None else ours - theirs
    goals = [at_most(2, later, " ms", "p99 later by ")]
    work = "PUB and its OK, one connection, log on Kafka; peer: Kafka's own acks=all in an open transaction"
    return result("shared-log", work, numbers, goals, {})


def produced(kafka: Kafka) -> Sample:
    """Let the producer send messages, in a process of its own."""
    words = [sys.executable, "-m", "bench.kafka_writer", f"127.0.0.1:{kafka.port}", kafka.topic(), str(SENT), str(SIZE)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    if done.returncode:
        raise LoadFailed(f"the producer failed: {done.stderr.strip()[-300:]}")
    told = msgspec.json.decode(done.stdout)
    return Sample(SENT / told["seconds"], told["cpu"] * 1e6 / SENT)


def round_trips(kafka: Kafka) -> Sample:
    """Time sends of one record in an open transaction, one after the other."""
    store = KafkaStore(SharedLogConfig(brokers=(f"127.0.0.1:{kafka.port}",)), "raw")
    topic = f"raw.{kafka.topic()}.log"
    store.make(topic, 1)
    writer = store.writer(topic)
    record = Record(bytes(5 * SIZE), {})
    took = []
    began = cpu_began = 0.0
    for number in range(-TRIPS // 10, TRIPS):  # the first ones find the way
        if not number:
            began, cpu_began = time.perf_counter(), time.process_time()
        sent = time.perf_counter()
        writer.send(Partition(topic, 0), [record])
        if number >= 0:
            took.append(time.perf_counter() - sent)
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu_began
    writer.close()
    store.close()
    took.sort()
    return Sample(TRIPS / seconds, spent * 1e6 / TRIPS, took[TRIPS // 2] * 1e6, took[TRIPS * 99 // 100] * 1e6)
