"""A mirror: what etcd holds in a range of keys, kept here and kept up to date, with everybody told what changed.

Owns how a watch lives on: through a lost connection or a restart from the revision it had come to; where etcd has
forgotten what was since (or went back to a backup), by listing again and telling the difference.
Invariant: `entries` is what etcd held at `revision`; whoever hears the edits in order has the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, TypeAlias

import grpc

from penstock.errors import ConfigError, PenstockError, Refusal
from penstock.registry.etcd import rpc_pb2 as rpc
from penstock.registry.etcd.client import Client, end_of
from penstock.registry.etcd.members import RANGE, TRY_S, WATCH, Member, fate_of, said
from penstock.registry.registry import Entry

#: The member that is watched must answer a question this often ...
BEAT_S = 2.0
#: ... in this time, or another one is watched: a paused one keeps its connections and says nothing.
BEAT_ANSWER_S = 2.0
#: Between two tries to come back, at first and at most.
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0

_log = logging.getLogger("penstock.etcd")


class Edit(NamedTuple):
    """One change of a key: a put, or a delete where the value is None."""

    key: bytes
    value: bytes | None
    revision: int


#: Hears what changed, in order; what one revision changed comes in one piece.
OnEdits: TypeAlias = Callable[[Sequence[Edit]], None]
#: Hears what there is at first.
OnListing: TypeAlias = Callable[[Mapping[bytes, Entry]], None]
#: Hears whether the mirror is current again, or no longer.
OnState: TypeAlias = Callable[[bool], None]


class Mirror:
    """What is kept under a prefix, or under one key."""

    def __init__(
        self,
        client: Client,
        key: bytes,
        on_edits: OnEdits,
        *,
        is_prefix: bool = True,
        past_revisions: int = 0,
        on_past: OnEdits = lambda edits: None,
        on_listing: OnListing = lambda entries: None,
        on_state: OnState = lambda is_current: None,
    ) -> None:
        """Follow from now on; what the last so many revisions before changed is told as past, as far as etcd knows."""
        self.entries: dict[bytes, Entry] = {}
        self.revision = 0
        #: Everything after this revision was told, or will be.
        self.told_from = 0
        #: Whether what stands here is what etcd holds, as far as the last beat says.
        self.is_current = False
        #: When it ceased to be current (monotonic seconds), and why.
        self.lost_at = time.monotonic()
        self.why = "it was not asked yet"
        #: Whether etcd said no to this client, which will not pass by itself.
        self.refused = False
        #: How often everything was listed again, and how many edits were told.
        self.relists = 0
        self.edits = 0
        #: Set once there was a first listing.
        self.is_ready = asyncio.Event()
        self._client = client
        self._start, self._end = key or b"\0", end_of(key) if is_prefix else b""
        self._on_edits = on_edits
        self._on_state = on_state
        self._past_revisions = past_revisions
        self._on_past = on_past
        self._on_listing = on_listing
        self._next = 0
        self._pause_s = 0.0
        self._turned = asyncio.Event()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._random = Random()
        self._member: Member | None = None
        self._watching: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._live()), loop.create_task(self._beats())]

    async def until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait until something is true of what stands here; TimeoutError if it takes longer."""
        if holds():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (holds, future)
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(seconds):
                await future
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def turn(self) -> None:
        """Wait until it is current, or another try to be failed: for who waits for it and wants to know why."""
        self._turned.clear()
        await self._turned.wait()

    @property
    def lost_s(self) -> float:
        """For how long it has not been current."""
        return 0.0 if self.is_current else time.monotonic() - self.lost_at

    async def close(self) -> None:
        """Follow no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _live(self) -> None:
        while True:
            watching = self._watching = asyncio.create_task(self._watch())
            try:
                await asyncio.wait([watching])
            finally:
                watching.cancel()
            if not watching.cancelled():
                self._lost(watching.exception())
            self._pause_s = min(max(2 * self._pause_s, PAUSE_S_MIN), PAUSE_S_MAX)
            await asyncio.sleep(self._pause_s * (0.5 + self._random.random() / 2))

    def _lost(self, error: BaseException | None, why: str = "") -> None:
        """Say that what stands here may be old."""
        if isinstance(error, grpc.aio.AioRpcError):
            if self._member is not None:
                self._client.members.leave(self._member, error)
            if fate_of(error) == "stale":
                self._client.members.forget_token()
            why = said(error)
        elif isinstance(error, (PenstockError, TimeoutError)):
            why = str(error) or "no answer in time"
            self.refused = isinstance(error, ConfigError) or (isinstance(error, Refusal) and error.code == "forbidden")
        elif error is not None:
            why = repr(error)
            _log.error("following etcd failed", exc_info=error)
        if why:
            self.why = why
        self._turned.set()
        if self.is_current:
            self.is_current = False
            self.lost_at = time.monotonic()
            self._on_state(False)

    async def _watch(self) -> None:
        """Follow until something breaks."""
        await self._begin()
        while True:
            async with self._client.members.stream(WATCH) as (member, call):
                self._member = member
                forgotten = await self._follow(call)
            if forgotten > self.revision:
                self._lost(None, f"it forgot what was before revision {forgotten}")
                await self._relist()
            else:  # only what was before the listing is not known any more
                self.told_from, self._next = forgotten, forgotten + 1

    async def _follow(self, call: Any) -> int:
        """Tell what one watch says; return the revision up to which etcd forgot, if it begins before that."""
        request = rpc.WatchCreateRequest(key=self._start, range_end=self._end, start_revision=self._next, fragment=True)
        async with asyncio.timeout(TRY_S):
            await call.write(rpc.WatchRequest(create_request=request))
            reply = await call.read()
        edits: list[Edit] = []
        while reply is not grpc.aio.EOF:
            if reply.canceled and reply.compact_revision:
                return int(reply.compact_revision)
            if reply.canceled:  # a token that is over is told so, too
                self._client.members.forget_token()
                raise Refusal("unavailable", reply.cancel_reason or "it ended the watch")
            if reply.created:
                self._found()
            edits += map(edit_of, reply.events)
            if edits and not reply.fragment:
                self._apply(edits)
                edits = []
            reply = await call.read()
        details = await call.details()
        raise Refusal("unavailable", details or f"it ended the watch ({(await call.code()).name})")

    async def _begin(self) -> None:
        """List, the first time; later see to it that etcd still knows what came after what stands here."""
        if not self.is_ready.is_set():
            listing = await self._client.list_range(self._start, self._end)
            self.entries, self.revision = listing.entries, listing.revision
            self.told_from = max(listing.revision - self._past_revisions, 0)
            self._next = self.told_from + 1
            self._on_listing(self.entries)
            self.is_ready.set()
            return
        probe = rpc.RangeRequest(key=self._start, revision=self.revision, keys_only=True)
        try:
            await self._client.members.ask(RANGE, probe, repeatable=True)
        except Refusal as refusal:  # forgotten; or of the future, because a backup was restored
            if refusal.code != "gone":
                raise
            _log.warning("%s; everything is listed again", refusal)
            await self._relist()

    async def _relist(self) -> None:
        """Take everything anew, and tell what is other than before."""
        before, listing = self.entries, await self._client.list_range(self._start, self._end)
        edits = [Edit(key, *entry) for key, entry in listing.entries.items() if before.get(key) != entry]
        edits += [Edit(key, None, listing.revision) for key in before if key not in listing.entries]
        edits.sort(key=lambda edit: edit.revision)
        self.entries, self.revision = listing.entries, listing.revision
        self.told_from, self._next = listing.revision, listing.revision + 1
        self.relists += 1
        self._tell(edits)

    def _apply(self, edits: Sequence[Edit]) -> None:
        past = [edit for edit in edits if edit.revision <= self.revision]
        fresh = edits[len(past) :]
        self._next = edits[-1].revision + 1
        if past:
            self._on_past(past)
        for key, value, revision in fresh:
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = Entry(value, revision)
            self.revision = revision
        self._tell(fresh)

    def _tell(self, edits: Sequence[Edit]) -> None:
        if edits:
            self.edits += len(edits)
            self._on_edits(edits)
        for waiting in list(self._waiting):
            holds, future = waiting
            if holds():
                self._waiting.remove(waiting)
                if not future.done():
                    future.set_result(None)

    def _found(self) -> None:
        self._pause_s = 0.0
        if not self.is_current:
            self.is_current = True
            self._turned.set()
            self._on_state(True)

    async def _beats(self) -> None:
        """Ask the member that is watched now and then, because silence may mean anything."""
        probe = rpc.RangeRequest(key=self._start, keys_only=True)
        while True:
            await asyncio.sleep(BEAT_S)
            member, watching = self._member, self._watching
            if not self.is_current or member is None or watching is None:
                continue
            try:
                await self._client.members.ask_one(member, RANGE, probe, BEAT_ANSWER_S)
            except grpc.aio.AioRpcError as error:
                if fate_of(error) != "refused" and self._watching is watching and self._member is member:
                    self._lost(error)
                    watching.cancel()


def edit_of(event: rpc.Event) -> Edit:
    """Return what one event of a watch says."""
    deleted = event.type == rpc.Event.DELETE
    return Edit(event.kv.key, None if deleted else event.kv.value, event.kv.mod_revision)
