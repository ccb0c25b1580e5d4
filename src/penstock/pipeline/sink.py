"""The sink of Spark's `format("penstock")`: tasks stage, the driver commits, each batch of a query once (ruling 16).

A task's rows go to the node as they come and are invisible until the driver's commit names the task's attempts, so a
task that is retried, killed or repeated adds nothing. The commit is keyed by (query, topic, batch): a replay after a
crash of the driver, with whatever number of tasks, finds it done if it has the same rows. Imported on executors:
pyspark, pyarrow and the client only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import IntegerType, StructType

from penstock.errors import ConfigError, PenstockError, Refusal
from penstock.pipeline.frame import chosen_columns, messages
from penstock.pipeline.stage import Attempt, Line
from penstock.pipeline.target import Target, parsed


@dataclass
class Staged(WriterCommitMessage):
    """What one task tells the driver."""

    query: str
    attempts: tuple[Attempt, ...]
    rows: int


@dataclass(frozen=True)
class Writing:
    """One write of a frame; sent to every task."""

    target: Target
    columns: tuple[str, ...]

    def stage(self, query: str, batch: int, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows and return what the driver needs to commit them; on an executor."""
        staged: list[Attempt] = []
        count = 0
        try:
            with Line(self.target) as line:
                for home, run in groupby(self._homes(batches), itemgetter(0)):
                    attempts, rows = line.stage(query, batch, (messages(each, self.columns) for _, each in run), home)
                    staged += attempts
                    count += rows
        except Refusal as refusal:
            context = TaskContext.get()
            task = context.partitionId() if context is not None else 0
            raise Refusal(refusal.code, f"task {task}: {refusal}") from None
        return Staged(query, tuple(staged), count)

    def _homes(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        """Yield batches with the shard that their rows without a key go to; None if the node may choose."""
        for batch in batches:
            if not len(batch):
                continue
            if not self.target.keep_shards:
                yield None, batch
                continue
            shards = batch.column("shard").fill_null(-1).to_numpy()
            for start, end in pairwise([0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(batch)]):
                yield int(shards[start]) if shards[start] >= 0 else None, batch.slice(start, end - start)

    def commit(self, query: str, batch: int, told: Sequence[WriterCommitMessage | None]) -> None:
        """Make visible what the tasks staged, once; on the driver."""
        with Line(self.target) as line:
            line.commit(query, batch, attempts_of(told))

    def abort(self, query: str, batch: int, told: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what the tasks staged; on the driver."""
        attempts = attempts_of(told)
        if attempts:
            with Line(self.target) as line:
                line.abort(query, batch, attempts)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, exactly once."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one task's rows."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise PenstockError("Spark does not say which batch of which query this is; the sink needs Spark 4.3")
        return self._writing.stage(f"stream/{query}", int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make a batch visible."""
        query = _query_of(messages)
        if query is not None:  # without tasks there is nothing to make visible
            self._writing.commit(query, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Drop a batch that failed."""
        query = _query_of(messages)
        if query is not None:
            self._writing.abort(query, batchId, messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame, all of it or nothing; once per (txnAppId, txnVersion) where those are given."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        # Without a transaction every run is one of its own: a job that is repeated writes again.
        self._query, self._batch = f"write/{uuid.uuid4().hex}", 0
        if writing.target.transaction is not None:
            self._query, self._batch = writing.target.once()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one task's rows."""
        return self._writing.stage(self._query, self._batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the frame visible."""
        self._writing.commit(self._query, self._batch, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        self._writing.abort(self._query, self._batch, messages)


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of a frame; ConfigError says what cannot be written."""
    if overwrite:
        raise ConfigError('mode("overwrite"): a topic is a log, and rows are only added; use mode("append")')
    target = parsed(options)
    return BatchWriter(_writing(target, schema))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a streaming query; ConfigError says what cannot be written."""
    if overwrite:
        raise ConfigError(
            'outputMode("complete"): a topic is a log, and rows are only added; use outputMode("append"), or write '
            "each batch by foreachBatch"
        )
    target = parsed(options)
    if target.transaction is not None:
        raise ConfigError(
            "options txnAppId and txnVersion are for batch writes: a stream writes each of its batches once anyway"
        )
    return StreamWriter(_writing(target, schema))


def _writing(target: Target, schema: StructType) -> Writing:
    if target.keep_shards and ("shard" not in schema.names or schema["shard"].dataType != IntegerType()):
        raise ConfigError("option keepShards needs a column shard of type int, as a frame read from a topic has it")
    return Writing(target, chosen_columns(schema, target.topic))


def attempts_of(told: Sequence[WriterCommitMessage | None]) -> list[Attempt]:
    """Return everything that the tasks staged, in the order of the tasks."""
    return [attempt for message in told if isinstance(message, Staged) for attempt in message.attempts]


def _query_of(told: Sequence[WriterCommitMessage | None]) -> str | None:
    return next((message.query for message in told if isinstance(message, Staged)), None)
