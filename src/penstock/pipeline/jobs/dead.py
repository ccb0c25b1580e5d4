"""Dead letters of a pipeline: rows that a step could not use, as messages for a dead-letter topic.

Owns how the reason gets into the headers. They are the node's own (`penstock.dead.*`), so that a redrive, which
belongs to the node, takes these letters like any other.
Invariant: the headers a message came with are still there, as they were.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from penstock.pipeline.schema import TYPES

#: Headers that tell where a dead letter came from; the node's redrive takes them off again.
PREFIX = "penstock.dead."

#: Not carried along: a due time has passed and a lease of life too, and the node says the rest anew.
_LEFT_BEHIND = ("due", "expires", "dedup", "bucket", "shard", "offset", "timestamp", "timestamp_ns", "source")
#: The offset's part of a message id.
_OFFSET_BITS = 48
_TOLD_BEFORE = rf'(?s),?+\s*+"{PREFIX.replace(".", "[.]")}[a-z_]++"\s*+:\s*+"(?:[^"\\]++|\\.)*+"'


def dead_letters(dead: DataFrame) -> DataFrame:
    """Return rows with a `reason` as messages of a dead-letter topic; `topic` stays the one they came from.

    Columns that no message has (a line's number, say) go into the headers beside the reason.
    """
    there = set(dead.columns)
    told: dict[str, Column] = {}
    if "topic" in there:
        told["topic"] = sql.col("topic")
    if {"shard", "offset"} <= there:
        # Ids begin at 1, so that none is 0.
        number = sql.shiftleft(sql.col("shard").cast("bigint"), _OFFSET_BITS) + sql.col("offset") + 1
        told["id"] = sql.lpad(sql.lower(sql.hex(number)), 16, "0")
    told["reason"] = sql.col("reason")
    if "timestamp_ns" in there:
        told["taken_ns"] = sql.col("timestamp_ns").cast("string")
    elif "timestamp" in there:
        told["taken_ns"] = sql.try_multiply(sql.unix_micros("timestamp"), sql.lit(1000)).cast("string")
    told |= {name: sql.col(name).cast("string") for name in dead.columns if name not in TYPES and name != "reason"}
    extra = sql.to_json(sql.struct(*(column.alias(PREFIX + name) for name, column in told.items())))
    kept = [name for name in dead.columns if name in TYPES and name not in (*_LEFT_BEHIND, "headers")]
    was = sql.col("headers").cast("string") if "headers" in there else sql.lit(None).cast("string")
    return dead.select(*kept, _joined(was, extra).alias("headers"))


def _joined(headers: Column, extra: Column) -> Column:
    """Return one JSON object of two; headers that are none become a member of it, so that nothing is lost."""
    is_object = sql.json_object_keys(headers).isNotNull()
    is_json = sql.try_parse_json(headers).isNotNull()
    wrapped = sql.concat(
        sql.lit('{"headers":'),
        sql.when(is_json, headers).otherwise(sql.regexp_extract(sql.to_json(sql.array(headers)), r"(?s)^\[(.*)\]$", 1)),
        sql.lit("}"),
    )
    # A letter that died before: what it told then is not true any more.
    fresh = sql.regexp_replace(
        sql.regexp_replace(sql.btrim(headers), sql.lit(_TOLD_BEFORE), sql.lit("")), r"^\{\s*,", "{"
    )
    whole = sql.when(is_object, fresh).otherwise(wrapped)
    inside = sql.regexp_replace(whole, r"^\{\s*+|\s*+\}\z", "")
    merged = sql.concat(sql.lit("{"), inside, sql.lit(","), sql.substring(extra, 2, 2**31 - 1))
    return sql.when(headers.isNull() | (inside == ""), extra).otherwise(merged)
