"""JSON: an object or an array of objects, each with id or name and tags, type, value, time and traffic.

Owns that form. `value` is a number or an array of numbers, each of which is a sample; `time` milliseconds since 1970 or
ISO 8601, UTC where it says nothing else. A number in quotes is that number. Other members are read over.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from penstock.pipeline.jobs.rollup.aggregations import KINDS
from penstock.pipeline.jobs.rollup.numbers import FLOAT, NUMBER, double, whole
from penstock.pipeline.jobs.rollup.series import series

_MEMBERS = "id string, name string, tags string, type string, value string, time string, traffic string"
_ISO = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?+(Z|z|[+-][0-9]{2}:[0-9]{2})?+\z"
#: Values of one object are told apart in the lower half of a position.
_POSITION_BITS = 32


def elements(text: Column) -> Column:
    """Return the objects of a body as texts, or null where it is not JSON."""
    # Inside brackets of ours nothing may stand behind the value, which Spark's reader would not look at.
    wrapped = sql.concat(sql.lit("["), text, sql.lit("]"))
    alone = sql.from_json(wrapped, "array<string>")
    several = sql.from_json(wrapped, "array<array<string>>")
    return sql.when(text.startswith("{"), sql.when(sql.size(alone) == 1, sql.array(text))).when(
        text.startswith("["), sql.when(sql.size(several) == 1, sql.get(several, sql.lit(0)))
    )


def parsed(lines: DataFrame) -> DataFrame:
    """Return objects with what they say: id, kind, values, time_us, bits, and a `reason` where that is no sample.

    An object is used whole or not at all.
    """
    given = sql.col("given")
    opened = lines.withColumn("given", sql.from_json("text", _MEMBERS))
    inner = sql.when(given["value"].startswith("["), sql.from_json(given["value"], "array<string>"))
    listed = sql.when(sql.size(inner) > 0, inner).otherwise(sql.array(given["value"]))
    kind = sql.coalesce(*(sql.when(given["type"] == name, sql.lit(code)) for code, name in enumerate(KINDS)))
    read = opened.withColumns(
        {
            "kind": kind,
            "values": sql.transform(listed, lambda number: _value(number, given["type"] == "counter")),
            "tags": sql.from_json(given["tags"], "map<string,string>"),
            "time_us": _time_us(given["time"]),
            "own_bits": _bits(given["traffic"]),
        }
    )
    return read.withColumns(
        {
            "reason": sql.when(sql.col("reason").isNotNull(), sql.col("reason")).otherwise(_reason()),
            "id": sql.coalesce(given["id"], series(given["name"], sql.map_entries("tags"))),
            "bits": sql.coalesce("own_bits", "bits"),
        }
    )


def expanded(objects: DataFrame) -> DataFrame:
    """Return a row for each value of usable objects."""
    others = [name for name in objects.columns if name not in ("values", "position")]
    opened = objects.select(*others, "position", sql.posexplode("values").alias("rank", "each"))
    place = sql.shiftleft(sql.col("position"), _POSITION_BITS) + sql.col("rank")
    return opened.select(*others, place.alias("position"), "each.value", "each.whole")


def _value(text: Column, counts: Column) -> Column:
    """Return a value as a double, and as an integer where it is a counter's."""
    number = double(text, FLOAT)
    integer = sql.coalesce(sql.when(text.rlike(NUMBER), text.try_cast("bigint")), whole(number))
    return sql.struct(
        sql.when(counts, integer.cast("double")).otherwise(number).alias("value"),
        sql.when(counts, integer).alias("whole"),
    )


def _time_us(text: Column) -> Column:
    """Return a time in microseconds, or null."""
    matched = text.rlike(_ISO)
    zoned = sql.when(sql.regexp_extract(text, _ISO, 1) == "", sql.concat(text, sql.lit("Z"))).otherwise(text)
    moment = sql.when(matched, sql.upper(zoned).try_cast("timestamp"))
    micros = sql.rint(double(text) * 1000.0)
    return sql.coalesce(sql.unix_micros(moment), whole(micros))


def _bits(text: Column) -> Column:
    """Return traffic types as the 64 bits a bigint has; they may be sent with or without a sign."""
    unsigned = text.try_cast("decimal(20,0)")
    # As text, because a Python int of this size is no literal.
    all_bits = sql.lit(str(1 << 64)).cast("decimal(20,0)")
    wrapped = sql.when(unsigned < all_bits, (unsigned - all_bits).try_cast("bigint"))
    return sql.when(text.rlike(r"^-?+[0-9]++\z"), sql.coalesce(text.try_cast("bigint"), wrapped))


def _reason() -> Column:
    given = sql.col("given")
    named = sql.coalesce(given["id"] != "", given["name"] != "", sql.lit(False))
    return (
        sql.when(~sql.coalesce(sql.col("text").startswith("{"), sql.lit(False)), "not a JSON object")
        .when(~named, "neither an id nor a name")
        .when(sql.col("kind").isNull(), "not a type: counter, gauge and timer are")
        .when(given["tags"].isNotNull() & sql.col("tags").isNull(), "tags is not an object of texts")
        .when(_lacks_a_value() & (given["type"] != "counter"), "the value is not a number")
        .when(given["time"].isNotNull() & sql.col("time_us").isNull(), "the time is not a time")
        .when(given["traffic"].isNotNull() & sql.col("own_bits").isNull(), "traffic is not 64 bits")
        .when(_lacks_a_value(), "a counter that is not a 64-bit integer")
    )


def _lacks_a_value() -> Column:
    return sql.exists("values", lambda each: each["value"].isNull())
