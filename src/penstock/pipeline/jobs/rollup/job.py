"""The job: messages in, aggregates, dead letters and messages of aggregates out.

Owns how samples, windows and aggregations are put together on a DataFrame: one read of the source and one stateful
operator for all policies.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from penstock.filters.storage import HEADER as STORAGE_POLICY
from penstock.pipeline.jobs.output import Output
from penstock.pipeline.jobs.rollup import m3
from penstock.pipeline.jobs.rollup.aggregations import KINDS, SUFFIXES, accumulators, totals, value
from penstock.pipeline.jobs.rollup.options import Rollup
from penstock.pipeline.jobs.rollup.samples import M3, expanded, message_columns, samples
from penstock.pipeline.jobs.rollup.windows import is_late, watched, windowed

#: Names the counts in a query's progress: dead letters, windows that samples came too late for, and samples.
OBSERVED = "dead.rollup"
LATE = "late"

_PREFIXES = {"counter": "stats.counts.", "gauge": "stats.gauges.", "timer": "stats.timers."}
#: What a group's samples are reduced to, before they are told apart by window.
_USED = ("id", "kind", "value", "whole", "bits", "event_us", "arrival_us")


def rolled(frame: DataFrame, options: Rollup) -> Output:
    """Return the aggregates of the samples in messages, one row per series, aggregation, policy and window."""
    source = watched(frame, options.lateness_us()) if frame.isStreaming else frame
    read = samples(source, options.format, options.future_us(), options.storage_policies())
    used = expanded(_counted(read, options).where("reason IS NULL"), options.format)
    # The first of those with the greatest time is last, so the least of this.
    order = sql.struct(-sql.col("event_us"), "topic", "shard", "offset", "position")
    asked = ("policies",) if options.format == M3 else ()
    ordered = used.select(*_USED, *asked, order.alias("order"))
    chosen = options.aggregations.by_kind()
    takes = m3.takes if options.format == M3 else None
    windows = windowed(ordered, options.storage_policies(), options.lateness_us(), takes)
    groups = windows.groupBy("id", "kind", "policy", "window_end")
    first, *rest = (column.alias(name) for name, column in accumulators(chosen).items())
    # Dead letters wait for nothing, so they are read without a watermark.
    plain = read
    if source is not frame:
        plain = samples(frame, options.format, options.future_us(), options.storage_policies())
    dead = _dead(plain, message_columns(frame), options)
    written = m3.messages if options.output == "m3" else messages
    return Output(_aggregates(groups.agg(first, *rest), options), written, dead)


def messages(aggregates: DataFrame) -> DataFrame:
    """Return aggregates as messages: the key is the id, the event time the end of the window."""
    body = sql.struct(
        "id",
        "type",
        "aggregation",
        "policy",
        (sql.unix_micros("time") * 1000).alias("time_ns"),
        "value",
    )
    return aggregates.select(
        sql.col("id").cast("binary").alias("key"),
        sql.to_json(body).cast("binary").alias("body"),
        sql.to_json(sql.struct("policy", sql.col("policy").alias(STORAGE_POLICY))).alias("headers"),
        sql.col("time").alias("event_time"),
        "traffic",
    )


def _late_for(options: Rollup) -> list[Column]:
    late = [(policy, is_late(policy, options.lateness_us())) for policy in options.storage_policies()]
    return [m3.takes(policy) & missed if options.format == M3 else missed for policy, missed in late]


def _counted(read: DataFrame, options: Rollup) -> DataFrame:
    """Return the samples, counted on the way."""
    late = _late_for(options)
    usable = sql.col("reason").isNull()
    gone = ~usable | reduce(or_, late) if options.late == "dead" else ~usable
    misses = reduce(lambda one, other: one + other, (each.cast("int") for each in late))
    return read.observe(
        OBSERVED,
        sql.count_if(gone).alias("dead"),
        sql.sum(sql.when(usable, misses)).alias("late"),
        sql.count(sql.lit(1)).alias("samples"),
    )


def _aggregates(closed: DataFrame, options: Rollup) -> DataFrame:
    """Return one row per aggregate that is a number, named as asked for."""
    chosen = options.aggregations.by_kind()
    # The window's end loses its mark, so that no later step takes it for a watermark.
    summed = closed.selectExpr(
        *(name for name in closed.columns if name != "window_end"),
        "timestamp_micros(unix_micros(window_end)) AS time",
        *(f"{text} AS {name}" for name, text in totals(chosen).items()),
    )
    lists = " ".join(f"WHEN {code} THEN {_rows(kind, options)}" for code, kind in enumerate(KINDS))
    policies = _array(str(policy) for policy in options.storage_policies())
    exploded = summed.selectExpr("*", f"inline(CASE kind {lists} END)").where("value IS NOT NULL AND NOT isnan(value)")
    return exploded.selectExpr(
        "concat(prefix, id, suffix) AS id",
        "type",
        "aggregation",
        f"{policies}[policy] AS policy",
        "time",
        "value",
        "traffic",
        "samples",
    )


def _rows(kind: str, options: Rollup) -> str:
    """Return the aggregates of one type as an array of rows, in SQL."""
    chosen = options.aggregations.by_kind()
    rows = []
    for name in chosen[kind]:
        prefix, suffix = _affixes(kind, name, options.names)
        texts = {"type": kind, "aggregation": name, "prefix": prefix, "suffix": suffix}
        fields = ", ".join(f"'{key}', '{text}'" for key, text in texts.items())
        rows.append(f"named_struct({fields}, 'value', {value(name, chosen)})")
    return f"array({', '.join(rows)})"


def _array(texts: Iterable[str]) -> str:
    return f"array({', '.join(repr(text) for text in texts)})"


def _affixes(kind: str, name: str, names: str) -> tuple[str, str]:
    """Return what stands before and behind a series' id in the id of an aggregate."""
    ending = SUFFIXES.get(name, name)
    if names == "m3":
        return _PREFIXES[kind], ending
    dotted = names == "suffix" or (names == "usual" and kind == "timer")
    return "", f".{ending}" if dotted else ""


def _dead(read: DataFrame, names: list[str], options: Rollup) -> DataFrame:
    """Return the lines that cannot be used, each as a message with the line for a body."""
    reason, missed = sql.col("reason"), sql.lit(None).cast("string")
    if options.late == "dead":
        pairs = zip(options.storage_policies(), _late_for(options), strict=True)
        late = sql.concat_ws(",", *(sql.when(missing, str(policy)) for policy, missing in pairs))
        missed = sql.when(reason.isNull() & (late != ""), late)
    marked = read.withColumn("policy", missed).where(reason.isNotNull() | sql.col("policy").isNotNull())
    columns = [
        sql.coalesce(sql.col("text").cast("binary"), "body", sql.lit(b"")).alias("body")
        if name == "body"
        else sql.col(name)
        for name in names
    ]
    return marked.select(*columns, sql.coalesce(reason, sql.lit(LATE)).alias("reason"), "line", "policy")
