"""What the rows of the jobs do inside the Spark process: Penstock's jobs, and the same written by hand.

Owns the functions a `Job` names. Runs where the session is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from penstock.pipeline.jobs.archive import dated
from penstock.pipeline.jobs.report import Report, report
from penstock.pipeline.jobs.rollup import Rollup, rolled
from penstock.pipeline.jobs.route import Route, Service, routed
from penstock.pipeline.lake.table import table

#: Five services and what they take; the second takes what has no traffic types as well.
TYPES = {f"type{number}": number for number in range(8)}
SERVICES = {
    "one": Service(allowed=("type0", "type1"), topic="one"),
    "two": Service(allowed=("type2",), is_default=True, topic="two"),
    "three": Service(allowed=("type1", "type3"), topic="three"),
    "four": Service(allowed=("type4", "type5"), topic="four"),
    "five": Service(allowed=("type7",), topic="five"),
}


def route(frame: DataFrame) -> DataFrame:
    """Return routed rows, by the job."""
    return routed(frame, Route(services=SERVICES, mapping=TYPES), {}).frame


def route_counted(frame: DataFrame) -> DataFrame:
    """Return routed rows, by the job, counted on the way."""
    return routed(frame, Route(services=SERVICES, mapping=TYPES, count=True), {}).frame


def route_by_hand(frame: DataFrame) -> DataFrame:
    """Return routed rows as somebody writes it who knows the masks: a list of takers, exploded."""
    conditions = {
        "one": "traffic & 3 != 0",
        "two": "traffic & 4 != 0 OR coalesce(traffic, 0) = 0",
        "three": "traffic & 10 != 0",
        "four": "traffic & 48 != 0",
        "five": "traffic & 128 != 0",
    }
    chosen = [
        sql.when(sql.expr(condition), sql.struct(sql.lit(name).alias("service"), sql.lit(name).alias("to")))
        for name, condition in conditions.items()
    ]
    takers = sql.filter(sql.array(*chosen), lambda taker: taker.isNotNull())
    kept = [name for name in frame.columns if name != "topic"]
    exploded = frame.withColumn("_taker", sql.explode(takers))
    return exploded.select("_taker.service", sql.col("_taker.to").alias("topic"), *kept)


def rollup(frame: DataFrame) -> DataFrame:
    """Return the aggregates of samples, by M3's defaults."""
    return rolled(frame, Rollup()).frame


def _archive(frame: DataFrame, options: Mapping[str, str]) -> None:
    """Add a frame to a table as the archive does."""
    table(options["path"]).append(dated(frame), "bench", 0)


def _report(frame: DataFrame, options: Mapping[str, str]) -> None:
    """Write a report on a frame."""
    page = report(frame, None, Report())
    with open(options["path"], "w", encoding="utf-8") as file:
        file.write(page.html)


WAYS: Mapping[str, Callable[[DataFrame], DataFrame]] = {
    "route": route,
    "route-counted": route_counted,
    "route-by-hand": route_by_hand,
    "rollup": rollup,
}
SINKS: Mapping[str, Callable[[DataFrame, Mapping[str, str]], None]] = {"archive": _archive, "report": _report}
