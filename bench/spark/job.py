"""What a Spark process is asked to do, and what it answers: rows from one place to another, as a batch or as a stream.

Owns the documents that go between `engine` and `process`. Knows no format and no server.
"""

from __future__ import annotations

import msgspec


class Place(msgspec.Struct, frozen=True):
    """A format with its options: where rows come from, or where they go."""

    format: str
    options: dict[str, str] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Read all of a place and write it to another one."""

    source: Place
    sink: Place = Place("noop")
    #: What is done on the way: the name of a function in `bench.spark.work`; empty for nothing.
    work: str = ""
    #: SQL of the columns that are written; empty for all that the source has.
    columns: list[str] = []
    #: A DDL schema, for a source that wants one.
    schema: str = ""
    #: As a streaming query that ends when it has caught up, instead of a batch.
    streaming: bool = False
    #: Where a stream keeps its progress: a directory that nobody used yet.
    checkpoint: str = ""


class MicroBatch(msgspec.Struct, frozen=True):
    """One micro-batch that had rows."""

    rows: int
    ms: float


class Done(msgspec.Struct, frozen=True):
    """How long a job took, or why it did not end well."""

    seconds: float = 0.0
    batches: list[MicroBatch] = []
    #: What a stream's batches without rows took.
    idle_ms: float = 0.0
    error: str = ""
