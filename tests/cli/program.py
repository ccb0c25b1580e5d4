"""The program in processes of its own: commands that end, and commands that run until they are stopped.

Nothing here sleeps: whoever waits, waits for bytes of a pipe or for the end of a process, and not for ever.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from unittest import mock

from penstock.cli.app import run

SECONDS_MAX = 60.0
COMMAND = [sys.executable, "-m", "penstock.cli"]
#: The last line of what `up` prints.
LISTENING = b"Stop with Ctrl-C."


PORTS = (
    "api.port",
    "flight.port",
    "sqs.port",
    "dynamiq.port",
    "m3msg.port",
    "timeline.port",
    "nsq.tcp_port",
    "nsq.http_port",
    "nsq.lookup_tcp_port",
    "nsq.lookup_http_port",
)

#: Options that let the kernel choose every port.
ANY_PORTS = tuple(f"--set={key}=0" for key in PORTS)

#: A slow machine would find one topic more in its lists than a fast one: the history is written after a second.
NO_HISTORY = "--set=events.mode=off"


class Done(NamedTuple):
    """A command that ended."""

    code: int
    raw: bytes
    error: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.raw.splitlines()]


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of this process without anything that configures a node."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**clean, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "XDG_CONFIG_HOME": "/nowhere", **variables}


def penstock(*arguments: str | Path, cwd: Path, stdin: bytes = b"", **variables: str) -> Done:
    """Run a command to its end."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=environment(**variables),
        timeout=SECONDS_MAX,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())


def inside(*arguments: str | Path, cwd: Path, stdin: bytes = b"", **variables: str) -> Done:
    """Run a command to its end in this process, a second faster than in its own."""
    out, errors = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment(**variables), clear=True),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        contextlib.chdir(cwd),
    ):
        code = run([str(argument) for argument in arguments])
        out.flush()
    return Done(code, out.buffer.getvalue(), errors.getvalue())


class Running:
    """A command that goes on until it is stopped."""

    def __init__(self, *arguments: str | Path, cwd: Path, **variables: str) -> None:
        self._errors = (cwd / f"stderr-{time.monotonic_ns()}").open("w+b")
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=cwd,
            env=environment(**variables),
        )
        self._seen = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()

    def line(self, wanted: bytes = b"") -> bytes:
        """Return the next line of its output that holds these bytes."""
        end = time.monotonic() + SECONDS_MAX
        while True:
            found, cut, rest = self._seen.partition(b"\n")
            if not cut:
                self._seen += self._read(end, wanted)
                continue
            self._seen = rest
            if wanted in found:
                return found

    def _read(self, end: float, wanted: bytes) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            ready = selector.select(max(end - time.monotonic(), 0))
        data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
        if not data:
            raise AssertionError(f"{wanted!r} did not come; before: {self._seen!r}; errors: {self.errors()}")
        return data

    def errors(self) -> str:
        """Return what it wrote to standard error so far."""
        self._errors.flush()
        return Path(self._errors.name).read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS_MAX)


class Node(Running):
    """A node on free ports."""

    def __init__(self, cwd: Path, *arguments: str | Path, data: str | Path = "data", **variables: str) -> None:
        ready = cwd / "ready.json"
        chosen = (*ANY_PORTS, NO_HISTORY, *arguments)
        super().__init__("up", "--data", data, "--ready-file", ready, *chosen, cwd=cwd, **variables)
        self.cwd = cwd
        try:
            self.line(LISTENING)
            self.ready: dict[str, Any] = json.loads(ready.read_bytes())
        except BaseException:
            self.__exit__(None, None, None)
            raise

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    def port(self, key: str) -> int:
        return int(self.ready["ports"][key])

    def call(self, *arguments: str | Path, stdin: bytes = b"", **variables: str) -> Done:
        """Run a command against this node."""
        return inside(*arguments, cwd=self.cwd, stdin=stdin, PENSTOCK_URL=self.url, **variables)

    def ok(self, *arguments: str | Path, stdin: bytes = b"") -> Done:
        """Run a command against this node that must do what it is asked to."""
        done = self.call(*arguments, stdin=stdin)
        assert done.code == 0, (done, self.errors())
        return done

    def follow(self, *arguments: str | Path) -> Running:
        """Run a command against this node that goes on."""
        return Running(*arguments, cwd=self.cwd, PENSTOCK_URL=self.url)
