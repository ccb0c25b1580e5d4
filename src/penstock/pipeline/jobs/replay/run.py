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
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from penstock.client.connection import Connection
from penstock.errors import ConfigError, Refusal
from penstock.pipeline.jobs.replay.batches import Batches
from penstock.pipeline.jobs.replay.condition import Condition, condition
from penstock.pipeline.jobs.replay.options import Replay
from penstock.pipeline.jobs.replay.plan import Book, Bucket, Done, Plan, shares_of, steps_of, sweep
from penstock.pipeline.jobs.replay.rows import Rows, TopicRows, table_rows
from penstock.pipeline.jobs.replay.source import (
    CALL_S,
    Settled,
    Source,
    TableSource,
    TopicSource,
    node_of,
    source_of,
)
from penstock.units.times import shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND_NS = 1_000_000_000
#: A step at full speed: enough to make little of what a step costs, little enough to stop soon.
STEP_ROWS = 250_000
STEP_BYTES = 128 << 20
#: A plan must fit into the driver, so that slow replays of much have longer steps.
STEPS_MAX = 100_000
#: Rows are counted in pieces of a step's size by this, so that steps can be filled well.
PIECES = 8
#: Below this, reading here takes seconds, and starting Spark as long as all of it.
SMALL_ROWS = 1_000_000

#: A session, which is used then; or how to start one, which is done only where there is much to read, or what is asked
#: for needs SQL.
Spark: TypeAlias = "SparkSession | Callable[[], SparkSession]"


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


class Engine(Protocol):
    """What counts and writes rows: Spark, or this process."""

    def count(self, settled: Settled, rows: int) -> list[Bucket]:
        """Return the chosen rows, counted in pieces of this many offsets."""

    def write(self, plan: Plan, number: int) -> None:
        """Write one step, once."""


class Progress(msgspec.Struct, frozen=True):
    """How far a replay is after a step."""

    name: str
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


