"""A real `penstock up` in its own process, for proofs: start it, ask it to stop, or kill it.

Owns the process and its ready file. Every wait has a deadline and ends at once when the process dies.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from penstock.cli.table import TABLE
from penstock.config import Config, endpoints

#: A start or a stop that takes longer has failed, on however busy a machine.
DEADLINE_S = 30.0

#: Between two looks for the ready file; the death of the process ends the wait anyway.
LOOK_MS = 5

#: The program of the environment that runs the proof.
PENSTOCK = (str(Path(sys.executable).with_name("penstock")),)


class Died(Exception):
    """The process ended although nobody asked it to, or did not become what it should in time."""


class Process:
    """One node at a time on one data directory, on free ports."""

    def __init__(
        self,
        data: Path,
        *settings: str,
        before: Sequence[str] = (),
        command: Sequence[str] = PENSTOCK,
        directory: Path | None = None,
        variables: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        data.parent.mkdir(parents=True, exist_ok=True)
        self.data = data
        self.host = host
        self.log = data.with_name(data.name + ".log")
        self._ready = data.with_name(data.name + ".ready")
        free = [f"{endpoint.key}=0" for endpoint in endpoints(Config(), TABLE)]
        chosen = [part for setting in (*free, *settings) for part in ("--set", setting)]
        self._command = [
            *before,
            *command,
            *("up", "--quiet", "--data", str(data), "--ready-file", str(self._ready)),
            *chosen,
        ]
        self._directory = directory
        self._variables = variables
        self._child: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self.ports: dict[str, int] = {}
        #: How long each start took until the node listened.
        self.starts_s: list[float] = []

    def spawn(self) -> None:
        """Begin a start without waiting for its end."""
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=self._variables,
            )
        self._pid = self._child.pid

    def start(self) -> None:
        """Start the node and return once it listens."""
        began = time.monotonic()
        self.spawn()
        child = self._running()
        with _Handle(child.pid) as handle:
            while not self._ready.exists():
                if handle.ended(LOOK_MS):
                    raise Died(f"penstock up ended with {child.wait()}: {self.last_words()}")
                if time.monotonic() - began > DEADLINE_S:
                    raise Died(f"penstock up did not listen within {DEADLINE_S:.0f} s: {self.last_words()}")
        ready = json.loads(self._ready.read_bytes())
        # Behind strace the child is strace; the node says its own number.
        self._pid = ready["pid"]
        self.ports = ready["ports"]
        self.starts_s.append(time.monotonic() - began)

    def kill(self) -> None:
        """Kill the node as `kill -9` does; one that was dead already is a finding."""
        code = self._end(signal.SIGKILL)
        if code != -signal.SIGKILL:
            raise Died(f"penstock up had ended by itself with {code}: {self.last_words()}")

    def stop(self) -> int:
        """Ask the node to stop and return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        child = self._running()
        if child.poll() is None:
            os.kill(self._pid, number)
        try:
            code = child.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.abandon()
            raise Died(f"penstock up did not end within {DEADLINE_S:.0f} s of {number.name}") from None
        self._child = None
        return code

    def abandon(self) -> None:
        """Leave nothing running, whatever went wrong."""
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            for pid in {self._pid, child.pid}:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            child.wait()

    @property
    def pid(self) -> int:
        """The node's own number."""
        return self._pid

    @property
    def listening(self) -> bool:
        """Whether the start that is under way has come to its end."""
        return self._ready.exists()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Ask the admin API and return its answer; bytes are lines of JSON, anything else is made JSON."""
        connection = HTTPConnection(self.host, self.ports["api.port"], timeout=DEADLINE_S)
        try:
            kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, "/api/v1" + path, data, {"Content-Type": kind})
            answer = connection.getresponse()
            text = answer.read()
        except OSError as error:
            raise Died(f"{method} {path} was not answered: {error!r}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise Died(f"{method} {path} was answered with {answer.status}: {text.decode(errors='replace')}")
        return json.loads(text) if text else None

    def last_words(self) -> str:
        """Return the end of what the node printed."""
        try:
            return self.log.read_text(errors="replace")[-2000:].strip()
        except FileNotFoundError:
            return ""

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise Died("no node was started")
        return self._child


class _Handle:
    """Waits for the end of a process without collecting it."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def __enter__(self) -> _Handle:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def ended(self, patience_ms: int) -> bool:
        return bool(self._poll.poll(patience_ms))
