"""What a streaming query's numbers mean: the first batch is not warm, and what no batch took is the query's start."""

from __future__ import annotations

import pytest

from bench.generator import LoadFailed
from bench.spark.engine import Engine
from bench.spark.job import Done, Job, MicroBatch, Place
from bench.spark.query import run

JOB = Job(source=Place("penstock"), streaming=True)


class Told(Engine):
    """A Spark that answers what it was given."""

    def __init__(self, done: Done) -> None:
        self._done = done

    def measured(self, job: Job, rows: int, *servers: int) -> tuple[Done, float]:
        return self._done, 0.5


def test_first_batch_is_left_out_of_what_is_warm() -> None:
    done = Done(2.0, [MicroBatch(100, 900.0), MicroBatch(100, 200.0), MicroBatch(200, 300.0)], idle_ms=100.0)
    found = run(Told(done), JOB, 400)
    assert (found.warm, found.whole, found.batch_ms) == (600.0, 200.0, 250.0)
    assert found.start_s == pytest.approx(0.5)


def test_rows_that_did_not_come_are_an_error() -> None:
    with pytest.raises(LoadFailed, match="penstock to noop: 300 of 400 rows came"):
        run(Told(Done(1.0, [MicroBatch(300, 900.0)])), JOB, 400)
