"""The systemd units in `deploy/` bound what a node takes, and leave what a node allows itself."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest

from penstock.budget import OF_MEMORY
from penstock.cli.dory import _parsed
from penstock.cli.import_dory import imported
from penstock.clock import SECOND
from penstock.config import LimitsConfig, NodeConfig, parse_duration
from penstock.dialects.flight.config import FlightConfig
from penstock.relays.kafka.config import KafkaRelayConfig

ROOT = Path(__file__).parents[2]


def read(name: str) -> dict[str, str]:
    text = (ROOT / "deploy" / f"{name}.service").read_text()
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module", params=["penstock", "dory"])
def unit(request: pytest.FixtureRequest) -> dict[str, str]:
    return read(request.param)


def test_the_unit_has_less_than_the_machine_and_more_than_the_memory_budget(unit: dict[str, str]) -> None:
    high, most = (int(unit[name].removesuffix("%")) for name in ("MemoryHigh", "MemoryMax"))
    assert 100 // OF_MEMORY < high < most < 100


def test_the_unit_has_as_many_tasks_as_streams_may_take_threads_and_not_more_than_a_few() -> None:
    flight = FlightConfig()
    assert 2 * flight.exchanges_max + 2 * flight.puts_max < int(read("penstock")["TasksMax"]) <= 4096


def test_the_unit_has_an_open_file_for_each_connection_of_a_listener(unit: dict[str, str]) -> None:
    assert int(unit["LimitNOFILE"]) > LimitsConfig().connections


@pytest.mark.parametrize("file", ["compose.yaml", "deploy/cluster/compose.yaml"])
def test_a_node_that_stops_is_not_killed_while_its_relay_still_sends(unit: dict[str, str], file: str) -> None:
    text = (ROOT / file).read_text()
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


def test_dory_is_started_with_options_that_it_knows() -> None:
    path, *arguments = shlex.split(read("dory")["ExecStart"])
    assert Path(path).name in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert _parsed(arguments).config_path == "/etc/dory/dory_conf.xml"


def test_dory_may_write_where_a_file_of_dory_has_its_sockets_and_its_logs() -> None:
    unit = read("dory")
    settings, _ = imported((ROOT / "tests" / "fixtures" / "dory.xml").read_text())
    own = [Path("/run") / unit["RuntimeDirectory"], Path("/var/log") / unit["LogsDirectory"]]
    names = ("dory.unix_datagram_path", "dory.unix_stream_path", "dory.msg_debug_path", "discards.log", "log.file")
    for name in names:
        assert any(Path(str(settings[name])).is_relative_to(directory) for directory in own), name
    assert unit["RuntimeDirectoryMode"] == "0755"
    assert unit["ExecReload"] == "/bin/kill -USR1 $MAINPID"
