"""StatsD lines: `name:value|type`, then `|@rate`, `|#tags` and `|Ttime` in any order.

Owns the grammar. Types are c, g, ms and h (a timer as well); sets and gauges that are relative have no aggregate here
and are refused. What a DogStatsD client says of its container (`|c:`, `|e:`, `|card:`) is read over.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from penstock.pipeline.jobs.rollup.aggregations import COUNTER, GAUGE, TIMER
from penstock.pipeline.jobs.rollup.numbers import double, scaled, whole
from penstock.pipeline.jobs.rollup.series import series

_SECTIONS = r"^(?:\|(?:@[^|]*+|#[^|]*+|T[0-9]++|(?:c|e|card):[^|]*+))*+\z"


def parsed(lines: DataFrame) -> DataFrame:
    """Return lines with what they say: id, kind, value, whole, time_us, and a `reason` where that is no sample."""
    text, number, rest = sql.col("text"), sql.col("number"), sql.col("rest")
    cut = (
        lines.withColumn("head", sql.substring_index(text, "|", 1))
        .withColumn("tail", sql.expr("substring(text, length(head) + 2)"))
        .withColumn("code", sql.substring_index(sql.col("tail"), "|", 1))
        .withColumn("rest", sql.expr("substring(tail, length(code) + 1)"))
        .withColumn("name", sql.substring_index(sql.col("head"), ":", 1))
        .withColumn("number", sql.expr("substring(head, length(name) + 2)"))
    )
    read = (
        cut.withColumn("kind", _kind(sql.col("code")))
        .withColumn("value", double(number))
        .withColumn("rate_text", _section(rest, "@", "@([^|]*+)"))
        .withColumn("rate", double(sql.col("rate_text")))
        .withColumn("whole", sql.when(sql.col("kind") == COUNTER, _whole(number)))
        .withColumn("time_us", scaled(_section(rest, "T", "T([0-9]++)"), 1_000_000))
    )
    return read.withColumns(
        {
            "reason": sql.when(sql.col("reason").isNotNull(), sql.col("reason")).otherwise(_reason()),
            "id": series(sql.col("name"), _tags(_section(rest, "#", "#([^|]*+)"))),
            "value": sql.when(sql.col("kind") == COUNTER, sql.col("whole").cast("double")).otherwise(sql.col("value")),
        }
    )


def _kind(code: Column) -> Column:
    return sql.when(code == "c", COUNTER).when(code == "g", GAUGE).when((code == "ms") | (code == "h"), TIMER)


def _section(rest: Column, mark: str, pattern: str) -> Column:
    """Return the text of a section, or null where the line has none like it."""
    return sql.when(rest.contains("|" + mark), sql.regexp_extract(rest, r"\|" + pattern, 1))


def _whole(number: Column) -> Column:
    """Return the integer that a counter adds: as it stands, or divided by the rate and rounded, halves to even."""
    rate, value = sql.col("rate"), sql.col("value")
    as_sent = sql.coalesce(sql.when(value.isNotNull(), number.try_cast("bigint")), whole(value))
    return sql.when(rate.isNull() | (rate == 1.0), as_sent).otherwise(whole(sql.rint(sql.try_divide(value, rate))))


def _tags(text: Column) -> Column:
    """Return tags as pairs; one without a colon has an empty value."""
    parts = sql.filter(sql.split(text, ","), lambda part: part != "")
    return sql.transform(
        parts,
        lambda part: sql.struct(
            sql.substring_index(part, ":", 1).alias("key"),
            sql.when(part.contains(":"), sql.substr(part, sql.instr(part, ":") + 1)).otherwise("").alias("value"),
        ),
    )


def _reason() -> Column:
    head, tail, code, rest = (sql.col(name) for name in ("head", "tail", "code", "rest"))
    value, number, rate = sql.col("value"), sql.col("number"), sql.col("rate")
    signed = number.startswith("+") | number.startswith("-")
    return (
        sql.when((tail == "") | (sql.col("name") == "") | ~head.contains(":"), "not a StatsD line")
        .when(code == "s", "a set, which has no aggregate")
        .when(sql.col("kind").isNull(), "not a StatsD type: c, g, ms and h are")
        .when((rest != "") & ~rest.rlike(_SECTIONS), "a section that is no rate, tags or time")
        .when(value.isNull(), "the value is not a number")
        .when((code == "g") & signed, "a relative gauge, which needs all values before it")
        .when(
            sql.col("rate_text").isNotNull() & ~sql.coalesce((rate > 0) & (rate <= 1), sql.lit(False)),
            "the rate is not in (0, 1]",
        )
        .when(rest.contains("|T") & sql.col("time_us").isNull(), "the time is not a time")
        .when((code == "c") & sql.col("whole").isNull(), "a counter that is not a 64-bit integer")
    )
