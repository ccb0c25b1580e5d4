"""The systemd unit in `deploy/` bounds what a node takes, and leaves what a node allows itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.budget import OF_MEMORY
from penstock.clock import SECOND
from penstock.config import LimitsConfig, NodeConfig, parse_duration
from penstock.dialects.flight.config import FlightConfig
from penstock.relays.kafka.config import KafkaRelayConfig

UNIT = Path(__file__).parents[2] / "deploy" / "penstock.service"


@pytest.fixture(scope="module")
def unit() -> dict[str, str]:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_the_unit_has_less_than_the_machine_and_more_than_the_memory_budget(unit: dict[str, str]) -> None:
    high, most = (int(unit[name].removesuffix("%")) for name in ("MemoryHigh", "MemoryMax"))
    assert 100 // OF_MEMORY < high < most < 100


def test_the_unit_has_as_many_tasks_as_streams_may_take_threads_and_not_more_than_a_few(unit: dict[str, str]) -> None:
    flight = FlightConfig()
    assert 2 * flight.exchanges_max + 2 * flight.puts_max < int(unit["TasksMax"]) <= 4096


def test_the_unit_has_an_open_file_for_each_connection_of_a_listener(unit: dict[str, str]) -> None:
    assert int(unit["LimitNOFILE"]) > LimitsConfig().connections


@pytest.mark.parametrize("file", ["compose.yaml", "deploy/cluster/compose.yaml"])
def test_a_node_that_stops_is_not_killed_while_its_relay_still_sends(unit: dict[str, str], file: str) -> None:
    text = (UNIT.parents[1] / file).read_text()
    grace = next(line for line in text.splitlines() if "stop_grace_period:" in line).split(":")[1]
    node = KafkaRelayConfig().shutdown_max_delay_ns + NodeConfig().drain_timeout_ns
    assert parse_duration(grace.strip()) >= node + 10 * SECOND
    assert int(unit["TimeoutStopSec"]) * SECOND >= node + 10 * SECOND


@pytest.mark.parametrize(
    "name", ["PrivateUsers", "NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "RestrictSUIDSGID"]
)
def test_the_unit_is_shut_in(unit: dict[str, str], name: str) -> None:
    assert unit[name] == "yes"


def test_the_unit_runs_as_nobody_in_particular_and_its_files_are_its_own(unit: dict[str, str]) -> None:
    assert unit["User"] not in ("", "root")
    assert (unit["CapabilityBoundingSet"], unit["StateDirectoryMode"]) == ("", "0700")
