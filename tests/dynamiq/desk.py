"""A node with its queue service on a clock in your hand, and a client for it: whole requests and answers, no socket."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.config import Config
from penstock.config.tree import EventsConfig, TopicConfig
from penstock.dialects import DIALECTS
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.running import Dynamiq
from penstock.node.node import Node
from tests.fakes import FakeClock, FakeDisk
from tests.http.line import Line

SECOND = 1_000_000_000
J, T = "application/json; charset=UTF-8", "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """What came back."""

    status: int
    kind: str
    content: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.content)


class Desk:
    """A node and somebody who asks it."""

    def __init__(self, path: Path, topic: TopicConfig | None = None, **dynamiq: Any) -> None:
        self.clock = FakeClock()
        self.disk = FakeDisk(self.clock)
        self.config = Config(
            data_dir=str(path),
            parts=(DynamiqConfig(**dynamiq),),
            topic=topic or TopicConfig(),
            events=EventsConfig(mode="off"),
        )
        self.start()

    def start(self) -> None:
        self.node = Node(self.config, self.clock, self.disk, random.Random(1), dialects=DIALECTS)
        self.dynamiq = Dynamiq(self.node, self.config)
        self.line = Line(self.dynamiq.listener)

    def kill(self) -> None:
        """Die as kill -9 does, and start again on the same files."""
        self.clock._soon.clear()
        self.clock._later.clear()
        self.disk.work.clear()
        self.start()

    def advance(self, seconds: float) -> None:
        self.clock.advance(round(seconds * SECOND))

    def ask(self, method: str, path: str, body: bytes = b"", *, line: Line | None = None) -> Answer:
        """Send a request and return its answer."""
        line = line or self.line
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        line.send(head.encode() + body)
        self.clock.run()
        for _ in range(100):
            if line.out:
                break
            self.clock.advance(1_000_000)  # it waits for the disk
        status, headers, content = line.answer()
        return Answer(status, headers.get("content-type", ""), content)

    def said(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return status and content alone."""
        answer = self.ask(method, path, body)
        return answer.status, answer.content

    # --- in words -------------------------------------------------------------------------------------------------

    def queue(self, name: str, **settings: object) -> None:
        """Make a queue whose settings are in force."""
        assert self.said("PUT", f"/v1/queues/{name}") == (201, b'"created"')
        if settings:
            self.patch(name, **settings)
            self.sync()

    def patch(self, name: str, **settings: object) -> None:
        assert self.said("PATCH", f"/v1/queues/{name}", msgspec.json.encode(settings)) == (200, b'"ok"')

    def sync(self) -> None:
        self.advance(30)

    def send(self, name: str, body: bytes = b"x") -> str:
        status, content = self.said("PUT", f"/v1/queues/{name}/message", body)
        assert status == 200
        assert content
        return content.decode()

    def receive(self, name: str, limit: int = 10) -> list[dict[str, str]]:
        answer = self.ask("GET", f"/v1/queues/{name}/messages/{limit}")
        assert (answer.status, answer.kind) == (200, J)
        found: list[dict[str, str]] = answer.json
        return found

    def ids(self, name: str, limit: int = 10) -> list[str]:
        return [each["id"] for each in self.receive(name, limit)]

    def delete(self, name: str, *ids: str) -> int:
        status, content = self.said("DELETE", f"/v1/queues/{name}/messages/{','.join(ids)}")
        assert status == 200
        count: int = msgspec.json.decode(content)["deleted"]
        return count

    def partitions(self, name: str) -> int:
        count: int = self.ask("GET", f"/v1/queues/{name}").json["partitions"]
        return count
