"""The nodes that a program talks to: one connection to each, and which of them has which topic.

Owns what is known of a cluster from outside: the nodes that were named, those that others named, and where topics were
found. Knows nothing of what is asked. Needs pyarrow and nothing else, so that a Spark executor can use it.
Invariant: whoever is told that a topic is elsewhere goes there at once, and to any node that is known when that fails.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import TypeVar
from weakref import WeakMethod, ref

import pyarrow as pa

from penstock.client import wire
from penstock.client.connection import Access, Connection, Unreachable, location_of, locations_of
from penstock.client.retry import RetryPolicy
from penstock.errors import ConfigError, Elsewhere, PenstockError, Refusal

#: Who is sent on so often without a pause waits: nodes that each name another do not know yet who has a topic.
HOPS_MAX = 3
#: Streams say something, or end, this often: so a node is missed that does not answer any more.
BEAT_S = 5.0
#: What a call that is no stream waits for where there are several nodes: a topic that changes its node.
PASSING = ("elsewhere", "unavailable", "stopping")

Result = TypeVar("Result")


class Nodes:
    """Connections to nodes, for several threads and users; the last one who closes it hangs up."""

    def __init__(self, access: Access, timeout_s: float | None = None, *, is_watchful: bool = False) -> None:
        """Take how to get to some of them; with `is_watchful` whoever has a stream beats (see `on_beat`)."""
        self.access = access
        self._timeout_s = timeout_s
        self._is_watchful = is_watchful
        self._beats: list[WeakMethod[Callable[[], None]]] = []
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._users = 1
        #: Locations, the one that is asked of what nobody knows first.
        self._known = locations_of(access.url)
        if not self._known:
            raise ConfigError(f"{access.url!r} names no node")
        self._connections: dict[str, Connection] = {}
        #: Topic -> the location of the node that has it.
        self._places: dict[str, str] = {}

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def shared(self) -> Nodes:
        """Return it for another user, who closes it, too."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Hang up, unless somebody else still talks."""
        with self._lock:
            self._users -= 1
            connections = [] if self._users > 0 else list(self._connections.values())
            if not self._users:
                self._connections.clear()
                self._ended.set()
        for connection in connections:
            connection.close()

    def on_beat(self, call: Callable[[], None]) -> Callable[[], None]:
        """Have a method called every few seconds, in a thread, while its object lives; return what ends that."""
        method = WeakMethod(call)
        with self._lock:
            self._beats.append(method)
            if self._thread is None:
                target = partial(_beat, ref(self), self._ended)  # a client that nobody closed goes all the same
                self._thread = threading.Thread(target=target, name="penstock beats", daemon=True)
                self._thread.start()

        def end() -> None:
            with self._lock:
                if method in self._beats:
                    self._beats.remove(method)

        return end

    def beats(self) -> list[Callable[[], None]]:
        """Return what is done every few seconds."""
        with self._lock:
            return [call for method in self._beats if (call := method()) is not None]

    @property
    def are_several(self) -> bool:
        """Whether another node may answer where one does not."""
        return len(self._known) > 1

    def to(self, topic: str | None = None) -> Connection:
        """Return the connection to the node that has a topic, as far as is known."""
        with self._lock:
            location = self._known[0] if topic is None else self._places.get(topic, self._known[0])
            return self._at(location)

    def _at(self, location: str) -> Connection:
        found = self._connections.get(location)
        if found is None:
            lone = self._known == [location] and "," not in self.access.url
            access = self.access if lone else self.access._replace(url=location)  # errors name it as it was written
            found = self._connections[location] = Connection(access, self._timeout_s, is_watchful=self._is_watchful)
        return found

    def learn(self, topic: str | None, connection: Connection | None, error: PenstockError) -> bool:
        """Take note of what went wrong; True if somebody else can be asked at once."""
        here = connection.location if connection is not None else ""
        with self._lock:
            if isinstance(error, Elsewhere) and error.location and topic is not None:
                location = location_of(error.location)
                if location not in self._known:
                    self._known.append(location)
                self._places[topic] = location
                return location != here
            if topic is not None and self._places.get(topic) == here:
                del self._places[topic]
            # One that is cut off from its cluster answers, and knows of nobody who has what it lost.
            is_no_help = isinstance(error, Unreachable) or (isinstance(error, Refusal) and error.code == "unavailable")
            if is_no_help and self._known[0] == here:
                self._known.append(self._known.pop(0))
            return False

    def way(self, topic: str | None, retry: RetryPolicy) -> Way:
        """Return how one call finds its node."""
        return Way(self, topic, retry)

    def call(self, topic: str | None, call: Callable[[Connection], Result], patience_s: float) -> Result:
        """Return what the node of a topic answers; a lone node that does not answer is not waited for."""
        way = self.way(topic, RetryPolicy(patience_s))
        while True:
            connection = self.to(topic)
            try:
                return call(connection)
            except (Unreachable, Refusal) as error:
                passes = isinstance(error, Unreachable) or error.code in PASSING
                if not passes or not (self.are_several or isinstance(error, Elsewhere)):
                    raise
                way.failed(connection, error)

    def topics(self, patience_s: float) -> list[wire.TopicInfo]:
        """Return all topics, each as its own node tells it, where that answers."""
        found = {info.name: info for info in self.call(None, lambda connection: connection.topics(), patience_s)}
        for location in sorted({info.location for info in found.values()} - {""}):
            with self._lock:
                connection = self._at(location_of(location))
            try:
                told = connection.topics()
            except PenstockError:
                continue  # what is known without it is shown
            for info in told:
                if not info.location and info.name in found:
                    found[info.name] = info
        return list(found.values())

    def read(self, what: wire.Read, patience_s: float, *, waits: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield rows of a shard; an answer that was cut off is asked for again from the row after the last.

        With `waits` a lone node that does not answer is waited for, too.
        """
        columns = what.columns
        asked = what
        if columns is not None and "offset" not in columns:
            asked = dataclasses.replace(what, columns=[*columns, "offset"])  # it tells how far an answer came
        way = self.way(what.topic, RetryPolicy(patience_s))
        while True:
            connection = self.to(what.topic)
            try:
                for batch in connection.read(asked):
                    way.renew()
                    if len(batch):
                        asked = dataclasses.replace(asked, start=batch.column("offset")[-1].as_py() + 1, from_ns=None)
                    yield batch if asked.columns == columns else batch.select(columns)
                return
            except (Unreachable, Refusal) as error:
                passes = isinstance(error, Unreachable) or error.code in PASSING
                if not passes or not (waits or self.are_several or isinstance(error, Elsewhere)):
                    raise
                way.failed(connection, error)
            if asked.end is not None and asked.start is not None and asked.start >= asked.end:
                return


def _beat(nodes: ref[Nodes], ended: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        there = nodes()
        calls = there.beats() if there is not None else []
        for call in calls:
            call()
        if there is None:
            return
        del there, calls


class Way:
    """How one call finds the node that has its topic, for as long as patience lasts."""

    def __init__(self, nodes: Nodes, topic: str | None, retry: RetryPolicy) -> None:
        self._nodes = nodes
        self._topic = topic
        self._retry = retry
        self._hops = 0

    def renew(self) -> None:
        """Take note that it works."""
        self._hops = 0
        self._retry.renew()

    def failed(self, connection: Connection | None, error: PenstockError) -> None:
        """Return when another try makes sense; raise the error where none does, or it was long enough."""
        if self._nodes.learn(self._topic, connection, error) and self._hops < HOPS_MAX:
            self._hops += 1
            return
        self._hops = 0
        self._retry.rest(error)
