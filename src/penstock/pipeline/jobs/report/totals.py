"""The first look at the messages: each topic's sums, its times, and its most frequent keys.

One pass, grouped by topic and key. Owns which topics are shown one by one. Invariant: the result has at most as many
rows as topics are shown, and each says what there is in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.pipeline.jobs.report.options import Report

#: A key or tag is shown so long at most.
SHOWN_BYTES = 80


class Hot(msgspec.Struct, frozen=True):
    """Something that many messages have in common."""

    name: str
    messages: int


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """One topic's sums."""

    topic: str
    messages: int
    body_bytes: int
    first_us: int | None
    last_us: int | None
    #: Messages that have a due time.
    timed: int
    #: Messages that have a key, and how many keys there are.
    keyed: int
    keys: int
    hot_keys: tuple[Hot, ...]


class Totals(msgspec.Struct, frozen=True):
    """The sums of the topics that are shown, largest first, and of all."""

    shown: tuple[Total, ...]
    topics: int
    messages: int
    body_bytes: int
    first_us: int | None
    last_us: int | None


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


def readable(value: bytes, whole_bytes: int | None = None) -> str:
    """Return bytes as text where they are UTF-8 that can be printed, else as hexadecimal digits."""
    more = "…" if whole_bytes is not None and whole_bytes > len(value) else ""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character that was cut through at the end does not make it other than text.
        cut = bool(more) and error.start >= len(value) - 3 and error.reason == "unexpected end of data"
        text = value[: error.start].decode("utf-8") if cut else ""
    if text.isprintable() and (text or not value):
        return (text or "(empty)") + more
    return "0x" + value.hex() + more
