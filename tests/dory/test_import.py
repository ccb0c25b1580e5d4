"""Dory's own configuration file as ours, and everything it is refused for."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from penstock.cli import table
from penstock.cli.import_dory import imported
from penstock.clock import SECOND
from penstock.dialects.dory.config import DoryConfig
from penstock.errors import ConfigError
from penstock.relays.kafka.config import KafkaRelayConfig
from tests.cli.program import inside

COMPLETE = Path(__file__).parents[1] / "fixtures" / "dory.xml"

LEAST = """<doryConfig>
  <inputSources><tcp enable="true"><port value="9999"/></tcp></inputSources>
  <initialBrokers><broker host="k" port="9092"/></initialBrokers>
</doryConfig>"""


def section(text: str) -> str:
    """Return the least file with one more section."""
    return LEAST.replace("</doryConfig>", f"{text}</doryConfig>")


def test_every_element_of_a_complete_file_is_a_setting_or_is_named(tmp_path: Path) -> None:
    made = inside("config", "import", COMPLETE, cwd=tmp_path)
    assert made.code == 0, made.error
    tree = tomllib.loads(made.out)
    assert tree["dory"] == {
        "unix_datagram_path": "/run/dory/dory.socket",
        "unix_datagram_mode": "0222",
        "unix_stream_path": "/run/dory/dory.stream",
        "unix_stream_mode": "0666",
        "max_buffer": "128MiB",
        "max_datagram_msg_size": "64KiB",
        "max_stream_msg_size": "16MiB",
        "allow_large_unix_datagrams": False,
        "http_port": 9191,
        "msg_debug_path": "/var/log/dory/debug",
        "msg_debug_time": "1h",
        "msg_debug_bytes": "2GiB",
    }
    per_topic = {each.pop("topic"): each for each in tree["kafka_relay"].pop("per_topic")}
    assert tree["kafka_relay"] == {
        "topics": ["*"],
        "brokers": ["kafka-1:9092", "kafka-2:9002"],
        "client_id": "web-7",
        "replication_timeout": "10s",
        "topic_autocreate": True,
        "failed_attempts_max": 5,
        "shutdown_max_delay": "30s",
        "restart_max_delay": "5s",
        "metadata_refresh": "15m",
        "metadata_compare": True,
        "socket_timeout": "1m",
        "pause_initial": "5s",
        "pause_doublings": 4,
        "pause_min": "5s",
        "request_bytes": "1MiB",
        "message_max_bytes": "2MiB",
        "batching": "combined",
        "combined_time": "10s",
        "combined_messages": 1024,
        "combined_bytes": "256KiB",
        "compression": "snappy",
        "compression_min_bytes": "1KiB",
        "compression_level": 0,
        "compression_percent": 75,
        "rate_interval": "0",
        "rate_count": 0,
    }
    assert per_topic == {
        "orders": {
            "batching": "per_topic",
            "batch_time": "500ms",
            "batch_messages": 0,
            "batch_bytes": "0",
            "compression": "gzip",
            "compression_min_bytes": "128B",
            "compression_level": 9,
            "rate_interval": "10s",
            "rate_count": 5120,
        },
        "alarms": {"batching": "none"},
        "images": {"compression": "none"},
    }
    assert tree["discards"] == {
        "report_interval": "5m",
        "sample_bytes": "128B",
        "log": "/var/log/dory/discards",
        "log_file_bytes": "32MiB",
        "log_archive_bytes": "256MiB",
        "log_message_bytes": "0",
        "warn": True,
    }
    assert tree["log"] == {"level": "info", "file": "/var/log/dory/dory.log", "syslog": "/dev/log"}
    assert tree["node"] == {"message_bytes": "2MiB", "request_bytes": "16MiB"}
    assert [line.split(": ")[1] for line in made.error.splitlines()] == [
        "the port of broker kafka-2",
        "doryConfig/httpInterface/loopbackOnly",
        "doryConfig/logging/file/mode",
    ]
    (tmp_path / "penstock.toml").write_text(made.out)
    assert table.load(str(tmp_path / "penstock.toml"), {}, {}).config.of(DoryConfig).http_port == 9191


def test_the_least_file_starts_with_sane_defaults() -> None:
    settings, left = imported(LEAST)
    config = table.load(os.devnull, settings, {}).config
    dory, relay = config.of(DoryConfig), config.of(KafkaRelayConfig)
    assert (dory.tcp, dory.tcp_port, dory.http_port, dory.unix_datagram_path) == (True, 9999, 9090, "")
    assert (relay.brokers, relay.client_id, relay.message_max_bytes) == (("k:9092",), "dory", 1_000_000)
    assert set(left) == {
        "doryConfig/batching",
        "doryConfig/httpInterface/loopbackOnly",
    }
    assert config.log.syslog == "/dev/log"


@pytest.mark.parametrize(
    ("enable", "file", "why"),
    [
        ("true", False, None),
        ("true", True, "lines go to the file and not to standard error as well"),
        ("false", True, None),
        ("false", False, "without a file, lines go to standard error"),
    ],
)
def test_where_the_log_goes_otherwise_than_the_file_says_is_told(enable: str, file: bool, why: str | None) -> None:
    where = '<file enable="true"><path value="/var/log/dory.log"/></file>' if file else ""
    _, left = imported(section(f'<logging><stdoutStderr enable="{enable}"/>{where}</logging>'))
    assert left.get("doryConfig/logging/stdoutStderr") == why


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        # Case 37, in its order; its last, lz4, works here.
        ('<doryConfig><initialBrokers><broker host="k"/></initialBrokers></doryConfig>', "no input that is on"),
        (LEAST.replace('<broker host="k" port="9092"/>', ""), "no broker"),
        (
            LEAST.replace("<tcp ", '<unixStream enable="true"><path value="dory.socket"/></unixStream><tcp '),
            "no absolute path",
        ),
        (
            LEAST.replace(
                "<tcp ", '<unixStream enable="true"><path value="/s"/><mode value="0x1ff"/></unixStream><tcp '
            ),
            "is no mode",
        ),
        (section('<httpInterface><discardReportInterval value="0"/></httpInterface>'), "must be 1 or more"),
        (section('<compression><sizeThresholdPercent value="101"/></compression>'), "more than 100"),
        # What else Dory refuses.
        ("<doryConfig>", "no XML"),
        ("<config/>", "its root is config"),
        (section("<httpInterfaces/>"), "did you mean httpInterface"),
        (section('<httpInterface><port valu="1"/></httpInterface>'), "has no value"),
        (section('<httpInterface><port value="1" x="2"/></httpInterface>'), "has no x"),
        (section("<msgDelivery/><msgDelivery/>"), "there 2 times"),
        (section('<inputConfig><maxBuffer value="1g"/></inputConfig>'), "no number"),
        (section('<msgDelivery><minPauseDelay value="5k"/></msgDelivery>'), "no number"),
        (section('<msgDelivery><topicAutocreate enable="yes"/></msgDelivery>'), "neither true nor false"),
        (section('<httpInterface><port value="0"/></httpInterface>'), "no port"),
        (section('<kafkaConfig><replicationTimeout value="2147483648"/></kafkaConfig>'), "more than 2147483647"),
        (section('<logging><level value="LOUD"/></logging>'), "no level"),
        (section("<batching/>"), "produceRequestDataLimit is missing"),
        (section('<discardLogging enable="true"/>'), "path is missing"),
        (section('<msgDebug enable="true"><path value="here"/></msgDebug>'), "no absolute path"),
        (
            section('<compression><defaultTopic config="x"/></compression>'),
            'there is no config "x"',
        ),
        (
            section('<compression><namedConfigs><config name="a" type="gzip"/></namedConfigs></compression>'),
            "no minSize",
        ),
        (
            section(
                '<compression><namedConfigs><config name="a" type="none"/></namedConfigs><topicConfigs>'
                '<topic name="t" config="a"/><topic name="t" config="a"/></topicConfigs></compression>'
            ),
            "t is there twice",  # Dory ends with a crash here
        ),
        (
            section(
                '<topicRateLimiting><namedConfigs><config name="a" interval="0" maxCount="1"/></namedConfigs>'
                "</topicRateLimiting>"
            ),
            "must be 1 or more",
        ),
    ],
)
def test_dory_case_37_what_dory_refuses_is_refused_with_the_place_and_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        imported(text)


def test_dory_case_37_lz4_is_no_error_here() -> None:
    settings, _ = imported(
        section(
            '<compression><namedConfigs><config name="a" type="lz4" minSize="1"/></namedConfigs>'
            '<defaultTopic config="a"/></compression>'
        )
    )
    assert settings["kafka_relay.compression"] == "lz4"


def rates(most: str) -> KafkaRelayConfig:
    """Return the relay of a file with a default rate, and a topic with another one."""
    settings, left = imported(
        section(
            '<topicRateLimiting><namedConfigs><config name="some" interval="10000" maxCount="500"/>'
            f'<config name="other" interval="1000" maxCount="{most}"/></namedConfigs><defaultTopic config="some"/>'
            '<topicConfigs><topic name="vip" config="other"/></topicConfigs></topicRateLimiting>'
        )
    )
    assert not [name for name in left if "rate" in name]
    return table.load(os.devnull, settings, {}).config.of(KafkaRelayConfig)


def test_a_topic_without_a_rate_is_not_held_to_that_of_the_others() -> None:
    relay = rates("unlimited")
    assert (relay.manner("vip").rate_interval_ns, relay.manner("vip").rate_count) == (0, 0)
    assert (relay.manner("t").rate_interval_ns, relay.manner("t").rate_count) == (10 * SECOND, 500)


def test_a_rate_of_nothing_throws_everything_away_as_in_dory() -> None:
    relay = rates("0")
    assert (relay.manner("vip").rate_interval_ns, relay.manner("vip").rate_count) == (SECOND, 0)


def packed(config: str, topic: str = "") -> tuple[KafkaRelayConfig, list[str]]:
    """Return the relay of a file with a default compression, and what could not be carried of that."""
    settings, left = imported(
        section(
            f'<compression><namedConfigs><config name="c" {config}/><config name="own" type="gzip" minSize="1"/>'
            f'</namedConfigs><defaultTopic config="c"/><topicConfigs>{topic}</topicConfigs></compression>'
        )
    )
    told = [f"{name}: {why}" for name, why in left.items() if "compression" in name]
    return table.load(os.devnull, settings, {}).config.of(KafkaRelayConfig), told


@pytest.mark.parametrize(
    ("config", "codec", "level", "told"),
    [
        ('type="gzip" minSize="1" level="9"', "gzip", 9, ""),
        ('type="gzip" minSize="1" level="-1"', "gzip", None, ""),
        ('type="gzip" minSize="1"', "gzip", None, ""),
        ('type="gzip" minSize="1" level="10"', "gzip", None, "compression config c: gzip has no level 10"),
        ('type="gzip" minSize="1" level="-2"', "gzip", None, "compression config c: gzip has no level -2"),
        # Nothing gets smaller by it, so Dory sends everything as it is.
        ('type="gzip" minSize="1" level="0"', "none", None, "compression config c: level 0 makes nothing smaller"),
        ('type="snappy" minSize="1" level="99"', "snappy", None, ""),  # which has no levels, in Dory either
        ('type="zstd" minSize="1" level="22"', "zstd", 22, ""),
        ('type="zstd" minSize="1" level="23"', "zstd", None, "compression config c: zstd has no level 23"),
    ],
)
def test_a_level_of_compression_is_carried_or_it_is_the_codecs_own(
    config: str, codec: str, level: int | None, told: str
) -> None:
    relay, left = packed(config)
    assert (relay.manner("t").compression, relay.manner("t").compression_level) == (codec, level)
    assert [text.startswith(told) for text in left] == ([True] if told else [])


def test_a_topic_without_a_level_has_not_that_of_the_others() -> None:
    relay, _ = packed('type="gzip" minSize="1" level="9"', '<topic name="t" config="own"/>')
    assert (relay.manner("t").compression_level, relay.manner("u").compression_level) == (None, 9)
