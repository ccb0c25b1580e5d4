"""Two looks at the messages: each topic's sums and most frequent keys, then counts by everything else a report shows.

Each is one pass: the first grouped by topic and key, the second by grouping sets (dialect and time, shard, size, tag,
bucket, due time, each within a topic). Invariant: the rows are bounded by what is shown, and say what there is in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from penstock.pipeline.jobs.report.scale import class_of
from penstock.pipeline.jobs.report.span import slot_of
from penstock.pipeline.jobs.report.totals import ROWS_MAX, SETS, SHOWN_BYTES, Hot, Total, Totals, readable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.pipeline.jobs.report.options import Report
    from penstock.pipeline.jobs.report.span import Span


def totals_frame(messages: DataFrame, options: Report) -> DataFrame:
    """Return one row for each of the topics with most messages."""
    by_key = messages.groupBy("topic", "key").agg(
        sql.count(sql.lit(1)).alias("messages"),
        sql.sum(sql.octet_length("body").cast("bigint")).alias("body_bytes"),
        sql.min("timestamp").alias("first"),
        sql.max("timestamp").alias("last"),
        sql.count("due").alias("timed"),
    )
    place = sql.struct("messages", "key")
    has_key = sql.col("key").isNotNull()
    by_topic = by_key.groupBy("topic").agg(
        sql.sum("messages").alias("messages"),
        sql.coalesce(sql.sum("body_bytes"), sql.lit(0)).alias("body_bytes"),
        sql.unix_micros(sql.min("first")).alias("first_us"),
        sql.unix_micros(sql.max("last")).alias("last_us"),
        sql.sum("timed").alias("timed"),
        sql.coalesce(sql.sum(sql.when(has_key, sql.col("messages"))), sql.lit(0)).alias("keyed"),
        sql.count("key").alias("keys"),
        sql.max_by(place, sql.when(has_key, place), options.top).alias("hot"),
    )
    # One partition, of one row a topic. Spark Connect warns if that is not said.
    everything = Window.partitionBy(sql.lit(0))
    return (
        by_topic.withColumns(
            {
                "hot": sql.transform("hot", _cut),
                "topics_all": sql.count(sql.lit(1)).over(everything),
                "messages_all": sql.sum("messages").over(everything),
                "body_bytes_all": sql.sum("body_bytes").over(everything),
                "first_us_all": sql.min("first_us").over(everything),
                "last_us_all": sql.max("last_us").over(everything),
            }
        )
        .orderBy(sql.desc("messages"), "topic")
        .limit(options.topics_max)
    )


def _cut(hot: Column) -> Column:
    """Return a key that is not longer than what is shown of it, and how long it is."""
    return sql.struct(
        hot["messages"].alias("messages"),
        sql.substring(hot["key"], 1, SHOWN_BYTES).alias("key"),
        sql.octet_length(hot["key"]).alias("bytes"),
    )


def totals(messages: DataFrame, options: Report) -> Totals:
    """Return the sums of all topics."""
    rows = totals_frame(messages, options).collect()
    shown = tuple(
        Total(
            topic=row["topic"],
            messages=row["messages"],
            body_bytes=row["body_bytes"],
            first_us=row["first_us"],
            last_us=row["last_us"],
            timed=row["timed"],
            keyed=row["keyed"],
            keys=row["keys"],
            hot_keys=tuple(
                Hot(readable(bytes(each["key"]), each["bytes"]), each["messages"]) for each in row["hot"] or ()
            ),
        )
        for row in rows
    )
    if not rows:
        return Totals((), 0, 0, 0, None, None)
    all_ = ("topics_all", "messages_all", "body_bytes_all", "first_us_all", "last_us_all")
    return Totals(shown, *(rows[0][name] for name in all_))


def breakdown(messages: DataFrame, span: Span, shown: Sequence[str], present: Iterable[str], top: int) -> DataFrame:
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
