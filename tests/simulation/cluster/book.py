"""What people of a cluster did and were told, and what must be true of that whoever had the topic when."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import msgspec

from tests.simulation.history import History, Violation


class Lease(msgspec.Struct, eq=False):
    """A message under a name, as its receiver knows it."""

    id: int
    version: int
    node: str
    began_ns: int
    ends_ns: int


class Message(msgspec.Struct, eq=False):
    """A message that somebody published."""

    body: bytes
    topic: str
    key: bytes
    #: "under way", "stored", "unknown"
    state: str = "under way"
    id: int = 0
    leases: list[Lease] = []
    deleted_ns: int | None = None


class Book:
    """All of it."""

    def __init__(self, history: History, time_ns: Callable[[], int]) -> None:
        self._history = history
        self._time_ns = time_ns
        self.messages: dict[bytes, Message] = {}
        #: Topic and id -> body.
        self._ids: dict[tuple[str, int], bytes] = {}
        #: Topic, shard and key -> the last message that was first delivered.
        self._firsts: dict[tuple[str, int, bytes], int] = {}
        self._seen: set[bytes] = set()
        self.checks = 0

    def record(self, kind: str, *fields: object) -> None:
        """Note an event."""
        self._history.record(self._time_ns(), kind, *fields)

    def fail(self, rule: str, text: str) -> NoReturn:
        """Report a broken promise."""
        raise Violation(rule, text)

    # --- in -------------------------------------------------------------------------------------------------------

    def published(self, message: Message) -> None:
        """Take note of a message on its way."""
        self.messages[message.body] = message

    def told(self, message: Message, id_: int | None, why: object = "") -> None:
        """Hear what its publisher was told."""
        self.record("told", message.body.decode(), f"{id_:x}" if id_ is not None else why)
        if id_ is None:
            message.state = "unknown"
        else:
            message.state = "stored"
            self.named(message.topic, id_, message.body)

    def named(self, topic: str, id_: int, body: bytes) -> Message:
        """Hear which message an id names; return it."""
        before = self._ids.setdefault((topic, id_), body)
        if before != body:
            self.fail("an offset names one message", f"{id_:x} of {topic} names {before!r} and {body!r}")
        message = self.messages.get(body)
        if message is None:
            self.fail("nothing comes of itself", f"{body!r} of {topic} was never published")
        if message.id and message.id != id_:
            self.fail("a message is stored once", f"{body!r} of {topic} is {message.id:x} and {id_:x}")
        message.id = id_
        return message

    # --- out ------------------------------------------------------------------------------------------------------

    def delivered(self, topic: str, id_: int, body: bytes) -> Message:
        """Hear of a message that a consumer on a connection got."""
        self.checks += 1
        message = self.named(topic, id_, body)
        if body not in self._seen:
            self._seen.add(body)
            place = (topic, id_ >> 48, message.key)
            if self._firsts.get(place, 0) > id_:
                text = f"{body!r} ({id_:x}) of key {message.key!r} came after {self._firsts[place]:x}"
                self.fail("messages of a key come in order", text)
            self._firsts[place] = id_
        return message

    def leased(self, topic: str, body: bytes, lease: Lease) -> Message:
        """Hear of a message that a receive got under a name."""
        self.checks += 1
        message = self.named(topic, lease.id, body)
        if message.deleted_ns is not None and lease.began_ns > message.deleted_ns:
            self.fail("what was deleted stays so", f"{body!r} of {topic} came again from {lease.node}")
        for other in message.leases:
            if other.began_ns < lease.ends_ns and lease.began_ns < other.ends_ns:
                text = f"{body!r} of {topic} is with {other.node}'s receiver until {other.ends_ns / 1e6:.3f} ms"
                self.fail("one lease at a time", f"{text}, and given by {lease.node} at {lease.began_ns / 1e6:.3f} ms")
        message.leases = [*message.leases, lease]
        return message

    # --- the end --------------------------------------------------------------------------------------------------

    def stored(self, topic: str, rows: list[tuple[int, bytes]]) -> None:
        """Compare what a topic's log holds with what its publishers were told."""
        there: dict[bytes, int] = {}
        for id_, body in rows:
            if body in there:
                self.fail("a message is stored once", f"{body!r} of {topic} is {there[body]:x} and {id_:x}")
            there[body] = id_
            self.named(topic, id_, body)
        for message in self.messages.values():
            if message.topic == topic and message.state == "stored" and message.body not in there:
                self.fail("nothing acknowledged is lost", f"{message.body!r} of {topic} is not in the log")

    def missing(self) -> list[Message]:
        """Return what is stored and nobody of some subscription ever got."""
        stored = [each for each in self.messages.values() if each.state == "stored"]
        return [each for each in stored if each.body not in self._seen or not each.leases]
