"""Starts other people's clients and workers of SQS and SNS, each in a process of its own.

They live in an environment beside the other clients': they agree on a botocore that those do not take. All of them
find the node by the variables that Amazon's SDKs read, so nothing here tells one how to talk. `make test` makes the
environment; without it a test would show nothing, so it fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import pytest

from tests.proofs.environment import PROJECT, clean
from tests.served import PATIENCE_S
from tests.sqs.boto import REGION

ENVIRONMENT = PROJECT / ".venv" / "aws"
PYTHON = ENVIRONMENT / "bin" / "python"
CLIENTS = Path(__file__).parent / "clients"


def module(name: str) -> list[str]:
    """Return the command of a client in Python."""
    return [str(PYTHON), "-m", f"tests.foreign.aws.clients.{name}"]


def script(name: str) -> list[str]:
    """Return the command of a client for Node.js."""
    return ["node", str(CLIENTS / f"{name}.js")]


def program(name: str) -> str:
    """Return where a program of the environment is."""
    if not (ENVIRONMENT / ".made").exists():
        pytest.fail("Amazon's clients are not installed: run `make .venv/aws/.made`")
    return str(ENVIRONMENT / "bin" / name)


def variables(port: int, **more: str) -> dict[str, str]:
    """Return what says where the node is, and nothing of what a person may have set for the real service."""
    own = {name: value for name, value in clean().items() if not name.startswith(("AWS_", "CELERY_", "dramatiq_"))}
    return {
        **own,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
        "NODE_PATH": str(ENVIRONMENT / "node_modules"),
        **more,
    }


def say(command: list[str], port: int, *arguments: str, **more: str) -> str:
    """Run a client to its end and return what it printed."""
    program("python")
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=PROJECT,
            env=variables(port, **more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"{command} never ended: {late.stdout!r} {late.stderr!r}") from None
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-4000:]}"
    return done.stdout


def ask(command: list[str], port: int, *arguments: str, **more: str) -> dict[str, Any]:
    """Run a client to its end and return the object it printed last."""
    found: dict[str, Any] = json.loads(say(command, port, *arguments, **more).splitlines()[-1])
    return found


class Worker:
    """A program that runs until it is stopped."""

    def __init__(self, command: list[str], port: int, **more: str) -> None:
        program("python")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self.process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=variables(port, **more),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with contextlib.suppress(ProcessLookupError):  # it has children of its own
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE_S)
        finally:
            self._log.close()

    def said(self) -> str:
        """Return what it wrote until now."""
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def stop(self) -> int:
        """Ask it to end, and return with what it did."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)
