"""Keeps one program running beside a node, whatever becomes of it; each of its ends is one line in the log.

Two halves: `Runner` lives in the node and knows when and how often. `main` is a small process between node and program
that ends everything the program started, also if the node was killed. Neither knows of pipelines.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Literal, NamedTuple

from penstock.cli.failure import OK, USAGE
from penstock.disk import LocalDisk, private

_log = logging.getLogger("penstock.runner")

#: As shells say it: a command that cannot be run, and what is added to the number of a signal.
NOT_RUN = 127
SIGNALLED = 128

#: How long what a program leaves behind has to end by itself: a Java machine runs its own last steps.
REST_S = 2.0
#: Who does not die of SIGKILL within this long waits for a disk, and cannot be waited for.
FORCE_S = 10.0
#: The node comes first, for the processor and when the kernel has to choose whom to kill for memory (0 to 1000).
NICENESS = 5
OOM_SCORE = 500
#: A log is moved aside before it gets larger; one older file is kept.
LOG_BYTES = 16 << 20
#: How far back the last line of a log is looked for.
TAIL_BYTES = 8192


class Pace(NamedTuple):
    """How patient a runner is."""

    #: What is missing is looked for this often.
    look_s: float = 2.0
    #: Between an end and the next start; doubled each time, up to the longest.
    pause_s: float = 1.0
    pause_max_s: float = 60.0
    #: A program that ran this long begins with the shortest pause again.
    steady_s: float = 300.0
    #: From SIGTERM to SIGKILL.
    stop_s: float = 20.0


class Program(NamedTuple):
    """What is run, what must be there first, and what may bring that about."""

    #: As the log calls it.
    name: str
    command: Sequence[str]
    log: str
    #: Names what is missing; nothing = it can run.
    missing: Callable[[], Sequence[str]] = tuple
    #: Installs what is missing; empty = somebody else does.
    setup: Sequence[str] = ()
    #: How a person brings it about.
    remedy: str = ""
    #: Variables beside those of the node.
    variables: tuple[tuple[str, str], ...] = ()


State = Literal["starting", "stopped", "failed"]
#: Told what the program cannot tell itself, because it does not run: its state, and why.
Tell = Callable[[State, str], None]


class Runner:
    """One program beside a node."""

    def __init__(self, program: Program, tell: Tell, pace: Pace | None = None) -> None:
        self._program = program
        self._tell = tell
        self._pace = pace or Pace()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Begin; the task ends when the program is not started any more."""
        self._task = asyncio.get_running_loop().create_task(self._life(), name=f"runner of {self._program.name}")
        return self._task

    async def stop(self) -> None:
        """Ask the program to end, make it end if it does not, and return when nothing of it is left."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _life(self) -> None:
        program = self._program
        try:
            LocalDisk().make(os.path.dirname(program.log))
            if program.setup:
                await self._set_up()
            await self._wait_for_missing()
            await self._keep_running()
        except Exception as error:  # the node does not depend on this
            _log.exception("%s is not looked after any more: its runner failed", program.name)
            self._tell("failed", f"its runner failed: {error!r}")

    async def _set_up(self) -> None:
        """Install what is needed; what is there already takes no time."""
        program = self._program
        log = os.path.join(os.path.dirname(program.log), "setup.log")
        running = asyncio.ensure_future(self._once(program.setup, log))
        if missing := program.missing():
            text = f"what it needs is being installed ({', '.join(missing)}); log: {log}"
            _log.info("%s starts in a few minutes: %s", program.name, text)
            while not running.done():
                self._tell("starting", text)
                await asyncio.wait({running}, timeout=self._pace.look_s)
        code = await running
        if code != OK and not self._stopping.is_set():
            why = f"{' '.join(program.setup)} {ended(code)} ({last_line(log)}); log: {log}"
            _log.warning("what %s needs could not be installed: %s", program.name, why)

    async def _wait_for_missing(self) -> None:
        program, has_said = self._program, False
        while not self._stopping.is_set() and (missing := program.missing()):
            text = f"waits for {', '.join(missing)}; {program.remedy}"
            if not has_said:
                _log.warning("%s %s. It starts by itself then", program.name, text)
                has_said = True
            self._tell("starting", text)
            await self._pause(self._pace.look_s)

    async def _keep_running(self) -> None:
        program, pace = self._program, self._pace
        pause_s = pace.pause_s
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            _log.info("%s starts; log: %s", program.name, program.log)
            self._tell("starting", "")
            code = await self._once(program.command, program.log)
            if self._stopping.is_set():
                return
            if code == OK:
                _log.info("%s has ended, and is not started again before the node is", program.name)
                self._tell("stopped", "")
                return
            reason = last_line(program.log)
            if code == USAGE:
                _log.error("%s cannot run and is not started again before the node is: %s", program.name, reason)
                self._tell("failed", reason)
                return
            if time.monotonic() - begun_s >= pace.steady_s:
                pause_s = pace.pause_s
            text = f"{ended(code)} ({reason}); it starts again in {pause_s:.4g} s"
            _log.warning("%s %s; log: %s", program.name, text, program.log)
            self._tell("failed", text)
            await self._pause(pause_s)
            pause_s = min(pause_s * 2, pace.pause_max_s)

    async def _once(self, command: Sequence[str], log: str) -> int:
        """Run a command to its end, and return its exit code."""
        if self._stopping.is_set():
            return OK
        between = [sys.executable, "-m", "penstock.cli.runner", str(os.getpid()), log, str(self._pace.stop_s)]
        process = await asyncio.create_subprocess_exec(
            *[*between, *command],
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, **dict(self._program.variables)},
            start_new_session=True,  # a Ctrl-C is for the node, which ends the program in its own time
        )
        ending, stopping = asyncio.ensure_future(process.wait()), asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        # It ends the program, and is ended itself if it hangs.
        for end, patience_s in ((process.terminate, self._pace.stop_s + REST_S + FORCE_S + 3), (process.kill, None)):
            if not ending.done():
                with suppress(ProcessLookupError):
                    end()
                await asyncio.wait({ending}, timeout=patience_s)
        return ending.result()

    async def _pause(self, seconds: float) -> None:
        """Let time pass, unless the node stops."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def ended(code: int) -> str:
    """Return how a process ended, as people say it."""
    number = code - SIGNALLED if code > SIGNALLED else -code
    with suppress(ValueError):
        if number > 0:
            return f"was ended by {signal.Signals(number).name}"
    return f"ended with code {code}"


