"""Penstock's data source under another name, whose writer can be made to stand still in the driver and in a task.

What is written is written by the real writer; this one only passes by places before and after its calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.pipeline import sink
from penstock.pipeline.source import PenstockSource
from tests.proofs.halts import Halts

#: In a task that has sent some of its rows; in the driver before it commits, and after the node has answered.
WRITING, STAGED, ANSWERED = "writing", "staged", "answered"

#: The option that says where the places are.
HALTS = "halts"


class HaltingSource(PenstockSource):
    """The data source with places to stand still at."""

    @classmethod
    def name(cls) -> str:
        return "halting"

    def streamWriter(self, schema: StructType, overwrite: bool) -> HaltingWriter:  # noqa: N802 - Spark's name
        options = {name: value for name, value in self.options.items() if name.lower() != HALTS}
        return HaltingWriter(sink.stream_writer(options, schema, overwrite), self.options[HALTS])


class HaltingWriter(DataSourceStreamArrowWriter):
    """The real writer between places."""

    def __init__(self, writer: sink.StreamWriter, directory: str) -> None:
        self._writer = writer
        self._directory = directory

    def _passing(self, place: str) -> None:
        Halts(Path(self._directory)).passing(place)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        def passed() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                yield batch
                self._passing(WRITING)

        return self._writer.write(passed())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._passing(STAGED)
        self._writer.commit(messages, batchId)
        self._passing(ANSWERED)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._writer.abort(messages, batchId)
