"""Spark reading a topic as a stream, from files and over Flight, beside the Kafka connector, as it comes and tuned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench import measure
from bench.measure import reading
from bench.plan import Plan
from bench.report import Result, at_least, at_most, rate_words, ratio, shown, table_row
from bench.spark import query
from bench.spark.job import Job, Place
from bench.spark.messages import FEW, FIVE, KAFKAS_FIVE, TOPIC, TUNED, from_kafka, served, stored
from bench.spark.query import Query
from bench.spark.site import FEW_ROWS, Site

#: Rows of a micro-batch; the small one takes no time but what any takes.
LARGE, SMALL = 1_000_000, 1_000
FILES, FLIGHT, KAFKA, KAFKA_TUNED = "files", "Flight", "kafka connector", "kafka connector tuned"

Taken = dict[str, list[Query]]


def lines(site: Site, plan: Plan) -> Iterator[Result]:
    """Catch up with all messages in large batches, and with few of them in tiny ones."""
    yield _throughput(site, _taken(site, plan, LARGE, (KAFKA, KAFKA_TUNED, FILES, FLIGHT)))
    yield _fixed(site, _taken(site, plan, SMALL, (KAFKA_TUNED, FILES, FLIGHT)))


def _throughput(site: Site, taken: Taken) -> Result:
    goals = [
        at_least(2.5, _beside(taken, FILES, KAFKA), what="from files, the connector as it comes "),
        at_least(1.8, _beside(taken, FLIGHT, KAFKA), what="over Flight, the connector as it comes "),
        at_least(1.4, _beside(taken, FILES, KAFKA_TUNED), what="from files, the connector tuned "),
        at_least(1, _beside(taken, FLIGHT, KAFKA_TUNED), what="over Flight, the connector tuned "),
        shown("whole query from files, the connector as it comes", _beside(taken, FILES, KAFKA, "whole")),
        shown("whole query from files, the connector tuned", _beside(taken, FILES, KAFKA_TUNED, "whole")),
        shown("whole query over Flight, the connector tuned", _beside(taken, FLIGHT, KAFKA_TUNED, "whole")),
    ]
    words = {
        name: f"{rate_words(query.middle(queries, 'warm'))} warm, {query.middle(queries, 'cpu_us'):.3g} µs, "
        f"{rate_words(query.middle(queries, 'whole'))} whole"
        for name, queries in taken.items()
    }
    work = (
        f"Spark streaming read into noop, five columns, {LARGE // 1000:,} k a micro-batch, warm; CPU with the server's"
    )
    found = table_row("spark-stream", work, _ours_together(words), goals, site.missing)
    found.numbers.update({name: reading([each.sample for each in queries]) for name, queries in taken.items()})
    return found


def _fixed(site: Site, taken: Taken) -> Result:
    fixed_ms = {name: query.middle(taken[name], "batch_ms") for name in taken}
    start_s = {name: query.middle(taken[name], "start_s") for name in taken}
    goals = [
        at_most(80, fixed_ms[FILES], " ms", "a micro-batch without its rows "),
        at_most(0.4, start_s[FILES], " s", "query start "),
        shown("a micro-batch over Flight", fixed_ms[FLIGHT], " ms"),
        shown("query start over Flight", start_s[FLIGHT], " s"),
    ]
    words = {name: f"{fixed_ms[name]:.0f} ms, {start_s[name]:.2f} s" for name in taken}
    work = f"fixed cost of a micro-batch (of {SMALL:,} rows); start of a query"
    return table_row("spark-stream", work, _ours_together(words), goals, site.missing)


def _taken(site: Site, plan: Plan, size: int, names: tuple[str, ...]) -> Taken:
    """Run each query in turns, after one that nobody counts."""
    taken: Taken = {}
    for number in range(plan.rounds + 1):
        for name in names:
            place = _place(site, name, size)
            if place is None:
                continue
            measure.quiet()
            columns = KAFKAS_FIVE if place.format == "kafka" else FIVE
            job = Job(source=place, columns=columns, streaming=True, checkpoint=site.fresh())
            server = site.kafka if place.format == "kafka" and site.kafka else site.node
            done = query.run(site.spark, job, site.rows if size == LARGE else FEW_ROWS, server.pid)
            if number:
                taken.setdefault(name, []).append(done)
    return taken


def _place(site: Site, name: str, size: int) -> Place | None:
    topic = TOPIC if size == LARGE else FEW
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(size)}
    if name == FILES:
        return stored(site.node, topic, columns=",".join(FIVE), **options)
    if name == FLIGHT:
        return served(site.node, topic, columns=",".join(FIVE), **options)
    if site.kafka is None:
        return None
    return from_kafka(site.kafka, topic, **options, **(TUNED if name == KAFKA_TUNED else {}))


def _beside(taken: Taken, ours: str, theirs: str, field: str = "warm") -> float | None:
    if theirs not in taken:
        return None
    return ratio(query.middle(taken[ours], field), query.middle(taken[theirs], field))


def _ours_together(words: Mapping[str, str]) -> dict[str, str]:
    theirs = {name: text for name, text in words.items() if name not in (FILES, FLIGHT)}
    return {**theirs, "penstock": "; ".join(f"{name}: {words[name]}" for name in (FILES, FLIGHT))}
