"""A node for an example: on free ports, in a directory that goes with it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Listeners that would otherwise want their usual ports.
PORTS = ("api.port", "flight.port", "timeline.port", "nsq.tcp_port", "nsq.http_port")
OFF = ("nsq.lookup", "sqs.enabled", "dynamiq.enabled", "m3msg.enabled")


@contextmanager
def own_node() -> Iterator[str]:
    """Have a node; yields where its native protocol is."""
    with tempfile.TemporaryDirectory() as name:
        ready = Path(name) / "ready"
        command = [sys.executable, "-m", "penstock.cli", "up", "--quiet", "--data", f"{name}/data"]
        settings = [f"--set={key}=0" for key in PORTS] + [f"--set={key}=false" for key in OFF]
        with subprocess.Popen([*command, "--ready-file", str(ready), "--set=log.level=error", *settings]) as node:
            try:
                while not ready.exists():
                    if node.poll() is not None:
                        raise SystemExit("the node did not start")
                    time.sleep(0.02)
                yield f"grpc://127.0.0.1:{json.loads(ready.read_bytes())['ports']['flight.port']}"
            finally:
                node.terminate()
