"""Dedupe: of messages that say the same, the first one stays.

Owns what "the same" means and for how long. Rows without the chosen id are never duplicates.
Invariant: of two rows of one id that are less than `within` apart at most one stays, in a stream as in a batch, unless
one of them came too late for the watermark; docs/pipeline.md says where the two differ otherwise.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from penstock.errors import ConfigError
from penstock.pipeline.jobs.output import Output
from penstock.pipeline.jobs.thinning import ID, TIME, Thinned
from penstock.pipeline.jobs.watermark import TRUE_DELAY, WATERMARK
from penstock.units.quantity import parse_duration

By = Literal["message_id", "dedup", "key", "body", "key+body"]

MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
#: Helper columns; none of them is in the result.
RUN, SPAN = "_run", "_span"
#: Rows of one time come in the order of their places.
PLACE = ("topic", "shard", "offset")


class Dedupe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of the job."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("topic", "shard", "offset", "timestamp", "key", "body", "message_id", "dedup")

    by: By = "message_id"
    #: How long an id is remembered, by the rows' `timestamp`.
    within: str = "10m"
    #: The same id in two topics is the same message, too.
    across_topics: bool = False
    #: In a stream, how much older than the newest a row may be; empty: as old as ids are remembered. Later steps wait
    #: for as long.
    lateness: str = ""

    def __post_init__(self) -> None:
        _checked("within", self.within, MICROSECOND_NS)
        if self.lateness:
            _checked("lateness", self.lateness, MILLISECOND_NS)

    @property
    def within_us(self) -> int:
        """How long an id is remembered."""
        return parse_duration(self.within) // MICROSECOND_NS

    @property
    def lateness_us(self) -> int:
        """How old a row may be."""
        return parse_duration(self.lateness) // MICROSECOND_NS if self.lateness else self.within_us


def _checked(key: str, text: str, unit_ns: int) -> None:
    try:
        length_ns = parse_duration(text)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
    if length_ns < unit_ns or length_ns % unit_ns:
        unit = "microseconds" if unit_ns == MICROSECOND_NS else "milliseconds"
        raise ConfigError(f'{key} is "{text}": whole {unit}, one at least; write "10m" or "1d"')


def deduped(frame: DataFrame, options: Dedupe) -> Output:
    """Return the frame without rows whose id came before, with the columns it has."""
    if "timestamp" not in frame.columns:
        raise ConfigError("dedupe needs the column timestamp: ask the source for it")
    marked = frame.withColumn(ID, identity(frame, options))
    if frame.isStreaming:
        return Output(_watched(marked, options).dropDuplicatesWithinWatermark([ID]).drop(ID))
    return Output(_first_of_each(marked, options.within_us).select(*frame.columns))


def _watched(marked: DataFrame, options: Dedupe) -> DataFrame:
    """Return a stream with its watermark."""
    if not options.lateness:
        return marked.withWatermark("timestamp", f"{options.within_us} microseconds")
    # A millisecond more, so that a rollup behind it may have the same lateness.
    delay_ms = options.lateness_us // 1000 + 1
    watched = marked.withWatermark("timestamp", f"{delay_ms} milliseconds")
    # Spark remembers an id for as long as the column's mark says, whatever the watermark's delay is.
    marks = {WATERMARK: max(1, -(-options.within_us // 1000)), TRUE_DELAY: delay_ms}
    return watched.withMetadata("timestamp", marks)


def identity(frame: DataFrame, options: Dedupe) -> Column:
    """Return what rows that say the same have in common: 32 bytes, however long the parts are."""
    there = frame.columns
    parts = [_cell(there, name, "binary") for name in options.by.split("+")]
    scope = sql.lit(None).cast("string") if options.across_topics else _cell(there, "topic", "string")
    digest = _digest(sql.lit(options.by), scope, *parts)
    # The body is always there, so that a row without a key has an id by key and body.
    missing = parts[-1].isNull()
    place = _digest(sql.lit("place"), *(_cell(there, name, "string") for name in PLACE))
    return sql.when(missing, place).otherwise(digest)


def _cell(columns: list[str], name: str, kind: str) -> Column:
    return sql.col(name).cast(kind) if name in columns else sql.lit(None).cast(kind)


def _digest(*parts: Column) -> Column:
    """Return the hash of parts, each with its length before it, so that no two lists of parts look alike."""
    pieces: list[Column] = []
    for part in parts:
        cell = part.cast("binary")
        length = sql.coalesce(sql.concat(sql.octet_length(cell).cast("string"), sql.lit(":")), sql.lit("-"))
        pieces += [length.cast("binary"), sql.coalesce(cell, sql.lit(b""))]
    return sql.unhex(sql.sha2(sql.concat(*pieces), 256))


def _first_of_each(marked: DataFrame, within_us: int) -> DataFrame:
    """Return the first row of each id, and each that is at least `within` after the last one that stayed."""
    places = [sql.col(name) for name in PLACE if name in marked.columns]
    order = Window.partitionBy(ID).orderBy(TIME, *places)
    timed = marked.withColumn(TIME, sql.unix_micros("timestamp"))
    # Copies without a pause of `within` make a run; how it began decides only as far as it goes.
    begins = sql.coalesce(sql.col(TIME) - sql.lag(TIME).over(order) >= within_us, sql.lit(True))
    runs = timed.withColumn("_begins", begins).withColumn(RUN, sql.sum(sql.col("_begins").cast("int")).over(order))
    whole = Window.partitionBy(ID, RUN)
    runs = runs.withColumn(SPAN, sql.max(TIME).over(whole) - sql.min(TIME).over(whole))
    short = runs.where((sql.col(SPAN) < within_us) & sql.col("_begins")).drop("_begins", SPAN)
    # Few ids are seen all the time: those are gone through in order, batch by batch.
    long = runs.where(sql.col(SPAN) >= within_us).drop("_begins", SPAN)
    ordered = long.repartition(ID).sortWithinPartitions(ID, TIME, *places)
    return short.unionByName(ordered.mapInArrow(Thinned(within_us), long.schema))
