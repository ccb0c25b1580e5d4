"""What can be configured of a relay to Kafka, and what is refused at the start."""

from __future__ import annotations

import pytest

from penstock.cli.table import TABLE
from penstock.config import Config
from penstock.errors import ConfigError
from penstock.relays.kafka.batching import BatchLimits
from penstock.relays.kafka.config import KafkaRelayConfig, PerTopic, check

SECOND = 1_000_000_000


def checked(**fields: object) -> None:
    check(Config(parts=(KafkaRelayConfig(**{"topics": ("t",), **fields}),)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"brokers": ()}, "brokers is empty"),
        ({"brokers": ("kafka",)}, "kafka"),
        ({"metadata_refresh_ns": 0}, "metadata_refresh is 0"),
        ({"socket_timeout_ns": 0}, "socket_timeout is 0"),
        ({"replication_timeout_ns": (1 << 31) * 1_000_000}, "longer than Kafka can be told"),
        ({"error_actions": {"19": "wait"}}, '"wait" is no action'),
        ({"header": "region"}, "is no NAME=VALUE"),
        ({"sasl": "plain"}, "sasl and user go together"),
        ({"user": "u", "password": "p"}, "sasl and user go together"),
        ({"sasl": "plain", "user": "u"}, "kafka_relay.password_file is not set"),
        ({"tls_cert": "/nowhere/at/all"}, "kafka_relay.tls_key is not set"),
        ({"tls_ca": "/nowhere/at/all", "tls": True}, "kafka_relay.tls_ca = .* no such file"),
        ({"tls_ca": "/dev/null"}, "kafka_relay.tls is false"),
        ({"sasl": "plain", "user": "u", "password_file": "/nowhere/at/all"}, "cannot be read"),
        ({"batching": "per_topic"}, "needs batch_time"),
        ({"batching": "combined"}, "needs combined_time"),
        ({"rate_count": 5}, "needs a rate_interval"),
        ({"per_topic": (PerTopic(topic="a"), PerTopic(topic="a"))}, "has a twice"),
        ({"per_topic": (PerTopic(topic="a", batch_time="soon"),)}, "per_topic of a"),
        ({"per_topic": (PerTopic(topic="a", batching="per_topic"),)}, "per_topic of a"),
    ],
)
def test_dory_case_37_what_cannot_work_is_refused_with_a_reason(wrong: dict[str, object], words: str) -> None:
    checked()
    with pytest.raises(ConfigError, match=words):
        checked(**wrong)


def test_without_topics_nothing_is_looked_at() -> None:
    checked(topics=(), brokers=())
    assert not next(each for each in TABLE if each.name == "kafka_relay").starts(Config())


def test_a_topic_has_what_is_said_for_it_and_otherwise_what_holds_for_all() -> None:
    own = PerTopic(
        topic="a", batching="per_topic", batch_time="2s", batch_bytes="64KiB", rate_interval="1s", rate_count=7
    )
    config = KafkaRelayConfig(topics=("*",), compression="lz4", compression_level=3, per_topic=(own,))
    special, usual = config.manner("a"), config.manner("b")
    assert (special.batching, special.batch) == ("per_topic", BatchLimits(2 * SECOND, 0, 65536))
    assert (special.rate_interval_ns, special.rate_count) == (SECOND, 7)
    assert (special.compression, special.compression_level) == ("lz4", 3)
    assert (usual.batching, usual.rate_interval_ns, usual.compression) == ("none", 0, "lz4")


def test_patterns_fit_names_but_those_of_the_nodes_own_topics_only_when_named() -> None:
    config = KafkaRelayConfig(topics=("orders", "web-*"))
    assert [name for name in ("orders", "orders2", "web-1", "web-", "_web-1") if config.relays(name)] == [
        "orders",
        "web-1",
        "web-",
    ]
    every = KafkaRelayConfig(topics=("*", "_penstock.events"))
    assert [name for name in ("a", "_penstock.audit", "_penstock.events") if every.relays(name)] == [
        "a",
        "_penstock.events",
    ]
