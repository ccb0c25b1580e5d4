"""A node's side of timelines that a test holds in its hand: it answers as told, and its clock stands still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.callers import Caller
from penstock.client.timeline import wire
from penstock.client.wire import decoded, encoded
from penstock.offers import Offer, Opening, Stream
from penstock.registry.answer import Answer
from tests.flight.parts import Flown


class FakeTimelines:
    """Everything a producer or consumer may ask for, on one topic."""

    def __init__(self, flown: Flown) -> None:
        self.flown = flown
        self.now_ms = 1_000_000
        self.sessions = 0
        self.greeted: list[Any] = []
        self.brokers: list[wire.Broker] = []
        #: By id.
        self.stored: dict[bytes, tuple[int, bytes]] = {}
        #: (command, number of rows, relative, times)
        self.asked: list[tuple[str, int, bool, list[int | None]]] = []
        #: Errors that answer the next requests instead.
        self.errors: list[wire.Error] = []
        #: The stream ends after the next request was carried out, and nobody is told of it.
        self.breaks = False
        #: What those said who asked for the time.
        self.pings: list[wire.Ping] = []
        self.talks: list[FakeConsume] = []
        self.batches: list[FakeBatches] = []
        actions = {
            "producer-handshake": self.greet(wire.ProducerHandshake),
            "consumer-handshake": self.greet(wire.ConsumerHandshake),
            "unsubscribe": lambda caller, raw: Answer.of(encoded(wire.Done())),
            "ping": self._pinged,
        }
        exchanges = {
            "create-messages": Opening(wire.REPLIED, self._open(wire.CreateMessages)),
            "change": Opening(wire.REPLIED, self._open(wire.Change)),
            "consume": Opening(wire.PUSHED, self._consume),
        }
        flown.do(lambda: flown.node.offers.update(timeline=Offer(actions, exchanges)))

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.flown.flight.port}"

    def greet(self, kind: type[Any]) -> Callable[[Caller, bytes], Answer[bytes]]:
        def answer(caller: Caller, raw: bytes) -> Answer[bytes]:
            self.greeted.append(decoded(raw, kind))
            if self.errors:
                return Answer.of(encoded(wire.Session(error=self.errors.pop(0))))
            self.sessions += 1
            return Answer.of(encoded(wire.Session(session_id=f"s{self.sessions}", brokers=self.brokers)))

        return answer

    def _pinged(self, caller: Caller, raw: bytes) -> Answer[bytes]:
        self.pings.append(decoded(raw, wire.Ping))
        return Answer.of(encoded(wire.Pong(local_ts_ms=0, partner_ts_ms=self.now_ms)))

    def _open(self, kind: type[Any]) -> Callable[[Caller, bytes, Stream], FakeBatches]:
        def open_(caller: Caller, raw: bytes, stream: Stream) -> FakeBatches:
            self.batches.append(FakeBatches(self, kind, stream))
            return self.batches[-1]

        return open_

    def _consume(self, caller: Caller, raw: bytes, stream: Stream) -> FakeConsume:
        self.talks.append(FakeConsume(self, stream))
        return self.talks[-1]

    def say(self, **words: Any) -> None:
        """Tell the latest consumer something."""
        self.flown.do(lambda: self.talks[-1].stream.send(None, encoded(wire.Down(**words))))

    def push(self, *ids: str, due_ms: int, lease_ms: int = 60_000, version: int = 2) -> None:
        """Push leases to the latest consumer."""
        batch = pa.record_batch(
            [
                pa.array([due_ms + lease_ms] * len(ids), pa.uint64()),
                pa.array([b"c"] * len(ids), pa.binary()),
                pa.array([each.encode() for each in ids], pa.binary()),
                pa.array([f"body of {each}".encode() for each in ids], pa.binary()),
                pa.array([due_ms] * len(ids), pa.uint64()),
                pa.array([b"g"] * len(ids), pa.binary()),
                pa.array([version] * len(ids), pa.uint16()),
                pa.array([7] * len(ids), pa.uint16()),
            ],
            schema=wire.PUSHED,
        )
        self.flown.do(lambda: self.talks[-1].stream.send(batch))


class FakeBatches:
    """Answers creates and changes."""

    def __init__(self, fake: FakeTimelines, kind: type[Any], stream: Stream) -> None:
        self._fake = fake
        self._kind = kind
        self.stream = stream

    def received(self, batch: pa.RecordBatch | None, metadata: bytes) -> None:
        fake, words = self._fake, decoded(metadata, self._kind)
        assert batch is not None
        if fake.errors:
            self.stream.send(None, encoded(wire.Reply(number=words.number, error=fake.errors.pop(0))))
            return
        assert words.session_id == f"s{fake.sessions}"
        ids = batch.column("message_id").to_pylist()
        kinds = [0] * len(ids)
        if isinstance(words, wire.CreateMessages):
            times = batch.column("due_ms").to_pylist()
            fake.asked.append(("create", len(ids), words.relative, times))
            for row, body in enumerate(batch.column("body").to_pylist()):
                if ids[row] in fake.stored:
                    kinds[row] = wire.Kind.DUPLICATE_ID
                else:
                    fake.stored[ids[row]] = (times[row], body)
        else:
            fake.asked.append((words.command, len(ids), words.relative, batch.column("new_ts_ms").to_pylist()))
        if fake.breaks:
            fake.breaks = False
            self.stream.end("stopping: a test cuts it")
            return
        texts = ["" if not kind else "it is there already" for kind in kinds]
        ends = pa.array([fake.now_ms + 60_000] * len(ids), pa.uint64())
        versions = pa.array([3] * len(ids), pa.uint16())
        rows = [batch.column("message_id"), pa.array(kinds, pa.uint16()), pa.array(texts), ends, versions]
        self.stream.send(pa.record_batch(rows, schema=wire.REPLIED), encoded(wire.Reply(number=words.number)))

    def drained(self) -> None:
        """Hear it."""

    def closed(self) -> None:
        """Hear it."""


class FakeConsume:
    """One consumer's stream."""

    def __init__(self, fake: FakeTimelines, stream: Stream) -> None:
        self._fake = fake
        self.stream = stream
        self.heard: list[wire.ConsumerStatus] = []
        self.is_closed = False

    def received(self, batch: pa.RecordBatch | None, metadata: bytes) -> None:
        words = decoded(metadata, wire.Up)
        if words.status is not None:
            if not self.heard and self._fake.errors:
                self.stream.send(None, encoded(wire.Down(error=self._fake.errors.pop(0))))
                return
            self.heard.append(words.status)
            if len(self.heard) == 1:
                self.stream.send(None, encoded(wire.Down(hydrated=True)))
        if words.ping is not None:
            pong = wire.Pong(local_ts_ms=words.ping.local_ts_ms, partner_ts_ms=self._fake.now_ms)
            self.stream.send(None, encoded(wire.Down(pong=pong)))

    def drained(self) -> None:
        """Hear it."""

    def closed(self) -> None:
        self.is_closed = True
