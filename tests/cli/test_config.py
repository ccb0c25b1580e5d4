from __future__ import annotations

from pathlib import Path

from tests.cli.program import inside


def test_every_setting_is_shown_with_its_origin(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[nsq]\ntcp_port = 5150\nmsg_timeout = "30s"\n')
    done = inside("config", "show", "--set", "log.level=debug", "--json", cwd=tmp_path, PENSTOCK_NSQ_TCP_PORT="6150")
    assert done.code == 0
    found = {setting["name"]: (setting["value"], setting["origin"]) for setting in done.json}
    assert found["nsq.tcp_port"] == ("6150", "environment PENSTOCK_NSQ_TCP_PORT")
    assert found["nsq.msg_timeout"] == ("30s", "file penstock.toml")
    assert found["log.level"] == ("debug", "flag")
    assert found["api.port"] == ("7070", "default")


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    done = inside("config", "show", cwd=tmp_path, PENSTOCK_TOKEN="hush")
    assert "hush" not in done.out
    assert "(set)" in done.out


def test_a_configuration_is_checked_without_starting_anything(tmp_path: Path) -> None:
    good = inside("config", "check", "--set", "log.level=debug", cwd=tmp_path)
    assert (good.code, good.out) == (0, "The configuration is good; 1 setting is not the default.\n")
    (tmp_path / "bad.toml").write_text("[nsq]\ntcp_prt = 1\n")
    bad = inside("config", "check", "--config", "bad.toml", cwd=tmp_path)
    assert bad.code == 2
    assert bad.error == "penstock: file bad.toml: nsq.tcp_prt is not a setting; did you mean nsq.tcp_port?\n"


def test_the_variable_that_names_a_node_to_speak_to_is_no_setting(tmp_path: Path) -> None:
    assert inside("config", "check", cwd=tmp_path, PENSTOCK_URL="http://127.0.0.1:1").code == 0
