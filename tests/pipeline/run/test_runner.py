"""Whole pipelines on a real node and a real Spark: every row once at every sink, whatever interrupts it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.client.connection import Unreachable
from penstock.client.wire import PipelineReport
from penstock.errors import ConfigError
from penstock.pipeline.lake.table import table
from penstock.pipeline.plan.document import Document, Place, at, parsed
from penstock.pipeline.run.runner import Failed, Runner
from tests.flight.parts import Flown, many
from tests.flight.parts import body_batch as many_bodies


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Flown]:
    with Flown(tmp_path / "node") as made:
        yield made
        assert made.do(lambda: made.node.bugs) == 0


def document(node: Flown, tmp_path: Path, **parts: Any) -> Document:
    # The session is that of all tests, and a setting stays.
    spark = {"spark.sql.shuffle.partitions": 1}
    values = {"name": "p", "home": str(tmp_path / "home"), "spark": spark, **parts}
    return at(parsed(values, "here"), Place(url=f"grpc://127.0.0.1:{node.flight.port}"))


def once(document: Document) -> PipelineReport:
    """Run a pipeline over what is there and return what it said last."""
    said: list[PipelineReport] = []
    Runner(document, master="local[2]", once=True, show=said.append).run()
    assert [report.state for report in (said[0], said[-1])] == ["starting", "stopped"]
    return said[-1]


def bodies(node: Flown, topic: str) -> list[bytes]:
    return sorted(body for body in node.bodies(topic))


def numbers(count: int, start: int = 0) -> list[bytes]:
    return sorted(b"body %d" % number for number in range(start, start + count))


STATSD = [b"hits:3|c", b"hits:4|c\nload:0.5|g", b"this is no sample", b"took:12|ms"]


def test_a_topic_goes_to_a_topic_and_to_a_table_and_a_second_run_adds_what_came_since(
    spark: SparkSession, node: Flown, tmp_path: Path
) -> None:
    node.put("in", many(300))
    both = document(
        node,
        tmp_path,
        sources={"in": {"topic": "in", "max_rows": 100}},
        steps={
            "odd": {
                "from": "in",
                "job": "sql",
                "query": "SELECT * FROM {input} WHERE CAST(substring(CAST(body AS STRING), 6) AS INT) % 2 = 1",
            }
        },
        sinks={
            "copy": {"from": "in", "topic": "copy"},
            "lake": {"from": "in", "table": str(tmp_path / "lake"), "compact_every": 2},
            "odd": {"from": "odd", "topic": "odd"},
        },
    )
    report = once(both)
    assert {query.name: (query.batch, query.rows_total, query.state) for query in report.queries} == {
        "in": (2, 300, "ended"),
        "odd": (2, 300, "ended"),
    }
    node.put("in", many(50, 300))
    assert [query.rows_total for query in once(both).queries] == [50, 50]
    assert bodies(node, "copy") == numbers(350)
    assert bodies(node, "odd") == sorted(b"body %d" % number for number in range(1, 350, 2))
    kept = table(str(tmp_path / "lake")).read(spark)
    assert sorted(bytes(row.body) for row in kept.select("body").collect()) == numbers(350)
    assert kept.select("topic", "day").distinct().count() == 1
    holds = node.do(lambda: [record.name for record in node.node.holds._records.values()])
    assert sorted(holds) == ["pipeline/p/in", "pipeline/p/odd"]


def test_rows_that_do_not_parse_go_to_the_dead_letters_and_the_query_goes_on(
    spark: SparkSession, node: Flown, tmp_path: Path
) -> None:
    node.put("metrics", *[many_bodies(*STATSD)])
    rollup = document(
        node,
        tmp_path,
        sources={"metrics": {"topic": "metrics"}},
        steps={"rollup": {"from": "metrics", "job": "rollup", "policies": ["1s:1d"], "lateness": "0s", "future": "0s"}},
        sinks={
            "out": {"from": "rollup", "topic": "rollup"},
            "table": {"from": "rollup", "table": str(tmp_path / "lake")},
        },
    )
    report = once(rollup)
    (dead,) = node.read("metrics.dead").to_pylist()
    assert dead["body"] == b"this is no sample"
    assert json.loads(dead["headers"])["penstock.dead.topic"] == "metrics"
    assert [query.dead_rows for query in report.queries] == [1]
    # Windows close when later samples come.
    for body in (b"hits:1|c", b"hits:1|c"):
        threading.Event().wait(1.1)
        node.put("metrics", many_bodies(body))
        once(rollup)
    found = {row["id"]: row["value"] for row in map(json.loads, node.bodies("rollup"))}
    assert found["stats.counts.hitssum"] in (7.0, 1.0)
    assert found["stats.gauges.loadlast"] == 0.5
    assert found["stats.timers.tookp99"] == 12.0
    rows = table(str(tmp_path / "lake"), partition_by=("day",)).read(spark).collect()
    assert len(rows) == len(node.bodies("rollup"))
    assert {row.id: row.value for row in rows} == found
    # The node takes such a letter back to where it came from, like one of its own.
    assert node.post("topics/metrics.dead/redrive").json["topics"] == {"metrics": 1}
    again = node.read("metrics").to_pylist()[-1]
    assert (again["body"], again.get("headers")) == (b"this is no sample", None)


def test_a_routed_topic_goes_to_the_topics_that_its_rows_name(spark: SparkSession, node: Flown, tmp_path: Path) -> None:
    node.put("in", many_bodies(b"a", b"b", b"c", traffic=[1, 2, 3]))
    services = {
        "one": {"allowed": ["x"], "topic": "out.one"},
        "two": {"allowed": ["y"], "topic": "out.two"},
    }
    routed = document(
        node,
        tmp_path,
        sources={"in": {"topic": "in"}},
        steps={"route": {"from": "in", "job": "route", "services": services, "mapping": {"x": 0, "y": 1}}},
        sinks={
            "topics": {"from": "route", "topic": "*"},
            "lake": {"from": "route", "table": str(tmp_path / "lake"), "where": "service = 'two'"},
        },
    )
    once(routed)
    assert bodies(node, "out.one") == [b"a", b"c"]
    assert bodies(node, "out.two") == [b"b", b"c"]
    assert table(str(tmp_path / "lake")).read(spark).count() == 2


def test_a_stop_ends_a_pipeline_between_two_batches_and_it_goes_on_there(
    spark: SparkSession, node: Flown, tmp_path: Path
) -> None:
    node.put("in", many(100))
    copy = document(
        node,
        tmp_path,
        trigger="100ms",
        sources={"in": {"topic": "in", "max_rows": 10}},
        sinks={"copy": {"from": "in", "topic": "copy"}},
    )
    said: list[PipelineReport] = []

    def watch(report: PipelineReport) -> None:
        said.append(report)
        if report.state == "running":
            runner.stop()

    runner = Runner(copy, master="local[2]", show=watch)
    runner.run()
    assert [report.state for report in said] == ["starting", "running", "stopping", "stopped"]
    assert runner.home.owner() is None
    once(copy)
    assert bodies(node, "copy") == numbers(100)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"sources": {"in": {"topic": "inn"}}}, "sources.in: there is no topic inn; did you mean in?"),
        (
            {"sources": {"in": {"topic": "in", "columns": ["offset"]}}},
            "sinks.out: the frame needs a column body; it has offset",
        ),
        ({"sinks": {"out": {"from": "in", "table": "/dev/null/x"}}}, "cannot be written"),
        (
            {"sinks": {"out": {"from": "in", "table": "x", "formt": "delta"}}},
            "sinks.out has no key formt; did you mean",
        ),
        (
            {
                "steps": {"s": {"from": "in", "job": "sql", "query": "SELECT body, 1 AS amount FROM {input}"}},
                "sinks": {"out": {"from": "s", "topic": "out"}},
            },
            "sinks.out: a message has no column amount",
        ),
        (
            {
                "steps": {"s": {"from": "in", "job": "sql", "query": "SELECT bodi FROM {input}"}},
                "sinks": {"out": {"from": "s", "topic": "out"}},
            },
            "steps.s: [UNRESOLVED_COLUMN.WITH_SUGGESTION]",
        ),
        (
            {
                "steps": {"s": {"from": "in", "job": "rollup", "policies": ["x"]}},
                "sinks": {"out": {"from": "s", "topic": "o"}},
            },
            "steps.s: ",
        ),
        (
            {"steps": {"s": {"from": "in", "job": "rolup"}}, "sinks": {"out": {"from": "s", "topic": "o"}}},
            "steps.s: there is no job rolup; did you mean rollup?",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_anything_runs(
    spark: SparkSession, node: Flown, tmp_path: Path, parts: dict[str, Any], said: str
) -> None:
    node.put("in", many(1))
    given = {"sources": {"in": {"topic": "in"}}, "sinks": {"out": {"from": "in", "topic": "out"}}, **parts}
    with pytest.raises(ConfigError) as told:
        once(document(node, tmp_path, **given))
    assert said in str(told.value)
    assert "out" not in node.node.topics


def test_a_node_that_is_away_is_one_clear_line_and_the_pipeline_goes_on_when_it_is_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    def copy(node: Flown) -> Document:
        sinks = {"copy": {"from": "in", "topic": "copy"}}
        return document(node, tmp_path, sources={"in": {"topic": "in"}}, sinks=sinks)

    with Flown(tmp_path / "node") as node:
        node.put("in", many(100))
        once(copy(node))
        node.put("in", many(100, 100))
        declared = copy(node)
    with pytest.raises(Unreachable, match=declared.node.url):
        once(declared)
    with Flown(tmp_path / "node") as node:
        once(copy(node))
        assert bodies(node, "copy") == numbers(200)


def test_a_query_that_fails_ends_the_run_with_one_clear_line(spark: SparkSession, node: Flown, tmp_path: Path) -> None:
    node.put("in", many(100))
    copy = document(
        node,
        tmp_path,
        sources={"in": {"topic": "in"}},
        steps={"bad": {"from": "in", "job": "sql", "query": "SELECT offset / 0 AS amount FROM {input}"}},
        sinks={"copy": {"from": "in", "topic": "copy"}, "bad": {"from": "bad", "table": str(tmp_path / "lake")}},
    )
    with pytest.raises(Failed, match=r"query bad: .*DIVIDE_BY_ZERO"):
        once(copy)
    report = Runner(copy).home.told()
    assert report is not None
    assert report.state == "failed"
    assert "DIVIDE_BY_ZERO" in report.error
