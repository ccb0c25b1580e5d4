"""Prometheus text: `name{label="value"} value [milliseconds]`, comments left out.

Owns the grammar. Every sample is a gauge, because a Prometheus counter is a state and no increment: summing what was
scraped would be wrong.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from penstock.pipeline.jobs.rollup.aggregations import GAUGE
from penstock.pipeline.jobs.rollup.numbers import FLOAT, double, scaled
from penstock.pipeline.jobs.rollup.series import series

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_QUOTED = r'"((?:[^"\\]++|\\[\\"n])*+)"'
_PAIR = rf"([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+{_QUOTED}"
_LABELS = rf"(?:[ \t]*+{_PAIR}[ \t]*+(?:,|(?=\}})))*+[ \t]*+"
#: Groups: name, labels, (the last pair's two), value, time.
_LINE = rf"^({_NAME})(?:[ \t]*+\{{({_LABELS})\}}[ \t]*+|[ \t]++)([^ \t]++)(?:[ \t]++(-?+[0-9]++))?+\z"
_VALUE_GROUP, _TIME_GROUP = 5, 6


def parsed(lines: DataFrame) -> DataFrame:
    """Return lines with what they say: id, kind, value, whole, time_us, and a `reason` where that is no sample."""
    text, labels = sql.col("text"), sql.col("labels")
    read = lines.where(text.isNull() | ~text.startswith("#")).withColumns(
        {
            "name": sql.regexp_extract(text, _LINE, 1),
            "labels": sql.when(text.contains("{"), sql.regexp_extract(text, _LINE, 2)),
            "value": double(sql.regexp_extract(text, _LINE, _VALUE_GROUP), FLOAT),
            "time_text": sql.regexp_extract(text, _LINE, _TIME_GROUP),
        }
    )
    timed = read.withColumn("time_us", scaled(sql.col("time_text"), 1000))
    reason = (
        sql.when(sql.col("name") == "", "not a line of Prometheus text")
        .when(sql.col("value").isNull(), "the value is not a number")
        .when((sql.col("time_text") != "") & sql.col("time_us").isNull(), "the time is not a time")
    )
    return timed.withColumns(
        {
            "reason": sql.when(sql.col("reason").isNotNull(), sql.col("reason")).otherwise(reason),
            "id": series(sql.col("name"), _tags(labels)),
            "kind": sql.lit(GAUGE),
            "whole": sql.lit(None).cast("bigint"),
        }
    )


def _tags(labels: Column) -> Column:
    """Return labels as pairs, with the escapes of their values taken off."""
    names = sql.regexp_extract_all(labels, sql.lit(_PAIR), sql.lit(1))
    values = sql.regexp_extract_all(labels, sql.lit(_PAIR), sql.lit(2))
    return sql.zip_with(
        names, values, lambda name, value: sql.struct(name.alias("key"), _unescaped(value).alias("value"))
    )


def _unescaped(value: Column) -> Column:
    r"""Return a label's value. Between two `\\` an escape is `\"` or `\n`, and nothing else has a backslash."""
    pieces = sql.transform(
        sql.split(value, r"\\\\"),
        lambda piece: sql.replace(sql.replace(piece, sql.lit('\\"'), sql.lit('"')), sql.lit("\\n"), sql.lit("\n")),
    )
    return sql.when(value.contains("\\"), sql.array_join(pieces, "\\")).otherwise(value)
