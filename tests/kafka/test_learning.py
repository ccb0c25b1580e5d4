"""Which codec a topic gets where the relay finds out, and that it does on its way to a real Kafka."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.codecs import Measure
from penstock.pipeline.jobs.report.compression import advice
from penstock.relays.kafka.learning import LEARN_NS, SAMPLE_BYTES, Learning
from tests.cli.program import Node
from tests.fakes import FakeClock
from tests.kafka.brokers import Brokers, wait_for
from tests.kafka.test_out import balanced, has, relayed
from tests.m3msg.test_out import published

SET = 64 << 10


class Beside:
    """Work that is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], list[Measure]], Callable[[list[Measure]], None]]] = []

    def __call__(self, work: Callable[[], list[Measure]], done: Callable[[list[Measure]], None]) -> None:
        self.waiting.append((work, done))

    def run(self) -> None:
        for work, done in self.waiting:
            done(work())
        self.waiting = []


def made_up(lz4: float, zstd: float) -> Callable[[Sequence[bytes], int], list[Measure]]:
    """Return measures of codecs that leave so much."""

    def measure(bodies: Sequence[bytes], sample_bytes: int) -> list[Measure]:
        assert sum(map(len, bodies)) >= sample_bytes
        return [
            Measure("message_set", "lz4", 4, 1000, int(lz4 * 1000), 2.0, 1.0),
            Measure("message_set", "zstd", 4, 1000, int(zstd * 1000), 5.0, 2.0),
        ]

    return measure


def feed(learning: Learning, topic: str, count: int = SAMPLE_BYTES // SET) -> None:
    for _ in range(count):
        learning.codec(topic)
        learning.see(topic, b"x" * SET)


def test_a_topic_goes_plain_until_enough_of_it_was_looked_at_beside_the_loop() -> None:
    beside = Beside()
    learning = Learning(FakeClock(), beside, made_up(0.5, 0.2))
    feed(learning, "orders", SAMPLE_BYTES // SET - 1)
    assert (learning.codec("orders"), beside.waiting) == ("none", [])
    feed(learning, "orders", 1)
    assert (learning.codec("orders"), len(beside.waiting)) == ("none", 1)
    feed(learning, "orders", 10)
    assert len(beside.waiting) == 1
    beside.run()
    assert learning.codec("orders") == "zstd"
    choice = learning.topics["orders"].choice
    assert choice is not None
    assert choice.reason == "zstd leaves 20% of the bodies for 5.0 ns a byte; lz4 50%."


def test_the_relay_comes_to_what_the_report_advises() -> None:
    for lz4, zstd, wanted in ((0.5, 0.2, "zstd"), (0.3, 0.29, "lz4"), (0.9, 0.86, "none")):
        beside = Beside()
        measure = made_up(lz4, zstd)
        learning = Learning(FakeClock(), beside, measure)
        feed(learning, "t")
        beside.run()
        advised = advice(measure([b"x" * SAMPLE_BYTES], SAMPLE_BYTES))
        assert advised is not None
        assert (learning.codec("t"), advised.kafka) == (wanted, wanted)


def test_what_cannot_be_compressed_is_left_alone_by_real_codecs() -> None:
    beside = Beside()
    learning = Learning(FakeClock(), beside)
    for _ in range(SAMPLE_BYTES // SET):
        learning.codec("noise")
        learning.see("noise", os.urandom(SET))
        learning.codec("zeros")
        learning.see("zeros", bytes(SET))
    beside.run()
    assert learning.codec("noise") == "none"
    assert learning.codec("zeros") != "none"
    choice = learning.topics["noise"].choice
    assert choice is not None
    assert "compressing would only cost CPU time" in choice.reason


def test_a_topic_is_learned_anew_after_an_hour_and_keeps_its_codec_meanwhile() -> None:
    clock, beside = FakeClock(), Beside()
    learning = Learning(clock, beside, made_up(0.5, 0.2))
    feed(learning, "t")
    beside.run()
    feed(learning, "t")
    assert beside.waiting == []
    clock.advance(LEARN_NS)
    feed(learning, "t")
    assert (len(beside.waiting), learning.codec("t")) == (1, "zstd")


def test_figures_tell_what_compression_brings_each_topic() -> None:
    learning = Learning(FakeClock(), Beside())
    learning.sent("t", 1000, 300, 5_000_000)
    learning.sent("t", 1000, 1000, 0)
    learning.codec("u")
    found = {(each.name, each.labels["topic"]): each.value for each in learning.samples()}
    assert found["plain_sets_total", "t"] == 1
    assert found["compressed_sets_total", "t"] == 1
    assert found["plain_bytes_total", "t"] == 2000
    assert found["saved_bytes_total", "t"] == 700
    assert found["compression_seconds_total", "t"] == 0.005
    assert found["compression_learned", "u"] == 1
    assert ("compression_learned", "t") not in found


def told(node: Node, figure: str) -> list[str]:
    """Return the lines of a figure of the relay's."""
    with urllib.request.urlopen(f"{node.ready['url']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if line.startswith(f"penstock_kafka_relay_{figure}{{")]


def test_a_topic_is_learned_on_its_way_to_kafka(tmp_path: Path, one: Brokers, name: Callable[[str], str]) -> None:
    topic = one.create(name("learned"), 1)
    bodies = [b'{"order": %d, "state": "new", "lines": [], "note": ""}' % number for number in range(1500)]
    with relayed(tmp_path, one, topic, more='compression = "auto"') as node:
        for count in range(1, 7):
            published(node, topic, bodies)
            balanced(node, count * len(bodies), 0)
        wait_for(lambda: "leaves" in "".join(told(node, "compression_learned")), "a codec")
        (learned,) = told(node, "compression_learned")
        assert 'codec="none"' not in learned
        published(node, topic, bodies)
        balanced(node, 7 * len(bodies), 0)
        (line,) = told(node, "compressed_sets_total")
        assert float(line.rpartition(" ")[2]) > 0
        assert has(one, topic, bodies * 7)
