from __future__ import annotations

import json
import socket
import tomllib
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.toml import as_toml
from penstock.dialects.dynamiq.gcfg import imported
from penstock.errors import ConfigError
from tests.cli.program import ANY_PORTS, Running, inside

SAMPLE = """
; the sample that comes with Dynamiq
[Core]
name = "test0"
port = 7001
seedserver = "test1"   # comma separated
seedport = 7000
httpport = 8081
riaknodes = 127.0.0.1:8087
backendconnectionpool = 128
syncconfiginterval = 30000
loglevelstring = debug

[stats]
type = statsd
flushinterval = 2
address = 127.0.0.1:8125
prefix = "dynamiq."
"""


def test_dynamiq_case_38_dynamiqs_file_starts_a_node_on_its_port_and_the_rest_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    (tmp_path / "config.gcfg").write_text(SAMPLE.replace("8081", str(port)))
    done = inside("config", "import", "config.gcfg", cwd=tmp_path)
    assert done.code == 0, done.error
    for left in ("core.port", "core.seedserver", "core.seedport", "core.riaknodes", "core.backendconnectionpool"):
        assert f"not carried over: {left}: " in done.error
    (tmp_path / "p.toml").write_text(done.out)
    ports = [each for each in ANY_PORTS if "dynamiq" not in each]
    with Running("up", "--config", "p.toml", "--data", "d", "--ready-file", "ready", *ports, cwd=tmp_path) as node:
        node.line(b"Stop with Ctrl-C.")
        assert json.loads((tmp_path / "ready").read_text())["ports"]["dynamiq.port"] == port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/status/servers", timeout=60) as answer:
            assert answer.read() == b"Member: test0 127.0.0.1\n"


def test_what_it_says_becomes_settings() -> None:
    settings, left = imported(SAMPLE)
    assert settings == {
        "dynamiq.name": "test0",
        "dynamiq.port": 8081,
        "dynamiq.sync_interval": "30000ms",
        "log.level": "debug",
        "dynamiq.statsd_interval": "2s",
        "dynamiq.statsd_address": "127.0.0.1:8125",
        "dynamiq.statsd_prefix": "dynamiq.",
    }
    assert len(left) == 6
    settings, left = imported("[stats]\ntype = none\nprefix = x\n[core]\nloglevelstring = panic\nnews = 1")
    assert settings == {"log.level": "error"}
    assert set(left) == {"stats.type", "stats.prefix", "core.loglevelstring", "core.news", "the address"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name = early", "line 1 is not understood"),
        ("[core]\nhttpport = many", 'core.httpport = "many" is no number'),
        ("[core]\nhttpport = 70000", "is no number to 65535"),
        ("[core", "line 1 is not understood"),
        ('[core]\nname = "open', "line 2 is not understood"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "c.gcfg").write_text(text)
    done = inside("config", "import", "c.gcfg", cwd=tmp_path)
    assert done.code == 2
    assert "c.gcfg" in done.error
    assert why in done.error


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = inside("config", "import", "none.gcfg", cwd=tmp_path)
    assert (done.code, done.error) == (2, "penstock: none.gcfg cannot be read: No such file or directory\n")


NAMES = st.sampled_from(["dynamiq.name", "dynamiq.statsd_prefix", "log.level"])


@given(st.dictionaries(NAMES, st.text(st.characters(exclude_categories=["Cs"]), max_size=20)))
def test_whatever_a_value_holds_the_printed_file_says_it(settings: dict[str, str]) -> None:
    tree = tomllib.loads(as_toml(dict(settings)))
    assert {f"{section}.{key}": value for section, keys in tree.items() for key, value in keys.items()} == settings


@given(st.text(max_size=200))
def test_no_text_breaks_it(text: str) -> None:
    try:
        imported(text)
    except ConfigError as error:
        assert str(error)
