"""What happened, told to whoever counts it and to whoever judges how well the broker is; once for a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.client.timeline.wire import Kind
from penstock.clock import SECOND
from penstock.cluster.figures import Filter, Levels, Query, QueryOp, QueryType, windows_of
from penstock.cluster.health import Op
from penstock.delivery.pages import WAITING
from penstock.dialects.timeline.sessions import Session
from penstock.dialects.timeline.timeline import MS, Kinds, Timeline
from penstock.node.membership import Membership

if TYPE_CHECKING:
    from penstock.dialects.timeline.service import Service

#: What the storage is to blame for.
_STORAGE = (Kind.STORAGE, Kind.STORAGE_OFFLINE, Kind.STORAGE_TIMEOUT)


class Report:
    """What one service says of itself."""

    def __init__(self, service: Service, membership: Membership) -> None:
        self._service = service
        self._clock = service.node.clock
        self._health = service.node.health
        self._figures = membership.figures
        self._figures.levels = self._levels

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
        self, session: Session, size_bytes: int, kinds: Kinds | None, error: Kind | None, began_ns: int
    ) -> None:
        """Tell of messages that somebody wanted created: what became of each, or why none was."""
        failed = 0 if kinds is None else int((kinds != 0).sum())
        total = 1 if kinds is None else len(kinds)
        # Whoever tries again after a lost answer finds its messages there: that is no fault of it.
        wrong = 0 if kinds is None else int(((kinds != 0) & (kinds != Kind.DUPLICATE_ID)).sum())
        is_well = error is None and (wrong < total or not total)
        topic, now_ns = session.topic, self._clock.monotonic()
        self._figures.message("create", topic, total, failed if error is None else total)
        self._figures.network("in", "producer", topic, size_bytes)
        self._query("create", "range", "all", topic, began_ns, error)
        self._figures.command("create-messages", topic, is_well=is_well)
        self._health.producer(topic, session.token, is_well=is_well, now_ns=now_ns)

    def changed(self, command: str, session: Session, kinds: Kinds | None, error: Kind | None, began_ns: int) -> None:
        """Tell of messages that somebody wanted changed."""
        topic = session.topic
        total = 1 if kinds is None else len(kinds)
        failed = total if kinds is None else int((kinds != 0).sum())
        if command != "extend-lease":
            self._figures.message("delete" if command == "delete" else "release", topic, total, failed)
        if command != "delete":
            self._figures.lease("extend" if command == "extend-lease" else "release", topic, total, failed)
        self._query("delete" if command == "delete" else "update", "lookup", "processing", topic, began_ns, error)
        self._figures.command(command, topic, is_well=error is None)

    def pushed(self, topic: str, batch: pa.RecordBatch) -> None:
        """Tell of leases that began."""
        size = int(pa.compute.sum(pa.compute.binary_length(batch.column("body"))).as_py() or 0)
        self._figures.lease("create", topic, len(batch), body_bytes=size)
        self._figures.network("out", "consumer", topic, size)
        late_ms = self._clock.now() / MS - np.asarray(batch.column("timestamp_ms"), np.float64)
        self._figures.delivered(topic, late_ms / 1000)

    def hydrated(self, topic: str, began_ns: int) -> None:
        """Tell that somebody was told what it holds."""
        self._query("read", "range", "processing", topic, began_ns, None)

    def expired(self, topic: str, count: int) -> None:
        """Tell of leases that ended by themselves."""
        self._figures.lease("expire", topic, count)

    def stored(self, error: Kind | None) -> None:
        """Tell how the storage took something."""
        self._health.storage.observe(error not in _STORAGE)

    def _query(
        self, op: QueryOp, kind: QueryType, filter_: Filter, topic: str, began_ns: int, error: Kind | None
    ) -> None:
        seconds = (self._clock.monotonic() - began_ns) / SECOND
        is_well = error not in _STORAGE
        self._figures.query(Query(op, kind, filter_, topic), seconds, is_well=is_well)
        if op != "read":
            self._health.storage.observe(is_well)

    def _levels(self) -> Iterator[Levels]:
        for timeline in self._service.timelines():
            backlog = timeline.topic.backlog(timeline.subscription)
            topic = timeline.topic.name
            expired = timeline.subscription.expired_leases - timeline.told_expired
            timeline.told_expired += expired
            self.expired(topic, expired)
            producers = sum(session.role == "producer" for session in self._service.sessions.of(topic))
            yield Levels(
                topic, backlog.ready, backlog.leased, tuple(_waiting(timeline)), len(timeline.consumers), producers
            )


def _waiting(timeline: Timeline) -> Iterator[tuple[int, ...]]:
    """Yield how many messages of each shard are due in each of the coming windows."""
    now_ms, width_ms = timeline.now_ms(), timeline.choices.time_window_ms
    for cursor in timeline.subscription.cursors:
        rows = cursor.states.pages.held()
        state, _, due_ns, _ = cursor.states.pages.details(rows)
        yield windows_of(due_ns[state == WAITING] // MS, now_ms, width_ms)
