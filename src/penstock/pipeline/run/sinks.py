"""Where the rows of a batch go: each branch of a query to its topics and tables, each batch once.

Plain values, because Spark Connect sends them to its server. Invariant: writing a batch again under the same number
adds nothing; a batch counts as done only when every sink has it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.pipeline.lake.table import KEEP_HOURS, TARGET_BYTES, Table
from penstock.pipeline.run.fault import reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_log = logging.getLogger(__name__)


class Target(Protocol):
    """A sink as a batch sees it."""

    def write(self, frame: DataFrame, batch: int) -> None:
        """Write rows, unless this batch is there already."""


@dataclasses.dataclass(frozen=True)
class TopicTarget:
    """A topic, or the topics that rows name."""

    #: The options of the sink, but for the batch.
    options: dict[str, str]
    #: Names the query and the sink for all time.
    app: str
    where: str = ""
    #: Makes messages of rows that are none.
    messages: Callable[[DataFrame], DataFrame] | None = None
    #: A batch that is done again may come out otherwise.
    any_rows: bool = False

    def write(self, frame: DataFrame, batch: int) -> None:
        """Write rows, unless this batch is there already."""
        rows = self.prepared(frame)
        writer = rows.write.format("penstock").options(**self.options)
        writer = writer.option("repeats", "any" if self.any_rows else "same")
        writer.option("txnAppId", self.app).option("txnVersion", str(batch)).mode("append").save()

    def prepared(self, frame: DataFrame) -> DataFrame:
        """Return the rows that go there, as messages."""
        rows = frame.where(self.where) if self.where else frame
        return self.messages(rows) if self.messages is not None else rows


@dataclasses.dataclass(frozen=True)
class TableTarget:
    """A table in a lake."""

    table: Table
    app: str
    where: str = ""
    #: Adds what the table is partitioned by.
    shaped: Callable[[DataFrame], DataFrame] | None = None
    compact_every: int = 0
    file_bytes: int = TARGET_BYTES
    keep_hours: float = KEEP_HOURS
    #: A batch that is done again may come out otherwise.
    any_rows: bool = False

    def write(self, frame: DataFrame, batch: int) -> None:
        """Write rows, unless this batch is there already; merge small files now and then."""
        self.table.append(self.prepared(frame), self.app, batch, any_rows=self.any_rows)
        if self.compact_every and batch % self.compact_every == self.compact_every - 1:
            self._compact()

    def _compact(self) -> None:
        """Merge small files. Whatever keeps one from being merged keeps no row out."""
        try:
            done = self.table.compact(self.file_bytes, keep_hours=self.keep_hours)
        except Exception as error:
            # Those of the system, of Arrow and of delta-rs have nothing in common; the batch itself is in.
            _log.warning("table %s is not compacted for now: %s", self.table.path, reason(error))
            return
        for line in done.damaged:
            _log.warning("table %s is compacted but for one file: %s", self.table.path, line)

    def prepared(self, frame: DataFrame) -> DataFrame:
        """Return the rows that go there, as the table has them."""
        rows = frame.where(self.where) if self.where else frame
        return self.shaped(rows) if self.shaped is not None else rows


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
