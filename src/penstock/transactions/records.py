"""What the registry knows of transactions.

Invariant: a record that cannot be read is never told as none, where something may follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import Refusal
from penstock.intake.staging import digest
from penstock.registry.answer import Answer
from penstock.transactions.record import KEYS, TransactionRecord, is_ahead, key_of

if TYPE_CHECKING:
    from penstock.node.node import Node


class Records:
    """The records of a node, or of its cluster."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def all(self) -> list[TransactionRecord]:
        """Return every one that can be read."""
        return list(self._node.catalog.each(KEYS, TransactionRecord).values())

    def of_topic(self, topic: str) -> list[TransactionRecord]:
        """Return those to a topic that can be read."""
        end, catalog = f"/{digest(topic)}", self._node.catalog
        listed = catalog.registry.list(KEYS).items()
        found = (catalog.reader.read(key, entry, TransactionRecord) for key, entry in listed if key.endswith(end))
        return [record for record in found if record is not None]

    def of_query(self, query: str) -> list[TransactionRecord]:
        """Return those of a query, one for each of its topics; Refusal if one cannot be read."""
        found = (self.get(key) for key in self._node.catalog.registry.list(key_of(query, None)))
        return [record for record in found if record is not None]

    def get(self, key: str) -> TransactionRecord | None:
        """Return one by its key; Refusal if it cannot be read."""
        return self._node.catalog.get(key, TransactionRecord)

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
