"""What a broker says in the registry while it lives: records that are kept there, and locks that are held.

Both hang on leases. A record is said again when a lease was lost; a lock is not, because what it stood for is over.
Invariant: a lock that `holds` says is held is in nobody else's hands: a lease is over here before it is there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from penstock.clock import SECOND, Clock, Timer
from penstock.errors import Refusal
from penstock.registry.answer import Answer
from penstock.registry.attempt import Draft, attempt
from penstock.registry.registry import Lease, Registry

#: What a broker that died said is forgotten after this time.
TTL_NS = 10 * SECOND
#: Several tries, and a slow election of the registry, fit into the time a lease lasts.
RENEW_NS = 2 * SECOND
TRIES = 5
#: Keys that hang on one lease: they go in one change, which has a bound.
LEASE_KEYS_MAX = 100

_log = logging.getLogger("penstock.cluster")


class Presence:
    """The leases of one broker, and what hangs on them."""

    def __init__(self, registry: Registry, clock: Clock, ttl_ns: int = TTL_NS) -> None:
        self._registry = registry
        self._clock = clock
        self._ttl_ns = ttl_ns
        self._renew_ns = min(RENEW_NS, ttl_ns // TRIES)
        self._berths: list[_Berth] = []
        #: The answer to who asked for a lease, and when that was.
        self._asking: Answer[_Berth] | None = None
        self._asked_ns = 0
        #: What is to be there, by key.
        self._kept: dict[str, bytes] = {}
        #: What is to be there no more, by key.
        self._gone: dict[str, bytes] = {}
        self._locks: dict[str, _Lock] = {}
        self._closed = False
        #: The registry did not take what was last said anew.
        self._is_unheard = False
        self._timer: Timer = clock.call_at(clock.monotonic() + self._renew_ns, self._renew)

    def keep(self, key: str, value: bytes) -> Answer[None]:
        """Say something under a key, over whatever is there, and go on saying it; answered once it is said."""
        self._kept[key] = value
        self._gone.pop(key, None)
        return self._say(key, value, over=True)

    def drop(self, key: str) -> Answer[None]:
        """Say it no more; what somebody else says there by now stays."""
        value = self._kept.pop(key, None)
        return self.remove(key, value) if value is not None else Answer.of(None)

    def remove(self, key: str, value: bytes) -> Answer[None]:
        """Take back what was said, or what came late; asked for again until it is done."""
        self._leave(key)
        self._gone[key] = value

        def compose() -> Draft[None]:
            entry = self._registry.get(key)
            if entry is None or entry.value != value:
                return Draft(None)
            return Draft(None, {}, [key], {key: entry.revision})

        def removed(_: None) -> None:
            if self._gone.get(key) is value:
                del self._gone[key]

        return attempt(self._registry, self._clock, compose).then_make(removed)

    def give_up(self, key: str) -> None:
        """Have nothing more to do with a key that somebody else has by now."""
        self._kept.pop(key, None)
        self._locks.pop(key, None)
        self._leave(key)

    def take(
        self, key: str, value: bytes, guards: Mapping[str, int] | None = None, instead: bytes | None = None
    ) -> Answer[int]:
        """Take a lock and answer with the revision that fences it; "conflict" if somebody has it.

        `instead` is what may stand there: an older word of this broker's, or of somebody who is surely gone.
        """
        self._gone.pop(key, None)

        def taken(berth: _Berth) -> Answer[int]:
            def compose() -> Draft[None]:
                entry = self._registry.get(key)
                if entry is not None and entry.value not in (value, instead):
                    raise Refusal("conflict", f"{key} is held by {entry.value.decode(errors='replace')}")
                at = entry.revision if entry is not None else 0
                return Draft(None, {key: value}, (), {**(guards or {}), key: at}, lease=berth.lease)

            berth.keys.add(key)  # it has its room from now on, however many are asked for at once
            asked = attempt(self._registry, self._clock, compose)
            asked.then(lambda _, error: berth.keys.discard(key) if error is not None else None)
            return asked.then_make(lambda _: self._took(key, value, berth))

        return self._berth().then_ask(taken)

    def _took(self, key: str, value: bytes, berth: _Berth) -> int:
        entry = self._registry.get(key)
        if entry is None or entry.value != value:
            berth.keys.discard(key)
            raise Refusal("gone", f"{key} was lost as soon as it was taken")
        self._leave(key)
        berth.keys.add(key)
        self._locks[key] = _Lock(entry.revision, berth.lease, value)
        return entry.revision

    def holds(self, key: str, revision: int) -> bool:
        """Tell whether a lock is still in these hands."""
        held = self._locks.get(key)
        if held is None or held.revision != revision or held.lease.is_over:
            return False
        entry = self._registry.get(key)
        return entry is not None and entry.revision == revision

    def release(self, key: str) -> None:
        """Give a lock back."""
        held = self._locks.pop(key, None)
        if held is not None and not self._closed:
            self.remove(key, held.value)  # else it goes with its lease

    def close(self) -> Answer[None]:
        """Take everything back."""
        self.stop()
        done: Answer[None] = Answer.of(None)
        for berth in self._berths:
            ended = berth.lease.end().settled()
            done = done.then_ask(lambda _, ended=ended: ended)  # type: ignore[misc]
        return done

    def stop(self) -> None:
        """Do nothing more; what was said is forgotten with its leases."""
        self._closed = True
        self._timer.cancel()

    def _say(self, key: str, value: bytes, *, over: bool) -> Answer[None]:
        def said(berth: _Berth) -> Answer[None]:
            def compose() -> Draft[None]:
                entry = self._registry.get(key)
                if self._kept.get(key) is not value:
                    return Draft(None)  # something newer is on its way, or it was dropped
                if entry is not None and entry.value != value and not over:
                    del self._kept[key]  # somebody else says it since: a client that moved on
                    return Draft(None)
                guards = {key: entry.revision if entry else 0}
                return Draft(None, {key: value}, (), guards, lease=berth.lease)

            berth.keys.add(key)
            return attempt(self._registry, self._clock, compose)

        return self._berth(key).then_ask(said)

    def _berth(self, key: str = "") -> Answer[_Berth]:
        """Answer with a lease that has room, or that a key hangs on already."""
        lasting = [berth for berth in self._berths if not berth.lease.is_over]
        for berth in lasting:
            if key in berth.keys:
                return Answer.of(berth)
        for berth in lasting:
            if len(berth.keys) < LEASE_KEYS_MAX:
                return Answer.of(berth)
        now_ns = self._clock.monotonic()
        if self._asking is not None and now_ns < self._asked_ns + self._ttl_ns:
            return self._asking
        asked = self._registry.lease(self._ttl_ns).then_make(self._begun)
        if not asked.is_given:
            self._asking, self._asked_ns = asked, now_ns

            def came(_: _Berth | None, __: Exception | None) -> None:
                if self._asking is asked:
                    self._asking = None

            asked.then(came)
        return asked

    def _begun(self, lease: Lease) -> _Berth:
        if self._closed:
            lease.end().settled()
            raise Refusal("gone", "this broker says nothing more")
        berth = _Berth(lease)
        self._berths.append(berth)
        return berth

    def _leave(self, key: str) -> None:
        for berth in self._berths:
            berth.keys.discard(key)

    def _renew(self) -> None:
        self._timer = self._clock.call_at(self._clock.monotonic() + self._renew_ns, self._renew)
        over = [berth for berth in self._berths if berth.lease.is_over]
        self._berths = [berth for berth in self._berths if not berth.lease.is_over]
        for berth in self._berths:
            berth.lease.renew().settled()  # one that is over shows it; the next turn sees to what hung there
        for berth in over:
            self._lost(berth)
        for key, value in list(self._gone.items()):
            self.remove(key, value)
        hanging = set().union(*(berth.keys for berth in self._berths)) if self._berths else set()
        for key, value in list(self._kept.items()):
            if key not in hanging:
                self._say(key, value, over=False).then(self._told)

    def _told(self, _: None, error: Exception | None) -> None:
        """Say once that the registry does not hear, and not each time that it is asked."""
        if error is not None and not self._is_unheard:
            _log.warning("what this broker says of itself is not in the registry: %s", error)
        self._is_unheard = error is not None

    def _lost(self, berth: _Berth) -> None:
        for key in berth.keys:
            self._locks.pop(key, None)
        if berth.keys:
            _log.warning("a lease of this broker was lost with %d keys; they are said again", len(berth.keys))


class _Lock(NamedTuple):
    """The revision at which a lock was taken, by which lease, and what it says."""

    revision: int
    lease: Lease
    value: bytes


class _Berth:
    """A lease, and the keys that hang on it."""

    __slots__ = ("keys", "lease")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.keys: set[str] = set()
