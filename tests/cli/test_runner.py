"""A runner over real processes: small scripts stand in for the program."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from penstock.cli.runner import Pace, Program, Runner, ended, last_line
from tests.cli.processes import is_alive, pids, script, text
from tests.cli.program import SECONDS_MAX

#: Everything in milliseconds instead of seconds.
QUICK = Pace(look_s=0.005, pause_s=0.01, pause_max_s=0.04, steady_s=60, stop_s=0.3)
#: Lines of what a script did.
BEGIN = """
import os, pathlib, signal, sys, time
def write(word):
    with open(sys.argv[1], "a") as file:
        file.write(f"{word}\\n")
write(os.getpid())
"""


class Watched:
    """A runner with a script, and what it told."""

    def __init__(self, directory: Path, code: str, pace: Pace = QUICK, **more: object) -> None:
        self.notes = directory / "notes"
        self.log = directory / "pipelines" / "shop.log"
        command = [sys.executable, script(directory, BEGIN + code), str(self.notes)]
        #: Without the starts, of which each of these had one before.
        self.told: list[tuple[str, str]] = []
        self.starts = 0
        program = Program("pipeline shop", command, str(self.log))._replace(**more)  # type: ignore[arg-type]
        self.runner = Runner(program, self.tell, pace)

    def tell(self, state: str, error: str) -> None:
        if (state, error) == ("starting", ""):
            self.starts += 1
        else:
            self.told.append((state, error))

    def runs(self) -> list[int]:
        return pids(self.notes)


def live(work: Callable[[], Awaitable[None]]) -> None:
    """Run a test on the loop that nodes have."""

    async def limited() -> None:
        await asyncio.wait_for(work(), SECONDS_MAX)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def test_what_dies_is_started_again_after_longer_and_longer_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path, "print('no luck', flush=True); sys.exit(1)")

    async def work() -> None:
        watched.runner.start()
        await until(lambda: len(watched.told) == 4)
        await watched.runner.stop()

    live(work)
    pauses = ["0.01", "0.02", "0.04", "0.04"]
    assert watched.told == [
        ("failed", f"ended with code 1 (no luck); it starts again in {pause} s") for pause in pauses
    ]
    said = f"pipeline shop ended with code 1 (no luck); it starts again in 0.01 s; log: {watched.log}"
    assert lines(caplog)[0] == said
    assert len(lines(caplog)) == 4
    assert len(set(watched.runs())) == 4
    assert watched.starts == 4


def test_who_ran_long_enough_begins_with_the_shortest_pause(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", QUICK._replace(steady_s=0))

    async def work() -> None:
        watched.runner.start()
        await until(lambda: len(watched.told) == 3)
        await watched.runner.stop()

    live(work)
    assert {error for _, error in watched.told} == {"was ended by SIGKILL (it said nothing); it starts again in 0.01 s"}


@pytest.mark.parametrize(
    ("code", "state", "error"),
    [(2, "failed", "penstock: shop.toml: no such step"), (0, "stopped", "")],
)
def test_neither_a_bad_configuration_nor_an_end_of_its_own_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int, state: str, error: str
) -> None:
    watched = Watched(tmp_path, f"print('penstock: shop.toml: no such step'); sys.exit({code})")

    async def work() -> None:
        await watched.runner.start()
        await watched.runner.stop()

    live(work)
    assert watched.told == [(state, error)]
    assert len(watched.runs()) == 1
    text = f"pipeline shop cannot run and is not started again before the node is: {error}"
    assert lines(caplog) == ([text] if code else [])


def test_a_stop_lets_the_program_finish_and_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(
        tmp_path,
        """
def end(*_):
    time.sleep(0.2)  # what a commit takes
    write(4242)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
signal.pause()
""",
        QUICK._replace(stop_s=20),
    )

    async def work() -> None:
        watched.runner.start()
        await until(lambda: "ready" in text(watched.log))
        await watched.runner.stop()
        assert watched.runs()[-1] == 4242

    live(work)
    assert watched.told == []
    assert lines(caplog) == []


def test_who_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    watched = Watched(
        tmp_path,
        """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
