"""Sessions: who speaks for which consumer or producer of which topic, by a token that nobody can guess.

One for each (topic, consumer) and (topic, producer): a new one takes the place of the old, whose stream ends. Its role
is for good. In a cluster a token says at which node its session is, so that any node can bring a request there. Knows
no wire and no topics but their names.
Invariant: a token is found until its time is over, unless it was superseded; a stream keeps its session.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from penstock.client.timeline.wire import Kind
from penstock.clock import SECOND, Clock, Timer
from penstock.dialects.timeline.errors import Fault
from penstock.errors import Elsewhere

Role: TypeAlias = Literal["producer", "consumer"]

#: A session that nobody uses, and that has no stream, lasts so long.
TTL_NS = 60 * SECOND
_SWEEP_NS = 5 * SECOND
_TOKEN_BYTES = 16


class Stream(Protocol):
    """What a session has open."""

    def end(self, why: str, kind: Kind = Kind.UNKNOWN_SESSION) -> None:
        """Close it, and say why."""


class Session:
    """One client, as it greeted."""

    __slots__ = ("_allowance", "_at_ns", "group", "lease_ns", "member", "rack", "role", "stream", "token", "topic",
                 "used_ns")  # fmt: skip

    def __init__(
        self, role: Role, topic: str, member: str, *, group: str = "", lease_ns: int = 0, rack: str = ""
    ) -> None:
        self.token = secrets.token_hex(_TOKEN_BYTES)
        self.role = role
        self.topic = topic
        #: Its consumer's or producer's id.
        self.member = member
        #: The owner of what a producer creates.
        self.group = group
        self.lease_ns = lease_ns
        self.rack = rack
        self.stream: Stream | None = None
        self.used_ns = 0
        self._allowance = -1.0
        self._at_ns = 0

    def spend(self, limit: int, now_ns: int) -> None:
        """Count a request against so many a second, or refuse it with the time after which it may come again."""
        if self._allowance < 0:
            self._allowance = float(limit)
        else:
            self._allowance = min(limit, self._allowance + (now_ns - self._at_ns) * limit / SECOND)
        self._at_ns = now_ns
        if self._allowance < 1:
            wait_ms = int((1 - self._allowance) * 1000 / limit) + 1
            raise Fault(Kind.THROTTLED, f"this session may ask {limit} times a second; wait", throttled_ms=wait_ms)
        self._allowance -= 1


class Sessions:
    """All of one node."""

    def __init__(self, clock: Clock, limit: int, node: str = "", is_there: Callable[[str], bool] | None = None) -> None:
        """Take, in a cluster, what this node is called there and who tells whether another one is there."""
        self._clock = clock
        self._limit = limit
        self._node = node
        self._is_there = is_there
        self._by_token: dict[str, Session] = {}
        self._by_member: dict[tuple[str, Role, str], Session] = {}
        #: Those of each topic, in the order in which they greeted.
        self._by_topic: dict[str, dict[Session, None]] = {}
        #: Told of sessions that are over by themselves.
        self.on_over: Callable[[Session], None] | None = None
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._by_token)

    def open(self, session: Session) -> Session:
        """Let a client in; whoever was here for the same member is not any more."""
        key = (session.topic, session.role, session.member)
        before = self._by_member.get(key)
        if before is not None:
            self.close(before, f"another {session.role} greeted as {session.member!r}")
        elif len(self._by_token) >= self._limit:
            text = f"there are {self._limit} sessions already; timeline.max_sessions may be raised"
            raise Fault(Kind.THROTTLED, text, throttled_ms=1000)
        session.used_ns = self._clock.monotonic()
        session.token += self._node.encode().hex()
        self._by_token[session.token] = self._by_member[key] = session
        self._by_topic.setdefault(session.topic, {})[session] = None
        if self._timer is None:
            self._timer = self._clock.call_at(session.used_ns + _SWEEP_NS, self._sweep)
        return session

    def find(self, token: str, role: Role | None = None) -> Session:
        """Return a session by its token, for somebody of a role."""
        session = self._by_token.get(token)
        if session is not None and self._is_over(session):
            self.close(session, "nobody used it for 60 s")
            session = None
        if session is None:
            node = self._place(token)
            if node:
                raise Elsewhere("", node, f"this session is at node {node}")
            raise Fault(Kind.UNKNOWN_SESSION, "there is no session with this token; greet the node again")
        if role is not None and session.role != role:
            raise Fault(
                Kind.WRONG_ROLE, f"this takes a session of a {role}, and {session.member!r} is a {session.role}"
            )
        session.used_ns = self._clock.monotonic()
        return session

    def _place(self, token: str) -> str:
        """Return the other node of the cluster that gave a token, empty where none did."""
        try:
            node = bytes.fromhex(token[2 * _TOKEN_BYTES :]).decode()
        except ValueError:
            return ""
        return node if self._is_there is not None and node != self._node and self._is_there(node) else ""

    def get(self, topic: str, role: Role, member: str) -> Session | None:
        """Return the session of a member, if it has one."""
        return self._by_member.get((topic, role, member))

    def of(self, topic: str) -> list[Session]:
        """Return those of a topic."""
        return list(self._by_topic.get(topic, ()))

    def close(self, session: Session, why: str, kind: Kind = Kind.UNKNOWN_SESSION) -> None:
        """End a session and its stream."""
        if self._by_token.pop(session.token, None) is None:
            return
        self._by_member.pop((session.topic, session.role, session.member), None)
        here = self._by_topic[session.topic]
        del here[session]
        if not here:
            del self._by_topic[session.topic]
        stream, session.stream = session.stream, None
        if stream is not None:
            stream.end(why, kind)
        if self.on_over is not None:
            self.on_over(session)

    def stop(self) -> None:
        """End all of them."""
        for session in list(self._by_token.values()):
            # Not an unknown session: whoever is told so greets again as soon as there is a node.
            self.close(session, "the node is stopping", Kind.NO_CONNECTION)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_over(self, session: Session) -> bool:
        return session.stream is None and self._clock.monotonic() - session.used_ns > TTL_NS

    def _sweep(self) -> None:
        self._timer = None
        for session in list(self._by_token.values()):
            if self._is_over(session):
                self.close(session, "nobody used it for 60 s")
        if self._by_token:
            self._timer = self._clock.call_at(self._clock.monotonic() + _SWEEP_NS, self._sweep)
