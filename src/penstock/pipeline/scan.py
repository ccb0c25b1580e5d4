"""One task's work: pieces of shards in, Arrow batches as Spark takes them out.

Owns what happens on an executor. Is sent there by pickle, so it holds plain values only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.pipeline.conditions import Conditions
from penstock.pipeline.options import Options
from penstock.pipeline.schema import Shape
from penstock.pipeline.store import Piece, opened


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(None)
        self.pieces = pieces


@dataclasses.dataclass
class Scan:
    """How every task of a read turns pieces into batches."""

    options: Options
    shape: Shape
    conditions: Conditions

    def batches(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task; a partition that is no task of ours is how Spark says that there is none."""
        if not isinstance(task, Task):
            return
        store = opened(self.options)
        filtered = bool(self.conditions.filters)
        for piece in task.pieces:
            for batch in store.batches(piece):
                made = self.shape.shaped(batch, piece.read.topic, piece.read.shard)
                if filtered:
                    made = self.conditions.passing(made)
                if len(made):
                    yield made
