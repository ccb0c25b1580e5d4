"""A Spark driver that archives a data directory into two tables, and a process that compacts them; killed by a proof.

python -m tests.proofs.archiver JOB, where JOB is JSON; see `Job`
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tests.proofs.halts import Halts

FORMATS = ("delta", "parquet")
#: Between two compactions, so that the archive gets a turn.
REST_S = 0.05

Given = ParamSpec("Given")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What a process is asked to do."""

    #: `archive` or `compact`.
    work: str
    #: Where the data directory, the tables, the checkpoint and the halts are.
    path: str
    #: Rows of a micro-batch.
    rows: int = 0
    #: Where it waits, warm, until it may begin.
    begin: str = ""


def table_at(path: str, format: str) -> Any:
    """Return one of the tables."""
    from penstock.pipeline.lake.table import table

    return table(os.path.join(path, format), format=format)


def halting(halts: Halts) -> None:
    """Give everything that matters to a table a place before or after it."""
    from penstock.pipeline.lake import delta, deltalog, merge, parquet
    from penstock.pipeline.lake.home import Home

    def after(real: Callable[Given, Result], place: str) -> Callable[Given, Result]:
        @wraps(real)
        def call(*args: Given.args, **options: Given.kwargs) -> Result:
            result = real(*args, **options)
            halts.passing(place)
            return result

        return call

    for format, module in zip(FORMATS, (delta, parquet), strict=True):
        module.stage = after(module.stage, f"{format}-staged")  # type: ignore[attr-defined]
    deltalog.commit = after(deltalog.commit, "delta-committed")
    merge.merged = after(merge.merged, "merged")
    real = Home.place

    def place(home: Home, moves: Any) -> None:
        format = os.path.basename(home.table)
        halts.passing(f"{format}-noted")
        real(home, moves)
        halts.passing(f"{format}-placed")

    Home.place = place  # type: ignore[assignment, method-assign]


def archive(job: Job, halts: Halts) -> None:
    """Archive what is there, from where the checkpoint says."""
    from penstock.pipeline import session
    from penstock.pipeline.jobs.archive import Archive, archived

    spark = session("archive", master="local[2]", quick=True)
    # Warm: what is compiled now is not compiled later.
    spark.range(10).repartition(2).count()
    lakes = [table_at(job.path, format) for format in FORMATS]
    halts.passing(job.begin)
    frame = (
        spark.readStream.format("penstock")
        .option("path", os.path.join(job.path, "data"))
        .option("subscribePattern", ".*")
        .option("startingOffsets", "earliest")
        .option("columns", "*")
        .option("maxOffsetsPerTrigger", str(job.rows))
        .load()
    )

    def sink(batch: Any, number: int) -> None:
        for lake in lakes:
            lake.append(archived(batch, Archive(table=lake.path)).frame, "archive", number)
        halts.passing("appended")

    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", os.path.join(job.path, "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def compact(job: Job, halts: Halts) -> None:
    """Compact both tables over and over until killed."""
    from penstock.pipeline.lake import deltalog

    halts.passing(job.begin)
    while True:
        for format in FORMATS:
            lake = table_at(job.path, format)
            there = deltalog.exists(lake.path) if format == "delta" else lake.facts().version >= 0
            if there:
                lake.compact()
        time.sleep(REST_S)


def main() -> None:
    """Do the job."""
    job = Job(**json.loads(sys.argv[1]))
    halts = Halts(Path(job.path) / f"halts-{job.work}")
    halting(halts)
    {"archive": archive, "compact": compact}[job.work](job, halts)


if __name__ == "__main__":
    main()
