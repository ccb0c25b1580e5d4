"""A session with a node: the handshake, made when it is needed and again when the node does not know it any more.

Owns the address, which may become another one, and the pauses that the node asks for. Several threads may use one.
Invariant: nothing is asked before the time is over that the node said to wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.client import wire as native
from penstock.client.connection import Access, Connection, Unreachable, location_of, locations_of
from penstock.client.retry import RetryPolicy
from penstock.client.timeline import wire
from penstock.client.timeline.drift import Sample
from penstock.client.timeline.error import TimelineError, check
from penstock.errors import Elsewhere, PenstockError, Refusal

Document = TypeVar("Document", bound=wire.Answered)
Result = TypeVar("Result")

MILLISECOND_NS = 1_000_000


def act(connection: Connection, name: str, document: object, kind: type[Document]) -> Document:
    """Carry out an action of timelines, and return or raise what it answers."""
    reply = native.made(connection.act(f"timeline.{name}", document), kind)
    check(reply.error)
    return reply


class SessionRetry:
    """The tries of one request: while no node answers, or says that it may be tried again."""

    def __init__(self, seconds: float) -> None:
        self._retry = RetryPolicy(seconds)
        self._synced = False

    def renew(self) -> None:
        """Take note that it works."""
        self._retry.renew()
        self._synced = False

    def rest(self, error: PenstockError, forget: Callable[[], None]) -> None:
        """Wait before another try; raise the error where that will not help, or it was long enough."""
        if not isinstance(error, TimelineError):
            self._retry.rest(error)
            return
        if error.is_stale:
            if self._synced and not error.error.should_retry:
                raise error  # once is enough
            self._synced = True
            forget()
            if not error.error.should_retry:
                return
        elif not error.error.should_retry:
            raise error
        told_ns = error.error.throttled_ms * MILLISECOND_NS
        try:
            self._retry.rest(Refusal("unavailable", str(error), told_ns))
        except Refusal:
            raise error from None


class Link:
    """One producer's or consumer's session."""

    def __init__(
        self, access: Access, greeting: wire.ProducerHandshake | wire.ConsumerHandshake, patience_s: float
    ) -> None:
        self.patience_s = patience_s
        #: Any of these may be asked when the others do not answer.
        self._named = locations_of(access.url)
        self._access = access._replace(url=self._named[0]) if len(self._named) > 1 else access
        self._greeting = greeting
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._session = ""
        self._brokers: list[str] = []
        #: Grows with each session: streams of an older one are of no use.
        self.generation = 0
        self._not_before = 0.0
        #: How long the last ping took.
        self._rtt_ms = 0.0

    @property
    def url(self) -> str:
        """Where the node is that is asked now."""
        return self._access.url

    def connection(self) -> Connection:
        """Return the connection to that node."""
        with self._lock:
            if self._connection is None:
                self._connection = Connection(self._access, is_watchful=True)  # one that stands still is left, too
            return self._connection

    def session(self) -> str:
        """Return the session's token; shakes hands where there is none."""
        with self._lock:
            if not self._session:
                found = self._greet()
                best = next((each for each in found.brokers), None)
                if best is not None and best.address and location_of(best.address) != location_of(self.url):
                    self._go(best.address)
                    found = self._greet()
                self._session = found.session_id
                self.generation += 1
            return self._session

    def _greet(self) -> wire.Session:
        consumes = isinstance(self._greeting, wire.ConsumerHandshake)
        name = "consumer-handshake" if consumes else "producer-handshake"
        found = act(self.connection(), name, self._greeting, wire.Session)
        ranked = sorted(found.brokers, key=lambda each: each.weight)
        self._brokers = [each.address for each in ranked if each.address]
        return wire.Session(session_id=found.session_id, brokers=ranked)

    def forget(self, session: str) -> None:
        """Shake hands anew before the next request, unless somebody did since."""
        with self._lock:
            if self._session == session:
                self._session = ""

    def move(self, url: str) -> None:
        """Go to another node."""
        with self._lock:
            self._go(url)
            self._session = ""

    def walk(self) -> None:
        """Go to the next node of those that were named, because this one does not answer."""
        with self._lock:
            others = [*self._brokers, *(each for each in self._named if each not in map(location_of, self._brokers))]
            here = next((at for at, each in enumerate(others) if location_of(each) == location_of(self.url)), -1)
            if here < 0 or len(others) > 1:
                self.move(others[(here + 1) % len(others)])

    def _go(self, url: str) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._access = self._access._replace(url=url)

    def act(self, name: str, document: Callable[[str], object], kind: type[Document]) -> Document:
        """Carry out an action with the session's token, for as long as patience lasts."""
        return self.patiently(lambda: act(self.connection(), name, document(self.session()), kind))

    def ping(self, now_ms: float) -> Sample | None:
        """Tell the node what time it is here, where there is a session; it does without if it does not hear it.

        Return what time it is there, if it said so.
        """
        with self._lock:
            session, connection = self._session, self._connection
        if not session or connection is None:
            return None
        began_s = time.monotonic()
        try:
            asked = wire.Ping(session_id=session, local_ts_ms=int(now_ms), rtt_ms=self._rtt_ms)
            pong = act(connection, "ping", asked, wire.Pong)
        except PenstockError:
            return None  # whatever is wrong, the next request finds out
        self._rtt_ms = (time.monotonic() - began_s) * 1000
        return Sample(now_ms, pong.partner_ts_ms, now_ms + self._rtt_ms)

    def patiently(self, call: Callable[[], Result]) -> Result:
        """Do something with the node until it works."""
        retry = SessionRetry(self.patience_s)
        while True:
            self.keep_pause()
            try:
                return call()
            except PenstockError as error:
                self.trouble(error)
                retry.rest(error, lambda: self.forget(self._session))

    def trouble(self, error: PenstockError) -> None:
        """Take note of what went wrong: a pause to keep, a node that does not answer."""
        if isinstance(error, Elsewhere) and error.location:
            if location_of(error.location) != location_of(self.url):
                self.move(error.location)
        elif isinstance(error, Unreachable | Elsewhere):
            self.walk()
        elif isinstance(error, TimelineError):
            self._not_before = max(self._not_before, time.monotonic() + error.error.throttled_ms / 1000)

    def keep_pause(self) -> None:
        """Wait until the node may be asked again."""
        wait_s = self._not_before - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)

    def close(self) -> None:
        """End the session, and hang up."""
        with self._lock:
            session, self._session = self._session, ""
            connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if session:
                act(connection, "unsubscribe", wire.Unsubscribe(session_id=session), wire.Done)
        except PenstockError:
            pass  # it ends by itself
        finally:
            connection.close()
