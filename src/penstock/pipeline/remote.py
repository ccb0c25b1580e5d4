"""Topics of a node, over Arrow Flight.

Owns how the store's questions become calls. Needs pyarrow and nothing of the log.
Invariant: an answer that was cut off in the middle is asked for again from the row after the last, never twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from penstock.client.connection import Access, Connection, Unreachable
from penstock.client.retry import RetryPolicy
from penstock.client.wire import Hold, TopicInfo, made
from penstock.errors import PenstockError, Refusal
from penstock.pipeline.store import Piece

T = TypeVar("T")

#: A node that restarts is back within this long; a query need not fail for it.
PATIENCE_S = 30.0
CALL_S = 30.0


class Remote:
    """Topics of one node."""

    def __init__(self, access: Access, patience_s: float = PATIENCE_S) -> None:
        self._access = access
        self._patience_s = patience_s
        self._connection: Connection | None = None

    def topic(self, name: str) -> TopicInfo | None:
        """Return a topic, None if there is none of this name."""
        try:
            return made(self._act("topic", {"name": name}), TopicInfo)
        except Refusal as refusal:
            if refusal.code == "not_found":
                return None
            raise

    def names(self) -> list[str]:
        """Return the names of all topics."""
        return [each["name"] for each in self._act("topics")["topics"]]

    def offsets_at(self, topic: TopicInfo, time_ns: int) -> list[int]:
        """Return for each shard the first offset whose row was taken at or after a time, or its end."""
        return [int(each) for each in self._act("offsets-at", {"topic": topic.name, "time_ns": time_ns})["offsets"]]

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield rows as the node sends them."""
        read = piece.read
        columns = list(read.columns or ())
        # The offset tells how far an answer came.
        asked = dataclasses.replace(read, columns=columns if "offset" in columns else [*columns, "offset"])
        retry = RetryPolicy(self._patience_s)
        while True:
            try:
                for batch in self._connected().read(asked):
                    retry.renew()
                    if len(batch):
                        asked = dataclasses.replace(asked, start=batch.column("offset")[-1].as_py() + 1, from_ns=None)
                        yield batch if "offset" in columns else batch.select(columns)
                return
            except Unreachable as error:
                self._connection = None
                retry.rest(error)
            if asked.end is not None and asked.start is not None and asked.start >= asked.end:
                return

    def hold(self, hold: Hold) -> str:
        """Ask for rows to be kept; return why that was not possible, empty if it was."""
        try:
            self._connected().act("hold", hold)
        except PenstockError as error:
            self._connection = None
            return str(error)
        return ""

    def _act(self, action: str, document: dict[str, Any] | None = None) -> Any:
        return self._patiently(lambda: self._connected().act(action, document))

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._access, CALL_S)
        return self._connection

    def _patiently(self, call: Callable[[], T]) -> T:
        retry = RetryPolicy(self._patience_s)
        while True:
            try:
                return call()
            except Unreachable as error:
                self._connection = None
                retry.rest(error)
