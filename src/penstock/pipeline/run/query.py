"""One query of a pipeline, from its source to the function that writes its batches.

Owns how steps are put together on a DataFrame. Rows that a step could not use travel beside the good ones, marked, so
that the source is read by one query and both are written under one batch number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql

from penstock.errors import ConfigError
from penstock.pipeline.frame import chosen_columns
from penstock.pipeline.jobs.archive import Archive, dated
from penstock.pipeline.jobs.catalog import Job, job
from penstock.pipeline.jobs.dead import dead_letters
from penstock.pipeline.jobs.dedupe import Dedupe
from penstock.pipeline.jobs.output import Output
from penstock.pipeline.jobs.rollup import Rollup
from penstock.pipeline.lake.table import table
from penstock.pipeline.plan.document import EACH_ROW, Document, Sink, converted, trigger
from penstock.pipeline.plan.graph import Query
from penstock.pipeline.run.fault import reason
from penstock.pipeline.run.reading import columns_of, source_options
from penstock.pipeline.run.sinks import BRANCH, Branch, TableTarget, Target, TopicTarget, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Built(NamedTuple):
    """A query that could start."""

    query: Query
    frame: DataFrame
    writer: Writer

    def started(self, checkpoint: str, *, once: bool = False) -> StreamingQuery:
        """Start it."""
        writer = self.frame.writeStream.queryName(self.query.name).foreachBatch(self.writer)
        when = {"availableNow": True} if once else trigger(self.query.trigger, "trigger")
        return writer.option("checkpointLocation", checkpoint).trigger(**when).start()


def options_of(document: Document, query: Query) -> list[tuple[Job, Any]]:
    """Return the jobs of a query with their options; ConfigError names the step and the key."""
    found = []
    for name in query.steps:
        step = document.steps[name]
        where = f"steps.{name}"
        with _named(where):
            known = job(step.job)
        found.append((known, converted(step.options, known.options, where)))
    return found


def table_options(document: Document, name: str) -> Archive:
    """Return the options of a table; ConfigError names the sink and the key."""
    sink = document.sinks[name]
    return converted({"table": sink.table, **sink.options}, Archive, f"sinks.{name}")


def stateful(document: Document, query: Query) -> list[Any]:
    """Return the steps whose state is in the checkpoint, as they are declared."""
    steps = [document.steps[name] for name in query.steps if job(document.steps[name].job).stateful]
    return [[step.job, step.options] for step in steps]


def delays(document: Document, queries: Sequence[Query]) -> list[str]:
    """Return a sentence for each rollup whose windows close late because a step before it lets rows come late."""
    found: dict[str, None] = {}
    for query in queries:
        before: tuple[str, Dedupe] | None = None
        for name, (_, options) in zip(query.steps, options_of(document, query), strict=True):
            if isinstance(options, Dedupe):
                before = name, options
            elif isinstance(options, Rollup) and before is not None:
                step, dedupe = before
                if dedupe.lateness_us > options.lateness_us():
                    found[_note(name, step, dedupe, options)] = None
    return list(found)


def _note(name: str, step: str, dedupe: Dedupe, rollup: Rollup) -> str:
    if dedupe.lateness:
        return (
            f"windows of steps.{name} close {dedupe.lateness} after their end, not {rollup.lateness}: steps.{step} "
            f'says lateness = "{dedupe.lateness}"'
        )
    return (
        f"windows of steps.{name} close {dedupe.within} after their end, not {rollup.lateness}: steps.{step} before it "
        f'waits for rows that come as late as it remembers them (within). With lateness = "{rollup.lateness}" in '
        f"steps.{step} they close in time, and rows that are later than that are left out"
    )


def built(spark: SparkSession, document: Document, query: Query, app: str, mapping: Mapping[str, int]) -> Built:
    """Return a query; ConfigError names what does not fit, before anything runs."""
    jobs = options_of(document, query)
    source = document.sources[query.source]
    hold = f"pipeline/{document.name}/{query.name}"
    options = source_options(source, document.node, columns_of([each for each, _ in jobs]), hold)
    frame = spark.readStream.format("penstock").options(**options).load()
    output = Output(frame)
    dead: list[tuple[str, DataFrame]] = []
    for name, (known, chosen) in zip(query.steps, jobs, strict=True):
        with _named(f"steps.{name}"):
            output = known.apply(output.frame, chosen, mapping)
            assert output.frame.columns  # Spark Connect looks at a query no sooner
        if output.dead is not None and name in query.buries:
            dead.append((name, output.dead))
    any_rows = not all(known.settled for known, _ in jobs)
    targets = tuple(_target(document, name, output, app, any_rows) for name in query.sinks)
    for name, target in zip(query.sinks, targets, strict=True):
        _check(name, target, output.frame)
    branches = [(Branch(query.name, tuple(output.frame.columns), targets), output.frame)]
    branches += [_burial(document, name, rows, app, any_rows) for name, rows in dead]
    return Built(query, _united(branches), Writer(tuple(branch for branch, _ in branches)))


def _target(document: Document, name: str, output: Output, app: str, any_rows: bool) -> Target:
    sink = document.sinks[name]
    own = f"{app}/{name}"
    if sink.topic:
        place = document.node.options() | ({} if sink.topic == EACH_ROW else {"topic": sink.topic})
        return TopicTarget(place, own, sink.where, output.messages, any_rows)
    options = table_options(document, name)
    made = table(
        options.table,
        format=options.format,
        partition_by=_partitions(sink, output.frame),
        compression=options.compression,
    )
    return TableTarget(
        made, own, sink.where, dated, options.compact_every, options.target_bytes, options.keep_hours, any_rows
    )


def _partitions(sink: Sink, frame: DataFrame) -> tuple[str, ...]:
    """Return what a table is partitioned by: by topic and day, unless the sink says otherwise."""
    if sink.partition_by:
        return sink.partition_by
    there = dated(frame).columns
    return tuple(name for name in ("topic", "day") if name in there)


def _burial(document: Document, name: str, rows: DataFrame, app: str, any_rows: bool) -> tuple[Branch, DataFrame]:
    """Return the branch of what a step could not use."""
    topic = document.steps[name].dead
    options = document.node.options() | ({"topic": topic} if topic else {})
    letters = dead_letters(rows)
    if not topic:
        letters = letters.withColumn("topic", sql.concat(sql.col("topic"), sql.lit(".dead")))
    else:
        letters = letters.drop("topic")
    target = TopicTarget(options, f"{app}/{name}.dead", any_rows=any_rows)
    _check(f"{name} (dead letters)", target, letters)
    return Branch(f"{name}.dead", tuple(letters.columns), (target,)), letters


def _check(name: str, target: Target, frame: DataFrame) -> None:
    """Refuse a frame that a sink would refuse later."""
    with _named(f"sinks.{name}"):
        if isinstance(target, TopicTarget):
            chosen_columns(target.prepared(frame).schema, target.options.get("topic"))
        elif isinstance(target, TableTarget):
            target.table.check(target.prepared(frame).schema)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Have what does not fit say where it is."""
    try:
        yield
    except (ConfigError, AnalysisException) as error:
        raise ConfigError(f"{where}: {reason(error)}") from None


def _united(branches: list[tuple[Branch, DataFrame]]) -> DataFrame:
    """Return all branches as one frame; each row says which one it is of."""
    if len(branches) == 1:
        return branches[0][1]
    frames = [frame.withColumn(BRANCH, sql.lit(branch.name)) for branch, frame in branches]
    first, *rest = frames
    for each in rest:
        first = first.unionByName(each, allowMissingColumns=True)
    return first
