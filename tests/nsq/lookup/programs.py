"""Upstream's daemons and ours under the same flags, each in a process of its own, on ports the kernel chooses."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from bench import supply
from tests.cli.program import environment

#: Longer than anything here takes on a slow machine.
PATIENCE_S = 60.0

_LISTENS = re.compile(rb"(TCP|HTTP|HTTPS): listening on \S*:(\d+)")


def upstream(name: str) -> list[str]:
    """Return the command of one of upstream's programs; without it a test would show nothing, so it fails."""
    try:
        return [str(supply.nsq(name))]
    except supply.Missing as missing:
        pytest.fail(str(missing))


def ours(name: str) -> list[str]:
    """Return the command of our program of that name."""
    return [sys.executable, "-c", f"from penstock.cli.{name} import main; main()"]


class Program:
    """A running daemon; its ports are what it says on standard error."""

    def __init__(self, command: list[str], *flags: str, cwd: Path, ports: int = 2) -> None:
        chosen = [f"--{kind}-address=127.0.0.1:0" for kind in ("tcp", "http")] if ports else []
        self.process = subprocess.Popen(
            [*command, *chosen, *flags], cwd=cwd, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self.said = b""
        self._ports: dict[str, int] = {}
        self._listening = threading.Event()
        self._wanted = ports
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if ports and not self._listening.wait(PATIENCE_S):
            self.__exit__()
            raise AssertionError(f"it does not listen: {self.said!r}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        while data := os.read(self.process.stderr.fileno(), 65536):
            self.said += data
            self._ports = {kind.decode(): int(port) for kind, port in _LISTENS.findall(self.said)}
            if len(self._ports) >= self._wanted:
                self._listening.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def end(self) -> int:
        """Ask it to stop and return its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    @property
    def tcp(self) -> str:
        return f"127.0.0.1:{self._ports['TCP']}"

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self._ports['HTTP']}"

    def port(self, kind: str) -> int:
        return self._ports[kind]

    def ask(self, method: str, target: str, body: bytes = b"") -> Any:
        """Send a request; JSON, or None for an answer that is not 200 or not JSON."""
        connection = http.client.HTTPConnection(self.http, timeout=PATIENCE_S)
        try:
            connection.request(method, target, body)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        is_json = response.status == 200 and content[:1] in (b"{", b"[")
        return msgspec.json.decode(content) if is_json else None

    def producers(self, topic: str) -> list[int]:
        """Return the TCP ports where a lookup service finds a topic."""
        found = self.ask("GET", f"/lookup?topic={topic}") or {"producers": []}
        return sorted(peer["tcp_port"] for peer in found["producers"])

    def channels(self, topic: str) -> list[str]:
        """Return the channels a lookup service knows."""
        return sorted(self.ask("GET", f"/channels?topic={topic}")["channels"])


def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that another process does."""
    end = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "it never came true"
        pause.wait(0.02)
