"""Making the class archive: a short Spark run whose Java machine writes down, at its end, which classes it loaded.

Run as a program, with `--quick` for the archive of quick sessions. Owns the run and the lock that keeps a second one
away. Invariant: the archive gets its name only once its writer has ended well.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline import launch
from penstock.pipeline.session import JAVA_OPTIONS, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(words: Sequence[str] | None = None) -> int:
    """Make the archive unless it is there; return the exit code."""
    quick = "--quick" in (sys.argv[1:] if words is None else words)
    os.nice(19)  # whoever waits for a result comes first
    cache = launch.cache_directory(os.environ)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # if somebody else makes one, it is there afterwards
        return _make(cache, quick)


def _make(cache: Path, quick: bool) -> int:
    program = launch.java(os.environ, cache).program
    switches = launch.QUICK if quick else ()
    archive = launch.Archive(cache, program, launch.spark_home(cache), switches)
    if archive.found():
        return 0
    part, whole, switch = archive.made_by(os.getpid())
    words = [f"-Dlog4j2.configurationFile={launch.log4j(cache)}", *switches, switch, *launch.SILENT]
    spark = session("archive", master="local[2]", quick=quick, archive=False, options={JAVA_OPTIONS: " ".join(words)})
    gateway: Any = spark.sparkContext._gateway
    process = gateway.proc
    try:
        _exercise(spark)
    finally:
        spark.stop()
        gateway.shutdown()
    # Java ends when nobody can speak to it any more, and writes the archive then.
    process.stdin.close()
    process.wait(timeout=300)
    if not part.exists():
        return 1
    part.replace(whole)
    launch.tidy(cache, time.time())
    return 0


def _exercise(spark: SparkSession) -> None:
    """Do a little of what pipelines do, so that its classes are in the archive."""
    from pyspark.sql import functions as sql

    rows = spark.range(100, numPartitions=2).withColumn("k", sql.col("id") % 7)
    rows.groupBy("k").agg(sql.sum("id"), sql.max(sql.length(sql.col("id").cast("string").cast("binary")))).collect()
    rows.mapInArrow(lambda batches: batches, rows.schema).count()
    with tempfile.TemporaryDirectory() as directory:
        rows.write.parquet(f"{directory}/rows")
        found = spark.readStream.schema(rows.schema).parquet(f"{directory}/rows")
        times = found.withColumn("t", sql.timestamp_seconds("id")).withWatermark("t", "1 minute")
        for number, (frame, mode) in enumerate(((found, "append"), (times.groupBy("k").count(), "update"))):
            query = (
                frame.writeStream.format("noop")
                .outputMode(mode)
                .option("checkpointLocation", f"{directory}/{number}")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()


if __name__ == "__main__":
    sys.exit(main())
