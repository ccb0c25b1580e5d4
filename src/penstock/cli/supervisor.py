"""Keeps one program running beside a node: waits until it can run, starts it, starts it again when it dies.

Owns when and how often. Knows nothing of pipelines; the process itself is `keeper`'s, so nothing of the program is left
when the node is gone. Invariant: whatever becomes of the program, the node goes on; each end is one line in the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from penstock.cli.failure import OK, USAGE
from penstock.cli.keeper import FORCE_S, REST_S

_log = logging.getLogger("penstock.supervisor")

#: What a keeper may need after its program has ended, and a little more.
KEEPER_S = REST_S + FORCE_S + 3.0
#: How far back the last line of a log is looked for.
TAIL_BYTES = 8192


class Pace(NamedTuple):
    """How patient a supervisor is."""

    #: What is missing is looked for this often.
    look_s: float = 2.0
    #: Between an end and the next start; doubled each time, up to the longest.
    pause_s: float = 1.0
    pause_max_s: float = 60.0
    #: Who ran this long begins with the shortest pause again.
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


class Supervisor:
    """One program beside a node."""

    def __init__(self, program: Program, tell: Tell, pace: Pace | None = None) -> None:
        self._program = program
        self._tell = tell
        self._pace = pace or Pace()
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._life(), name=f"supervisor of {self._program.name}")

    async def stop(self) -> None:
        """Ask the program to end, make it end if it does not, and return when nothing of it is left."""
        self._stopping.set()
        if self._process is not None:
            self._ask_to_end(self._process)
        if self._task is not None:
            await self._task

    async def wait(self) -> None:
        """Return once the program is not started any more."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _life(self) -> None:
        try:
            os.makedirs(os.path.dirname(self._program.log), exist_ok=True)
            await self._prepare()
            await self._keep_running()
        except Exception as error:  # the node does not depend on this
            _log.exception("%s is not looked after any more: the supervisor failed", self._program.name)
            self._tell("failed", f"the supervisor failed: {error!r}")

    # --- before it runs -------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Return once everything is there, or the node stops."""
        program = self._program
        if program.setup:
            await self._set_up()
        has_said = False
        while not self._stopping.is_set() and (missing := program.missing()):
            text = f"waits for {', '.join(missing)}"
            if not has_said:
                _log.warning("%s %s; %s. It starts by itself then", program.name, text, program.remedy)
                has_said = True
            self._tell("starting", f"{text}; {program.remedy}")
            await self._pause(self._pace.look_s)

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
            _log.warning(
                "what %s needs could not be installed: %s %s (%s); log: %s",
                program.name,
                " ".join(program.setup),
                ended(code),
                last_line(log),
                log,
            )

    # --- while it runs --------------------------------------------------------------------------------------------

    async def _keep_running(self) -> None:
        program, pace = self._program, self._pace
        loop = asyncio.get_running_loop()
        pause_s = pace.pause_s
        while not self._stopping.is_set():
            begun_s = loop.time()
            _log.info("%s starts; log: %s", program.name, program.log)
            self._tell("starting", "")
            code = await self._once(program.command, program.log)
            if self._stopping.is_set():
                return
            if code == OK:
                _log.info("%s has ended, and is not started again before the node is", program.name)
                self._tell("stopped", "")
                return
            if code == USAGE:
                reason = last_line(program.log)
                _log.error("%s cannot run and is not started again before the node is: %s", program.name, reason)
                self._tell("failed", reason)
                return
            if loop.time() - begun_s >= pace.steady_s:
                pause_s = pace.pause_s
            text = f"{ended(code)} ({last_line(program.log)})"
            _log.warning("%s %s; it starts again in %.4g s; log: %s", program.name, text, pause_s, program.log)
            self._tell("failed", f"{text}; it starts again in {pause_s:.4g} s")
            await self._pause(pause_s)
            pause_s = min(pause_s * 2, pace.pause_max_s)

    async def _once(self, command: Sequence[str], log: str) -> int:
        """Run a command to its end, and return its exit code."""
        if self._stopping.is_set():
            return OK
        keeper = [sys.executable, "-m", "penstock.cli.keeper", "--parent", str(os.getpid())]
        keeper += ["--log", log, "--stop-s", str(self._pace.stop_s), "--", *command]
        process = self._process = await asyncio.create_subprocess_exec(
            *keeper,
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, **dict(self._program.variables)},
            start_new_session=True,  # a Ctrl-C is for the node, which ends the program in its own time
        )
        if self._stopping.is_set():
            self._ask_to_end(process)
        try:
            return await process.wait()
        finally:
            self._process = None

    def _ask_to_end(self, process: asyncio.subprocess.Process) -> None:
        """Begin the end of a keeper; it ends the program, and is ended itself if it hangs."""
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(self._pace.stop_s + KEEPER_S, _kill, process)

    async def _pause(self, seconds: float) -> None:
        """Let time pass, unless the node stops."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.kill()


def ended(code: int) -> str:
    """Return how a process ended, as people say it."""
    number = code - 128 if code > 128 else -code
    with suppress(ValueError):
        if number > 0 and (code < 0 or code > 128):
            return f"was ended by {signal.Signals(number).name}"
    return f"ended with code {code}"


def last_line(path: str) -> str:
    """Return the last line of a log that says anything; make's own only says that there was something."""
    try:
        with open(path, "rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
            lines = file.read().decode("utf-8", "backslashreplace").split("\n")
    except OSError:
        lines = []
    said = (line.strip()[:300] for line in reversed(lines) if not re.match(r"make(\[\d+\])?: |\s*$", line))
    return next(said, "it said nothing")
