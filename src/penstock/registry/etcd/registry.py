"""The registry in etcd: a mirror of everything below a prefix, and changes that etcd decides.

A change is answered once the mirror shows it. What was sent and not answered is unknown, never guessed.
Invariant: a lease is over here before etcd forgets it, because its time counts from before etcd was asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from penstock.clock import SECOND, Clock
from penstock.errors import PenstockError, Refusal
from penstock.registry.answer import Answer
from penstock.registry.entries import Entries
from penstock.registry.etcd.client import Client
from penstock.registry.etcd.mirror import Edit, Mirror
from penstock.registry.registry import (
    Cancel,
    Entry,
    Event,
    Figure,
    Lease,
    OnEvents,
    Proposal,
    UnknownOutcomeError,
    check_edits,
)

T = TypeVar("T")

#: Revisions before the start that a watcher may come back for; etcd counts those of everybody.
PAST_REVISIONS = 1000
#: Events kept for watchers that come back.
HISTORY_EVENTS_MAX = 1000
#: A change is tried for so long; an election takes one or two seconds.
PATIENCE_S = 5.0
#: What etcd has done is shown here a moment later.
SHOWN_S = 5.0
#: After so long without etcd a change is refused at once, and the node says that it is not well.
AWAY_S = 3.0

#: Keys of the registry's own: one for each lease, by etcd's id of it.
LEASES = "lease/"

_log = logging.getLogger("penstock.etcd")


class EtcdRegistry:
    """The registry of nodes that agree by etcd."""

    def __init__(self, client: Client, clock: Clock, prefix: str) -> None:
        self.client = client
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._base = prefix.strip("/").encode() + b"/"
        self._entries = Entries()
        self._history: deque[Event] = deque(maxlen=HISTORY_EVENTS_MAX)
        #: Events that the history has lost.
        self._history_from = 0
        self._watchers: list[_Watcher] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes = 0
        self.mirror = Mirror(
            client,
            self._base,
            self._edited,
            past_revisions=PAST_REVISIONS,
            on_past=self._past,
            on_listing=self._listed,
            on_state=self._state,
        )

    async def close(self) -> None:
        """Follow etcd no more; who still waits for an answer hears that the node stops."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for watcher in self._watchers:
            watcher.cancelled = True
        self._watchers.clear()
        await self.mirror.close()

    @property
    def revision(self) -> int:
        """The revision of the last change that the replica shows."""
        return self.mirror.revision

    def get(self, key: str) -> Entry | None:
        """Return the entry, or None."""
        return self._entries.get(key)

    def list(self, prefix: str) -> dict[str, Entry]:
        """Return all entries whose key starts so, by key in order."""
        return self._entries.list(prefix)

    def propose(
        self,
        puts: Mapping[str, bytes],
        deletes: Iterable[str] = (),
        guards: Mapping[str, int] | None = None,
        lease: Lease | None = None,
    ) -> Proposal:
        """Ask etcd for several keys to be put and deleted in one step, if what is guarded is as expected."""
        edits: dict[str, bytes | None] = {key: bytes(value) for key, value in puts.items()}
        for key in deletes:
            edits[key] = None
        try:
            check_edits(edits)
            if lease is not None and (lease.is_over or not isinstance(lease, EtcdLease)):
                raise Refusal("gone", f"lease {lease.number} is over; ask for another")
        except PenstockError as error:
            return Answer.refused(error)
        hung = lease.id if isinstance(lease, EtcdLease) else 0
        return self.later(self.change(edits, dict(guards or {}), hung))

    def lease(self, ttl_ns: int) -> Answer[Lease]:
        """Ask for a lease; its number is the revision at which its key was put."""
        return self.later(self._lease(ttl_ns))

    def watch(self, prefix: str, from_revision: int, on_events: OnEvents) -> Cancel:
        """Report every change after a revision, in order, in later turns of the loop, until cancelled."""
        known_from = max(self._history_from, self.mirror.told_from)
        if not known_from <= from_revision <= self.revision:
            raise Refusal(
                "gone",
                f"changes after revision {from_revision} are not known here (only {known_from} to "
                f"{self.revision}); list again and watch from the current revision",
            )
        watcher = _Watcher(self.clock, prefix, from_revision, on_events)
        self._watchers.append(watcher)
        watcher.add([event for event in self._history if event.revision > from_revision])

        def cancel() -> None:
            watcher.cancelled = True
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return cancel

    def problems(self) -> Sequence[str]:
        """Return what stands against changes, one sentence each."""
        if self.mirror.lost_s < AWAY_S:
            return []
        return [f"{self.away()}. What is known is served; nothing can be made, changed or deleted until it is back"]

    def figures(self) -> Iterable[Figure]:
        """Return what there is to measure."""
        members = self.client.members
        yield Figure("up", "gauge", "1 while changes can be made.", int(self.mirror.is_current))
        yield Figure("revision", "gauge", "The revision of the last change that is known.", self.revision)
        yield Figure("changes_total", "counter", "Changes that the node made.", self._changes)
        yield Figure("events_total", "counter", "Changes that were heard of, by anybody.", self.mirror.edits)
        yield Figure("relists_total", "counter", "Listings because etcd forgot changes.", self.mirror.relists)
        yield Figure("moves_total", "counter", "Members of etcd that were left for another.", members.moves)
        yield Figure("answers_total", "counter", "Questions that etcd answered.", members.answered)
        yield Figure("answer_seconds_total", "counter", "The time that these took.", members.seconds)
        yield Figure("sent_bytes_total", "counter", "The bytes of these questions.", members.sent)
        yield Figure("received_bytes_total", "counter", "The bytes of the answers.", members.received)

    def later(self, work: Coroutine[Any, Any, T]) -> Answer[T]:
        """Return the answer that some work will bring."""
        answer: Answer[T] = Answer()

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not answer.is_given:
                answer.refuse(Refusal("stopping", "the node is stopping"))
            elif not task.cancelled() and (failure := task.exception()):  # of somebody who was told
                self._loop.call_exception_handler({"message": "told of an answer", "exception": failure})

        async def run() -> None:
            try:
                value = await work
            except Exception as error:
                answer.refuse(error)
            else:
                answer.give(value)

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(done)
        return answer

    async def change(self, edits: Mapping[str, bytes | None], guards: Mapping[str, int], lease: int = 0) -> int:
        """Make a change and return its revision, once the replica shows it or why it cannot be."""
        if self.mirror.lost_s > AWAY_S:
            raise Refusal("unavailable", f"{self.away()}. Nothing was changed; try again when it is back")
        outcome = await self.client.change(
            {self._at(key): value for key, value in edits.items() if value is not None},
            [self._at(key) for key, value in edits.items() if value is None],
            {self._at(key): revision for key, revision in guards.items()},
            lease,
            PATIENCE_S,
        )
        if outcome.conflicts:
            conflicts = {self._name(key): revision for key, revision in outcome.conflicts.items()}
            await self.shown(lambda: all(self._shows(key, at, guards[key]) for key, at in conflicts.items()))
            key, actual = next(iter(conflicts.items()))
            state = f"is at revision {actual}" if actual else "does not exist"
            wanted = f"revision {guards[key]}" if guards[key] else "that it does not exist"
            raise Refusal("conflict", f"{key} {state}, the request expected {wanted}; read it again")
        if not outcome.has_effect:
            return self.revision
        await self.shown(lambda: self.revision >= outcome.revision)
        self._changes += 1
        return outcome.revision

    async def shown(self, holds: Callable[[], bool]) -> None:
        """Wait until the replica shows what etcd said."""
        try:
            await self.mirror.until(holds, SHOWN_S)
        except TimeoutError:
            raise UnknownOutcomeError("etcd answered, and what it did is not seen here yet") from None

    async def _lease(self, ttl_ns: int) -> Lease:
        asked_ns = self.clock.monotonic()
        if self.mirror.lost_s > AWAY_S:
            raise Refusal("unavailable", f"{self.away()}. No lease can be given; try again when it is back")
        ident, ttl_s = await self.client.grant(max(-(-ttl_ns // SECOND), 1))
        key = f"{LEASES}{ident:x}"
        number = await self.change({key: b""}, {}, ident)
        return EtcdLease(self, ident, number, key, min(ttl_ns, ttl_s * SECOND), asked_ns)

    def _shows(self, key: str, actual: int, expected: int) -> bool:
        """Tell whether the replica knows why a guard does not hold; what came after that does no harm."""
        if actual:
            return self.revision >= actual
        entry = self.get(key)
        return entry is None or entry.revision != expected

    def away(self) -> str:
        """Return the sentence on an etcd that does not answer."""
        why = self.client.members.why or self.mirror.why
        return f"{self.client.members.away(why)} (for {self.mirror.lost_s:.0f} s)"

    def _at(self, key: str) -> bytes:
        return self._base + key.encode()

    def _name(self, key: bytes) -> str:
        # What somebody else puts here need not be text; nobody asks for it.
        return key[len(self._base) :].decode(errors="replace")

    def _listed(self, entries: Mapping[bytes, Entry]) -> None:
        for key, entry in entries.items():
            self._entries.put(self._name(key), entry)

    def _edited(self, edits: Sequence[Edit]) -> None:
        events = self._events(edits)
        for event in events:
            if event.value is None:
                self._entries.remove(event.key)
            else:
                self._entries.put(event.key, Entry(event.value, event.revision))
        for watcher in self._watchers:
            watcher.add(events)

    def _past(self, edits: Sequence[Edit]) -> None:
        """Tell those who came back for it what was before the listing."""
        events = self._events(edits)
        for watcher in self._watchers:
            watcher.add([event for event in events if event.revision > watcher.from_revision])

    def _events(self, edits: Sequence[Edit]) -> Sequence[Event]:
        events = [Event(self._name(key), value, revision) for key, value, revision in edits]
        for event in events:
            if len(self._history) == HISTORY_EVENTS_MAX:
                self._history_from = self._history[0].revision
            self._history.append(event)
        return events

    def _state(self, is_current: bool) -> None:
        if is_current:
            _log.info("following %s at %s", self._base.decode(), self.client.members.present.endpoint)
        else:
            _log.warning("lost (%s); what is known is served, and it is asked again", self.mirror.why)


class EtcdLease:
    """The right to something, as its holder sees it: over before etcd thinks so."""

    def __init__(self, registry: EtcdRegistry, ident: int, number: int, key: str, ttl_ns: int, asked_ns: int) -> None:
        self.id = ident
        self.number = number
        self._registry = registry
        self._key = key
        self._ttl_ns = ttl_ns
        self._until_ns = asked_ns + ttl_ns
        self._ended = False

    @property
    def is_over(self) -> bool:
        """Whether the holder must do nothing more in its name; once it is, it stays so."""
        if self._registry.clock.monotonic() >= self._until_ns:
            self._ended = True
        return self._ended

    def renew(self) -> Answer[None]:
        """Let it last its time to live from now on; "gone" if it is over."""
        return self._registry.later(self._renew())

    def end(self) -> Answer[None]:
        """End it; the keys that hang on it go in the same step."""
        self._ended = True
        return self._registry.later(self._end())

    async def _renew(self) -> None:
        asked_ns = self._registry.clock.monotonic()
        if not self.is_over and await self._registry.client.keep_alive(self.id) and not self.is_over:
            self._until_ns = max(self._until_ns, asked_ns + self._ttl_ns)
            return
        self._ended = True
        raise Refusal("gone", f"lease {self.number} is over; ask for another")

    async def _end(self) -> None:
        try:
            await self._registry.client.revoke(self.id)
        except Refusal as refusal:
            if refusal.code != "gone":
                raise
        await self._registry.shown(lambda: self._registry.get(self._key) is None)


class _Watcher:
    """One who watches a prefix, and what it has not been told yet."""

    def __init__(self, clock: Clock, prefix: str, from_revision: int, on_events: OnEvents) -> None:
        self.cancelled = False
        self.from_revision = from_revision
        self._clock = clock
        self._prefix = prefix
        self._on_events = on_events
        self._pending: list[Event] = []

    def add(self, events: Sequence[Event]) -> None:
        mine = [event for event in events if event.key.startswith(self._prefix)]
        if mine and not self._pending:
            self._clock.call_soon(self._tell)
        self._pending += mine

    def _tell(self) -> None:
        events, self._pending = self._pending, []
        if not self.cancelled:
            self._on_events(events)
