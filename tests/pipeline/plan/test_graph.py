"""The parts of a pipeline put in order, and the ways in which they cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.pipeline.plan.document import Document, parsed
from penstock.pipeline.plan.graph import queries


def document(**parts: Any) -> Document:
    values: dict[str, Any] = {
        "name": "x",
        "sources": {"a": {"topic": "t"}},
        "sinks": {"out": {"from": "a", "topic": "u"}},
    }
    return parsed({**values, **parts}, "here")


def refused(**parts: Any) -> str:
    with pytest.raises(ConfigError) as told:
        queries(document(**parts))
    return str(told.value)


def test_sinks_of_one_part_are_one_query() -> None:
    found = queries(
        document(
            steps={"s": {"from": "a", "job": "sql"}, "t": {"from": "s", "job": "sql"}},
            sinks={
                "one": {"from": "t", "topic": "u"},
                "two": {"from": "t", "table": "v"},
                "raw": {"from": "a", "table": "w", "trigger": "once"},
            },
        )
    )
    assert [(query.name, query.source, query.steps, query.sinks, query.trigger) for query in found] == [
        ("t", "a", ("s", "t"), ("one", "two"), "10s"),
        ("a", "a", (), ("raw",), "once"),
    ]


def test_unusable_rows_of_a_step_are_written_by_one_query_only() -> None:
    found = queries(
        document(
            steps={
                "s": {"from": "a", "job": "sql"},
                "t": {"from": "s", "job": "sql"},
                "u": {"from": "s", "job": "sql", "dead": "drop"},
            },
            sinks={
                "one": {"from": "t", "topic": "x"},
                "two": {"from": "u", "topic": "y"},
                "mid": {"from": "s", "topic": "z"},
            },
        )
    )
    assert {query.name: query.buries for query in found} == {"t": ("t",), "u": (), "s": ("s",)}


def test_unusable_rows_of_a_shared_step_without_a_sink_of_its_own_go_with_the_first_query() -> None:
    found = queries(
        document(
            steps={
                "s": {"from": "a", "job": "sql"},
                "t": {"from": "s", "job": "sql"},
                "u": {"from": "s", "job": "sql"},
            },
            sinks={"one": {"from": "t", "topic": "x"}, "two": {"from": "u", "topic": "y"}},
        )
    )
    assert {query.name: query.buries for query in found} == {"t": ("s", "t"), "u": ("u",)}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"steps": {"s": {"from": "t", "job": "sql"}, "t": {"from": "s", "job": "sql"}}},
            "goes in a circle: s → t → s",
        ),
        ({"sinks": {"out": {"from": "a", "topic": "t"}}}, "goes in a circle: a → a"),
        (
            {
                "sources": {"a": {"topic": "t"}, "b": {"pattern": "u.*"}},
                "sinks": {"one": {"from": "a", "topic": "u1"}, "two": {"from": "b", "topic": "t"}},
            },
            "goes in a circle: a → b → a",
        ),
        (
            {
                "steps": {"s": {"from": "a", "job": "sql", "dead": "t"}},
                "sinks": {"out": {"from": "s", "topic": "u"}},
            },
            "goes in a circle: a → s → a",
        ),
        ({"sinks": {"out": {"from": "aa", "topic": "u"}}}, "sinks.out: there is no source or step aa; did you mean a?"),
        ({"steps": {"s": {"from": "a", "job": "sql"}}}, "step s leads to no sink"),
        ({"sources": {"a": {"topic": "t"}, "b": {"topic": "v"}}}, "source b leads to no sink"),
        (
            {"sinks": {"one": {"from": "a", "topic": "u"}, "two": {"from": "a", "topic": "v", "trigger": "1s"}}},
            "give them one trigger",
        ),
    ],
)
def test_what_cannot_run_is_refused(parts: dict[str, Any], said: str) -> None:
    assert said in refused(**parts)


def test_a_topic_that_is_written_and_then_archived_is_no_circle() -> None:
    found = queries(
        document(
            sources={"a": {"topic": "t"}, "b": {"topic": "u"}},
            sinks={"out": {"from": "a", "topic": "u"}, "lake": {"from": "b", "table": "v"}},
        )
    )
    assert [query.name for query in found] == ["a", "b"]
