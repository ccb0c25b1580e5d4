"""Pipelines in TOML: what is meant is read, and what cannot be meant is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.pipeline.plan.document import Place, at, loaded, parsed, trigger

GOOD = """
name = "shop"
trigger = "5s"

[node]
path = "penstock-data"

[spark]
"spark.driver.memory" = "512m"

[sources.metrics]
topic = "metrics"
from = "2h"

[steps.minutes]
from = "metrics"
job = "rollup"
format = "statsd"
policies = ["1m:40d"]

[sinks.out]
from = "minutes"
topic = "minutes"

[sinks.lake]
from = "minutes"
table = "lake/minutes"
partition_by = ["day"]
"""


def text(tmp_path: Path, content: str) -> str:
    path = tmp_path / "shop.toml"
    path.write_text(content)
    return str(path)


def refused(tmp_path: Path, old: str, new: str) -> str:
    assert old in GOOD
    with pytest.raises(ConfigError) as told:
        loaded(text(tmp_path, GOOD.replace(old, new)))
    return str(told.value)


def test_a_whole_pipeline_is_read(tmp_path: Path) -> None:
    document = loaded(text(tmp_path, GOOD))
    assert document.name == "shop"
    assert document.node.options() == {"path": "penstock-data"}
    assert document.sources["metrics"].names == ("metrics",)
    assert document.sources["metrics"].from_ == "2h"
    step = document.steps["minutes"]
    assert (step.from_, step.job) == ("metrics", "rollup")
    assert step.options == {"format": "statsd", "policies": ["1m:40d"]}
    assert document.sinks["lake"].partition_by == ("day",)
    assert trigger(document.trigger, "trigger") == {"processingTime": "5000 milliseconds"}


def test_a_file_without_a_name_is_called_as_the_file(tmp_path: Path) -> None:
    assert loaded(text(tmp_path, GOOD.replace('name = "shop"\n', ""))).name == "shop"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('trigger = "5s"', 'triger = "5s"', "has no key triger; did you mean trigger?"),
        ('topic = "minutes"', 'topik = "minutes"', "sinks.out needs topic or table"),
        ('topic = "metrics"', 'topik = "metrics"', "sources.metrics has no key topik; did you mean topic?"),
        ('topic = "metrics"', 'topic = "metrics"\npattern = "m.*"', "needs one of topic, topics and pattern"),
        ('topic = "metrics"', "topic = 5", "sources.metrics: Expected `str`, got `int`"),
        ('path = "penstock-data"', 'pth = "x"', "node has no key pth; did you mean path?"),
        ('trigger = "5s"', 'trigger = "often"', "trigger is 'often': write how often"),
        ('from = "2h"', 'from = "2h"\nhold = "30d"', "hold is '30d': 1s to 7d"),
        ('from = "2h"', 'from = "2h"\nmin_rows = 10\nmax_wait = "0s"', "max_wait is '0s': 1s to 7d"),
        ('from = "2h"', 'from = "2h"\nmin_rows = 10\nmax_rows = 9', "min_rows is 10: 0 to 9, as max_rows has it"),
        ('table = "lake/minutes"', 'table = "x"\ntopic = "y"', "sinks.lake needs topic or table, one of both"),
        ('topic = "minutes"', 'topic = "minutes"\nformat = "delta"', "sinks.out has no key format: it is a topic"),
        ('name = "shop"', 'name = "a/b"', "name is 'a/b': letters, digits"),
        ("[steps.minutes]", "[steps.metrics]", "metrics is a source and a step"),
        ("[sources.metrics]", "[[sources.metrics]]", "sources holds tables by name: write [sources.NAME]"),
        ('from = "2h"', 'from = "2h', "is no TOML"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert said in refused(tmp_path, old, new)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.toml cannot be read: No such file"):
        loaded(str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize("missing", ["sources", "sinks"])
def test_a_pipeline_needs_a_source_and_a_sink(missing: str) -> None:
    values = {"name": "x", "sources": {"a": {"topic": "t"}}, "sinks": {"b": {"from": "a", "topic": "u"}}}
    del values[missing]
    with pytest.raises(ConfigError, match=f"has no {missing}"):
        parsed(values, "here")


def test_a_table_may_lie_in_the_data_directory() -> None:
    values = {"name": "x", "sources": {"a": {"topic": "t"}}, "sinks": {"b": {"from": "a", "table": "{data}/lake"}}}
    document = parsed(values, "here")
    assert at(document, Place(path="d")).sinks["b"].table == "d/lake"
    with pytest.raises(ConfigError, match=r"table names {data}, and the node is not given by its data directory"):
        at(document, Place(url="grpc://host"))
