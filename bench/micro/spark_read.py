"""Spark reading a topic, beside Spark's own Parquet reader on the same rows and columns, both into `noop`.

Run: python -m bench.micro.spark_read [rows] [--stream]    (5,000,000 rows of 100 bytes by default)
Prints medians of interleaved rounds, and the ratio that counts; with --stream also micro-batches of 1 M rows.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from penstock.clock import LoopClock
from penstock.disk import LocalDisk
from penstock.log import label
from penstock.log.shard import open_shard
from penstock.message import Rows
from penstock.pipeline import session
from penstock.settings import TopicSettings

ROWS = 5_000_000
SHARDS = 2
BATCH_ROWS = 16_384
ROUNDS = 5
#: Columns, and how fast a topic is to be read beside Parquet.
CASES = {
    "shard, offset, timestamp, key, body": 0.8,
    "topic, shard, offset, timestamp, key, headers, body": 0.6,
    "offset, body": 0.7,
}


async def store(data: str, rows: int) -> None:
    """Make a topic as a node would leave it: sealed segments of large batches."""
    disk, clock = LocalDisk(asyncio.get_running_loop()), LoopClock(asyncio.get_running_loop())
    directory = f"{data}/{label.TOPICS}/1"
    disk.make(directory)
    settings = TopicSettings(shards=SHARDS)
    label.write(disk, directory, label.Label(name="t", incarnation=1, number=1, shards=SHARDS, durability="os"))
    pool = [np.random.default_rng(seed).bytes(90) for seed in range(4096)]
    for number in range(SHARDS):
        shard = open_shard(disk, clock, f"{directory}/{number}", number, settings)
        for first in range(0, rows // SHARDS, BATCH_ROWS):
            count = min(BATCH_ROWS, rows // SHARDS - first)
            numbers = range(first, first + count)
            bodies = [b"%010d" % each + pool[each % 4096] for each in numbers]
            columns = {
                "key": [b"k%07d" % each for each in numbers],
                "headers": [None if each % 2 else b'{"a":"b"}' for each in numbers],
            }
            shard.append(Rows.of(bodies, "nsq", columns), time.time_ns())
            await asyncio.sleep(0)
        shard.close()


class Cost(NamedTuple):
    """What a read takes, in seconds."""

    wall: float
    cpu: float


def cost(call: Callable[[], object]) -> Cost:
    """Return what a call takes, with the CPU of Java and of all Python workers."""
    began, before = time.perf_counter(), tree_cpu()
    call()
    return Cost(time.perf_counter() - began, tree_cpu() - before)


def tree_cpu() -> float:
    """Return the CPU seconds of all processes below this one, those that ended included."""
    ticks = 0
    wanted = {os.getpid()}
    for stat in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parts[2])):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) in wanted:
            wanted.add(int(stat.parts[2]))
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def drained(frame: DataFrame) -> Callable[[], None]:
    """Return a call that reads a DataFrame and throws it away."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


def batch(spark: SparkSession, data: str, rows: int) -> None:
    """Print the batch reads."""
    topic = spark.read.format("penstock").option("path", data).option("subscribe", "t")
    topic.load().write.option("compression", "none").parquet(f"{data}/rows")
    for columns, target in CASES.items():
        names = columns.split(", ")
        ours = drained(topic.option("columns", columns).load())
        theirs = drained(spark.read.parquet(f"{data}/rows").select(*names))
        ours(), theirs()
        rounds = [(cost(ours), cost(theirs)) for _ in range(ROUNDS)]
        said = []
        for name, number in (("topic", 0), ("Parquet", 1)):
            wall, cpu = (median(each[number][part] for each in rounds) for part in (0, 1))
            said.append(f"{name} {rows / wall / 1e6:5.2f} M rows/s, {cpu / rows * 1e6:4.2f} us CPU")
        speed, work = (median(each[1][part] / each[0][part] for each in rounds) for part in (0, 1))
        print(f"{columns:52} {';  '.join(said)};  ratio {speed:4.2f} (target {target}), of CPU {work:4.2f}", flush=True)


def stream(spark: SparkSession, data: str, rows: int) -> None:
    """Print a streaming read, warm, and what a micro-batch costs whatever is in it."""
    reader = spark.readStream.format("penstock").option("path", data).option("subscribe", "t")
    reader = reader.option("startingOffsets", "earliest").option("columns", "shard, offset, timestamp, key, body")
    costs = {}
    for size in (1_000_000, 250_000):
        with tempfile.TemporaryDirectory() as checkpoint:
            frame = reader.option("maxOffsetsPerTrigger", str(size)).load()
            query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            began = time.perf_counter()
            running = query.trigger(availableNow=True).start()
            running.awaitTermination()
            whole = time.perf_counter() - began
            warm = [p for p in running.recentProgress if p["numInputRows"]][1:]
            costs[size] = median(p["durationMs"]["triggerExecution"] for p in warm)
            speed = sum(p["numInputRows"] for p in warm) / sum(p["durationMs"]["triggerExecution"] for p in warm)
            outside = whole * 1000 - sum(p["durationMs"]["triggerExecution"] for p in running.recentProgress)
            print(
                f"stream, {size:9,} rows a batch: warm {speed / 1e3:5.2f} M rows/s, {costs[size]:.0f} ms a batch, "
                f"whole {rows / whole / 1e6:5.2f} M rows/s, outside batches {outside:.0f} ms"
            )
    print(f"fixed cost of a micro-batch, by two points: {(4 * costs[250_000] - costs[1_000_000]) / 3:.0f} ms")


def main() -> None:
    """Run what the words ask for."""
    words = sys.argv[1:]
    rows = int(next((word for word in words if word.isdigit()), ROWS))
    with tempfile.TemporaryDirectory() as data:
        asyncio.run(store(data, rows))
        spark = session("bench", master="local[2]", options={"spark.driver.memory": "3g"})
        try:
            batch(spark, data, rows)
            if "--stream" in words:
                stream(spark, data, rows)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
