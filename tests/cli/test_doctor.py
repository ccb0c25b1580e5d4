from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from penstock.cli import doctor
from tests.cli.program import ANY_PORTS, Node, inside


def test_a_machine_that_can_run_a_node_has_nothing_that_fails(tmp_path: Path) -> None:
    done = inside("doctor", *ANY_PORTS, "--json", cwd=tmp_path)
    assert done.code == 0, done
    found = {finding["what"]: finding["verdict"] for finding in done.json}
    assert set(found) >= {
        "versions",
        "configuration",
        "open files",
        "clock",
        "data directory",
        "disk space",
        "sync speed",
    }
    assert "FAIL" not in found.values()
    assert os.listdir(tmp_path) == []


def test_every_line_begins_with_a_verdict(tmp_path: Path) -> None:
    lines = inside("doctor", *ANY_PORTS, cwd=tmp_path).out.splitlines()
    assert {line.split()[0] for line in lines} <= {"OK", "WARN"}
    assert all(" -> " in line for line in lines if line.startswith("WARN"))


def test_a_port_of_somebody_else_fails_and_names_the_way_out(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = inside("doctor", *ANY_PORTS, "--set", f"nsq.tcp_port={port}", "--json", cwd=tmp_path)
    assert done.code == 1
    [failed] = [finding for finding in done.json if finding["verdict"] == "FAIL"]
    assert failed["what"] == f"port {port}"
    assert f"(pid {os.getpid()})" in failed["found"]
    assert "--port-offset 1000" in failed["todo"]


def test_a_running_node_is_asked_how_it_is(node: Node) -> None:
    ports = [f"--set={key}={port}" for key, port in node.ready["ports"].items()]
    done = inside("doctor", *ports, "--set", f"data_dir={node.cwd / 'data'}", "--json", cwd=node.cwd)
    assert done.code == 0
    found = {finding["what"]: finding["found"] for finding in done.json}
    assert found["node"] == f"ready at {node.url}"
    assert f"held by penstock (pid {node.process.pid})" in found[f"port {node.port('api.port')}"]


def test_a_configuration_that_cannot_be_used_fails_first(tmp_path: Path) -> None:
    done = inside("doctor", "--set", "nsq.tcp_prt=1", cwd=tmp_path)
    assert done.code == 1
    assert done.out.splitlines()[-1].startswith("FAIL  configuration")
    assert "did you mean nsq.tcp_port?" in done.out


def test_a_data_directory_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = inside("doctor", *ANY_PORTS, "--set", "data_dir=file/below", cwd=tmp_path)
    assert done.code == 1
    assert f"{tmp_path}/file is no directory" in done.out


def test_a_disk_that_is_nearly_full_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 1 << 62)
    done = inside("doctor", *ANY_PORTS, cwd=tmp_path)
    assert done.code == 1
    assert "a full disk refuses publishes" in done.out


def test_a_slow_disk_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SYNC_SLOW_NS", 0)
    done = inside("doctor", *ANY_PORTS, cwd=tmp_path)
    assert done.code == 0
    assert "faster disk" in done.out
