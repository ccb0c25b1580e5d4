"""A node with timelines on a clock in your hand, and its clients: producers, consumers, HTTP; no socket."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.callers import Caller
from penstock.client.timeline import wire
from penstock.client.wire import decoded, encoded
from penstock.config import Config
from penstock.config.tree import EventsConfig
from penstock.delivery.policies.buckets import Buckets
from penstock.dialects import DIALECTS
from penstock.dialects.timeline.config import TimelineConfig
from penstock.dialects.timeline.running import Timelines
from penstock.node.node import Node
from penstock.registry.answer import Answer
from tests.fakes import FakeClock, FakeDisk
from tests.http.line import Line

MS = 1_000_000
SECOND = 1_000_000_000


class Stream:
    """The far end of an exchange: what came down, and whether it is over."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.words: list[bytes] = []
        self.ended: str | None = None
        self.is_full = False
        self.unsent_bytes = 0
        self.talk: Any = None

    def send(self, batch: pa.RecordBatch | None, metadata: bytes = b"") -> None:
        assert self.ended is None, "something came after the end"
        if batch is not None:
            self.batches.append(batch)
        if metadata:
            self.words.append(metadata)

    def end(self, why: str = "") -> None:
        self.ended = why
        if self.talk is not None:
            self.talk.closed()

    def needs(self, right: Any, topic: str) -> None:
        self.talk.caller.check(right, topic)


class Consuming(Stream):
    """A consumer with its stream open."""

    def __init__(self, desk: Desk, session: str) -> None:
        super().__init__()
        self.desk = desk
        self.session = session
        self.talk = desk.service.reception.consume(desk.caller, b"", self)

    def status(self, available: int, buffer: int = 100) -> None:
        said = wire.ConsumerStatus(session_id=self.session, max_buffer_size=buffer, available_buffer_size=available)
        self.talk.received(None, encoded(wire.Up(status=said)))
        self.desk.settle()

    def take(self) -> list[dict[str, Any]]:
        """Return the messages that came since the last time."""
        rows = [row for batch in self.batches for row in batch.to_pylist()]
        self.batches.clear()
        return rows

    def ids(self) -> list[str]:
        return [row["message_id"].decode() for row in self.take()]

    def said(self) -> list[wire.Down]:
        words = [decoded(each, wire.Down) for each in self.words]
        self.words.clear()
        return words

    def close(self) -> None:
        self.talk.closed()


