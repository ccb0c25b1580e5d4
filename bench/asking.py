"""What rows ask of queues over HTTP beside the load: SQS by its operations, Dynamiq by its paths."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import msgspec

from bench.generator import LoadFailed

#: How many ask at once where many queues are made.
ASKERS = 16


class Asking:
    """One connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._line.close()

    def sqs(self, operation: str, **fields: object) -> Any:
        """Carry an operation of SQS out and return what it says."""
        headers = {"x-amz-target": f"AmazonSQS.{operation}", "content-type": "application/x-amz-json-1.0"}
        said = self.call("POST", "/", msgspec.json.encode(fields), headers)
        return msgspec.json.decode(said) if said else None

    def call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        """Ask, and return the answer's content; anything but success is an error."""
        self._line.request(method, path, body, headers or {})
        answer = self._line.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise LoadFailed(f"{method} {path} was answered {answer.status}: {content[:200]!r}")
        return content


def make_queue(port: int, name: str) -> None:
    """Make one queue of SQS."""
    with Asking(port) as asking:
        asking.sqs("CreateQueue", QueueName=name)


def drop_queue(port: int, name: str) -> None:
    """Delete one with all that it holds."""
    with Asking(port) as asking:
        asking.sqs("DeleteQueue", QueueUrl=f"http://localhost:{port}/000000000000/{name}")


def make_queues(port: int, name: str, count: int) -> None:
    """Make many queues of SQS, called by a name and a number of four digits."""

    def make(first: int) -> None:
        with Asking(port) as asking:
            for number in range(first, count, ASKERS):
                asking.sqs("CreateQueue", QueueName=f"{name}{number:04}")

    with ThreadPoolExecutor(ASKERS) as pool:
        list(pool.map(make, range(ASKERS)))
