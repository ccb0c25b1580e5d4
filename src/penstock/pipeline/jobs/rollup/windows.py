"""Windows: which windows a sample belongs to, and for which of them it came too late.

Owns lateness, which is decided by when the broker took a sample and by nothing that Spark remembers: so a stream, a
repeated batch and a batch over everything agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from penstock.errors import ConfigError
from penstock.m3.policies import StoragePolicy, rendered
from penstock.pipeline.jobs.watermark import WATERMARK
from penstock.pipeline.jobs.watermark import delay_ms as delay_of

ARRIVAL = "timestamp"


def end_us(policy: StoragePolicy) -> Column:
    """Return the end of the window that a sample belongs to."""
    event, window = sql.col("event_us"), sql.lit(policy.window_us)
    return event - sql.pmod(event, window) + window


def is_late(policy: StoragePolicy, lateness_us: int) -> Column:
    """Return whether a sample came too late for its window."""
    return sql.col("arrival_us") > end_us(policy) + lateness_us


def watched(frame: DataFrame, lateness_us: int) -> DataFrame:
    """Return a streaming frame with a watermark on arrival, unless an earlier step gave it one.

    Windows that end at or before (the latest arrival - lateness) are closed. Times of arrival do not go back within a
    shard, so no sample that is in time finds its window closed. A millisecond is added for those that arrived at
    the very moment.
    """
    delay_ms = lateness_us // 1000 + 1
    there = delay_of(frame)
    if there is not None:
        if there < delay_ms:
            raise ConfigError(
                f"lateness is {rendered(lateness_us * 1000)}, but a step before forgets after "
                f"{rendered(there * 1_000_000)}; lower it, or raise that step's time by at least 1ms more"
            )
        return frame
    if ARRIVAL not in frame.columns:
        raise ConfigError(f"a stream of samples needs the column {ARRIVAL}, which says when windows close")
    return frame.withWatermark(ARRIVAL, f"{delay_ms} milliseconds")


def windowed(
    samples: DataFrame,
    policies: Sequence[StoragePolicy],
    lateness_us: int,
    takes: Callable[[StoragePolicy], Column] | None = None,
) -> DataFrame:
    """Return a row for each sample and policy whose window it is in time for, with `policy` and `window_end`.

    `takes` says which samples are for a policy at all.
    """
    windows = [
        sql.when(
            ~is_late(policy, lateness_us) if takes is None else takes(policy) & ~is_late(policy, lateness_us),
            sql.struct(sql.lit(number).alias("policy"), sql.timestamp_micros(end_us(policy)).alias("end")),
        )
        for number, policy in enumerate(policies)
    ]
    exploded = samples.withColumn("window", sql.explode(sql.array(*windows))).where("window IS NOT NULL")
    # The mark makes Spark close groups by the end of their window, with one operator for windows of all lengths.
    mark = {WATERMARK: lateness_us // 1000 + 1}
    return exploded.select(
        *samples.columns,
        sql.col("window.policy").alias("policy"),
        sql.col("window.end").alias("window_end", metadata=mark),
    )
