"""A registry that is far away: answers come late, out of order, or not at all, and the replica lags behind.

`Far` stands between a node and an embedded registry, which plays the one elsewhere. It keeps the promises of
`registry.Registry` and no other: a proposal whose answer was lost may have been done, or still be done later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random

import msgspec

from penstock.clock import MILLISECOND, Clock
from penstock.errors import Refusal
from penstock.registry import EmbeddedRegistry, Entry, Event
from penstock.registry.answer import Answer
from penstock.registry.registry import Cancel, Figure, Lease, OnEvents, Proposal, UnknownOutcomeError


class Trouble(msgspec.Struct, frozen=True):
    """How far away it is, and how often something goes wrong on the way; without a delay it is near."""

    delay_ns: int = 5 * MILLISECOND
    refused: float = 0.0
    #: The proposal does not arrive; it arrives and its answer does not; it arrives after it was given up.
    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0


class Far:
    """A registry elsewhere, as a node sees it."""

    def __init__(self, server: EmbeddedRegistry, clock: Clock, random: Random, trouble: Trouble) -> None:
        self.server = server
        self.trouble = trouble
        self._clock = clock
        self._random = random
        self._entries = dict(server.list(""))
        self._revision = server.revision
        self._watchers: list[tuple[str, int, OnEvents]] = []
        #: Told once the replica has come to a revision.
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._news_ns = 0
        self._news: deque[Sequence[Event]] = deque()
        self._unwatch = server.watch("", server.revision, self._heard)
        #: What happened to proposals, for tests that must have seen it.
        self.fates: dict[str, int] = {}

    @property
    def revision(self) -> int:
        """The revision of the last change that the replica shows."""
        return self._revision

    def get(self, key: str) -> Entry | None:
        """Return the entry, or None."""
        return self._entries.get(key)

    def list(self, prefix: str) -> dict[str, Entry]:
        """Return all entries whose key starts so, by key in order."""
        return {key: self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)}

    def propose(
        self,
        puts: Mapping[str, bytes],
        deletes: Iterable[str] = (),
        guards: Mapping[str, int] | None = None,
        lease: Lease | None = None,
    ) -> Proposal:
        """Send a proposal on its way."""
        answer: Proposal = Answer()
        inner = lease.inner if isinstance(lease, FarLease) else None
        ask = partial(self.server.propose, dict(puts), list(deletes), dict(guards or {}), inner)
        unknown = partial(answer.refuse, UnknownOutcomeError("no answer in time"))

        def unheard() -> None:
            ask()

        def cut_off() -> None:
            ask()
            self._later(unknown)

        if not self.trouble.delay_ns:
            return self._near(ask())
        fate = self._fate()
        self.fates[fate] = self.fates.get(fate, 0) + 1
        if fate == "refused":
            self._later(lambda: answer.refuse(Refusal("unavailable", "the registry is busy")))
        elif fate == "request lost":
            self._later(unknown)
        elif fate == "answer lost":
            self._later(cut_off)
        elif fate == "late":
            self._later(unknown)
            self._later(lambda: self._later(lambda: self._later(unheard)))
        else:
            self._later(lambda: self._arrived(ask(), answer))
        return answer

    def _near(self, done: Proposal) -> Proposal:
        """Show what was done before it is answered."""
        self.show()
        return done

    def lease(self, ttl_ns: int) -> Answer[Lease]:
        """Ask for a lease."""
        answer: Answer[Lease] = Answer()
        asked_ns = self._clock.monotonic()

        def given(lease: Lease | None, error: Exception | None) -> None:
            if lease is None:
                answer.refuse(error or Refusal("unavailable", "no lease"))
            else:
                answer.give(FarLease(self, lease, ttl_ns, asked_ns))

        def asked() -> None:
            self.server.lease(ttl_ns).then(lambda lease, error: self._later(lambda: given(lease, error)))

        self._later(asked)
        return answer

    def watch(self, prefix: str, from_revision: int, on_events: OnEvents) -> Cancel:
        """Report changes as they reach the replica."""
        if from_revision > self._revision:
            raise Refusal("gone", f"changes after revision {from_revision} are not known here")
        cancelled: list[bool] = []

        def tell(events: Sequence[Event]) -> None:
            # What came before the watch began is told by the past, what comes later by this.
            fresh = [event for event in events if event.revision <= self._revision]
            if fresh and not cancelled:
                on_events(fresh)

        if from_revision < self._revision:  # the past comes from where it is kept
            upto = self._revision
            past: list[Event] = []
            stop = self.server.watch(prefix, from_revision, past.extend)

            def told() -> None:
                stop()
                known = [event for event in past if event.revision <= upto]
                if known and not cancelled:
                    on_events(known)

            self._clock.call_soon(lambda: self._clock.call_soon(told))
        watcher = (prefix, self._revision, tell)
        self._watchers.append(watcher)

        def cancel() -> None:
            cancelled.append(True)
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return cancel

    def problems(self) -> Sequence[str]:
        """Return what stands against changes."""
        return self.server.problems()

    def figures(self) -> Iterable[Figure]:
        """Return what there is to measure."""
        return self.server.figures()

    def close(self) -> None:
        """Hear no more."""
        self._unwatch()
        self._watchers.clear()
        self.server.close()

    def deafen(self) -> None:
        """Show nothing new here from now on."""
        self._unwatch()

    def show(self) -> None:
        """Show what happened there, and tell nobody."""
        self._entries, self._revision = dict(self.server.list("")), self.server.revision

    def hear(self) -> None:
        """Show again what happens there, and what did meanwhile."""
        self._unwatch = self.server.watch("", self._revision, self._heard)

    def later(self, call: Callable[[], None]) -> None:
        """Let something happen after the time one way takes."""
        self._later(call)

    def _later(self, call: Callable[[], None]) -> None:
        delay_ns = int(self.trouble.delay_ns * self._random.random() * (10 if self._random.random() < 0.1 else 1))
        self._clock.call_at(self._clock.monotonic() + delay_ns, call)

    def _fate(self) -> str:
        draw = self._random.random()
        trouble = self.trouble
        for fate, share in (
            ("refused", trouble.refused),
            ("request lost", trouble.request_lost),
            ("answer lost", trouble.answer_lost),
            ("late", trouble.late),
        ):
            if draw < share:
                return fate
            draw -= share
        return "answered"

    def _arrived(self, done: Proposal, answer: Proposal) -> None:
        """Bring the answer back, but not before the replica shows why it is so."""
        needed = self.server.revision

        def told(revision: int | None, error: Exception | None) -> None:
            if error is not None:
                self._once_at(needed, lambda: answer.refuse(error))
            else:
                self._once_at(needed, lambda: answer.give(revision or 0))

        self._later(lambda: done.then(told))

    def _once_at(self, revision: int, call: Callable[[], None]) -> None:
        if self._revision >= revision:
            call()
        else:
            self._waiting.append((revision, call))

    def _heard(self, events: Sequence[Event]) -> None:
        """News leave there; they keep their order on the way."""
        delay_ns = int(self.trouble.delay_ns * self._random.random())
        self._news_ns = max(self._news_ns + 1, self._clock.monotonic() + delay_ns)
        self._news.append(events)  # timers may ring in another order
        self._clock.call_at(self._news_ns, lambda: self._apply(self._news.popleft()))

    def _apply(self, events: Sequence[Event]) -> None:
        known = self._revision
        for event in events:
            if event.revision <= known:
                continue  # shown already, while it was near
            if event.value is None:
                self._entries.pop(event.key, None)
            else:
                self._entries[event.key] = Entry(event.value, event.revision)
            self._revision = event.revision
        for prefix, _, on_events in list(self._watchers):
            mine = [event for event in events if event.key.startswith(prefix)]
            if mine:
                on_events(mine)
        ready = [call for revision, call in self._waiting if revision <= self._revision]
        self._waiting = [each for each in self._waiting if each[0] > self._revision]
        for call in ready:
            call()


class FarLease:
    """A lease as its holder sees it: over before the registry thinks so."""

    def __init__(self, far: Far, inner: Lease, ttl_ns: int, asked_ns: int) -> None:
        self.inner = inner
        self.number = inner.number
        self._far = far
        self._ttl_ns = ttl_ns
        self._until_ns = asked_ns + ttl_ns
        self._ended = False

    @property
    def is_over(self) -> bool:
        """Whether the holder must do nothing more in its name."""
        return self._ended or self._far._clock.monotonic() >= self._until_ns

    def renew(self) -> Answer[None]:
        """Ask for more time."""
        answer: Answer[None] = Answer()
        asked_ns = self._far._clock.monotonic()
        if self.is_over:
            return Answer.refused(Refusal("gone", f"lease {self.number} is over"))

        def told(_: None, error: Exception | None) -> None:
            if error is not None:
                self._ended = True
                answer.refuse(error)
            else:
                self._until_ns = max(self._until_ns, asked_ns + self._ttl_ns)
                answer.give(None)

        self._far.later(lambda: self.inner.renew().then(lambda _, error: self._far.later(lambda: told(None, error))))
        return answer

    def end(self) -> Answer[None]:
        """Give it up."""
        self._ended = True
        answer: Answer[None] = Answer()

        def ended(_: None, error: Exception | None) -> None:
            needed = self._far.server.revision
            self._far.later(lambda: self._far._once_at(needed, lambda: answer.give(None)))

        self._far.later(lambda: self.inner.end().then(ended))
        return answer
