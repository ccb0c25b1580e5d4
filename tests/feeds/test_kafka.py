"""Feeds from Kafka without a Kafka: their settings, and the positions that stand in sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import Config
from penstock.errors import ConfigError
from penstock.feeds.kafka.config import FeedConfig, KafkaFeedConfig, check, properties
from penstock.feeds.kafka.positions import latest, prefix_of, sequence_of, source_of

FEED: dict[str, Any] = {"name": "f", "brokers": ("127.0.0.1:9092",), "topics": ("t",)}


def checked(*feeds: FeedConfig) -> None:
    check(Config(parts=(KafkaFeedConfig(feeds=feeds),)))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"topics": ()}, "topics is empty"),
        ({"topics": ("",)}, "topics is empty"),
        ({"topics": ("^(",)}, "not a pattern"),
        ({"into": ""}, "into is empty"),
        ({"sasl": "PLAIN", "user": "alice"}, "go together"),
        ({"user": "alice", "password_file": "/dev/null"}, "sasl and user go together"),
        ({"tls_ca": "/dev/null"}, "tls is false"),
        ({"tls": True, "tls_ca": "/nowhere.pem"}, "no such file"),
        ({"tls": True, "tls_cert": "/dev/null"}, "tls_key is not set"),
        ({"properties": {"fetch.wait.max.ms": "soon"}}, "fetch.wait.max.ms"),
        ({"properties": {"fetch.weight": 1}}, "fetch.weight"),
        ({"properties": {"sasl.password": "x"}}, "is a secret"),
        ({"properties": {"auto.offset.reset": "latest"}}, "write start"),
        ({"properties": {"enable.auto.commit": True}}, "kept with the rows"),
        ({"properties_file": "/nowhere"}, "cannot be read"),
    ],
)
def test_settings_that_cannot_work_are_told_with_the_feed_they_are_of(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        checked(FeedConfig(**{**FEED, **wrong}))
    assert "/nowhere" in str(caught.value) or 'kafka_feed.feeds "f"' in str(caught.value)


def test_two_feeds_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match='two called "f"'):
        checked(FeedConfig(**FEED), FeedConfig(**FEED))


def test_secrets_come_from_files(tmp_path: Path) -> None:
    password, more = tmp_path / "password", tmp_path / "more"
    password.write_text("s=e c\nnot this\n")
    more.write_text("# a comment\n\nfetch.min.bytes = 7\n")
    feed = FeedConfig(
        **FEED, sasl="SCRAM-SHA-512", user="alice", password_file=str(password), properties_file=str(more)
    )
    checked(feed)
    found = properties(feed)
    assert (found["sasl.password"], found["fetch.min.bytes"]) == ("s=e c", "7")
    assert found["security.protocol"] == "SASL_PLAINTEXT"


POSITIONS = st.dictionaries(st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1), min_size=1, max_size=64)


@given(st.lists(POSITIONS, min_size=1, max_size=5))
def test_the_furthest_positions_are_found_in_sequences(some: list[dict[int, int]]) -> None:
    source = source_of("group", "cluster", "topic", "id")
    sequences = [sequence_of(source, positions) for positions in some]
    expected: dict[int, int] = {}
    for positions in some:
        for partition, offset in positions.items():
            expected[partition] = max(offset, expected.get(partition, 0))
    assert latest(source, sequences) == expected
    assert all(sequence.startswith(prefix_of(source)) for sequence in sequences)
    # The log keeps a template for each length.
    assert {len(sequence) - len(prefix_of(source)) for sequence in sequences} <= {12 << power for power in range(7)}


def test_another_group_cluster_or_topic_has_positions_of_its_own() -> None:
    sources = {
        source_of(*parts)
        for parts in (
            ("g", "c", "t", "i"),
            ("h", "c", "t", "i"),
            ("g", "d", "t", "i"),
            ("g", "c", "t", "j"),
            ("g", "c", "t", ""),
            ("g", "c", "u", ""),
        )
    }
    assert len(sources) == 6
