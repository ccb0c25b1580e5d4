"""Samples: what messages say was measured, one row for each line, and why a line says nothing usable.

Owns the way from a body to lines and a sample's time. The formats own their grammars.
Invariant: every line of every message is one row, with or without a `reason`; no body fails a query, and what a body
costs grows with its length and no faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from penstock.m3.policies import StoragePolicy
from penstock.pipeline.jobs.rollup import m3, objects, prometheus, statsd
from penstock.pipeline.jobs.rollup.numbers import TIME_US_MAX
from penstock.pipeline.schema import TYPES

_PARSERS = {"statsd": statsd.parsed, "prometheus": prometheus.parsed, "json": objects.parsed}
_BLANKS = " \t\r\n"

FUTURE = "future"


#: Formats whose messages have values, which are told apart later.
_SEVERAL = ("json", "m3")
M3 = "m3"


def samples(frame: DataFrame, format: str, future_us: int, policies: Sequence[StoragePolicy] = ()) -> DataFrame:
    """Return the lines of messages, with all columns these have; `body` only where it could not be cut into lines.

    Added are `line` (its number in the body), `text`, `position` (its place among those of the message), `id`, `kind`,
    `value` and `whole`, or `values` of both, `event_us`, `arrival_us`, `bits` and `reason`, null where it can be used.
    A metric of M3's has `policies` as well, one of which must be among those that are named here, if any are.
    """
    given = message_columns(frame)
    whole = with_all(frame).withColumn("bits", sql.col("traffic"))
    read = m3.parsed(whole) if format == M3 else _PARSERS[format](_lines(whole, format))
    taken = sql.unix_micros("timestamp")
    event = sql.coalesce(sql.col("time_us"), sql.unix_micros("event_time"), taken)
    timed = read.withColumn("said_us", event).withColumns(
        {
            # Null where it makes no sense, so that no sum of times overflows.
            "event_us": sql.when(sql.col("said_us").between(0, TIME_US_MAX), sql.col("said_us")),
            "arrival_us": sql.coalesce(taken, "said_us"),
        }
    )
    reason = (
        sql.when(sql.col("reason").isNotNull(), sql.col("reason"))
        .when(sql.col("said_us").isNull(), "no time, of its own or of its message")
        .when(sql.col("event_us").isNull(), "the time is before 1970 or after 2199")
        .when(sql.try_subtract(sql.col("event_us"), sql.col("arrival_us")) > future_us, FUTURE)
    )
    if format == M3 and policies:
        reason = reason.when(~reduce(or_, map(m3.takes, policies)), "none of its storage policies is rolled up here")
    order = [name for name in ("topic", "shard", "offset") if name not in given]
    return timed.select(
        *given,
        *order,
        *("line", "text", "position", "id", "kind", "event_us", "arrival_us", "bits"),
        *(("values",) if format in _SEVERAL else ("value", "whole")),
        *(("policies",) if format == M3 else ()),
        reason.alias("reason"),
    )


def expanded(lines: DataFrame, format: str) -> DataFrame:
    """Return a row for each sample, where a line may hold several."""
    return objects.expanded(lines) if format in _SEVERAL else lines


def message_columns(frame: DataFrame) -> list[str]:
    """Return the columns of a frame that are a message's."""
    return [name for name in frame.columns if name in TYPES]


def with_all(frame: DataFrame) -> DataFrame:
    """Return a frame with its message columns, and those that are read here as nulls where it has none."""
    needed = ("topic", "shard", "offset", "timestamp", "body", "event_time", "traffic")
    missing = [sql.lit(None).cast(TYPES[name]).alias(name) for name in needed if name not in frame.columns]
    return frame.select(*message_columns(frame), *missing)


def _lines(messages: DataFrame, format: str) -> DataFrame:
    """Return one row per line; a message that has none to be read is one row with a reason."""
    whole = sql.btrim(sql.col("body").cast("string"), sql.lit(_BLANKS))
    readable = sql.is_valid_utf8(sql.col("body").cast("string"))
    nothing = sql.array(sql.lit(None).cast("string"))
    if format == "json":
        found = sql.when(readable, objects.elements(whole))
    else:
        found = sql.when(readable, sql.split(sql.col("body").cast("string"), "\n"))
    listed = messages.withColumn("found", found)
    fault = (
        sql.when(sql.col("body").isNull(), "no body")
        .when(~readable, "not UTF-8")
        .when(sql.col("found").isNull(), "not JSON")
    )
    # Said before the lines are told apart: else Spark would do it for each line, and copy the body beside it.
    judged = listed.withColumn("reason", fault).withColumn(
        "body", sql.when(sql.col("reason").isNotNull(), sql.col("body"))
    )
    opened = judged.select(
        *messages.columns, "reason", sql.posexplode(sql.coalesce("found", nothing)).alias("line", "text")
    )
    trimmed = opened.withColumn("text", sql.btrim("text", sql.lit(_BLANKS)))
    return trimmed.where(_is_said(sql.col("text"), format)).withColumn("position", sql.col("line").cast("bigint"))


def _is_said(text: Column, format: str) -> Column:
    """Return whether a line is more than blanks."""
    return sql.lit(True) if format == "json" else text.isNull() | (text != "")
