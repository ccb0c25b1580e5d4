"""The process between a node and the program it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli.runner import append
from tests.cli.processes import FAMILY, is_alive, pids, script, text, until
from tests.cli.program import SECONDS_MAX, environment

BETWEEN = [sys.executable, "-m", "penstock.cli.runner"]


@contextmanager
def kept(directory: Path, *command: str, stop_s: float = 20) -> Iterator[subprocess.Popen[bytes]]:
    options = [str(os.getpid()), str(directory / "log"), str(stop_s)]
    process = subprocess.Popen([*BETWEEN, *options, *command], env=environment(), start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[bytes]) -> int:
    return process.wait(SECONDS_MAX)


def test_the_exit_code_and_everything_said_are_passed_on(tmp_path: Path) -> None:
    code = "import sys; print('out'); sys.stdout.flush(); print('error', file=sys.stderr); sys.exit(7)"
    with kept(tmp_path, sys.executable, "-c", code) as process:
        assert ended(process) == 7
    assert text(tmp_path / "log") == "out\nerror\n"


def test_the_command_lets_others_go_first(tmp_path: Path) -> None:
    code = "import os; print(os.nice(0), open('/proc/self/oom_score_adj').read())"
    with kept(tmp_path, sys.executable, "-c", code) as process:
        assert ended(process) == 0
    assert text(tmp_path / "log").split() == [str(min(os.nice(0) + 5, 19)), "500"]


def test_death_by_a_signal_is_128_and_its_number(tmp_path: Path) -> None:
    with kept(tmp_path, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)") as process:
        assert ended(process) == 128 + 9


def test_a_command_that_is_not_there_is_said_in_the_log(tmp_path: Path) -> None:
    with kept(tmp_path, "./nothing-here") as process:
        assert ended(process) == 127
    assert text(tmp_path / "log") == "./nothing-here cannot be run: No such file or directory\n"


def test_sigterm_reaches_the_command_alone_which_ends_in_its_own_time(tmp_path: Path) -> None:
    code = f"""
import pathlib, signal, subprocess, sys
def end(*_):
    print("child", "ended" if child.poll() is not None else "there", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
child = subprocess.Popen(["sleep", "600"])
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
signal.pause()
"""
    with kept(tmp_path, sys.executable, "-c", code) as process:
        until(lambda: len(pids(tmp_path / "pid")) == 1)
        process.terminate()
        assert ended(process) == 3
    assert text(tmp_path / "log") == "child there\n"
    assert not is_alive(pids(tmp_path / "pid")[0])


def test_nothing_is_left_of_a_family_deaf_to_sigterm(tmp_path: Path) -> None:
    with kept(tmp_path, sys.executable, script(tmp_path, FAMILY), "3", str(tmp_path / "pids"), stop_s=0.2) as process:
        until(lambda: text(tmp_path / "log").count("born") == 4)
        process.terminate()
        assert ended(process) == 128 + 9
    assert [pid for pid in pids(tmp_path / "pids") if is_alive(pid)] == []


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, pathlib, sys;"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True);"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))"
    )
    with kept(tmp_path, sys.executable, "-c", code) as process:
        assert ended(process) == 0
    assert not is_alive(pids(tmp_path / "pid")[0])


@pytest.mark.parametrize("victim", ["parent", "between"])
def test_kill_9_of_parent_or_the_process_between_leaves_nothing(tmp_path: Path, victim: str) -> None:
    log = tmp_path / "log"
    # The process between is killed: its command is alone in the world, and ends by the kernel's hand.
    depth = "3" if victim == "parent" else "0"
    command = [*BETWEEN, "PARENT", str(log), "0.2", sys.executable]
    command += [script(tmp_path, FAMILY), depth, str(tmp_path / "pids")]
    code = f"""
import os, subprocess
command = [str(os.getpid()) if word == "PARENT" else word for word in {command!r}]
print(subprocess.Popen(command, start_new_session=True).pid, flush=True)
import time; time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment()) as parent:
        assert parent.stdout is not None
        between = int(parent.stdout.readline())
        until(lambda: text(log).count("born") == int(depth) + 1)
        os.kill(parent.pid if victim == "parent" else between, signal.SIGKILL)
        until(lambda: not any(is_alive(pid) for pid in [between, *pids(tmp_path / "pids")]))
        parent.kill()


def test_a_parent_that_is_dead_already_ends_the_command(tmp_path: Path) -> None:
    command = [*BETWEEN, "1", str(tmp_path / "log"), "20", "sleep", "600"]
    with subprocess.Popen(command, env=environment()) as process:
        assert ended(process) == 128 + 9


def test_a_log_is_moved_aside_once_and_both_stay_small(tmp_path: Path) -> None:
    for number in range(100):
        append(str(tmp_path / "log"), b"line %03d\n" % number, 100)
    assert (tmp_path / "log").stat().st_size <= 100
    assert (tmp_path / "log.1").stat().st_size <= 100
    assert text(tmp_path / "log").endswith("line 099\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]


def test_a_log_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    append(str(tmp_path / "log"), b"after\n")
    assert text(tmp_path / "log") == "before\nafter\n"
