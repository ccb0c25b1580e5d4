from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.cli.beside import DEMO_TOPIC as TOPIC
from penstock.cli.demo import BROKEN, SOURCE, Demo, busyness, lines
from penstock.clock import SECOND
from penstock.config import Config
from penstock.node.node import Node
from tests.fakes import FakeClock, FakeDisk

HOUR_NS = 3600 * SECOND
#: name:value|type, a sample rate and tags, as StatsD and its heirs write it.
STATSD = re.compile(r"[\w.]+:\d+(\.\d+)?\|(c|g|ms)(\|@0\.1)?(\|#\w+:\w+)?")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def node(tmp_path: Path, clock: FakeClock) -> Iterator[Node]:
    running = Node(Config(data_dir=str(tmp_path)), clock, FakeDisk(clock), Random(1))
    yield running
    running.close()
    assert running.bugs == 0


def published(node: Node) -> int:
    return node.topics[TOPIC].published if TOPIC in node.topics else 0


def test_about_twenty_messages_are_published_each_second_until_the_stop(node: Node, clock: FakeClock) -> None:
    demo = Demo(node, Random(7))
    demo.start()
    clock.advance(59 * SECOND)
    clock.run()
    assert 60 * 18 <= published(node) <= 60 * 22
    demo.stop()
    before = published(node)
    clock.advance(60 * SECOND)
    assert published(node) == before


def test_the_topic_is_bounded_and_comes_back_when_it_is_deleted(node: Node, clock: FakeClock) -> None:
    demo = Demo(node, Random(7))
    demo.start()
    clock.advance(SECOND)
    settings = node.topics[TOPIC].settings
    assert (settings.retention_bytes, settings.retention_age_ns, settings.retention_hard) == (
        64 << 20,
        24 * HOUR_NS,
        True,
    )
    node.delete_topic(TOPIC).now()
    clock.advance(SECOND)
    assert published(node) > 0
    batch = node.topics[TOPIC].shards[0].read(0)
    assert batch is not None
    assert batch.row_source(0) == SOURCE
    demo.stop()


def test_a_node_that_takes_nothing_is_tried_again_next_second(node: Node, clock: FakeClock) -> None:
    demo = Demo(node, Random(7))
    node.stopping = True
    demo.start()
    clock.advance(SECOND)
    assert published(node) == 0
    node.stopping = False
    clock.advance(SECOND)
    assert published(node) > 0
    demo.stop()


def test_lines_are_statsd_but_for_one_now_and_then(clock: FakeClock) -> None:
    random = Random(7)
    said = [line for second in range(3000) for line in lines(clock.now() + second * SECOND, random)]
    broken = [line.text for line in said if not STATSD.fullmatch(line.text)]
    assert set(broken) == set(BROKEN)
    assert 50 <= len(broken) <= 200
    kinds = Counter(match[2] for line in said if (match := STATSD.fullmatch(line.text)))
    assert set(kinds) == {"c", "g", "ms"}
    assert {line.traffic for line in said} == {None, 1, 2}
    assert 0.02 < sum(line.traffic is not None for line in said) / len(said) < 0.2
    assert 0.2 < sum("|#" in line.text for line in said) / len(said) < 0.8


def test_the_day_has_its_curve(clock: FakeClock) -> None:
    day = [busyness(hour * HOUR_NS) for hour in range(24)]
    assert day.index(max(day)) == 19
    assert day.index(min(day)) == 7
    assert (round(min(day), 2), round(max(day), 2)) == (0.15, 1.0)

    def requests(hour: int) -> int:
        random = Random(3)
        said = [line.text for _ in range(200) for line in lines(hour * HOUR_NS, random)]
        return sum(int(text.split(":")[1].split("|")[0]) for text in said if text.startswith("shop.requests"))

    assert requests(19) > 3 * requests(7)