class Desk:
    """A node and those who use it."""

    def __init__(self, path: Path, **timeline: Any) -> None:
        self.clock = FakeClock()
        self.disk = FakeDisk(self.clock)
        self.config = Config(data_dir=str(path), parts=(TimelineConfig(**timeline),), events=EventsConfig(mode="off"))
        self.start()

    def start(self) -> None:
        self.node = Node(self.config, self.clock, self.disk, random.Random(1), dialects=DIALECTS)
        self.running = Timelines(self.node, self.config)
        self.service = self.running.service
        self.line = Line(self.running.listener)
        self.caller = Caller(self.node.gate, "127.0.0.1:1", "flight.port")

    def kill(self) -> None:
        """Die as kill -9 does, and start again on the same files."""
        self.clock._soon.clear()
        self.clock._later.clear()
        self.disk.work.clear()
        self.start()
        self.settle()

    def settle(self) -> None:
        self.clock.run()

    def advance(self, seconds: float) -> None:
        self.clock.advance(round(seconds * SECOND))

    @property
    def now_ms(self) -> int:
        return self.clock.now() // MS

    # --- commands -------------------------------------------------------------------------------------------------

    def act(self, command: str, **document: Any) -> Any:
        """Give a command and return its reply."""
        takes, _ = wire.ACTIONS[command]
        answer = self.service.act(command, self.caller, encoded(takes(**document)))
        self.settle()
        return answer.now()

    def kind(self, command: str, **document: Any) -> int:
        """Give a command and return how it failed; 0 if it did not."""
        error = self.act(command, **document).error
        return 0 if error is None else int(error.kind)

    def topic(self, name: str = "t", **settings: Any) -> None:
        settings = {"bucket_count": 16, "prefetch_max_ms": 0, "rqs_limit_per_client": 1_000_000, **settings}
        assert self.kind("create", id=name, **settings) == 0

    def producer(self, topic: str = "t", group: str = "g", name: str = "p") -> str:
        told = self.act("producer-handshake", topic_id=topic, producer_group_id=group, producer_id=name)
        assert told.error is None, told
        token: str = told.session_id
        return token

    def greet(self, name: str = "c", topic: str = "t", lease_ms: int = 60_000, rack: str = "") -> str:
        told = self.act("consumer-handshake", topic_id=topic, consumer_id=name, lease_timeout_ms=lease_ms, rack_id=rack)
        assert told.error is None, told
        token: str = told.session_id
        return token

    def consumer(self, name: str = "c", room: int = 100, **greeting: Any) -> Consuming:
        """Open a consumer's stream, and wait until it has buckets."""
        consumer = Consuming(self, self.greet(name, **greeting))
        consumer.status(room)
        policy = self.node.topics[greeting.get("topic", "t")].subscriptions["timeline"].chosen_policy
        assert isinstance(policy, Buckets)
        for _ in range(200):
            if any(member.name == name for member in policy.table.members):
                return consumer
            self.advance(0.01)
            policy.look(self.node.now())
        raise AssertionError(f"{name} got no buckets")

    # --- messages -------------------------------------------------------------------------------------------------

    def create(
        self,
        session: str,
        *messages: tuple[str | None, int] | tuple[str | None, int, bytes],
        relative: bool = True,
    ) -> list[dict[str, Any]]:
        """Create messages (id, due in ms from now on, body)."""
        answer = self.creating(session, *messages, relative=relative)
        self.settle()
        told: list[dict[str, Any]] = answer.now().to_pylist()
        return told

    def creating(
        self,
        session: str,
        *messages: tuple[str | None, int] | tuple[str | None, int, bytes],
        relative: bool = True,
        timeout_ms: int = 0,
    ) -> Answer[pa.RecordBatch]:
        """Begin to create messages."""
        rows = pa.record_batch(
            [
                pa.array([None if each[0] is None else each[0].encode() for each in messages], pa.binary()),
                pa.array([each[1] for each in messages], pa.uint64()),
                pa.array([each[2] if len(each) > 2 else b"body" for each in messages], pa.binary()),
            ],
            wire.CREATED,
        )
        words = wire.CreateMessages(session_id=session, relative=relative, timeout_ms=timeout_ms)
        return self.service.create_messages(self.caller, self, words, rows)

    def made(self, session: str, *messages: Any, **more: Any) -> list[str]:
        """Create messages that must be stored; return their ids."""
        told = self.create(session, *messages, **more)
        assert [row["kind"] for row in told] == [0] * len(messages), told
        return [row["message_id"].decode() for row in told]

    def change(
        self, command: str, session: str, *messages: tuple[str, int | None], new_ms: int | None = None
    ) -> list[dict[str, Any]]:
        """Change messages (id, version); `new_ms` is from now on."""
        rows = pa.record_batch(
            [
                pa.array([each[0].encode() for each in messages], pa.binary()),
                pa.array([each[1] for each in messages], pa.uint16()),
                pa.array([None] * len(messages), pa.uint16()),
                pa.array([new_ms] * len(messages), pa.uint64()),
            ],
            wire.CHANGED,
        )
        words = wire.Change(session_id=session, command=command, relative=new_ms is not None)
        answer = self.service.change_messages(self.caller, words, rows)
        self.settle()
        told: list[dict[str, Any]] = answer.now().to_pylist()
        return told

    def kinds(self, command: str, session: str, *messages: Any, new_ms: int | None = None) -> list[int]:
        return [row["kind"] for row in self.change(command, session, *messages, new_ms=new_ms)]

    def count(self, status: str = "all", topic: str = "t", **range_: int) -> int:
        told = self.act("count", topic_id=topic, status=status, **range_)
        assert told.error is None, told
        number: int = told.n
        return number

    # --- HTTP -----------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request and return status and document."""
        raw = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
        self.line.send(head.encode() + raw)
        self.settle()
        for _ in range(100):
            if self.line.out:
                break
            self.clock.advance(MS)
        status, _, content = self.line.answer()
        return status, msgspec.json.decode(content)


def due_ids(rows: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(row["timestamp_ms"], row["message_id"].decode()) for row in rows]
