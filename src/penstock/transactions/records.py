"""What the registry knows of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import Refusal
from penstock.registry.answer import Answer
from penstock.transactions.record import KEYS, TransactionRecord, decoded, is_ahead, key_of

if TYPE_CHECKING:
    from penstock.node.node import Node


class Records:
    """The records of a node, or of its cluster."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def all(self) -> list[TransactionRecord]:
        """Return every one."""
        return [decoded(entry.value) for entry in self._node.catalog.registry.list(KEYS).values()]

    def of_query(self, query: str) -> list[TransactionRecord]:
        """Return those of a query, one for each of its topics."""
        found = self._node.catalog.registry.list(key_of(query, None)).values()
        return [decoded(entry.value) for entry in found]

    def get(self, key: str) -> TransactionRecord | None:
        """Return one by its key."""
        entry = self._node.catalog.registry.get(key)
        return decoded(entry.value) if entry else None

    def last(self, query: str, topic: str | None) -> TransactionRecord | None:
        """Return the last commit of a query to a topic, if that topic is there still."""
        record = self.get(key_of(query, topic))
        if record is None and topic is not None:
            old = self.get(key_of(query, None))
            return old if old is not None and old.is_old else None
        if record is not None and record.done and record.topic is not None:
            there = self._node.topics.get(record.topic)
            if there is None or there.record.incarnation != record.incarnation:
                return None  # it was written to a topic that was deleted
        return record

    def put(self, record: TransactionRecord, replaced: Sequence[str] = ()) -> Answer[None]:
        """Write one down, unless another node went on with its query."""
        record = msgspec.structs.replace(record, changed_ns=self._node.clock.now())

        def check() -> None:
            there = self.get(record.key)
            if there is not None and is_ahead(there, record):
                raise Refusal("unavailable", f"another node went on with query {record.query}; ask again")

        return self._node.catalog.put(record.key, msgspec.msgpack.encode(record), replaced, check)
