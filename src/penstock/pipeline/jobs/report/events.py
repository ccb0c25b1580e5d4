"""The node's delivery history, `_penstock.events`: what happened, how often, and how long each message took.

Sampled events count `one_in` times: the node keeps all events of a message or none. Invariant: an event counts where
its own time lies in the range; a run that cannot be read counts nothing; a topic that was deleted and made anew does
not mix its old messages with the new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from penstock.pipeline.jobs.report.counts import grouping, named, only
from penstock.pipeline.jobs.report.options import moment
from penstock.pipeline.jobs.report.scale import class_of
from penstock.pipeline.jobs.report.span import HOUR_US, SECOND_US
from penstock.pipeline.jobs.report.totals import ATTEMPTS_MAX, BEFORE_US, COARSE, ROWS_MAX, STATIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.pipeline.jobs.report.span import Span


RUN = (
    "event string, topic string, subscription string, source string, reason string, one_in bigint, count bigint, "
    "shard array<int>, offset array<bigint>, at_us array<bigint>, attempts array<int>"
)


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


def journeys(runs: DataFrame, due: DataFrame | None = None) -> DataFrame:
    """Return one row for each message and each subscription that it was delivered to.

    `latency_us` runs from when it was published, or due if that was later, to its first delivery; `lease_us` from its
    last delivery to the ack. Null is what is not known. `due` has topic, shard, offset and due of messages.
    """
    stations = _stations(runs, due)
    order = Window.partitionBy("topic", "shard", "offset").orderBy("at_us", "rank")
    at = order.rowsBetween(Window.unboundedPreceding, 0)
    after = order.rowsBetween(0, Window.unboundedFollowing)
    # A delivery in the same turn may have been noted just before the publish.
    published = [sql.last(_at("published"), True).over(at), sql.first(_at("published"), True).over(after)]
    seen = stations.withColumns(
        {"published_us": sql.coalesce(*published), "due_us": sql.last(_at("due"), True).over(at)}
    ).where(sql.col("subscription").isNotNull())
    # The rows of a message are together already, so this moves nothing.
    way = seen.groupBy("topic", "shard", "offset", "subscription", "published_us").agg(
        sql.max("one_in").alias("weight"),
        sql.max("due_us").alias("due_us"),
        sql.min(_at("delivered")).alias("delivered_us"),
        sql.max(_at("delivered")).alias("again_us"),
        sql.max(_at("acked")).alias("acked_us"),
        sql.greatest(sql.max("attempts"), sql.count(_at("delivered"))).cast("int").alias("attempts"),
    )
    begin = sql.when(sql.col("published_us").isNotNull(), sql.greatest("published_us", "due_us"))
    # Much less than none: what was published is another message, of a topic made anew.
    waited = sql.col("delivered_us") - begin
    lease = sql.col("acked_us") - sql.col("again_us")
    return way.where(sql.col("delivered_us").isNotNull()).select(
        "topic",
        "subscription",
        "weight",
        "delivered_us",
        sql.when(waited > -SECOND_US, waited).alias("latency_us"),
        sql.when(lease >= 0, lease).alias("lease_us"),
        sql.least("attempts", sql.lit(ATTEMPTS_MAX)).alias("attempts"),
    )


def measures(journeys: DataFrame, span: Span, shown: Sequence[str], busiest: Sequence[tuple[str, str]]) -> DataFrame:
    """Return latency, lease time and attempts by subscription, and latency by step of time for the busiest ones.

    These are pairs of topic and subscription.
    """
    inside = journeys.where((sql.col("delivered_us") >= span.since_us) & (sql.col("delivered_us") < span.until_us))
    latency = sql.when(sql.col("latency_us") < 0, 0).otherwise(sql.col("latency_us"))
    busy = sql.lit(False)
    for topic, subscription in busiest:
        busy = busy | ((sql.col("topic") == topic) & (sql.col("subscription") == subscription))
    flat = inside.select(
        only(sql.col("topic"), shown).alias("topic"),
        sql.when(sql.col("topic").isin(list(shown)), sql.col("subscription")).alias("subscription"),
        "weight",
        latency.alias("latency_us"),
        "lease_us",
        "attempts",
        class_of(latency).alias("latency_class"),
        class_of(sql.col("lease_us")).alias("lease_class"),
        sql.when(busy, span.step_of(sql.col("delivered_us"))).alias("step"),
        sql.when(busy, class_of(latency, COARSE)).alias("coarse_class"),
    )
    ours = ["topic", "subscription", "latency_class", "lease_class", "attempts", "step", "coarse_class"]
    sets = {
        "latency": ["topic", "subscription", "latency_class"],
        "lease": ["topic", "subscription", "lease_class"],
        "attempts": ["topic", "subscription", "attempts"],
        "course": ["topic", "subscription", "step", "coarse_class"],
    }
    found = flat.groupingSets(list(sets.values()), *ours).agg(
        sql.grouping_id().alias("set"),
        sql.sum("weight").alias("messages"),
        sql.count(sql.lit(1)).alias("sample"),
        sql.min("latency_us").alias("latency_least"),
        sql.max("latency_us").alias("latency_greatest"),
        sql.min("lease_us").alias("lease_least"),
        sql.max("lease_us").alias("lease_greatest"),
    )
    return heaviest(found, {kind: grouping(ours, names) for kind, names in sets.items()}, "messages")


def due_times(messages: DataFrame) -> DataFrame:
    """Return the messages that had to wait for their time."""
    waits = sql.col("due").isNotNull() & (sql.col("due") > sql.col("timestamp"))
    return messages.where(waits).select("topic", "shard", "offset", "due")


def _stations(runs: DataFrame, due: DataFrame | None) -> DataFrame:
    """Return one row for each event of a message's way."""
    attempts = sql.coalesce("attempts", sql.array().cast("array<int>")).alias("attempts")
    found = (
        runs.where(sql.col("event").isin(*STATIONS))
        .withColumn("each", sql.explode(sql.arrays_zip("shard", "offset", "at_us", attempts)))
        .select("topic", "event", "subscription", "one_in", "each.shard", "each.offset", "each.at_us", "each.attempts")
        .where(sql.col("shard").isNotNull() & sql.col("offset").isNotNull() & sql.col("at_us").isNotNull())
    )
    if due is not None:
        timed = due.select(
            "topic",
            sql.lit("due").alias("event"),
            sql.lit(None).cast("string").alias("subscription"),
            sql.lit(1).cast("bigint").alias("one_in"),
            "shard",
            "offset",
            sql.unix_micros("due").alias("at_us"),
            sql.lit(None).cast("int").alias("attempts"),
        )
        found = found.unionByName(timed)
    rank = sql.array_position(sql.array(*(sql.lit(name) for name in STATIONS)), sql.col("event"))
    return found.withColumn("rank", rank)


def _at(event: str) -> Column:
    return sql.when(sql.col("event") == event, sql.col("at_us"))
