"""boto3 at a node: calls are made in a process of its own, where it is installed, and answered here."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from base64 import b64decode, b64encode
from concurrent.futures import Future
from typing import Any, Self

from tests.foreign.drivers import ENVIRONMENT, PYTHON
from tests.proofs.environment import PROJECT, clean
from tests.served import PATIENCE_S

REGION = "us-east-1"


class AwsError(Exception):
    """What boto3 raised."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(f"{told['type']} {told['code']}: {told['message']}")
        self.type: str = told["type"]
        self.code: str = told["code"]
        self.status: int = told["status"]
        self.message: str = told["message"]


class Boto:
    """boto3's clients of SQS and SNS."""

    def __init__(self, port: int, key: str = "x", secret: str = "y") -> None:
        assert (ENVIRONMENT / ".made").exists(), "boto3 is not installed: run `make .venv/foreign/.made`"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._process = subprocess.Popen(
            [str(PYTHON), "-m", "tests.foreign.clients.boto"],
            cwd=PROJECT,
            env=clean() | {"AWS_EC2_METADATA_DISABLED": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._write({"endpoint": f"http://127.0.0.1:{port}", "key": key, "secret": secret, "region": REGION})
        self._reader = threading.Thread(target=self._read, name="boto3")
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self._process.stdout.close()
        self._errors.close()

    def begin(self, operation: str, service: str = "sqs", **params: Any) -> Future[dict[str, Any]]:
        """Call something and do not wait."""
        found: Future[dict[str, Any]] = Future()
        self._waiting[id(found)] = found
        self._write({"id": id(found), "service": service, "operation": operation, "params": params})
        return found

    def __call__(self, operation: str, service: str = "sqs", **params: Any) -> dict[str, Any]:
        """Call something and return what it answers."""
        return self.begin(operation, service, **params).result(PATIENCE_S)

    def refused(self, operation: str, service: str = "sqs", **params: Any) -> AwsError:
        """Call something that is refused."""
        try:
            answer = self(operation, service, **params)
        except AwsError as error:
            return error
        raise AssertionError(f"{operation} was not refused: {answer}")

    def queue(self, name: str, **attributes: str) -> str:
        """Make a queue and return its address."""
        return str(self("create_queue", QueueName=name, Attributes=attributes)["QueueUrl"])

    def send(self, url: str, body: str, **more: Any) -> dict[str, Any]:
        """Send one message."""
        return self("send_message", QueueUrl=url, MessageBody=body, **more)

    def receive(self, url: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
        """Receive what is there."""
        more.setdefault("AttributeNames", ["All"])
        more.setdefault("MessageAttributeNames", ["All"])
        found: list[dict[str, Any]] = self("receive_message", QueueUrl=url, MaxNumberOfMessages=count, **more).get(
            "Messages", []
        )
        return found

    def attributes(self, url: str) -> dict[str, str]:
        """Return all attributes of a queue."""
        found: dict[str, str] = self("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return found

    def _write(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line, default=_told).encode() + b"\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line, object_hook=_found)
            waiting = self._waiting.pop(told["id"])
            if "error" in told:
                waiting.set_exception(AwsError(told["error"]))
            else:
                waiting.set_result(told["answer"])
        self._errors.seek(0)
        why = self._errors.read().decode()
        for waiting in self._waiting.values():
            waiting.set_exception(RuntimeError(f"boto3 ended: {why}"))


def _told(value: Any) -> Any:
    return {"$bytes": b64encode(value).decode()}


def _found(told: dict[str, Any]) -> Any:
    return b64decode(told["$bytes"]) if list(told) == ["$bytes"] else told