def last_line(path: str) -> str:
    """Return the last line of a log that says anything; make's own only says that there was something."""
    lines = []
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
        lines = file.read().decode("utf-8", "backslashreplace").split("\n")
    said = (line.strip()[:300] for line in reversed(lines) if not re.match(r"make(\[\d+\])?: |\s*$", line))
    return next(said, "it said nothing")


# --- the process between ----------------------------------------------------------------------------------------------

#: Blocked, and waited for.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
#: From linux/prctl.h.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> int:
    """Run a command (parent, log, seconds from SIGTERM to SIGKILL, words of the command) and return its exit code.

    It runs until it ends, SIGTERM comes or the parent dies; nothing that it started is left then.
    """
    parent, path, stop_s, *command = arguments
    with suppress(OSError):  # where that is forbidden, it goes on without
        os.nice(NICENESS)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(OOM_SCORE))
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    append(path, b"")
    try:
        child = _start(command)
    except OSError as error:
        append(path, f"{command[0]} cannot be run: {error.strerror}\n".encode())
        return NOT_RUN
    assert child.stdout is not None
    copying = threading.Thread(target=_copy, args=(child.stdout, path), daemon=True)
    copying.start()
    code = child.returncode = _follow(child.pid, int(parent), float(stop_s))
    _clear(REST_S if os.getppid() == int(parent) else 0)
    copying.join(1)  # nobody is left who could write, but for one that SIGKILL did not end
    return code if code >= 0 else SIGNALLED - code


def append(path: str, content: bytes, bytes_max: int = LOG_BYTES) -> None:
    """Add to a log, moved aside before it gets too large; a full disk loses lines, never the command."""
    with suppress(OSError):
        with open(path, "ab", opener=private) as file:
            size = file.tell()
            is_full = size > 0 and size + len(content) > bytes_max
            file.write(b"" if is_full else content)
        if is_full:
            os.replace(path, path + ".1")
            append(path, content, bytes_max)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    def before() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        # This process dies only by force, and the command shall not be left alone then.
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    none, pipe, same = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, stdin=none, stdout=pipe, stderr=same, preexec_fn=before)


def _copy(output: IO[bytes], path: str) -> None:
    while content := os.read(output.fileno(), 65536):
        append(path, content)


def _follow(child: int, parent: int, stop_s: float) -> int:
    """Return how a command ended, which is made to end where a signal or the parent's death says so."""
    end_s = math.inf
    while (code := _reap(child)) is None:
        left_s = end_s - time.monotonic()
        # Nobody is left it could commit to, and the next node wants to start its own.
        if left_s <= 0 or os.getppid() != parent:
            os.kill(child, signal.SIGKILL)
            left_s = 0.1
        told = signal.sigtimedwait(SIGNALS, min(left_s, 3600))
        if told is not None and told.si_signo != signal.SIGCHLD:
            os.kill(child, signal.SIGTERM)
            end_s = min(end_s, time.monotonic() + stop_s)
    return code


def _clear(rest_s: float) -> None:
    """End what a command left behind: first it is asked to, then it is made to."""
    end_s = time.monotonic() + rest_s
    asked: set[int] = set()
    while left := _children():
        now_s = time.monotonic()
        if now_s >= end_s + FORCE_S:
            return
        for pid in left:
            if now_s >= end_s or pid not in asked:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if now_s >= end_s else signal.SIGTERM)
                asked.add(pid)
        time.sleep(0.02)
        _reap()


def _reap(wanted: int = 0) -> int | None:
    """Let go of every child that has ended, orphans of the command included; return how the wanted one did."""
    code = None
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == wanted:
                code = os.waitstatus_to_exitcode(found[1])
    return code


def _children() -> list[int]:
    """Return the children of this process; those of one that ends become its own, so nobody is missed for long."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # Its name, in parentheses, may hold anything.
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
