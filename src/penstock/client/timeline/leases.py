"""Leases that a consumer has: waiting until they are due, or with the program.

Pure: the node's time is an argument, as a range it lies in. Invariant: nothing is handed out before it is due, or once
its lease may be over; a lease that is pushed again, as after a new connection, is handed out once.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import pyarrow as pa


class Lease:
    """One message on lease."""

    __slots__ = ("body", "bucket", "due_ms", "expires_ms", "group", "message_id", "version")

    def __init__(
        self, message_id: bytes, body: bytes, due_ms: int, expires_ms: int, version: int, bucket: int, group: bytes
    ) -> None:
        self.message_id = message_id
        self.body = body
        self.due_ms = due_ms
        self.expires_ms = expires_ms
        self.version = version
        self.bucket = bucket
        self.group = group


def leases_of(batch: pa.RecordBatch) -> list[Lease]:
    """Return the leases that were pushed."""
    names = ("message_id", "body", "timestamp_ms", "expiration_ts_ms", "version", "bucket_id", "producer_group_id")
    columns: list[list[Any]] = [batch.column(name).to_pylist() for name in names]
    return [Lease(*row) for row in zip(*columns, strict=True)]


class Leases:
    """All that one consumer has."""

    def __init__(self) -> None:
        #: Not handed out: by (due, id), which may name leases that are gone.
        self._order: list[tuple[int, bytes]] = []
        self._waiting: dict[bytes, Lease] = {}
        #: With the program.
        self._held: dict[bytes, Lease] = {}
        #: Deleted here, which the node has not said yes to: id -> version.
        self._deleted: dict[bytes, int] = {}
        #: How many ended before anybody took them.
        self.expired = 0

    def __len__(self) -> int:
        """Return how many are not handed out."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """How many are with the program."""
        return len(self._held)

    def push(self, lease: Lease) -> None:
        """Take a lease that the node pushed."""
        if self._deleted.get(lease.message_id) == lease.version:
            return  # pushed again, because the node does not know yet
        held = self._held.get(lease.message_id)
        if held is not None and held.version == lease.version:
            held.expires_ms = lease.expires_ms  # pushed again: the program has it
            return
        if held is not None:
            del self._held[lease.message_id]  # that lease ended, this is another
        self._waiting[lease.message_id] = lease
        heappush(self._order, (lease.due_ms, lease.message_id))

    def take(self, earliest_ms: float, latest_ms: float) -> Lease | None:
        """Hand out the next lease that is due, if the node's time lies between these."""
        while self._order:
            due_ms, message_id = self._order[0]
            lease = self._waiting.get(message_id)
            if lease is None or lease.due_ms != due_ms:
                heappop(self._order)
                continue
            if lease.expires_ms <= latest_ms:
                heappop(self._order)
                del self._waiting[message_id]
                self.expired += 1
                continue
            if due_ms > earliest_ms:
                return None
            heappop(self._order)
            del self._waiting[message_id]
            self._held[message_id] = lease
            return lease
        return None

    def give_back(self, lease: Lease) -> None:
        """Let a lease that nobody took after all be handed out again."""
        if self._held.pop(lease.message_id, None) is lease:
            self.push(lease)

    def done(self, message_id: bytes) -> None:
        """Forget a lease: released, or somebody else's."""
        self._held.pop(message_id, None)

    def delete(self, lease: Lease) -> None:
        """Be done with a lease, and do not take it again, until `deleted` says that the node knows."""
        self._held.pop(lease.message_id, None)
        self._deleted[lease.message_id] = lease.version

    def deleted(self, leases: list[Lease]) -> None:
        """Take note that the node knows."""
        for lease in leases:
            if self._deleted.get(lease.message_id) == lease.version:
                del self._deleted[lease.message_id]

    @property
    def next_due_ms(self) -> int | None:
        """When the next one is due."""
        return self._order[0][0] if self._order else None

    def drop_expired(self, latest_ms: float) -> None:
        """Forget what is over, so that nothing is kept alive for it."""
        for message_id in [key for key, lease in self._held.items() if lease.expires_ms <= latest_ms]:
            del self._held[message_id]
        for message_id in [key for key, lease in self._waiting.items() if lease.expires_ms <= latest_ms]:
            del self._waiting[message_id]
            self.expired += 1

    def ending(self, until_ms: float) -> list[Lease]:
        """Return those with the program whose leases end by then."""
        return [lease for lease in self._held.values() if lease.expires_ms <= until_ms]

    def left(self) -> list[Lease]:
        """Return, and forget, what was never handed out."""
        left, self._waiting, self._order = list(self._waiting.values()), {}, []
        return left
