"""Topics of a node, or of the cluster that it belongs to, over Arrow Flight.

Owns how the store's questions become calls; each goes to the node that has the topic by then. Needs pyarrow and nothing
of the log.
Invariant: an answer that was cut off in the middle is asked for again from the row after the last, never twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa

from penstock.client.connection import Access, Connection, Unreachable
from penstock.client.nodes import PASSING, Nodes
from penstock.client.retry import RetryPolicy
from penstock.client.wire import Hold, TopicInfo
from penstock.errors import PenstockError, Refusal
from penstock.pipeline.store import Piece

T = TypeVar("T")

#: A node that restarts is back within this long; a query need not fail for it.
PATIENCE_S = 30.0
CALL_S = 30.0
#: A hold is asked for again anyway.
HOLD_S = 5.0


class Remote:
    """Topics of one node, or of all that are in its cluster."""

    def __init__(self, access: Access, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._nodes = Nodes(access, CALL_S)

    def topic(self, name: str) -> TopicInfo | None:
        """Return a topic, None if there is none of this name."""
        try:
            return self._patiently(name, lambda connection: connection.topic(name))
        except Refusal as refusal:
            if refusal.code == "not_found":
                return None
            raise

    def names(self) -> list[str]:
        """Return the names of all topics."""
        return [each.name for each in self._patiently(None, lambda connection: connection.topics())]

    def offsets_at(self, topic: TopicInfo, time_ns: int) -> list[int]:
        """Return for each shard the first offset whose row was taken at or after a time, or its end."""
        asked = {"topic": topic.name, "time_ns": time_ns}
        found = self._patiently(topic.name, lambda connection: connection.act("offsets-at", asked))
        return [int(each) for each in found["offsets"]]

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield rows as the node sends them."""
        asked = dataclasses.replace(piece.read, columns=list(piece.read.columns or ()))
        for batch in self._nodes.read(asked, self._patience_s, waits=True):
            if len(batch):
                yield batch

    def hold(self, hold: Hold) -> str:
        """Ask for rows to be kept; return why that was not possible, empty if it was."""
        try:
            self._nodes.call(hold.topic, lambda connection: connection.act("hold", hold), HOLD_S)
        except PenstockError as error:
            return str(error)
        return ""

    def _patiently(self, topic: str | None, call: Callable[[Connection], T]) -> T:
        way = self._nodes.way(topic, RetryPolicy(self._patience_s))
        while True:
            connection = self._nodes.to(topic)
            try:
                return call(connection)
            except (Unreachable, Refusal) as error:
                if isinstance(error, Refusal) and error.code not in PASSING:
                    raise
                way.failed(connection, error)
