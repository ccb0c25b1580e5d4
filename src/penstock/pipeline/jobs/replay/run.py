"""Running a replay: plan it once, then write step after step, each once.

Owns the pace, the progress and the stop between two steps. Each step is written under (the plan's id, its number), so
the node skips one that it has, whoever wrote it.
Invariant: a replay that was killed and is run again ends with every chosen row written once.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from penstock.client.connection import Connection
from penstock.errors import ConfigError, Refusal
from penstock.pipeline.frame import TAKEN
from penstock.pipeline.jobs.replay.options import TOPIC, Replay
from penstock.pipeline.jobs.replay.plan import Book, Bucket, Done, Plan, shares_of, steps_of
from penstock.pipeline.jobs.replay.source import CALL_S, Source, node_of, source_of
from penstock.units.times import shown

SECOND_NS = 1_000_000_000
#: A step at full speed: enough to make little of what a step costs, little enough to stop soon.
STEP_ROWS = 250_000
STEP_BYTES = 128 << 20
#: A plan must fit into the driver, so that slow replays of much have longer steps.
STEPS_MAX = 100_000
#: Rows are counted in pieces of a step's size by this, so that steps can be filled well.
PIECES = 8
#: The times that Spark and the log can both say.
TIME_US_MAX = ((1 << 63) - 1) // 1000
TIMES = ("event_time", "due", "expires")


class Pace(Protocol):
    """Time, as a replay needs it."""

    def now(self) -> int:
        """Return wall-clock nanoseconds since 1970."""

    def monotonic(self) -> int:
        """Return nanoseconds that never go back."""

    def rest(self, rest_ns: int) -> None:
        """Wait this long, or until the replay is asked to stop."""


class SystemPace:
    """The real time."""

    def __init__(self, stop: threading.Event) -> None:
        self.now = time.time_ns
        self.monotonic = time.monotonic_ns
        self._stop = stop

    def rest(self, rest_ns: int) -> None:
        """Wait this long, or until the replay is asked to stop."""
        self._stop.wait(rest_ns / SECOND_NS)


class Progress(msgspec.Struct, frozen=True):
    """How far a replay is after a step."""

    step: int
    steps: int
    rows_done: int
    rows: int
    #: Of this run.
    rows_per_s: float
    eta_s: float


class Outcome(msgspec.Struct, frozen=True):
    """What became of a run."""

    plan: Plan
    #: Rows written by this run.
    rows: int
    #: Whether all is written; if not, the same replay can be run again.
    finished: bool
    #: What to tell people.
    message: str


Told = Callable[[Progress], None]


def planned(spark: SparkSession, options: Replay, home: str, now_ns: int | None = None) -> Plan:
    """Return the plan of a replay without writing anything: the one there is, or the one that would be made."""
    found = _known(Book(home, options.chosen_name()), options)
    return found or _plan(spark, source_of(options), options, time.time_ns() if now_ns is None else now_ns)


def replay(
    spark: SparkSession,
    options: Replay,
    home: str,
    *,
    told: Told = lambda _: None,
    stop: threading.Event | None = None,
    pace: Pace | None = None,
) -> Outcome:
    """Write what is not written yet; `stop` ends it after a step, and then it can be run again."""
    stop = stop or threading.Event()
    pace = pace or SystemPace(stop)
    name = options.chosen_name()
    book = Book(home, name)
    with book.held():
        source = source_of(options)
        plan = _known(book, options)
        if plan is None:
            plan = _plan(spark, source, options, pace.now())
            if not plan.steps:
                return Outcome(plan, 0, True, "nothing to do: no message matches")
            book.settle(plan)
        done = book.done()
        if done.steps == len(plan.steps):
            message = (
                f"nothing to do: {name} was replayed on {shown(done.finished_ns)}, {done.rows} rows; to replay the "
                "same again, give it another name"
            )
            return Outcome(plan, 0, True, message)
        _make_targets(options, plan)
        return _Run(spark, options, source, book, plan, pace, stop, told).run(done)


@contextmanager
def ends_on(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """Give an event that is set when one of these signals comes; for the main thread."""
    stop = threading.Event()

    def hear(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, hear) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """One run over the steps that are left."""

    def __init__(
        self,
        spark: SparkSession,
        options: Replay,
        source: Source,
        book: Book,
        plan: Plan,
        pace: Pace,
        stop: threading.Event,
        told: Told,
    ) -> None:
        self._spark = spark
        self._options = options
        self._source = source
        self._book = book
        self._plan = plan
        self._pace = pace
        self._stop = stop
        self._told = told

    def run(self, done: Done) -> Outcome:
        plan, began_ns, rows = self._plan, self._pace.monotonic(), 0
        for number in range(done.steps, len(plan.steps)):
            self._wait(began_ns, rows)
            if self._stop.is_set():
                left = len(plan.steps) - number
                text = f"stopped: {plan.name} has {left} of {len(plan.steps)} steps left; run it again to go on"
                return Outcome(plan, rows, False, text)
            self._write(number)
            rows += plan.steps[number].rows
            last = number + 1 == len(plan.steps)
            done = Done(
                steps=number + 1,
                rows=done.rows + plan.steps[number].rows,
                finished_ns=self._pace.now() if last else 0,
            )
            self._book.note(done)
            self._tell(done, rows, self._pace.monotonic() - began_ns)
        self._source.close(plan)
        return Outcome(plan, rows, True, f"{plan.name}: {done.rows} rows were replayed")

    def _wait(self, began_ns: int, rows: int) -> None:
        """Wait until the rows of this run are no more than the rate allows."""
        if self._options.rate is None:
            return
        due_ns = began_ns + rows * SECOND_NS // self._options.rate
        while not self._stop.is_set() and (rest_ns := due_ns - self._pace.monotonic()) > 0:
            self._pace.rest(rest_ns)

    def _write(self, number: int) -> None:
        rows = _chosen(self._source.step(self._spark, self._plan, number), self._options)
        place = self._options.to_node or self._options.node
        words = {name: value for name, value in place.options().items() if name != "path" or not place.url}
        words |= {"txnAppId": f"replay/{self._plan.id}", "txnVersion": str(number), "keepShards": "true"}
        messages(rows, self._options, self._plan.shift_us).write.format("penstock").options(**words).mode(
            "append"
        ).save()

    def _tell(self, done: Done, rows: int, taken_ns: int) -> None:
        rate = rows * SECOND_NS / taken_ns if taken_ns > 0 else 0.0
        left = self._plan.rows - done.rows
        eta_s = left / rate if rate else 0.0
        self._told(Progress(done.steps, len(self._plan.steps), done.rows, self._plan.rows, rate, eta_s))


def messages(frame: DataFrame, options: Replay, shift_us: int) -> DataFrame:
    """Return rows as the messages that are written; `shard` goes along for those without a key."""
    there = frame.columns
    carried = [name for name in TAKEN if name in there and name not in (*TIMES, "topic")]
    if not options.keep_dedup and "dedup" in carried:
        carried.remove("dedup")
    pieces: list[Column] = []
    for number, text in enumerate(options.to.split(TOPIC)):
        pieces += [sql.col("topic")] * (number > 0) + [sql.lit(text)]
    times = [] if options.times == "none" else [_time(there, name, shift_us).alias(name) for name in TIMES]
    return frame.select(sql.concat(*pieces).alias("topic"), "shard", *carried, *times)


def _time(columns: list[str], name: str, shift_us: int) -> Column:
    own = sql.col(name) if name in columns else sql.lit(None).cast("timestamp")
    # The node says anew when it took a message; when that was first is told by event_time.
    time_ = sql.coalesce(own, sql.col("timestamp")) if name == "event_time" else own
    if not shift_us:
        return time_
    moved = sql.unix_micros(time_) + sql.lit(shift_us).cast("bigint")
    bounded = sql.least(sql.greatest(moved, sql.lit(-TIME_US_MAX)), sql.lit(TIME_US_MAX))
    return sql.when(time_.isNotNull(), sql.timestamp_micros(bounded))


def _chosen(frame: DataFrame, options: Replay) -> DataFrame:
    if not options.where:
        return frame
    try:
        chosen = frame.where(options.where)
        chosen.schema  # noqa: B018 - Spark Connect looks at it only now
    except AnalysisException as error:
        raise ConfigError(f"where cannot be used: {str(error).splitlines()[0]}") from None
    return chosen


def _known(book: Book, options: Replay) -> Plan | None:
    """Return the plan of a replay that was begun; ConfigError if it was another one."""
    plan = book.plan()
    if plan is not None and plan.words != options.words():
        words = options.words()
        changed = ", ".join(sorted(name for name in words if words[name] != plan.words.get(name))) or "its form"
        raise ConfigError(
            f"replay {plan.name} was planned on {shown(plan.made_ns)} with other words ({changed}): give this one "
            "another name, or use the same words"
        )
    return plan


def _plan(spark: SparkSession, source: Source, options: Replay, now_ns: int) -> Plan:
    settled = source.settle(now_ns)
    step_rows = STEP_ROWS if options.rate is None else min(options.rate, STEP_ROWS)
    step_rows = max(step_rows, settled.rows // STEPS_MAX)
    buckets: list[Bucket] = []
    if settled.stretches or options.table:
        buckets = _buckets(_chosen(source.whole(spark, settled), options), max(1, step_rows // PIECES))
    shift_us = 0
    if options.times == "shift":
        given = options.shift_us()
        first_us = min((bucket.first_us for bucket in buckets), default=0)
        shift_us = now_ns // 1000 - first_us if given is None else given
    targets = {bucket.topic: options.target(bucket.topic) for bucket in buckets}
    return Plan(
        id=uuid.uuid4().hex,
        name=options.chosen_name(),
        made_ns=now_ns,
        words=options.words(),
        incarnations=settled.incarnations,
        shards=settled.shards,
        version=settled.version,
        shift_us=shift_us,
        shares=tuple(shares_of(buckets, targets)),
        steps=tuple(steps_of(buckets, step_rows, STEP_BYTES)),
    )


def _buckets(frame: DataFrame, rows: int) -> list[Bucket]:
    """Return the rows counted in pieces of this many offsets."""
    lengths = [
        sql.coalesce(sql.octet_length(name), sql.lit(0)) for name in ("body", "key", "headers") if name in frame.columns
    ]
    size = sum(lengths[1:], lengths[0]).cast("bigint")
    time_us = sql.unix_micros("timestamp")
    counted = frame.groupBy("topic", "shard", sql.expr(f"offset DIV {rows}").alias("piece")).agg(
        sql.min("offset").alias("first"),
        sql.max("offset").alias("last"),
        sql.count(sql.lit(1)).alias("rows"),
        sql.sum(size).alias("bytes"),
        sql.min(time_us).alias("first_us"),
        sql.max(time_us).alias("last_us"),
    )
    columns = counted.select(*Bucket._fields).toArrow().to_pydict()
    return [Bucket(*cells) for cells in zip(*(columns[name] for name in Bucket._fields), strict=True)]


def _make_targets(options: Replay, plan: Plan) -> None:
    """Make topics that are not there, with as many shards as what they get came from."""
    shards: dict[str, int] = {}
    for share in plan.shares:
        shards[share.to] = max(shards.get(share.to, 0), share.shard + 1, plan.shards.get(share.topic, 0))
    with Connection(node_of(options.to_node or options.node), CALL_S) as connection:
        for name, count in shards.items():
            try:
                connection.act("create-topic", {"name": name, "settings": {"shards": count}})
            except Refusal as refusal:
                if refusal.code != "conflict":
                    raise
