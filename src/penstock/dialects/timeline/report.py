"""What happened, told to whoever counts it and to whoever judges how well the broker is; once for a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.client.timeline.wire import Kind
from penstock.clock import SECOND
from penstock.cluster.figures import WINDOWS, Figures, Filter, Levels, Query, QueryOp, QueryType, windows_of
from penstock.cluster.health import Op
from penstock.dialects.timeline import columns
from penstock.dialects.timeline.errors import Fault, of_refusal
from penstock.dialects.timeline.sessions import Session, Sessions
from penstock.dialects.timeline.timeline import MS, Kinds, Timeline
from penstock.dialects.timeline.topics import Topics
from penstock.errors import Elsewhere, Refusal

if TYPE_CHECKING:
    from penstock.node.node import Node

#: What the storage refuses because it is not well; a full quota is no trouble of its.
_SICK = ("disk_failed", "disk_full")
#: What the broker is to blame for, or asks for patience.
_NOT_THE_PRODUCERS = (
    Kind.THROTTLED, Kind.BROKER_DEGRADED, Kind.BROKER_MINORITY, Kind.STORAGE, Kind.STORAGE_OFFLINE,
    Kind.STORAGE_TIMEOUT, Kind.CLUSTER_OFFLINE,
)  # fmt: skip


class Report:
    """What one service says of itself."""

    def __init__(self, node: Node, topics: Topics, sessions: Sessions, figures: Figures) -> None:
        self._node = node
        self._topics = topics
        self._sessions = sessions
        self._clock = node.clock
        self._health = node.health
        self._figures = figures
        self._figures.levels = self._levels
        self._figures.connections = self._connections

    def check(self, op: Op) -> None:
        """Refuse what the broker is not well enough for."""
        self._health.check(op)

    def check_producer(self, session: Session) -> None:
        """Refuse a producer most of whose requests failed, for a while."""
        self._health.check_producer(session.token, self._clock.monotonic())

    def command(self, name: str, topic: str, *, is_well: bool) -> None:
        """Tell of a command."""
        self._figures.command(name, topic, is_well=is_well)
        if name in ("create", "delete"):
            self._figures.topic_command("create" if name == "create" else "delete", topic, is_well=is_well)

    def created(
        self, session: Session, rows: pa.RecordBatch, kinds: Kinds | None, error: Exception | None, began_ns: int
    ) -> None:
        """Tell of messages that somebody wanted created: what became of each, or why none was."""
        topic, total = session.topic, len(rows)
        failed = total if kinds is None else int((kinds != 0).sum())
        self._figures.message("create", topic, total, failed)
        self._figures.network("in", "producer", topic, rows.nbytes)
        self._figures.network("out", "storage", topic, rows.nbytes * (total - failed) // max(total, 1))
        self._query("create", "range", "all", topic, began_ns, error)
        self._figures.command("create-messages", topic, is_well=error is None)
        if error is None or kind_of(error) not in _NOT_THE_PRODUCERS:
            # Whoever tries again after a lost answer finds its messages there: that is no fault of it.
            wrong = total if kinds is None else int(((kinds != 0) & (kinds != Kind.DUPLICATE_ID)).sum())
            is_well = wrong < total or (error is None and not total)
            self._health.producer(topic, session.token, is_well=is_well, now_ns=self._clock.monotonic())
            self._figures.channel_errors["producer", topic] += not is_well

    def changed(
        self, command: str, session: Session, total: int, kinds: Kinds | None, error: Exception | None, began_ns: int
    ) -> None:
        """Tell of messages that somebody wanted changed."""
        topic = session.topic
        failed = total if kinds is None else int((kinds != 0).sum())
        if command != "extend-lease":
            self._figures.message("delete" if command == "delete" else "release", topic, total, failed)
        if command != "delete":
            self._figures.lease("extend" if command == "extend-lease" else "release", topic, total, failed)
        self._query("delete" if command == "delete" else "update", "lookup", "processing", topic, began_ns, error)
        name = "delete-messages" if command == "delete" else command  # `delete` is of a topic
        self._figures.command(name, topic, is_well=error is None)

    def failed(self, topic: str) -> None:
        """Tell of a consumer's stream that ended in error."""
        self._figures.channel_errors["consumer", topic if topic in self._topics.by_name else ""] += 1

    def consumed(self, topic: str, error: Exception | None) -> None:
        """Tell of a consumer that opened a stream or asked for leases, or why it could not."""
        if isinstance(error, Elsewhere):
            return  # it is told there
        self._figures.command("consume", topic, is_well=error is None)
        if error is not None and topic:
            self.lease_failed(topic)

    def lease_failed(self, topic: str) -> None:
        """Tell that somebody could not have leases, nobody knows how many."""
        self._figures.lease("create", topic, 0, 1)

    def pushed(self, topic: str, batch: pa.RecordBatch, began_ns: int) -> None:
        """Tell of leases that began."""
        size = len(columns.content_of(batch.column("body"))[1])
        self._figures.lease("create", topic, len(batch), body_bytes=size)
        self._figures.network("in", "storage", topic, size)
        self._figures.network("out", "consumer", topic, size)
        late_ms = self._clock.now() / MS - np.asarray(batch.column("timestamp_ms"), np.float64)
        self._figures.delivered(topic, late_ms / 1000)
        query = Query("update", "range", "waiting" if (late_ms < 0).any() else "available", topic)
        self._figures.query(query, (self._clock.monotonic() - began_ns) / SECOND)

    def hydrated(self, topic: str, began_ns: int) -> None:
        """Tell that somebody was told what it holds."""
        self._query("read", "range", "processing", topic, began_ns, None)

    def counted(self, topic: str, status: Filter, began_ns: int, error: Exception | None) -> None:
        """Tell of somebody who wanted messages counted."""
        self._query("read", "range", status, topic, began_ns, error)

    def expired(self, topic: str, count: int) -> None:
        """Tell of leases that ended by themselves."""
        self._figures.lease("expire", topic, count)

    def _query(
        self, op: QueryOp, kind: QueryType, filter_: Filter, topic: str, began_ns: int, error: Exception | None
    ) -> None:
        is_sick = isinstance(error, Refusal) and error.code in _SICK
        if error is not None and not is_sick:
            return  # it was refused before the storage was asked
        seconds = (self._clock.monotonic() - began_ns) / SECOND
        self._figures.query(Query(op, kind, filter_, topic), seconds, is_well=not is_sick)
        if op != "read":
            self._health.storage.observe(not is_sick)

    def _connections(self) -> int:
        return sum(1 for served in self._node.served.values() for _ in served.running.peers())

    def _levels(self) -> Iterator[Levels]:
        for timeline in self._topics.all():
            backlog = timeline.topic.backlog(timeline.subscription)
            topic = timeline.topic.name
            expired = timeline.subscription.expired_leases - timeline.told_expired
            timeline.told_expired += expired
            self.expired(topic, expired)
            producers = sum(session.role == "producer" for session in self._sessions.of(topic))
            yield Levels(
                topic, backlog.ready, backlog.leased, tuple(_waiting(timeline)), len(timeline.consumers), producers
            )


def _waiting(timeline: Timeline) -> Iterator[tuple[int, ...]]:
    """Yield how many messages of each shard are due in each of the coming windows."""
    now_ms, width_ms = timeline.now_ms(), timeline.choices.time_window_ms
    until_ms = (now_ms // width_ms + 1 + WINDOWS) * width_ms
    for due_ns in timeline.topic.coming(timeline.subscription, until_ms * MS):
        yield windows_of(due_ns // MS, now_ms, width_ms)


def kind_of(error: Exception) -> Kind:
    """Return what an error is to clients; what should not exist is the storage's."""
    if isinstance(error, Fault):
        return error.kind
    return of_refusal(error).kind if isinstance(error, Refusal) else Kind.STORAGE
