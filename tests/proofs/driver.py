"""A Spark driver of its own that copies a topic to another until it has all of it; killed by proofs.

python -m tests.proofs.driver JOB, where JOB is JSON; see `Job`
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.proofs.process import DEADLINE_S, Died

ROOT = Path(__file__).resolve().parents[2]


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


class Driver:
    """A driver process."""

    def __init__(self, job: Job, log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tests.proofs.driver", json.dumps(dataclasses.asdict(job))],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=variables(),
                # It and its Java machine are killed together, as one.
                start_new_session=True,
            )

    def alive(self) -> None:
        """Raise if it has ended."""
        if self._child.poll() is not None:
            raise Died(f"a driver ended with {self._child.returncode}: {self.last_words()}")

    def kill(self) -> None:
        """Kill it as `kill -9` does, Java and Python."""
        self.alive()
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(DEADLINE_S)

    def abandon(self) -> None:
        """Leave nothing running, whatever went wrong."""
        if self._child.poll() is None:
            self.kill()

    def ended(self, patience_s: float) -> None:
        """Wait for its end, which must be a good one."""
        try:
            code = self._child.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise Died(f"a driver did not come to its end within {patience_s:.0f} s: {self.last_words()}") from None
        if code:
            raise Died(f"a driver ended with {code}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the end of what it printed."""
        return self._log.read_text(errors="replace")[-3000:].strip()


def variables() -> dict[str, str]:
    """Return the environment of Spark's processes, in which workers find this project."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


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
