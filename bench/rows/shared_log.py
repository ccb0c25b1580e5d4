"""The log on Kafka: publishes beside confluent-kafka's own producer, and beside a node with its log on its own disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median

import msgspec

from bench import measure
from bench.arrivals import arrivals
from bench.cluster import PATIENCE_S, Cluster, Member, await_until, cluster
from bench.generator import LoadFailed
from bench.measure import Reading, Sample, interleaved
from bench.peers import Kafka, Penstock, Server, fleet
from bench.plan import Plan
from bench.report import Result, at_least, at_most, cpu, p50_ms, p99_ms, rate, ratio, result, shown, table_row
from bench.supply import ROOT, Missing
from penstock.columns import BASE_COLUMNS
from penstock.config.tree import SharedLogConfig
from penstock.log.frame import template_of
from penstock.log.kafka.librdkafka import KafkaStore
from penstock.log.kafka.record import log_record
from penstock.log.kafka.store import Partition, Record
from penstock.message import Batch

SIZE = 100
#: Messages of one turn of the producer.
SENT = 1_000_000
#: Round trips that are timed.
TRIPS = 1000
#: Of the publishes that fill a topic, which are no part of what is measured.
FILL_BATCH = 200
FIRST_S_MAX = 5.0

KAFKA, PRODUCER = Member.name, "producer"
KAFKA_ZSTD, PRODUCER_ZSTD = f"{KAFKA}, zstd", f"{PRODUCER}, zstd"


def run(plan: Plan) -> Iterator[Result]:
    """Publish to a topic on Kafka, and what else its place there costs."""
    try:
        with cluster({}) as made, fleet(Penstock) as alone:
            yield _published(plan, made)
            yield _through(plan, made.nodes[0], alone.servers["penstock"])
            yield _answered(plan, made.nodes[0], made.brokers[0])
            yield _begun(plan, made.nodes[0])
    except Missing as reason:
        yield result("shared-log", "the log on Kafka", {}, [], {KAFKA: str(reason)})


def run_copies(plan: Plan) -> Iterator[Result]:
    """Publish to a topic of which three brokers have a copy, as it is and compressed: a node for each."""
    try:
        with cluster({}, {"shared_log.compression": "zstd"}, brokers=3) as made:
            yield _copied(plan, made)
    except Missing as reason:
        yield result("shared-log-copies", "the log on Kafka, three copies", {}, [], {KAFKA: str(reason)})


def _published(plan: Plan, made: Cluster) -> Result:
    turns = {
        KAFKA: partial(made.nodes[0].sample_fresh, "pub", {"seconds": plan.seconds}),
        PRODUCER: partial(produced, made),
    }
    numbers = interleaved(plan.rounds, turns)
    goals = [
        at_least(1, ratio(rate(numbers, KAFKA), rate(numbers, PRODUCER))),
        at_most(0.4, ratio(cpu(numbers, KAFKA), cpu(numbers, PRODUCER)), what="CPU of the producer's "),
    ]
    work = f"pipelined PUB, {SIZE} B, log on Kafka, one copy; peer: confluent-kafka's producer, a record per message"
    return result("shared-log", work, numbers, goals, {})


def _copied(plan: Plan, made: Cluster) -> Result:
    options = {"seconds": plan.seconds}
    turns = {
        KAFKA: partial(made.nodes[0].sample_fresh, "pub", options),
        PRODUCER: partial(produced, made),
        KAFKA_ZSTD: partial(made.nodes[1].sample_fresh, "pub", options),
        PRODUCER_ZSTD: partial(produced, made, "zstd"),
    }
    numbers = interleaved(plan.rounds, turns)
    theirs = rate(numbers, PRODUCER)
    goals = [
        at_least(0.9, ratio(rate(numbers, KAFKA), theirs)),
        at_least(1.5, ratio(rate(numbers, KAFKA_ZSTD), theirs), what="zstd, of the producer without "),
        shown("zstd, of the producer with zstd", ratio(rate(numbers, KAFKA_ZSTD), rate(numbers, PRODUCER_ZSTD))),
        at_most(0.4, ratio(cpu(numbers, KAFKA), cpu(numbers, PRODUCER)), what="CPU of the producer's "),
    ]
    work = (
        f"pipelined PUB, {SIZE} B, log on Kafka, three copies; peer: confluent-kafka's producer, a record per message"
    )
    return result("shared-log-copies", work, numbers, goals, {})


def _through(plan: Plan, node: Member, alone: Server) -> Result:
    options = {"channels": 1, "seconds": plan.seconds}
    turns = {each.name: partial(each.sample_fresh, "flow", options) for each in (node, alone)}
    numbers = interleaved(plan.rounds, turns)
    goals = [at_least(0.5, ratio(rate(numbers, KAFKA), rate(numbers, "penstock")))]
    return result("shared-log", "publish + deliver + FIN, log on Kafka; peer: log on its disk", numbers, goals, {})


def _answered(plan: Plan, node: Member, kafka: Kafka) -> Result:
    turns = {
        KAFKA: partial(node.sample_fresh, "wait", {"connections": 1, "seconds": plan.seconds}),
        "Kafka": partial(round_trips, kafka),
    }
    numbers = interleaved(plan.rounds, turns)
    goals = [
        at_most(2, _later_ms(numbers, p50_ms), " ms", "p50 later by "),
        at_most(2, _later_ms(numbers, p99_ms), " ms", "p99 later by "),
    ]
    work = "PUB and its OK, one connection, log on Kafka; peer: the same bytes, acks=all in an open transaction"
    return result("shared-log", work, numbers, goals, {})


def _later_ms(
    numbers: Mapping[str, Reading], measure_ms: Callable[[Mapping[str, Reading], str], float | None]
) -> float | None:
    ours, theirs = measure_ms(numbers, KAFKA), measure_ms(numbers, "Kafka")
    return None if ours is None or theirs is None else ours - theirs


def _begun(plan: Plan, node: Member) -> Result:
    """Start a node that has lost its disk, from the start of its process to the first message of a backlog."""
    topic = node.topic()
    node.load("sub", topic=topic, count=0)
    node.load("pub", topic=topic, batch=FILL_BATCH, count=plan.backlog)
    took = []
    for _ in range(plan.rounds):
        node.stop()
        shutil.rmtree(node.node_data)
        began = time.monotonic()
        node.start(wait=False)
        took.append(arrivals(node.port, [topic])[0] - began)
        await_until(node.is_ready, "all topics to be open")
        measure.settle(node.pid)
    seconds = median(took)
    work = f"start of a node with an empty disk, one shard of {plan.backlog:,} messages on Kafka, to the first delivery"
    return table_row("shared-log", work, {KAFKA: f"{seconds:.2f} s"}, [at_most(FIRST_S_MAX, seconds, " s")], {})


def produced(made: Cluster, compression: str = "none") -> Sample:
    """Let the producer send messages, in a process of its own."""
    topic = made.brokers[0].topic()
    words = [sys.executable, "-m", "bench.kafka_writer", made.addresses, topic, str(SENT), str(SIZE), compression]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    if done.returncode:
        raise LoadFailed(f"the producer failed: {done.stderr.strip()[-300:]}")
    told = msgspec.json.decode(done.stdout)
    return Sample(SENT / told["seconds"], told["cpu"] * 1e6 / SENT)


def lone_record() -> Record:
    """Return what a node sends of one message, byte for byte."""
    row = Batch(1, 1, time.time_ns(), [0, SIZE], bytes(SIZE), "nsq", {}, 0)
    frame = b"".join(template_of(BASE_COLUMNS).encode(row))
    return log_record("1.1", "0/00000000000000000000.0.arrows", len(frame), frame, len(frame))


def round_trips(kafka: Kafka) -> Sample:
    """Time sends of one record in an open transaction, one after the other."""
    store = KafkaStore(SharedLogConfig(brokers=(f"127.0.0.1:{kafka.port}",)), "raw")
    topic = f"raw.{kafka.topic()}.log"
    store.make(topic, 1)
    writer = store.writer(topic)
    record = lone_record()
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
