"""Starts other people's clients, each in a process and an environment of its own, and hears what they say.

Owns which clients there are and what each of them cannot do. The environment is made by `make test`; without it a test
would show nothing, so it fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.clients.plan import Plan
from tests.nsq.lookup.programs import PATIENCE_S
from tests.proofs.environment import PROJECT, clean

ENVIRONMENT = PROJECT / ".venv" / "foreign"
PYTHON = ENVIRONMENT / "bin" / "python"

CLIENTS = ("pynsq", "gnsq", "ansq", "nsqjs")

#: What a client cannot do, and how its own words begin when it is asked for it all the same. The rest works with all.
LACKS = {
    ("ansq", "tls"): "NotImplementedError: Upgrade to TLSv1 not implemented yet",
    ("ansq", "snappy"): "NotImplementedError: Upgrade to snappy not implemented yet",
    ("ansq", "deflate"): "NotImplementedError: Upgrade to deflate not implemented yet",
    # Its consumers live with the node's own --msg-timeout.
    ("gnsq", "msg_timeout"): "TypeError: NsqdTCPClient.__init__() got an unexpected keyword argument 'msg_timeout'",
    # Its producer takes the OK of a layer for the answer to a publish; its connections alone publish through layers.
    ("gnsq", "producer through a layer"): "KeyError: <gnsq.nsqd.NsqdTCPClient object at ",
}


def able(feature: str) -> list[str]:
    """Return the clients that can do something."""
    return [name for name in CLIENTS if (name, feature) not in LACKS]


@contextlib.contextmanager
def driving(plans: Mapping[str, Plan]) -> Iterator[dict[str, Any]]:
    """Let clients carry out their plans at the same time; yield what each says while all are still connected."""
    with contextlib.ExitStack() as stack:
        drivers = {name: stack.enter_context(_Driver(name, plan)) for name, plan in plans.items()}
        yield {name: driver.answer() for name, driver in drivers.items()}


class _Driver:
    """One client at work."""

    def __init__(self, name: str, plan: Plan) -> None:
        if not (ENVIRONMENT / ".made").exists():
            pytest.fail("the foreign clients are not installed: run `make .venv/foreign/.made`")
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        script = ["node", str(Path(__file__).parent / "clients" / f"{name}.js")]
        module = [str(PYTHON), "-m", f"tests.foreign.clients.{name}"]
        self._process = subprocess.Popen(
            script if name.endswith("js") else module,
            cwd=PROJECT,
            env=clean() | {"NODE_PATH": str(ENVIRONMENT / "node_modules")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(vars(plan)).encode() + b"\n")
        self._process.stdin.flush()

    def __enter__(self) -> _Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def answer(self) -> dict[str, Any]:
        """Return the first line it prints."""
        assert self._process.stdout is not None
        said, end = b"", time.monotonic() + PATIENCE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not said.endswith(b"\n"):
                is_there = selector.select(max(end - time.monotonic(), 0))
                data = os.read(self._process.stdout.fileno(), 1 << 16) if is_there else b""
                if not data:
                    self._errors.seek(0)
                    errors = self._errors.read().decode()
                    raise AssertionError(f"{self._name} said {said[:200]!r} and nothing more: {errors}")
                said += data
        answer: dict[str, Any] = json.loads(said.splitlines()[0])
        return answer
