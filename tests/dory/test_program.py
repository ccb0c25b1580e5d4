"""`dory` as a process: Dory's own file, its inputs and its pages, signals and exit codes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.ports import free_port
from penstock.dory import Sender
from tests.cli.program import SECONDS_MAX, environment

PROGRAM = [sys.executable, "-c", "from penstock.cli.dory import main; main()"]

FILE = """<doryConfig>
  <inputSources>
    <unixDatagram enable="true"><path value="{directory}/dory.socket"/><mode value="0222"/></unixDatagram>
  </inputSources>
  <msgDelivery><shutdownMaxDelay value="1"/></msgDelivery>
  <httpInterface><port value="{port}"/><loopbackOnly value="true"/></httpInterface>
  <logging><syslog enable="false"/><file enable="true"><path value="{directory}/log"/></file></logging>
  <initialBrokers><broker host="127.0.0.1" port="1"/></initialBrokers>
</doryConfig>"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="dory-") as path:
        yield Path(path)


def written(directory: Path) -> tuple[Path, int]:
    """Write a file with a port that nobody uses."""
    port = free_port()
    path = directory / "dory.xml"
    path.write_text(FILE.format(directory=directory, port=port))
    return path, port


def ran(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def asked(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_MAX)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def counted(port: int, name: str) -> int:
    found = asked(port, "/counters/json")["counters"]
    return next(int(each["value"]) for each in found if each["name"] == name)


def listening(pid: int) -> list[int]:
    """Return the TCP ports that a process listens at."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since the directory was listed
            inodes.add(os.readlink(path))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.append(int(words[1].rpartition(":")[2], 16))
    return found


def test_dory_runs_from_its_own_file_in_the_background_and_opens_nothing_else(directory: Path) -> None:
    path, port = written(directory)
    started = ran("--config-path", path, "--daemon", cwd=directory)
    assert started.returncode == 0, started.stderr
    pid = asked(port, "/server_info/json")["pid"]
    try:
        assert listening(pid) == [port]
        socket_path = directory / "dory.socket"
        assert socket_path.stat().st_mode & 0o777 == 0o222
        with Sender(str(socket_path)) as sender:
            sender.send("greetings", b"hello")
        until(lambda: counted(port, "UnixDgInputAgentForwardMsg") == 1)
        log = directory / "log"
        log.rename(directory / "log.old")
        os.kill(pid, signal.SIGUSR1)
        until(log.exists)
        assert asked(port, "/server_info/json")["pid"] == pid
    finally:
        os.kill(pid, signal.SIGTERM)
        until(lambda: not Path(f"/proc/{pid}").exists() or b"Z" in Path(f"/proc/{pid}/stat").read_bytes().split()[2:3])
    assert not socket_path.exists()
    assert any((directory / "penstock-data" / "topics").iterdir())


def test_dory_says_its_version_and_how_it_is_used(tmp_path: Path) -> None:
    version = ran("--version", cwd=tmp_path)
    assert (version.returncode, version.stdout[:15]) == (0, "dory (penstock ")
    assert "--config-path FILE" in ran("--help", cwd=tmp_path).stdout


def test_dory_case_37_a_file_that_cannot_be_used_ends_it_with_status_1(tmp_path: Path) -> None:
    path = tmp_path / "dory.xml"
    path.write_text(FILE.format(directory="relative", port=9))
    for arguments, reason in (
        (("--config-path", path), "no absolute path"),
        (("--config-path", path, "--daemon"), "no absolute path"),
        (("--config-path", tmp_path / "none"), "No such file"),
        ((), "--config-path is missing"),
        (("--config",), "--config is not known"),
    ):
        done = ran(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("dory: ")
        assert reason in done.stderr
