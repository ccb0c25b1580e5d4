"""A process with one Spark session that does jobs, one line of JSON each: `python -m bench.spark.process [cores]`.

A process of its own, so that it can be kept to some cores, and its CPU time told from the benchmark's.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession

from bench.spark import work
from bench.spark.job import Done, Job, MicroBatch
from penstock.pipeline import session

#: The rows' own heap, as large as a small executor's.
MEMORY = "3g"


def main(words: Sequence[str]) -> int:
    """Do jobs until there are no more; the first word is the number of cores, others are jars."""
    cores, *jars = words
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    # Java writes to what it takes for the terminal; answers go where only this process writes.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    options = {"spark.driver.memory": MEMORY} | ({"spark.jars": ",".join(jars)} if jars else {})
    spark = session("bench", master=f"local[{cores}]", options=options, archive=False)
    answers.write(msgspec.json.encode(Done()) + b"\n")
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(_answer(spark, line)) + b"\n")
    spark.stop()
    return 0


def _answer(spark: SparkSession, line: bytes) -> Done:
    job = msgspec.json.decode(line, type=Job)
    try:
        return _streamed(spark, job) if job.streaming else _copied(spark, job)
    except Exception as error:  # told to the benchmark, which fails the row
        return Done(error=f"{type(error).__name__}: {str(error).strip()[-1000:]}")


def _frame(spark: SparkSession, job: Job) -> DataFrame:
    reader = spark.readStream if job.streaming else spark.read
    reader = reader.format(job.source.format).options(**job.source.options)
    if job.schema:
        reader = reader.schema(job.schema)
    frame = reader.load()
    if job.columns:
        frame = frame.selectExpr(*job.columns)
    return work.WAYS[job.work](frame) if job.work else frame


def _copied(spark: SparkSession, job: Job) -> Done:
    began = time.perf_counter()
    if job.sink.format in work.SINKS:
        work.SINKS[job.sink.format](_frame(spark, job), job.sink.options)
        return Done(time.perf_counter() - began)
    writer = _frame(spark, job).write.format(job.sink.format).options(**job.sink.options)
    writer.mode("overwrite" if job.sink.format in ("noop", "parquet") else "append").save()
    return Done(time.perf_counter() - began)


def _streamed(spark: SparkSession, job: Job) -> Done:
    """Run a query to its end; the clock runs from its start to its end, as a user sees it."""
    writer = _frame(spark, job).writeStream.format(job.sink.format).options(**job.sink.options)
    writer = writer.option("checkpointLocation", job.checkpoint).trigger(availableNow=True)
    began = time.perf_counter()
    query = writer.start()
    query.awaitTermination()
    seconds = time.perf_counter() - began
    told = [(each["numInputRows"], each["durationMs"]["triggerExecution"]) for each in query.recentProgress]
    batches = [MicroBatch(rows, ms) for rows, ms in told if rows]
    return Done(seconds, batches, sum(ms for rows, ms in told if not rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