write(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
print("ready", flush=True)
time.sleep(600)
""",
    )

    async def work() -> None:
        watched.runner.start()
        await until(lambda: "ready" in text(watched.log))
        await watched.runner.stop()

    live(work)
    assert len(watched.runs()) == 2
    assert not any(is_alive(pid) for pid in watched.runs())


def test_it_waits_for_what_is_missing_says_so_once_and_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    there: list[str] = []
    looks = 0

    def missing() -> list[str]:
        nonlocal looks
        looks += 1
        return [name for name in ("pyspark", "deltalake") if name not in there]

    watched = Watched(tmp_path, "sys.exit(0)", missing=missing, remedy="pip brings it")

    async def work() -> None:
        running = watched.runner.start()
        await until(lambda: looks > 3)
        there.append("pyspark")
        await until(lambda: watched.told[-1] == ("starting", "waits for deltalake; pip brings it"))
        assert watched.runs() == []
        there.append("deltalake")
        await running

    live(work)
    assert len(watched.runs()) == 1
    assert lines(caplog) == ["pipeline shop waits for pyspark, deltalake; pip brings it. It starts by itself then"]


def test_setup_comes_first_and_a_failed_one_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    done = tmp_path / "done"
    failing = Watched(tmp_path, "", missing=lambda: ["pyspark"], setup=["sh", "-c", "echo no network; exit 3"])
    working = Watched(
        tmp_path, "", missing=lambda: [] if done.exists() else ["pyspark"], setup=["sh", "-c", f"touch {done}"]
    )

    async def work() -> None:
        failing.runner.start()
        await until(lambda: ("starting", "waits for pyspark; ") in failing.told)
        await failing.runner.stop()
        assert failing.runs() == []
        await working.runner.start()

    live(work)
    log = tmp_path / "pipelines" / "setup.log"
    assert text(log) == "no network\n"
    said = (
        "what pipeline shop needs could not be installed: sh -c echo no network; exit 3 ended with code 3 (no network)"
    )
    assert lines(caplog)[0] == f"{said}; log: {log}"
    assert working.told[0] == ("starting", f"what it needs is being installed (pyspark); log: {log}")
    assert len(working.runs()) == 1


def test_a_long_setup_is_told_again_and_again(tmp_path: Path) -> None:
    release = tmp_path / "release"
    waiting = ["sh", "-c", f"until [ -e {release} ]; do sleep 0.01; done"]
    watched = Watched(tmp_path, "", missing=lambda: [] if release.exists() else ["pyspark"], setup=waiting)

    async def work() -> None:
        running = watched.runner.start()
        await until(lambda: len(watched.told) > 3)
        release.touch()
        await running

    live(work)
    assert {state for state, _ in watched.told[:-1]} == {"starting"}
    assert watched.told[-1] == ("stopped", "")


def test_a_stop_during_setup_ends_the_setup(tmp_path: Path) -> None:
    marked = tmp_path / "setup-pid"
    watched = Watched(tmp_path, "", setup=["sh", "-c", f"echo $$ > {marked}; sleep 600; true"])

    async def work() -> None:
        watched.runner.start()
        await until(lambda: len(pids(marked)) == 1)
        await watched.runner.stop()

    live(work)
    assert not is_alive(pids(marked)[0])
    assert watched.runs() == []


def test_a_bug_of_the_runner_costs_the_program_and_not_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pipelines").write_text("a file where a directory should be")
    watched = Watched(tmp_path, "")

    async def work() -> None:
        await watched.runner.start()
        await watched.runner.stop()

    live(work)
    assert watched.told[0][0] == "failed"
    assert "is not looked after any more" in lines(caplog)[0]


def test_ends_are_said_as_people_say_them() -> None:
    assert ended(137) == ended(-9) == "was ended by SIGKILL"
    assert ended(3) == "ended with code 3"
    assert ended(255) == "ended with code 255"


def test_the_last_line_of_a_log_is_found_whatever_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert last_line(os.fspath(path)) == "it said nothing"
    path.write_bytes(b"x" * 100_000 + b"\nTraceback\n  \xff broken \n\n")
    assert last_line(os.fspath(path)) == "\\xff broken"
    path.write_text("ERROR: no network\nmake: *** [Makefile:1: x] Error 1\nmake[1]: *** Waiting\n")
    assert last_line(os.fspath(path)) == "ERROR: no network"
