"""The frames that a report is made of: messages, the node's events, and its counts.

Owns where they come from (a data directory, a node, tables of an archive) and what is done where columns are missing.
Invariant: asks the source for the columns that are used and no others; a column that is absent is null, and known to be
absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sql

from penstock.errors import ConfigError
from penstock.pipeline.jobs.report import own
from penstock.pipeline.jobs.report.options import COUNTS_TOPIC, EVENTS_TOPIC, OWN_PREFIX, Report, check_names, moment
from penstock.pipeline.lake.table import format_of, table
from penstock.pipeline.options import parsed
from penstock.pipeline.schema import struct
from penstock.pipeline.store import opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Frames(NamedTuple):
    """What a report is made of; None where there is none."""

    messages: DataFrame
    events: DataFrame | None = None
    counts: DataFrame | None = None


def frames(
    spark: SparkSession,
    options: Report,
    *,
    path: str = "",
    url: str = "",
    token: str = "",
    tls_roots: str = "",
    tables: Sequence[str] = (),
) -> Frames:
    """Return the messages a report is about, and the node's events and counts if there are any.

    `path` is a data directory and `url` a node, as in the source. With `tables`, directories of archives, the messages
    are theirs; then so are events and counts, unless there is a path or url to have them from.
    """
    if not (path or url or tables):
        raise ConfigError("where are the messages? Name a data directory (path), a node (url) or tables of an archive")
    messages = [_table(spark, place) for place in tables]
    nodes = {kind: _own(messages, kind) for kind in (EVENTS_TOPIC, COUNTS_TOPIC)}
    if path or url:
        words = {"path": path, "url": url, "token": token, "tlsRoots": tls_roots}
        live, nodes = _live(spark, options, {name: value for name, value in words.items() if value}, not tables)
        messages = messages or live
    found = _together(messages)
    empty = spark.createDataFrame([], struct(Report.COLUMNS)) if found is None else found
    return Frames(empty, _together(nodes[EVENTS_TOPIC]), _together(nodes[COUNTS_TOPIC]))


def _own(tables: Sequence[DataFrame], kind: str) -> list[DataFrame]:
    """Return what tables of an archive have of topics that nodes keep of themselves; one without any knows of none."""
    found = [
        each.where(own.is_of(sql.col("topic"), kind)).select(*Report.EVENT_COLUMNS)
        for each in tables
        if {"topic", *Report.EVENT_COLUMNS} <= set(each.columns)
    ]
    return [each for each in found if not each.isEmpty()]


def _table(spark: SparkSession, path: str) -> DataFrame:
    """Return a table of an archive, whichever of the formats it has."""
    return table(path, format=format_of(path), partition_by=None).read(spark)


def _live(
    spark: SparkSession, options: Report, words: Mapping[str, str], messages: bool
) -> tuple[list[DataFrame], dict[str, list[DataFrame]]]:
    """Return what a node or its directory has; a topic that was asked for by name must be there."""
    store = opened(parsed({**words, "subscribePattern": ".*"}))
    there = store.names()
    if messages:
        check_names(options, there)
    wanted = list(options.topics) or [name for name in there if not name.startswith(OWN_PREFIX)]
    times: dict[str, str] = {}
    if options.since_us is not None:
        times["startingTimestamp"] = str(max(options.since_us // 1000, 0))
    if options.until_us is not None:
        times["endingTimestamp"] = str(max(-(-options.until_us // 1000), 0))

    def read(names: Sequence[str], columns: Sequence[str], more: Mapping[str, str]) -> DataFrame:
        reader = spark.read.format("penstock").options(**words, **more)
        return reader.options(subscribe=json.dumps(names), columns=json.dumps(columns), failOnDataLoss="false").load()

    found = [read(wanted, Report.COLUMNS, times)] if wanted and messages else []
    kept = {kind: list(own.found(store, kind, there)) for kind in (EVENTS_TOPIC, COUNTS_TOPIC)}
    return found, {kind: [read(names, Report.EVENT_COLUMNS, {})] if names else [] for kind, names in kept.items()}


def _together(frames: Sequence[DataFrame]) -> DataFrame | None:
    found: DataFrame | None = None
    for each in frames:
        found = each if found is None else found.unionByName(each, allowMissingColumns=True)
    return found


def wanted(messages: DataFrame, options: Report) -> DataFrame:
    """Return the messages in the range and of the topics, with every column that is read, null where it is missing."""
    types = struct(Report.COLUMNS)
    present = set(messages.columns)
    found = messages
    if "topic" in present and options.topics:
        found = found.where(sql.col("topic").isin(list(options.topics)))
    elif "topic" in present:
        found = found.where(~sql.col("topic").startswith(OWN_PREFIX))
    # An archive is partitioned by day, so that days outside of the range are not even opened.
    dated = dict(messages.dtypes).get("day") == "date"
    if "timestamp" in present and options.since_us is not None:
        first = moment(options.since_us)
        found = found.where(sql.col("timestamp") >= sql.lit(first))
        found = found.where(sql.col("day") >= sql.lit(first.date())) if dated else found
    if "timestamp" in present and options.until_us is not None:
        end = moment(options.until_us)
        found = found.where(sql.col("timestamp") < sql.lit(end))
        found = found.where(sql.col("day") <= sql.lit(end.date())) if dated else found
    columns = [
        sql.col(field.name) if field.name in present else sql.lit(None).cast(field.dataType).alias(field.name)
        for field in types.fields
    ]
    # Names have a byte at least, so the empty one is free for messages whose topic was not recorded.
    return found.select(*columns).withColumn("topic", sql.coalesce("topic", sql.lit("")))
