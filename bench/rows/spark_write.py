"""Spark writing a stream into a topic, exactly once, beside its Parquet files and its Kafka sink (at least once)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow.flight as flight

from bench import measure
from bench.generator import LoadFailed
from bench.measure import Sample, reading
from bench.peers import Penstock
from bench.plan import Plan
from bench.report import Result, at_least, rate, ratio, result, shown
from bench.spark import query
from bench.spark.job import Job, Place
from bench.spark.messages import TUNED_SINK, address
from bench.spark.site import Site

#: The stream comes from Spark's own Parquet reader, which is the fastest it has, two files of 500,000 rows at a time.
SCHEMA = "topic string, shard int, offset bigint, timestamp timestamp, key binary, headers string, body binary"
FILES_AT_A_TIME = 2

PARQUET, KAFKA, KAFKA_TUNED, OURS = "parquet sink", "kafka sink", "kafka sink tuned", "penstock"


def lines(site: Site, plan: Plan) -> Iterator[Result]:
    """Write all messages to each sink in turns, after a round that nobody counts."""
    taken: dict[str, list[Sample]] = {}
    for number in range(plan.rounds + 1):
        for name in (PARQUET, KAFKA, KAFKA_TUNED, OURS):
            sink = _sink(site, name)
            if sink is None:
                continue
            measure.quiet()
            done = _written(site, sink)
            if number:
                taken.setdefault(name, []).append(done)
    numbers = {name: reading(samples) for name, samples in taken.items()}
    ours = rate(numbers, OURS)
    goals = [
        at_least(0.8, ratio(ours, rate(numbers, PARQUET)), what="the Parquet file sink "),
        at_least(1, ratio(ours, rate(numbers, KAFKA)), what="the Kafka sink "),
        shown("the Kafka sink tuned", ratio(ours, rate(numbers, KAFKA_TUNED))),
    ]
    work = "Spark streaming write of key and body, exactly once, about 1 M a micro-batch, warm; CPU with the server's"
    yield result("spark-write", work, numbers, goals, site.missing)


def _written(site: Site, sink: Place) -> Sample:
    columns = ["key", "body AS value" if sink.format == "kafka" else "body"]
    source = Place("parquet", {"path": site.files, "maxFilesPerTrigger": str(FILES_AT_A_TIME)})
    job = Job(source=source, schema=SCHEMA, columns=columns, sink=sink, streaming=True, checkpoint=site.fresh())
    server = site.kafka if sink.format == "kafka" and site.kafka else site.node
    done = query.run(site.spark, job, site.rows, server.pid).sample
    if sink.format == "penstock" and (kept := _kept(site.node, sink.options["topic"])) != site.rows:
        raise LoadFailed(f"{site.rows} rows were written exactly once, and the topic has {kept}")
    return done


def _sink(site: Site, name: str) -> Place | None:
    if name == PARQUET:
        return Place("parquet", {"path": site.fresh()})
    if name == OURS:
        return Place("penstock", {"url": f"grpc://127.0.0.1:{site.node.flight_port}", "topic": site.node.topic()})
    if site.kafka is None:
        return None
    options = {"kafka.bootstrap.servers": address(site.kafka), "topic": "written"}
    return Place("kafka", options | (TUNED_SINK if name == KAFKA_TUNED else {}))


def _kept(node: Penstock, topic: str) -> int:
    with flight.connect(f"grpc://127.0.0.1:{node.flight_port}") as client:
        (answer,) = client.do_action(flight.Action("topic", json.dumps({"name": topic}).encode()))
        return sum(shard["rows"] for shard in json.loads(answer.body.to_pybytes())["shards"])
