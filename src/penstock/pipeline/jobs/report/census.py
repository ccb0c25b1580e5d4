"""The second look at the messages: counted by everything that a report shows, in one pass.

One aggregation with grouping sets: by dialect and time, shard, size, tag, bucket and due time, each within a topic.
Owns those sets. Invariant: a set gives a bounded number of rows for a topic, those with most messages, and each says
how many members the set has and what they sum up to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from penstock.pipeline.jobs.report.scale import class_of
from penstock.pipeline.jobs.report.totals import SHOWN_BYTES
from penstock.pipeline.jobs.report.waiting import slot_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.pipeline.jobs.report.span import Span

#: What is counted within a topic, which column of the messages it comes from, and by which of ours.
SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "traffic": ("timestamp", ("source", "step")),
    "shards": ("shard", ("shard",)),
    "sizes": ("body", ("size_class",)),
    "tags": ("tag", ("tag",)),
    "buckets": ("bucket", ("bucket",)),
    "waiting": ("due", ("slot",)),
}
#: Rows of a set and topic that are kept. Sizes have at most a thousand classes, waiting has 1,075 slots.
ROWS_MAX = 5_000


def census(messages: DataFrame, span: Span, shown: Sequence[str], present: Iterable[str], top: int) -> DataFrame:
    """Return rows of `kind`, topic (null: one that is not shown), the sets' columns, and what was counted."""
    sets = {kind: names for kind, (column, names) in SETS.items() if column in present}
    ours = list(dict.fromkeys(name for names in sets.values() for name in names))
    counted = _narrow(messages, span, shown).groupingSets(
        [["topic", *names] for names in sets.values()], "topic", *ours
    )
    found = counted.agg(
        sql.grouping_id().alias("set"),
        sql.count(sql.lit(1)).alias("messages"),
        sql.coalesce(sql.sum("size"), sql.lit(0)).alias("body_bytes"),
        sql.min("size").alias("least"),
        sql.max("size").alias("greatest"),
    )
    kind = named({kind: grouping(["topic", *ours], ["topic", *names]) for kind, names in sets.items()})
    # No tag, bucket or due time is not one of them. A message has a source, or else that is not known, which counts.
    absent = sql.col("shard").isNull() & sql.col("size_class").isNull() & sql.col("step").isNull()
    absent = absent & sql.col("tag").isNull() & sql.col("bucket").isNull() & sql.col("slot").isNull()
    found = complete(found, ("source", "step", "shard", "size_class", "tag", "bucket", "slot"))
    found = found.withColumn("kind", kind).where(~absent).drop("set")
    members = Window.partitionBy("kind", "topic")
    first = members.orderBy(sql.desc("messages"), *(sql.col(name) for name in ours))
    kept = sql.when(sql.col("kind").isin("tags", "buckets"), top).otherwise(ROWS_MAX)
    return (
        found.withColumns(
            {
                "members": sql.count(sql.lit(1)).over(members),
                "together": sql.sum("messages").over(members),
                "place": sql.row_number().over(first),
            }
        )
        .where(sql.col("place") <= kept)
        .withColumn("tag", sql.substring("tag", 1, SHOWN_BYTES))
        .drop("place")
    )


def _narrow(messages: DataFrame, span: Span, shown: Sequence[str]) -> DataFrame:
    """Return what is counted and nothing else, as small values."""
    size = sql.octet_length("body").cast("bigint")
    return messages.select(
        only(sql.col("topic"), shown).alias("topic"),
        sql.col("source"),
        span.step_of(sql.unix_micros("timestamp")).alias("step"),
        sql.col("shard"),
        size.alias("size"),
        class_of(size).alias("size_class"),
        sql.col("tag"),
        sql.col("bucket"),
        slot_of(sql.unix_micros("due") - span.until_us).alias("slot"),
    )


def only(topic: Column, shown: Sequence[str]) -> Column:
    """Return the topic where it is one of those shown, else null."""
    return sql.when(topic.isin(list(shown)), topic)


def grouping(names: Sequence[str], within: Sequence[str]) -> int:
    """Return Spark's number of a grouping set: one bit for each column, set where it is not in the set."""
    return sum(1 << at for at, name in enumerate(reversed(names)) if name not in within)


def named(numbers: dict[str, int]) -> Column:
    """Return the name of a row's grouping set, whose number is in column `set`."""
    found: Column | None = None
    for kind, number in numbers.items():
        condition = sql.col("set") == number
        found = sql.when(condition, kind) if found is None else found.when(condition, kind)
    return sql.lit(None).cast("string") if found is None else found


def complete(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    """Return a frame with these columns, null where it had none."""
    missing = [name for name in names if name not in frame.columns]
    return frame.withColumns({name: sql.lit(None) for name in missing}) if missing else frame
