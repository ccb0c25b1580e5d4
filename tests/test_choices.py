"""The core knows no dialect: what one lets people choose of a topic is its own, and so is what rows weigh for it."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Self

import pytest

import penstock
from penstock.dialect import Choices, Dialect
from penstock.errors import Refusal
from penstock.node.node import Node
from penstock.registry.records import Measured
from penstock.settings import Measure, TopicSettings
from tests.site import Site

DIALECTS = ("nsq", "youzan", "nsqd")
#: What may name one: the list of them, who speaks for all of them, and what reads records of an older version.
OUTSIDE = ("dialects/", "cli/", "registry/past.py")


class LineChoices(Choices, frozen=True, kw_only=True):
    """A dialect of lines, whose rows take their body and a line feed."""

    feed_bytes: int = 1

    def check(self, before: Self | None) -> None:
        if before is not None and before.feed_bytes > self.feed_bytes:
            raise Refusal("bad_request", "feeds never shrink")

    def measure(self) -> Measure:
        return Measure(row_bytes=self.feed_bytes, header_bytes=None)


def never(*_: object) -> None:
    raise AssertionError("nobody starts or configures it here")


LINE = Dialect("line", penstock.config.Section, never, never, never, LineChoices)  # type: ignore[arg-type]


class LineSite(Site):
    """A node with that dialect."""

    def start(self) -> None:
        self.machine.start()
        self.node = Node(self.config, self.machine.clock, self.machine.disk, Random(1), dialects=[LINE])


def test_rows_weigh_by_the_measure_of_a_dialect_and_a_change_counts_for_what_comes() -> None:
    site = LineSite()
    topic = site.node.create_topic("t", TopicSettings(dialects={"line": {"feed_bytes": 2}})).now()
    site.publish(topic, b"abc", b"d")
    assert topic.shards[0].weight == 2 * 2 + 4
    topic.update(TopicSettings(dialects={"line": {"feed_bytes": 10}})).now()
    site.publish(topic, b"xyz")
    assert topic.shards[0].weight == 8 + 13
    site.machine.run(1)
    site.lose_power()
    topic = site.node.topic("t")
    assert topic.record.measures == (Measured(Measure(2, None)), Measured(Measure(10, None), (2,)))
    assert topic.shards[0].weight == 8 + 13
    assert topic.chosen.of(LineChoices).feed_bytes == 10


def test_a_dialect_refuses_what_it_cannot_use_and_nothing_changes() -> None:
    site = LineSite()
    topic = site.node.create_topic("t", TopicSettings(dialects={"line": {"feed_bytes": 2}})).now()
    for dialects, reason in (
        ({"line": {"feed_bytes": 1}}, "feeds never shrink"),
        ({"line": {"feed_bytes": "two"}}, "settings of line cannot be used: Expected `int`"),
        ({"lime": {"feed_bytes": 3}}, "no dialect lime .* did you mean line?"),
    ):
        with pytest.raises(Refusal, match=reason):
            topic.update(TopicSettings(dialects=dialects)).now()  # type: ignore[arg-type]
    assert topic.chosen.of(LineChoices).feed_bytes == 2
    assert topic.record.measures == (Measured(Measure(2, None)),)


def test_what_a_dialect_of_another_node_chose_stays() -> None:
    site = LineSite()
    site.node.create_topic("t", TopicSettings(dialects={"line": {"feed_bytes": 2}})).now()
    site.machine.run(1)
    site.node = Node(site.config, site.machine.clock, site.machine.disk, Random(1))
    topic = site.node.topic("t")
    topic.update(TopicSettings(rate=5, dialects=topic.settings.dialects)).now()
    assert topic.settings.dialects == {"line": {"feed_bytes": 2}}
    assert topic.shards[0].measure == Measure(2, None)


def test_no_module_of_the_core_names_a_dialect() -> None:
    root = Path(penstock.__file__).parent
    pattern = re.compile("|".join(DIALECTS), re.IGNORECASE)
    found = [
        f"{name}:{number}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if not (name := path.relative_to(root).as_posix()).startswith(OUTSIDE)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []
