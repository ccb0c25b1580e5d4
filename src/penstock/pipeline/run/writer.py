"""What happens to each batch of a query: every branch of it goes to its sinks.

Sent to the server by Spark Connect, so it holds plain values only. Rows are computed once, however many sinks take
them. Invariant: a batch counts as done only when every sink has it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from penstock.pipeline.run.sinks import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The column that tells which branch a row belongs to, where there are several.
BRANCH = "_branch"


@dataclasses.dataclass(frozen=True)
class Branch:
    """Rows that go the same way."""

    name: str
    columns: tuple[str, ...]
    targets: tuple[Target, ...]


@dataclasses.dataclass(frozen=True)
class Writer:
    """The function that Spark calls for each batch."""

    branches: tuple[Branch, ...]

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write one batch."""
        if len(self.branches) == 1:
            (branch,) = self.branches
            if len(branch.targets) == 1:
                branch.targets[0].write(frame, batch)
                return
        frame.persist()
        try:
            for branch in self._filled(frame):
                rows = frame.where(f"{BRANCH} = '{branch.name}'") if len(self.branches) > 1 else frame
                for target in branch.targets:
                    target.write(rows.select(*branch.columns), batch)
        finally:
            frame.unpersist()

    def _filled(self, frame: DataFrame) -> list[Branch]:
        """Return the branches that have rows: writing nothing costs as much as writing little."""
        if len(self.branches) == 1:
            return list(self.branches)
        there = {row[0] for row in frame.select(BRANCH).distinct().collect()}
        return [branch for branch in self.branches if branch.name in there]
