from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import stop
from tests.cli.program import Node, inside


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--kill",), -signal.SIGKILL)])
def test_the_node_of_a_directory_is_stopped_and_no_other(tmp_path: Path, options: tuple[str, ...], code: int) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with Node(tmp_path / "one") as one, Node(tmp_path / "two") as two:
        data = tmp_path / "one" / "data"
        done = inside("stop", "--data", data, *options, cwd=tmp_path)
        said = "was killed" if options else "has stopped"
        assert (done.code, done.out) == (0, f"the node of {data} (pid {one.process.pid}) {said}\n")
        assert one.process.wait(60) == code
        assert two.process.poll() is None
        assert stop.holder(str(tmp_path / "two" / "data")) == two.process.pid


def test_where_no_node_runs_that_is_said(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.end(signal.SIGKILL)
    done = inside("stop", "--data", tmp_path / "data", cwd=tmp_path)
    assert (done.code, done.error) == (3, f"penstock: no node runs on {tmp_path / 'data'}.\n")
    nowhere = inside("stop", "--data", tmp_path / "none", cwd=tmp_path)
    assert (nowhere.code, "there is no data directory" in nowhere.error) == (2, True)


def test_a_node_that_takes_longer_than_it_may_is_named_with_the_way_out(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.process.send_signal(signal.SIGSTOP)
        done = inside("stop", "--data", "data", "--wait", "10ms", cwd=tmp_path)
        text = f"(pid {node.process.pid}) still runs 10ms later; --kill ends it at once."
        assert (done.code, text in done.error) == (1, True)
        assert inside("stop", "--data", "data", "--kill", "--json", cwd=tmp_path).json == {
            "pid": node.process.pid,
            "data": str(tmp_path / "data"),
            "killed": True,
        }


def test_the_pid_is_that_of_the_lock_and_not_one_that_a_file_tells(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        lock = tmp_path / "data" / "lock"
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
            lock.write_text(f"{bystander.pid}\n")
            assert inside("stop", "--data", "data", cwd=tmp_path).code == 0
            assert node.process.wait(60) == 0
            assert bystander.poll() is None
            bystander.communicate(b"\n")


def test_the_data_of_this_configuration_is_meant_if_none_is_named(tmp_path: Path) -> None:
    with Node(tmp_path, data="penstock-data") as node:
        assert f"(pid {node.process.pid}) has stopped" in inside("stop", cwd=tmp_path).out
        assert not os.path.exists(tmp_path / "penstock-data" / "node.json")
