"""Secrets: not on a command line, not in an address, and not at the mercy of a directory that somebody prepared."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.app import app
from penstock.client.connection import location_of
from penstock.errors import ConfigError
from tests.cli.program import Node, inside, penstock

SECRET = "hush-hush"


@pytest.mark.parametrize(
    "command",
    [
        ["pub", "t", "x", "--token", SECRET],
        ["topic", "list", f"--token={SECRET}"],
        ["up", "--set", f"token={SECRET}"],
        ["config", "check", "--set", f"token={SECRET}"],
        ["doctor", "--set", f" token ={SECRET}"],
        ["topic", "list", "--url", f"http://user:{SECRET}@127.0.0.1:7070"],
        ["topic", "list", "--url", f"http://127.0.0.1:7070/?token={SECRET}"],
    ],
)
def test_a_secret_on_a_command_line_is_refused_with_the_way_out(tmp_path: Path, command: list[str]) -> None:
    done = inside(*command, cwd=tmp_path)
    assert done.code == 2
    assert "file" in done.error
    assert "PENSTOCK_TOKEN" in done.error
    assert SECRET not in done.error + done.out


def test_the_password_of_any_zone_is_refused_on_a_command_line(tmp_path: Path) -> None:
    done = inside("config", "check", "--set", f"etcd.zones.eu-west.password={SECRET}", cwd=tmp_path)
    assert done.code == 2
    assert "etcd.zones.eu-west.password_file" in done.error
    assert "PENSTOCK_ETCD_ZONES_EU_WEST_PASSWORD" in done.error
    assert SECRET not in done.error + done.out


def test_no_command_has_an_option_that_takes_a_secret() -> None:
    import typer

    def options(command: object) -> list[str]:
        inner = [name for each in getattr(command, "commands", {}).values() for name in options(each)]
        return inner + [name for option in getattr(command, "params", ()) for name in option.opts]

    found = options(typer.main.get_command(app))
    assert "--token-file" in found
    assert not {"--token", "--secret", "--password"} & set(found)


def test_words_behind_two_dashes_are_messages(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        assert node.call("pub", "t", "--", "--token").code == 0


def test_a_node_reads_its_token_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\nnotes\n")
    with Node(tmp_path, "--set=token_file=secret") as node:
        assert node.call("topic", "list").code == 1
        assert node.call("topic", "list", PENSTOCK_TOKEN=SECRET).code == 0
        assert SECRET.encode() not in Path(f"/proc/{node.process.pid}/cmdline").read_bytes()
        shown = inside("config", "show", "--set=token_file=secret", "--json", cwd=tmp_path)
        assert SECRET not in shown.out


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read"), ("\n", "first line is empty"), ("\xff", "UTF-8")]
)
def test_a_file_of_a_token_that_cannot_be_used_is_said(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content.encode("latin-1"))
    done = inside("config", "check", "--set=token_file=secret", cwd=tmp_path)
    assert done.code == 2
    assert said in done.error


@pytest.mark.parametrize("url", ["grpc://user:pw@host:7071", f"grpc://host:7071?token={SECRET}", f"{SECRET}@host"])
def test_an_address_of_the_sdk_holds_no_secret(url: str) -> None:
    with pytest.raises(ConfigError, match="pass it as token") as refused:
        location_of(url)
    assert SECRET not in str(refused.value)


def test_an_auth_server_is_no_place_for_a_secret(tmp_path: Path) -> None:
    done = inside("config", "check", f"--set=nsq.auth_http_addresses=http://user:{SECRET}@auth", cwd=tmp_path)
    assert done.code == 2
    assert "nsq.auth_http_addresses" in done.error
    assert SECRET not in done.error


# --- a directory that somebody prepared ---------------------------------------------------------------------------

PREPARED = """
insecure = true
token_file = "/etc/hostname"
[callers]
users = "theirs.json"
[nsq]
auth_http_addresses = ["evil.example:80"]
lookupd_tcp_addresses = ["evil.example:4160"]
[pipeline]
file = "evil.toml"
setup = "touch run-by-stranger"
"""
IGNORED = (
    *("insecure", "token_file", "callers.users", "nsq.auth_http_addresses", "nsq.lookupd_tcp_addresses"),
    *("pipeline.file", "pipeline.setup"),
)


def test_a_file_that_nobody_named_runs_nothing_and_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(PREPARED + '[topic]\ndurability = "fsync"\n')
    shown = inside("config", "show", "--json", cwd=tmp_path)
    values = {row["name"]: row for row in shown.json}
    assert all(values[name]["origin"] == "default" for name in IGNORED)
    assert values["topic.durability"]["value"] == "fsync"  # what harms nobody is taken
    for name in IGNORED:
        assert f"penstock: {name} in ./penstock.toml is ignored" in shown.error
    assert "--config penstock.toml" in shown.error
    for way in (["--config", "penstock.toml"], []):
        variables: dict[str, Any] = {} if way else {"PENSTOCK_CONFIG": "penstock.toml"}
        named = inside("config", "show", "--json", *way, cwd=tmp_path, **variables)
        values = {row["name"]: row for row in named.json}
        assert all(values[name]["origin"] == "file penstock.toml" for name in IGNORED)
        assert named.error == ""


def test_a_node_in_a_prepared_directory_runs_no_program(tmp_path: Path) -> None:
    (tmp_path / "evil.toml").write_text("")
    (tmp_path / "penstock.toml").write_text('[pipeline]\nfile = "evil.toml"\nsetup = "touch run-by-stranger"\n')
    with Node(tmp_path) as node:
        assert "pipeline.setup in ./penstock.toml is ignored" in node.errors()
        assert node.end() == 0
    assert not (tmp_path / "run-by-stranger").exists()


@pytest.mark.parametrize("setting", ['[api]\naddress = "localhost"\nport = {}', "port_offset = {}\n[api]\nport = 1"])
@pytest.mark.parametrize("given", ["variable", "file"])
def test_a_file_that_nobody_named_gets_no_token(tmp_path: Path, setting: str, given: str) -> None:
    heard: list[str | None] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    stranger = HTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=stranger.serve_forever, daemon=True).start()
    port = stranger.server_address[1]
    (tmp_path / "penstock.toml").write_text(setting.format(port - 1 if "offset" in setting else port))
    (tmp_path / "secret").write_text(SECRET)
    way: dict[str, Any] = {"PENSTOCK_TOKEN": SECRET} if given == "variable" else {"PENSTOCK_TOKEN_FILE": "secret"}
    try:
        done = inside("topic", "list", cwd=tmp_path, **way)
        assert done.code == 2
        assert "would say who gets your token" in done.error
        assert heard == []
        assert inside("topic", "list", cwd=tmp_path).code == 1  # without a secret anybody may be asked
        assert inside("topic", "list", cwd=tmp_path, **way, PENSTOCK_CONFIG="penstock.toml").code == 1
        assert heard == [None, f"Bearer {SECRET}"]
    finally:
        stranger.shutdown()
        stranger.server_close()


def test_a_directory_of_ones_own_goes_on_working(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(f'token = "{SECRET}"\n[topic]\ndurability = "fsync"\n')
    assert penstock("config", "check", cwd=tmp_path).code == 0
    with Node(tmp_path) as node:
        assert node.call("topic", "list").code == 1  # an address that was named gets no token of a file
        assert node.call("topic", "list", PENSTOCK_TOKEN=SECRET).code == 0
