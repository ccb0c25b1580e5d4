"""`penstock config check` asks brokers for their limits."""

from __future__ import annotations

from pathlib import Path

from tests.cli.program import inside
from tests.kafka.brokers import Brokers


def test_config_check_warns_where_brokers_take_less_than_the_relay_sends(one: Brokers, tmp_path: Path) -> None:
    relay = ("--set=kafka_relay.topics=t", f"--set=kafka_relay.brokers={one.addresses}")
    good = inside("config", "check", *relay, cwd=tmp_path)
    assert (good.code, good.error) == (0, "")
    large = inside("config", "check", *relay, "--set=kafka_relay.message_max_bytes=2MiB", cwd=tmp_path)
    assert large.code == 0
    assert "takes messages of 1048588 bytes (message.max.bytes)" in large.error
    assert "kafka_relay.message_max_bytes is 2097152" in large.error


def test_config_check_says_nothing_of_brokers_that_do_not_answer(tmp_path: Path) -> None:
    relay = ("--set=kafka_relay.topics=t", "--set=kafka_relay.brokers=127.0.0.1:1")
    done = inside("config", "check", *relay, cwd=tmp_path)
    assert (done.code, done.error) == (0, "")
