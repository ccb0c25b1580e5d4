"""A client of etcd: keys and values as bytes, guarded changes, leases, and mirrors that follow what others change.

Knows nothing of what is kept in etcd. Every call ends: with what was asked for, with a `Refusal` (nothing was changed),
or with `UnknownOutcomeError` (its answer was lost).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.config import ZoneConfig
from penstock.registry.etcd import rpc_pb2 as rpc
from penstock.registry.etcd.members import (
    COMPACT,
    DELETE,
    GRANT,
    KEEP_ALIVE,
    PATIENCE_S,
    PUT,
    RANGE,
    REVOKE,
    STATUS,
    TXN,
    Members,
)
from penstock.registry.registry import Entry

#: Keys of one page of a listing.
PAGE_KEYS = 100
#: A member that is well says so in this time.
HEALTH_S = 2.0


class Listing(NamedTuple):
    """All keys of a range at one revision."""

    revision: int
    entries: dict[bytes, Entry]


class Outcome(NamedTuple):
    """What became of a guarded change: the revision at which it was, or what stands against it."""

    revision: int
    #: Whether anything is other than before.
    has_effect: bool = True
    #: The keys whose guards do not hold, and the revisions they are at, 0 meaning that there is none.
    conflicts: Mapping[bytes, int] = {}


class Health(NamedTuple):
    """How one member is."""

    endpoint: str
    #: Empty if it is well.
    problem: str
    version: str = ""
    is_leader: bool = False


class Client:
    """One zone of etcd."""

    def __init__(self, zone: str, config: ZoneConfig) -> None:
        self.zone = zone
        self.members = Members(zone, config)

    async def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key, or None."""
        reply = await self.members.ask(RANGE, rpc.RangeRequest(key=key), repeatable=True)
        return next((Entry(kv.value, kv.mod_revision) for kv in reply.kvs), None)

    async def health(self) -> list[Health]:
        """Ask every member how it is."""
        found = []
        for endpoint, reply in await self.members.each(STATUS, rpc.StatusRequest, HEALTH_S):
            if isinstance(reply, str):
                found.append(Health(endpoint, reply))
            else:
                problem = "" if reply.leader else "it has no leader"
                found.append(Health(endpoint, problem, reply.version, reply.leader == reply.header.member_id))
        return found

    async def list(self, prefix: bytes) -> Listing:
        """Return every key that starts so, as of one revision."""
        return await self.list_range(prefix, end_of(prefix))

    async def list_range(self, start: bytes, end: bytes) -> Listing:
        """Return every key from one on up to another, as of one revision; without an end the first one alone."""
        revision, entries, key = 0, {}, start
        while True:
            request = rpc.RangeRequest(
                key=key, range_end=end, limit=PAGE_KEYS, revision=revision, sort_order=rpc.RangeRequest.ASCEND
            )
            reply = await self.members.ask(RANGE, request, repeatable=True)
            revision = revision or reply.header.revision
            for kv in reply.kvs:
                entries[kv.key] = Entry(kv.value, kv.mod_revision)
            if not reply.more:
                return Listing(revision, entries)
            key = reply.kvs[-1].key + b"\0"

    async def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        """Set a value and return the revision at which that was."""
        request = rpc.PutRequest(key=key, value=value, lease=lease)
        return (await self.members.ask(PUT, request, repeatable=False)).header.revision

    async def delete(self, key: bytes) -> bool:
        """Remove a key, and tell whether it was there; it may be asked for twice."""
        request = rpc.DeleteRangeRequest(key=key)
        return (await self.members.ask(DELETE, request, repeatable=False)).deleted > 0

    async def change(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Iterable[bytes] = (),
        guards: Mapping[bytes, int] | None = None,
        lease: int = 0,
        patience_s: float = PATIENCE_S,
    ) -> Outcome:
        """Put and delete keys in one step, if each guarded one is at its revision, 0 meaning that there is none."""
        guards = guards or {}
        request = rpc.TxnRequest(
            compare=[rpc.Compare(target=rpc.Compare.MOD, key=key, mod_revision=at) for key, at in guards.items()],
            success=[
                *(
                    rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))
                    for key, value in puts.items()
                ),
                *(rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key)) for key in deletes),
            ],
            failure=[rpc.RequestOp(request_range=rpc.RangeRequest(key=key, keys_only=True)) for key in guards],
        )
        reply = await self.members.ask(TXN, request, repeatable=False, patience_s=patience_s)
        if reply.succeeded:
            removed = any(each.response_delete_range.deleted for each in reply.responses)
            return Outcome(reply.header.revision, bool(puts) or removed)
        found = {
            key: next((kv.mod_revision for kv in each.response_range.kvs), 0)
            for key, each in zip(guards, reply.responses, strict=True)
        }
        return Outcome(reply.header.revision, False, {key: at for key, at in found.items() if at != guards[key]})

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """Begin a lease, and return its id and the seconds that it lasts; one whose answer was lost ends by itself."""
        reply = await self.members.ask(GRANT, rpc.LeaseGrantRequest(ttl=ttl_s), repeatable=True)
        return reply.id, reply.ttl

    async def keep_alive(self, lease: int) -> int:
        """Let a lease last from now on, and return for how many seconds; 0 means that it is over."""
        reply = await self.members.ask(KEEP_ALIVE, rpc.LeaseKeepAliveRequest(id=lease), repeatable=True)
        return reply.ttl

    async def revoke(self, lease: int) -> None:
        """End a lease and remove what hangs on it."""
        await self.members.ask(REVOKE, rpc.LeaseRevokeRequest(id=lease), repeatable=False)

    async def compact(self, revision: int) -> None:
        """Let etcd forget what was before a revision."""
        await self.members.ask(COMPACT, rpc.CompactionRequest(revision=revision, physical=True), repeatable=False)

    async def close(self) -> None:
        """Hang up; mirrors must be closed before."""
        await self.members.close()


def end_of(prefix: bytes) -> bytes:
    """Return the first key behind all that start so."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else b"\0"
