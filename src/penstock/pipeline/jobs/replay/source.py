"""Where replayed messages come from: ranges of topics, or a version of a lake table.

Owns how a range or a step becomes a DataFrame of messages, in the order of their shards.
Invariant: what a settled source gives for some stretches never changes; what is gone is an error, never left out.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import NamedTuple, Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from penstock.client.connection import Access, Connection
from penstock.client.wire import Hold, TopicInfo
from penstock.errors import ConfigError, PenstockError, Refusal
from penstock.pipeline.hold import RENEW_S
from penstock.pipeline.jobs.replay.options import Bound, Replay
from penstock.pipeline.jobs.replay.plan import Plan, Step, Stretch
from penstock.pipeline.lake.table import Table, table
from penstock.pipeline.options import parsed
from penstock.pipeline.plan.document import Place
from penstock.pipeline.planning import subscribed
from penstock.pipeline.schema import TYPES
from penstock.pipeline.store import Store, opened
from penstock.pipeline.target import parsed as target_of
from penstock.pipeline.target import running
from penstock.units.times import past

_log = logging.getLogger(__name__)

CALL_S = 10.0
NEEDED = ("topic", "shard", "offset", "timestamp", "body")
#: What a step may be chosen by and what it carries on: everything but the rests of nanoseconds.
COLUMNS = tuple(name for name in TYPES if name != "timestamp_ns")


class Settled(NamedTuple):
    """A source as it was when the plan was made."""

    stretches: tuple[Stretch, ...]
    incarnations: dict[str, int]
    shards: dict[str, int]
    version: int | None
    #: About how many rows there are before anything is chosen.
    rows: int


class Source(Protocol):
    """Messages that can be read in stretches."""

    def settle(self, now_ns: int) -> Settled:
        """Look what there is, now."""

    def whole(self, spark: SparkSession, settled: Settled) -> DataFrame:
        """Return everything, for counting."""

    def step(self, spark: SparkSession, plan: Plan, number: int) -> DataFrame:
        """Return the messages of one step, shard by shard in their order."""

    def close(self, plan: Plan) -> None:
        """Let go of what was held."""


def source_of(options: Replay) -> Source:
    """Return the source that the options name."""
    return TableSource(options) if options.table else TopicSource(options)


class TopicSource:
    """Ranges of topics, by the node or by its files."""

    def __init__(self, options: Replay) -> None:
        self._options = options
        self._words = options.node.options() | {"subscribe": json.dumps(list(options.topics))}
        self._store: Store = opened(parsed(self._words))
        self._held_s: float | None = None

    def settle(self, now_ns: int) -> Settled:
        """Return the offsets that the options mean now."""
        topics = subscribed(self._store, parsed(self._words))
        stretches, rows = [], 0
        for name, info in topics.items():
            starts = self._offsets(info, self._options.from_, "from", now_ns)
            ends = self._offsets(info, self._options.until, "until", now_ns)
            for shard, first, stop in zip(info.shards, starts, ends, strict=True):
                low, high = max(first, shard.start), min(stop, shard.end)
                if low < high:
                    stretches.append(Stretch(name, shard.shard, low, high))
                    rows += shard.rows
        incarnations = {name: info.incarnation for name, info in topics.items()}
        shards = {name: len(info.shards) for name, info in topics.items()}
        return Settled(tuple(stretches), incarnations, shards, None, rows)

    def _offsets(self, info: TopicInfo, bound: Bound, key: str, now_ns: int) -> list[int]:
        """Return for each shard the offset that a bound means."""
        if bound == "earliest":
            return [shard.start for shard in info.shards]
        if bound == "latest":
            return [shard.end for shard in info.shards]
        if isinstance(bound, str):
            return self._store.offsets_at(info, _time_ns(bound, now_ns, key))
        if isinstance(bound, int) and len(info.shards) > 1:
            return [bound] * len(info.shards)
        named = {"0": bound} if isinstance(bound, int) else bound
        found = [shard.start if key == "from" else shard.end for shard in info.shards]
        for shard, offset in named.items():
            if not shard.isdigit() or int(shard) >= len(info.shards):
                raise ConfigError(f"{key}: topic {info.name} has no shard {shard}; it has {len(info.shards)}")
            kept = info.shards[int(shard)]
            if not kept.start <= offset <= kept.end:
                raise ConfigError(
                    f"{key}: offset {offset} of shard {shard} of topic {info.name} is not kept; there are {kept.start} "
                    f"to {kept.end}"
                )
            found[int(shard)] = offset
        return found

    def whole(self, spark: SparkSession, settled: Settled) -> DataFrame:
        """Return everything, for counting."""
        counted = ("topic", "shard", "offset", "timestamp", "key", "headers", "body")
        return self._frame(spark, settled.stretches, COLUMNS if self._options.where else counted)

    def step(self, spark: SparkSession, plan: Plan, number: int) -> DataFrame:
        """Return the messages of one step."""
        for name, incarnation in plan.incarnations.items():
            info = self._store.topic(name)
            if info is None or info.incarnation != incarnation:
                raise Refusal("gone", f"topic {name} was deleted since replay {plan.name} was planned")
        self._hold(plan, number)
        return self._frame(spark, plan.steps[number].stretches, COLUMNS)

    def close(self, plan: Plan) -> None:
        """Let the node remove what it held for this replay; where none runs, nothing was held."""
        place = self._options.node
        if self._held_s is None or (not place.url and running(place.path) is None):
            return
        with suppress(PenstockError), Connection(node_of(place), CALL_S) as connection:
            connection.act("release-hold", {"name": _hold_name(plan)})

    def _frame(self, spark: SparkSession, stretches: Sequence[Stretch], columns: Sequence[str]) -> DataFrame:
        """Return rows whose tasks, one after the other, have the rows of each shard in their order."""
        names = list(dict.fromkeys(stretch.topic for stretch in stretches))
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for name in names:
            info = self._store.topic(name)
            if info is None:
                raise Refusal("gone", f"topic {name} was deleted while it was replayed")
            # From the earliest up to 0 is nothing, whatever is kept of a shard.
            starts[name] = {str(shard.shard): -2 for shard in info.shards}
            ends[name] = {str(shard.shard): 0 for shard in info.shards}
        for stretch in stretches:
            starts[stretch.topic][str(stretch.shard)] = stretch.start
            ends[stretch.topic][str(stretch.shard)] = stretch.end
        words = self._options.node.options() | {
            "subscribe": json.dumps(names),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "columns": ",".join(columns),
        }
        return spark.read.format("penstock").options(**words).load()

    def _hold(self, plan: Plan, number: int) -> None:
        """Keep what is still to be read against retention."""
        now_s = time.monotonic()
        if self._held_s is not None and now_s < self._held_s + RENEW_S:
            return
        self._held_s = now_s
        needed: dict[str, dict[int, int]] = {}
        for step in reversed(plan.steps[number:]):
            for stretch in step.stretches:
                needed.setdefault(stretch.topic, {})[stretch.shard] = stretch.start
        for name, starts in needed.items():
            info = self._store.topic(name)
            if info is None:
                continue  # which reading will say
            offsets = [starts.get(shard.shard, shard.end) for shard in info.shards]
            failed = self._store.hold(
                Hold(name=_hold_name(plan), topic=name, incarnation=info.incarnation, offsets=offsets)
            )
            if failed:
                _log.warning("topic %s is not held against retention: %s", name, failed)


class TableSource:
    """A version of a lake table."""

    def __init__(self, options: Replay) -> None:
        self._options = options
        self._table: Table = table(options.table, format=options.format, partition_by=None)

    def settle(self, now_ns: int) -> Settled:
        """Return the version that the options mean now."""
        facts = self._table.facts()
        if self._options.version is None and facts.files == 0:
            raise ConfigError(f"table {self._options.table} is empty or not there: nothing can be replayed from it")
        version = self._options.version
        if version is None and self._options.format == "delta":  # plain Parquet keeps no versions
            version = facts.version
        self._bounds = [
            _time_ns(bound, now_ns, key) if isinstance(bound, str) and bound not in ("earliest", "latest") else bound
            for bound, key in ((self._options.from_, "from"), (self._options.until, "until"))
        ]
        return Settled((), {}, {}, version, facts.rows)

    def whole(self, spark: SparkSession, settled: Settled) -> DataFrame:
        """Return everything between the bounds, for counting."""
        frame = self._frame(spark, settled.version)
        if self._options.topics:
            frame = frame.where(sql.col("topic").isin(*self._options.topics))
        for bound, said, low in zip(
            self._bounds, (self._options.from_, self._options.until), (True, False), strict=True
        ):
            if bound in ("earliest", "latest"):
                if (bound == "latest") is low:
                    frame = frame.where(sql.lit(False))
                continue
            if isinstance(said, str):
                frame = frame.where(_beside(sql.unix_micros("timestamp"), int(bound) // 1000, low))  # type: ignore[arg-type]
            elif isinstance(said, int):
                frame = frame.where(_beside(sql.col("offset"), said, low))
            else:
                for shard, offset in said.items():
                    frame = frame.where((sql.col("shard") != int(shard)) | _beside(sql.col("offset"), offset, low))
        return frame

    def step(self, spark: SparkSession, plan: Plan, number: int) -> DataFrame:
        """Return the messages of one step."""
        step: Step = plan.steps[number]
        chosen = reduce(or_, (_within(stretch) for stretch in step.stretches))
        # Implied by the offsets; it lets Parquet leave out what is of another time.
        taken = sql.col("timestamp").between(
            sql.timestamp_micros(sql.lit(step.first_us)), sql.timestamp_micros(sql.lit(step.last_us))
        )
        rows = self._frame(spark, plan.version).where(chosen & taken)
        return rows.coalesce(1).sortWithinPartitions("topic", "shard", "offset")

    def close(self, plan: Plan) -> None:
        """A table is held by nobody."""

    def _frame(self, spark: SparkSession, version: int | None) -> DataFrame:
        frame = self._table.read(spark, version=version)
        for name in NEEDED:
            if name not in frame.columns:
                raise ConfigError(f"table {self._options.table} has no column {name}: it is no archive of messages")
        return frame


def _within(stretch: Stretch) -> Column:
    place = (sql.col("topic") == stretch.topic) & (sql.col("shard") == stretch.shard)
    return place & (sql.col("offset") >= stretch.start) & (sql.col("offset") < stretch.end)


def _beside(column: Column, value: int, low: bool) -> Column:
    return column >= value if low else column < value


def _time_ns(text: str, now_ns: int, key: str) -> int:
    try:
        return past(text, now_ns, key)
    except Refusal:
        raise ConfigError(
            f"{key} is {text!r}: an offset, offsets by shard, earliest, latest, a time like 2026-01-31T12:00:00Z, or a "
            "duration back from now like 2h"
        ) from None


def _hold_name(plan: Plan) -> str:
    return f"replay-{plan.id}"


def node_of(place: Place) -> Access:
    """Return how to get to the node of a place now."""
    words = place.options()
    return target_of({name: value for name, value in words.items() if name != "path" or not place.url}).node()
