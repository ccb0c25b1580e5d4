from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from penstock.cli.ports import holder, name_of


def test_the_process_that_listens_is_found() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as taken:
            taken.bind((address, 0))
            taken.listen()
            found = holder(taken.getsockname()[1])
        assert found is not None
        assert found.pid == os.getpid()


def test_a_port_nobody_listens_on_has_no_holder() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert holder(bound.getsockname()[1]) is None


def test_a_machine_without_proc_has_no_holders(tmp_path: Path) -> None:
    assert holder(80, tmp_path) is None


def test_a_program_is_called_by_its_own_name_not_by_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "sluice"
    script.write_text("import sys; print('up', flush=True); sys.stdin.read()")
    for arguments, name in (
        ([sys.executable, "-u", str(script)], "sluice"),
        ([sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"], "http"),
    ):
        with subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert name_of(Path("/proc") / str(process.pid)) == name
            process.kill()
    assert name_of(tmp_path / "nobody") == "a process"
