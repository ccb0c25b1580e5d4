"""An HTTP endpoint that keeps what it is sent, and answers as a test wants."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from tests.served import PATIENCE_S


class Posted(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers["x-amz-sns-message-type"]

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class Hook:
    """The endpoint."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        #: What the next requests are answered with; then 200.
        self.statuses: list[int] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                hook.posted.append(Posted(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(hook.statuses.pop(0) if hook.statuses else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="hook")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook?a=b"

    def of(self, kind: str) -> list[Posted]:
        """Return what came of one kind."""
        return [each for each in list(self.posted) if each.kind == kind]

    def wait(self, kind: str, count: int = 1) -> list[Posted]:
        """Return what came of one kind, once there is so much of it."""
        until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)


def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def visit(url: str) -> bytes:
    """Open a link."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        content: bytes = answer.read()
        return content
