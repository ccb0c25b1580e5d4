"""The handle of a Spark process: started, given jobs, measured, ended.

Owns the process. Knows no format. Invariant: a job that fails in Spark fails here, with Spark's reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench import measure, supply
from bench.generator import LoadFailed
from bench.measure import Sample
from bench.spark.job import Done, Job
from bench.supply import Missing


class Engine:
    """One Spark session on some cores."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def run(self, job: Job) -> Done:
        """Do a job and return how long it took."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer says that it has gone, and why
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Done:
        """Return what it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LoadFailed(f"Spark ended: {self._log.read_text(errors='replace').strip()[-500:]}")
        done = msgspec.json.decode(line, type=Done)
        if done.error:
            raise LoadFailed(done.error)
        return done

    def cpu_ns(self) -> int:
        """Return the CPU time of Python, Java and Python workers together."""
        return measure.cpu_ns(self._process.pid)

    def measured(self, job: Job, rows: int, *servers: int) -> tuple[Done, float]:
        """Do a job and return it with the CPU a row of Spark and of these servers, in microseconds."""
        before_ns = self._spent(servers)
        done = self.run(job)
        return done, (self._spent(servers) - before_ns) / 1000 / rows

    def sample(self, job: Job, rows: int, *servers: int) -> Sample:
        """Do a job and return its rows a second, and their CPU."""
        done, cpu_us = self.measured(job, rows, *servers)
        return Sample(rows / done.seconds, cpu_us)

    def _spent(self, servers: tuple[int, ...]) -> int:
        return self.cpu_ns() + sum(map(measure.cpu_ns, servers))


@contextlib.contextmanager
def engine(place: Path, *, cores: int, jars: list[Path] | None = None) -> Iterator[Engine]:
    """Start a Spark session that keeps its log in a place; Missing without PySpark."""
    if importlib.util.find_spec("pyspark") is None:
        raise Missing("PySpark is not installed: `make bench` installs it")
    log = place / f"spark-{cores}.log"
    command = [sys.executable, "-m", "bench.spark.process", str(cores), *map(str, jars or [])]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, cwd=supply.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    try:
        made = Engine(process, log)
        made.answer()
        yield made
    finally:
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
