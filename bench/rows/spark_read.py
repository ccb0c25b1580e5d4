"""Spark reading a topic as a batch, beside its own Parquet reader on the same rows; and on one core and two."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import Reading, Sample, interleaved
from bench.plan import Plan
from bench.report import Result, at_least, phrase, rate, ratio, result, table_row
from bench.spark.engine import Engine, engine
from bench.spark.job import Job, Place
from bench.spark.messages import FIVE, stored
from bench.spark.site import Site

#: What the columns of a case are called, which they are, and how fast a topic is to be read beside Parquet.
CASES = (
    ("five columns", FIVE, 0.8),
    ("the default columns", ["topic", "shard", "offset", "timestamp", "key", "headers", "body"], 0.6),
    ("offset and body", ["offset", "body"], 0.7),
)
SPEED_UP_MIN = 1.3


def lines(site: Site, plan: Plan) -> Iterator[Result]:
    """Read everything into noop, each column set in turns."""
    for what, columns, target in CASES:
        ours = Job(source=stored(site.node, columns=",".join(columns)))
        theirs = Job(source=Place("parquet", {"path": site.files}), columns=columns)
        numbers = _read(site, plan, {"parquet": (site.spark, theirs), "penstock": (site.spark, ours)})
        goals = [at_least(target, ratio(rate(numbers, "penstock"), rate(numbers, "parquet")))]
        work = f"Spark batch read of {site.rows / 1e6:g} M messages into noop, {what}; peer: Parquet, uncompressed"
        yield result("spark-read", work, numbers, goals, {})


def core_lines(site: Site, plan: Plan) -> Iterator[Result]:
    """Read with Spark pinned to one core, and to two."""
    job = Job(source=stored(site.node, columns=",".join(FIVE)))
    with engine(site.place, cores=1) as one, engine(site.place, cores=2) as two:
        numbers = _read(site, plan, {"one core": (one, job), "two cores": (two, job)})
    readings = {"one core": phrase(numbers["one core"]), "penstock": "two cores: " + phrase(numbers["two cores"])}
    goals = [at_least(SPEED_UP_MIN, ratio(rate(numbers, "two cores"), rate(numbers, "one core")))]
    work = "Spark batch read, five columns, pinned to one core and to two"
    yield table_row("spark-cores", work, readings, goals, {})


def _read(site: Site, plan: Plan, jobs: dict[str, tuple[Engine, Job]]) -> dict[str, Reading]:
    """Do each job in turns, after some that nobody counts: Java is slow the first times."""

    def turn(name: str) -> Sample:
        spark, job = jobs[name]
        return spark.sample(job, site.rows, site.node.pid)

    for name in (*jobs, *jobs):
        turn(name)
    return interleaved(plan.rounds, {name: lambda name=name: turn(name) for name in jobs})  # type: ignore[misc]
