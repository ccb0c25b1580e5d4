"""A replay by Spark: for much data, and for conditions that only SQL can say.

Owns how ranges and steps become DataFrames of messages, in the order of their shards, and how those are counted and
written. `batches.py` does the same without Spark. Invariant: both give the same messages under the same names, so a
replay that one began the other can end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from penstock.errors import ConfigError, Refusal
from penstock.pipeline.frame import TAKEN
from penstock.pipeline.jobs.replay.options import TOPIC, Replay
from penstock.pipeline.jobs.replay.plan import Bucket, Plan, Step, Stretch
from penstock.pipeline.jobs.replay.source import (
    COUNTED,
    NEEDED,
    TIME_US_MAX,
    TIMES,
    Settled,
    Source,
    TableSource,
    TopicSource,
    sink_options,
)
from penstock.pipeline.schema import TYPES

#: What a step may be chosen by and what it carries on: everything but the rests of nanoseconds.
COLUMNS = tuple(name for name in TYPES if name != "timestamp_ns")


class Frames:
    """Counts and writes by Spark."""

    def __init__(self, spark: SparkSession, options: Replay, source: Source) -> None:
        self._spark = spark
        self._options = options
        self._source = source

    def count(self, settled: Settled, rows: int) -> list[Bucket]:
        """Return the chosen rows, counted in pieces of this many offsets."""
        return _buckets(self._chosen(self._whole(settled)), rows)

    def write(self, plan: Plan, number: int) -> None:
        """Write one step, once."""
        rows = self._chosen(self._step(plan, number))
        words = sink_options(self._options, plan, number)
        messages(rows, self._options, plan.shift_us).write.format("penstock").options(**words).mode("append").save()

    def _whole(self, settled: Settled) -> DataFrame:
        source = self._source
        if isinstance(source, TableSource):
            return self._between(self._table(source, settled.version), source)
        assert isinstance(source, TopicSource)
        return self._topics(source, settled.stretches, COLUMNS if self._options.where else COUNTED)

    def _step(self, plan: Plan, number: int) -> DataFrame:
        source, step = self._source, plan.steps[number]
        if isinstance(source, TableSource):
            return self._part(source, plan, step)
        assert isinstance(source, TopicSource)
        return self._topics(source, step.stretches, COLUMNS)

    def _topics(self, source: TopicSource, stretches: Sequence[Stretch], columns: Sequence[str]) -> DataFrame:
        """Return rows whose tasks, one after the other, have the rows of each shard in their order."""
        names = list(dict.fromkeys(stretch.topic for stretch in stretches))
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for name in names:
            info = source.store.topic(name)
            if info is None:
                raise Refusal("gone", f"topic {name} was deleted while it was replayed")
            # From the earliest up to 0 is nothing, whatever is kept of a shard.
            starts[name] = {str(shard.shard): -2 for shard in info.shards}
            ends[name] = {str(shard.shard): 0 for shard in info.shards}
        for stretch in stretches:
            starts[stretch.topic][str(stretch.shard)] = stretch.start
            ends[stretch.topic][str(stretch.shard)] = stretch.end
        words = self._options.node.options() | {
            "subscribe": json.dumps(names),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "columns": ",".join(columns),
        }
        return self._spark.read.format("penstock").options(**words).load()

    def _table(self, source: TableSource, version: int | None) -> DataFrame:
        frame = source.table.read(self._spark, version=version)
        for name in NEEDED:
            if name not in frame.columns:
                raise ConfigError(f"table {self._options.table} has no column {name}: it is no archive of messages")
        return frame

    def _between(self, frame: DataFrame, source: TableSource) -> DataFrame:
        """Return what of a table lies between the bounds."""
        if self._options.topics:
            frame = frame.where(sql.col("topic").isin(*self._options.topics))
        said = (self._options.from_, self._options.until)
        for bound, text, low in zip(source.bounds, said, (True, False), strict=True):
            if bound in ("earliest", "latest"):
                if (bound == "latest") is low:
                    frame = frame.where(sql.lit(False))
                continue
            if isinstance(text, str):
                frame = frame.where(_beside(sql.unix_micros("timestamp"), int(bound) // 1000, low))  # type: ignore[arg-type]
            elif isinstance(text, int):
                frame = frame.where(_beside(sql.col("offset"), text, low))
            else:
                for shard, offset in text.items():
                    frame = frame.where((sql.col("shard") != int(shard)) | _beside(sql.col("offset"), offset, low))
        return frame

    def _part(self, source: TableSource, plan: Plan, step: Step) -> DataFrame:
        chosen = reduce(or_, (_within(stretch) for stretch in step.stretches))
        # Implied by the offsets; it lets Parquet leave out what is of another time.
        taken = sql.col("timestamp").between(
            sql.timestamp_micros(sql.lit(step.first_us)), sql.timestamp_micros(sql.lit(step.last_us))
        )
        rows = self._table(source, plan.version).where(chosen & taken)
        return rows.coalesce(1).sortWithinPartitions("topic", "shard", "offset")

    def _chosen(self, frame: DataFrame) -> DataFrame:
        if not self._options.where:
            return frame
        try:
            chosen = frame.where(self._options.where)
            chosen.schema  # noqa: B018 - Spark Connect looks at it only now
        except AnalysisException as error:
            raise ConfigError(f"where cannot be used: {str(error).splitlines()[0]}") from None
        return chosen


def messages(frame: DataFrame, options: Replay, shift_us: int) -> DataFrame:
    """Return rows as the messages that are written; `shard` goes along for those without a key."""
    there = frame.columns
    carried = [name for name in TAKEN if name in there and name not in (*TIMES, "topic")]
    if not options.keep_dedup and "dedup" in carried:
        carried.remove("dedup")
    pieces: list[Column] = []
    for number, text in enumerate(options.to.split(TOPIC)):
        pieces += [sql.col("topic")] * (number > 0) + [sql.lit(text)]
    times = [] if options.times == "none" else [_time(there, name, shift_us).alias(name) for name in TIMES]
    return frame.select(sql.concat(*pieces).alias("topic"), "shard", *carried, *times)


def _time(columns: list[str], name: str, shift_us: int) -> Column:
    own = sql.col(name) if name in columns else sql.lit(None).cast("timestamp")
    # The node says anew when it took a message; when that was first is told by event_time.
    time_ = sql.coalesce(own, sql.col("timestamp")) if name == "event_time" else own
    if not shift_us:
        return time_
    moved = sql.unix_micros(time_) + sql.lit(shift_us).cast("bigint")
    bounded = sql.least(sql.greatest(moved, sql.lit(-TIME_US_MAX)), sql.lit(TIME_US_MAX))
    return sql.when(time_.isNotNull(), sql.timestamp_micros(bounded))


def _buckets(frame: DataFrame, rows: int) -> list[Bucket]:
    """Return the rows counted in pieces of this many offsets."""
    lengths = [
        sql.coalesce(sql.octet_length(name), sql.lit(0)) for name in ("body", "key", "headers") if name in frame.columns
    ]
    size = sum(lengths[1:], lengths[0]).cast("bigint")
    time_us = sql.unix_micros("timestamp")
    counted = frame.groupBy("topic", "shard", sql.expr(f"offset DIV {rows}").alias("piece")).agg(
        sql.min("offset").alias("first"),
        sql.max("offset").alias("last"),
        sql.count(sql.lit(1)).alias("rows"),
        sql.sum(size).alias("bytes"),
        sql.min(time_us).alias("first_us"),
        sql.max(time_us).alias("last_us"),
    )
    columns = counted.select(*Bucket._fields).toArrow().to_pydict()
    return [Bucket(*cells) for cells in zip(*(columns[name] for name in Bucket._fields), strict=True)]


def _within(stretch: Stretch) -> Column:
    place = (sql.col("topic") == stretch.topic) & (sql.col("shard") == stretch.shard)
    return place & (sql.col("offset") >= stretch.start) & (sql.col("offset") < stretch.end)


def _beside(column: Column, value: int, low: bool) -> Column:
    return column >= value if low else column < value
