"""The Spark rows: all of them at one site, or some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.plan import Plan
from bench.report import Goal, Result, table_row
from bench.rows import jobs, spark_read, spark_stream, spark_write
from bench.spark.site import Site, site
from bench.supply import Missing

Lines = Callable[[Site, Plan], Iterator[Result]]


def run(plan: Plan) -> Iterator[Result]:
    """Batch reads, streaming reads and streaming writes, with the same messages."""
    yield from _at_site(plan, spark_read.lines, spark_read.core_lines, spark_stream.lines, spark_write.lines)


def run_read(plan: Plan) -> Iterator[Result]:
    """Batch reads, on all cores and on one."""
    yield from _at_site(plan, spark_read.lines, spark_read.core_lines, with_kafka=False)


def run_stream(plan: Plan) -> Iterator[Result]:
    """Streaming reads."""
    yield from _at_site(plan, spark_stream.lines)


def run_write(plan: Plan) -> Iterator[Result]:
    """Streaming writes."""
    yield from _at_site(plan, spark_write.lines)


def run_jobs(plan: Plan) -> Iterator[Result]:
    """The pipeline's jobs, and what the default pipeline weighs."""
    yield from _at_site(plan, jobs.lines, with_kafka=False)
    yield from jobs.run_memory(plan)


def _at_site(plan: Plan, *parts: Lines, with_kafka: bool = True) -> Iterator[Result]:
    try:
        with site(plan.spark, with_kafka=with_kafka) as found:
            for part in parts:
                yield from part(found, plan)
    except Missing as reason:
        yield table_row("spark", "Spark", {}, [Goal("to run", "MISSING", "MISSING")], {"penstock": str(reason)})
