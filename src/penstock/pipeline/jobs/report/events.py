"""The node's delivery history, `_penstock.events`: what happened, and how often.

Owns the form of a run of events. Sampled events count `one_in` times. Invariant: an event counts where its own time
lies in the range; a run that cannot be read counts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from penstock.pipeline.jobs.report.census import grouping, named
from penstock.pipeline.jobs.report.options import moment
from penstock.pipeline.jobs.report.span import HOUR_US

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.pipeline.jobs.report.span import Span

RUN = (
    "event string, topic string, subscription string, source string, reason string, one_in bigint, count bigint, "
    "shard array<int>, offset array<bigint>, at_us array<bigint>, attempts array<int>"
)
#: Messages that were published so long before the range are still found when they are delivered in it.
BEFORE_US = HOUR_US
#: Rows of a set and topic that are kept.
ROWS_MAX = 5_000


def runs(events: DataFrame, span: Span) -> DataFrame:
    """Return the runs that may have to do with the range, parsed."""
    near = events.where(
        (sql.col("timestamp") >= sql.lit(moment(span.since_us - BEFORE_US)))
        & (sql.col("timestamp") < sql.lit(moment(span.until_us + HOUR_US)))
    )
    run = sql.from_json(sql.col("body").cast("string"), RUN)
    parsed = near.select(sql.unix_micros("timestamp").alias("written_us"), run.alias("run"))
    known = sql.col("run.event").isNotNull() & sql.col("run.topic").isNotNull()
    return parsed.where(known).select("written_us", "run.*").withColumn("one_in", _one_in())


def _one_in() -> Column:
    return sql.greatest(sql.coalesce(sql.col("one_in"), sql.lit(1)), sql.lit(1))


def counts(runs: DataFrame, span: Span, shown: Sequence[str], topics_max: int) -> DataFrame:
    """Return how many events of each kind: by subscription and reason, and by step of time.

    Topics that are shown already come first, then those with most events; the topics beyond are null, together.
    """
    times = sql.coalesce("at_us", sql.array("written_us"))
    inside = sql.filter(times, lambda at: (at >= span.since_us) & (at < span.until_us))
    many = sql.when(sql.col("at_us").isNull(), sql.coalesce("count", sql.lit(0))).otherwise(sql.lit(1))
    flat = runs.select(
        "topic",
        "event",
        "subscription",
        "reason",
        "one_in",
        (many * sql.col("one_in")).alias("weight"),
        sql.explode(inside).alias("at_us"),
    ).withColumn("step", span.step_of(sql.col("at_us")))
    ours = ["topic", "event", "subscription", "reason", "step"]
    sets = {"events": ["topic", "event", "subscription", "reason"], "course": ["topic", "event", "step"]}
    found = flat.groupingSets(list(sets.values()), *ours).agg(
        sql.grouping_id().alias("set"), sql.sum("weight").alias("events"), sql.max("one_in").alias("one_in")
    )
    most = Window.partitionBy("set", "topic")
    first = Window.partitionBy("set").orderBy(sql.col("topic").isin(list(shown)).desc(), sql.desc("weight"), "topic")
    ranked = found.withColumn("weight", sql.sum("events").over(most)).withColumn("rank", sql.dense_rank().over(first))
    is_shown = (sql.col("rank") <= topics_max) | sql.col("topic").isin(list(shown))
    together = (
        ranked.withColumns(
            {
                "topic": sql.when(is_shown, sql.col("topic")),
                "subscription": sql.when(is_shown, sql.col("subscription")),
            }
        )
        .groupBy("set", *ours)
        .agg(sql.sum("events").alias("events"), sql.max("one_in").alias("one_in"))
    )
    return heaviest(together, {kind: grouping(ours, names) for kind, names in sets.items()}, "events")


def heaviest(found: DataFrame, numbers: dict[str, int], weight: str) -> DataFrame:
    """Return the heaviest rows of each set and topic, with the set's name."""
    found = found.withColumn("kind", named(numbers)).drop("set")
    first = Window.partitionBy("kind", "topic").orderBy(sql.desc(weight))
    return found.withColumn("place", sql.row_number().over(first)).where(sql.col("place") <= ROWS_MAX).drop("place")
