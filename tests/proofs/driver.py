"""A Spark driver of its own that copies a topic to another until it has all of it; killed by proofs.

python -m tests.proofs.driver JOB, where JOB is JSON; see `Job`
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What a driver is asked to do."""

    url: str
    #: The data directory, read beside the node; None reads over the network, too.
    path: str | None
    checkpoint: str
    halts: str
    #: Rows of a micro-batch.
    rows: int
    #: Into how many tasks the rows are shuffled before they are written.
    partitions: int
    master: str = "local[2]"
    #: Where it waits, warm, until it may begin.
    begin: str = ""


def run(job: Job) -> None:
    """Copy what is there, from where the checkpoint says."""
    from penstock.pipeline import launch, session
    from tests.proofs.halting_source import HALTS, HaltingSource
    from tests.proofs.halts import Halts

    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.executor.extraJavaOptions": " ".join(launch.QUICK),
    }
    spark = session("exactly-once", master=job.master, quick=True, options=options)
    spark.dataSource.register(HaltingSource)
    source = {"path": job.path} if job.path is not None else {"url": job.url}
    spark.read.format("penstock").options(**source, subscribe="in", columns="offset").load().where("offset < 1").count()
    Halts(Path(job.halts)).passing(job.begin)
    (
        spark.readStream.format("penstock")
        .options(**source, subscribe="in", startingOffsets="earliest", columns="key,body")
        .option("maxOffsetsPerTrigger", job.rows)
        .load()
        .repartition(job.partitions, "key")
        .writeStream.format("halting")
        .options(url=job.url, topic="out", checkpointLocation=job.checkpoint)
        .option(HALTS, job.halts)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


if __name__ == "__main__":
    run(Job(**json.loads(sys.argv[1])))