def planned(spark: Spark, options: Replay, home: str, now_ns: int | None = None) -> Plan:
    """Return the plan of a replay without writing anything: the one there is, or the one that would be made."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    meant = options.resolved(now_ns)
    return _known(Book(home, meant.chosen_name()), options, meant) or _plan(
        spark, source_of(meant), options, meant, now_ns
    )


def replay(
    spark: Spark,
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
    now_ns = pace.now()
    meant = options.resolved(now_ns)
    book = Book(home, meant.chosen_name())
    with book.held():
        source = source_of(meant)
        plan = _known(book, options, meant)
        if plan is None:
            plan = _plan(spark, source, options, meant, now_ns)
            if not plan.steps:
                book.drop()
                return Outcome(plan, 0, True, f"nothing to do: no message matches, {plan.window}")
            book.settle(plan)
            sweep(home, now_ns)
        done = book.done()
        if done.steps == len(plan.steps):
            return Outcome(plan, 0, True, _repeated(plan, done, book))
        _make_targets(meant, plan)
        engine = _engine(spark, meant, source, plan.read or plan.rows, plan.version)
        return _Run(engine, meant, source, book, plan, pace, stop, told).run(done)


def _repeated(plan: Plan, done: Done, book: Book) -> str:
    topics = ", ".join(dict.fromkeys(share.topic for share in plan.shares))
    return (
        f"nothing to do: {plan.name} was replayed on {shown(done.finished_ns)[:19]}Z: {plan.rows:,} messages of "
        f"{topics}, {plan.window}. To replay them again, give it another name: --name {book.another()}"
    )


@contextmanager
def ends_on(*numbers: signal.Signals, told: Callable[[], None] = lambda: None) -> Iterator[threading.Event]:
    """Give an event that is set when one of these signals comes, the first of which is told; for the main thread."""
    stop = threading.Event()

    def hear(number: int, frame: FrameType | None) -> None:
        if not stop.is_set():
            stop.set()
            told()

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
        engine: Engine,
        options: Replay,
        source: Source,
        book: Book,
        plan: Plan,
        pace: Pace,
        stop: threading.Event,
        told: Told,
    ) -> None:
        self._engine = engine
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
                again = f"with --name {plan.name} " if plan.relative and not self._options.name else ""
                text = f"stopped: {plan.name} has {left} of {len(plan.steps)} steps left; run it again {again}to go on"
                return Outcome(plan, rows, False, text)
            self._source.ready(plan, number)
            self._engine.write(plan, number)
            rows += plan.steps[number].rows
            last = number + 1 == len(plan.steps)
            done = Done(
                steps=number + 1,
                rows=done.rows + plan.steps[number].rows,
                finished_ns=self._pace.now() if last else 0,
                passing=plan.passing,
            )
            self._book.note(done)
            self._tell(done, rows, self._pace.monotonic() - began_ns)
        self._source.close(plan)
        return Outcome(plan, rows, True, f"{plan.name}: {done.rows:,} messages were replayed, {plan.window}")

    def _wait(self, began_ns: int, rows: int) -> None:
        """Wait until the rows of this run are no more than the rate allows."""
        if self._options.rate is None:
            return
        due_ns = began_ns + rows * SECOND_NS // self._options.rate
        while not self._stop.is_set() and (rest_ns := due_ns - self._pace.monotonic()) > 0:
            self._pace.rest(rest_ns)

    def _tell(self, done: Done, rows: int, taken_ns: int) -> None:
        rate = rows * SECOND_NS / taken_ns if taken_ns > 0 else 0.0
        left = self._plan.rows - done.rows
        eta_s = left / rate if rate else 0.0
        self._told(
            Progress(self._plan.name, done.steps, len(self._plan.steps), done.rows, self._plan.rows, rate, eta_s)
        )


def _known(book: Book, options: Replay, meant: Replay) -> Plan | None:
    """Return the plan of a replay that was begun; ConfigError if it was another one."""
    plan = book.plan()
    if plan is None or plan.words == meant.words() or plan.said == options.words():
        return plan
    words = meant.words()
    changed = ", ".join(sorted(name for name in words if words[name] != plan.words.get(name))) or "its form"
    raise ConfigError(
        f"replay {plan.name} was planned on {shown(plan.made_ns)} with other words ({changed}): give this one another "
        "name, or use the same words"
    )


def _condition(options: Replay) -> Condition | None:
    try:
        return condition(options.where)
    except ConfigError:
        if not options.table:
            raise
        return None  # a table may have columns of its own


def _rows(options: Replay, source: Source, version: int | None) -> Rows | None:
    """Return what reads a source here; None where Spark must."""
    if isinstance(source, TableSource):
        return table_rows(options, source, version) if source.small() else None
    assert isinstance(source, TopicSource)
    return TopicRows(source)


def _engine(spark: Spark, options: Replay, source: Source, rows: int, version: int | None) -> Engine:
    """Return what reads and writes: this process, if there is little to read and no session is there already."""
    if callable(spark) and rows < SMALL_ROWS:
        chosen = _condition(options)
        found = None if chosen is None else _rows(options, source, version)
        if chosen is not None and found is not None:
            return Batches(options, found, chosen)
    from penstock.pipeline.jobs.replay.frames import Frames

    return Frames(spark() if callable(spark) else spark, options, source)


def _plan(spark: Spark, source: Source, options: Replay, meant: Replay, now_ns: int) -> Plan:
    settled = source.settle(now_ns)
    step_rows = STEP_ROWS if meant.rate is None else min(meant.rate, STEP_ROWS)
    step_rows = max(step_rows, settled.rows // STEPS_MAX)
    buckets: list[Bucket] = []
    if settled.stretches or meant.table:
        engine = _engine(spark, meant, source, settled.rows, settled.version)
        buckets = engine.count(settled, max(1, step_rows // PIECES))
    shift_us = 0
    if meant.times == "shift":
        given = meant.shift_us()
        first_us = min((bucket.first_us for bucket in buckets), default=0)
        shift_us = now_ns // 1000 - first_us if given is None else given
    targets = {bucket.topic: meant.target(bucket.topic) for bucket in buckets}
    return Plan(
        id=uuid.uuid4().hex,
        name=meant.chosen_name(),
        made_ns=now_ns,
        words=meant.words(),
        said=options.words(),
        incarnations=settled.incarnations,
        shards=settled.shards,
        version=settled.version,
        shift_us=shift_us,
        shares=tuple(shares_of(buckets, targets)),
        steps=tuple(steps_of(buckets, step_rows, STEP_BYTES)),
        read=settled.rows,
    )


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
