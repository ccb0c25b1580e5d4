"""The overseer: how topics of a cluster come and go, whichever broker is asked and whoever of them dies on the way.

Every step is one change of the registry, and all work between two of them may be done again. Whoever works on a topic
has its lock, which goes with its broker; who finds work without a lock takes it up.
Invariants: a topic is live only once its storage is there; its name is free again only once nobody can read what was
stored under it; two brokers never write down a step of one job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec

from penstock.client.timeline.wire import Kind
from penstock.clock import MILLISECOND, SECOND, Clock, Timer
from penstock.cluster import entries
from penstock.cluster.denial import Denial
from penstock.cluster.entries import Deletion, Entry, Settings
from penstock.cluster.keys import TOPIC_ID_BYTES_MAX, Keys, check_id
from penstock.cluster.presence import Presence
from penstock.cluster.records import Records
from penstock.errors import Elsewhere, PenstockError, Refusal
from penstock.registry.answer import Answer
from penstock.registry.attempt import Draft, attempt
from penstock.registry.reader import Reader
from penstock.registry.registry import Cancel, Event, Registry
from penstock.registry.registry import Entry as Kept

#: Work that nobody does is found this often, a little less, so that brokers do not look all at once.
SCAN_NS = 5 * SECOND
SCAN_JITTER = 0.2
#: A topic whose storage cannot be made for so long is given up.
PROVISION_MS_MAX = 60_000
#: A client that finds a name fenced asks again after this time.
FENCED_MS = 200

T = TypeVar("T")

_log = logging.getLogger("penstock.cluster")


class Storage(Protocol):
    """Where messages of topics are. Everything may be asked for twice, and by one broker after another."""

    def provision(self, ident: str, incarnation: str, settings: Settings) -> Answer[None]:
        """Make what a topic needs."""

    def fence(self, ident: str, incarnation: str) -> Answer[None]:
        """Make sure that nobody reads or writes what a topic has, at any time from now on."""

    def purge(self, ident: str, incarnation: str, step: int) -> Answer[bool]:
        """Remove a piece of what a topic has; answer whether nothing is left."""


#: Hears that a topic is live, or that one that was is gone.
Watcher: TypeAlias = Callable[[Literal["live", "gone"], Entry], None]


def always() -> bool:
    """Hold work back at no time."""
    return True


class Overseer:
    """Topics of one cluster, as one of its brokers sees and makes them."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        random: Random,
        cluster: str,
        broker: str,
        storage: Storage,
        presence: Presence | None = None,
        may_work: Callable[[], bool] = always,
    ) -> None:
        self.keys = Keys(cluster)
        self.cluster = cluster
        self.broker = broker
        #: What the broker says of itself, and the locks that it has.
        self.presence = presence or Presence(registry, clock)
        #: Who is there.
        self.records = Records(registry, clock, random, self.keys, self.presence, broker)
        self._registry = registry
        self._clock = clock
        self._random = random
        self._storage = storage
        #: Whether this broker is well enough for work that others could do.
        self.may_work = may_work
        #: Two brokers may have one name by mistake; their locks are two.
        self._lock_value = f"{broker} {random.getrandbits(64):016x}".encode()
        #: Locks of what is being done here.
        self._jobs: set[str] = set()
        self._watchers: list[Watcher] = []
        #: The live topics, as watchers were told.
        self._live: dict[str, Entry] = {}
        self._reader = Reader()
        for key, kept in registry.list(self.keys.topics).items():
            entry = self._reader.read(key, kept, Entry)
            if entry is not None and entry.state == "live":
                self._live[key] = entry
        self._unwatch: Cancel = registry.watch(self.keys.topics, registry.revision, self._heard)
        self._timer: Timer = clock.call_at(clock.monotonic() + self._scan_ns(), self.scan)

    def close(self) -> Answer[None]:
        """Work no more, and leave what is under way to others."""
        self.stop()
        return self.presence.close()

    def stop(self) -> None:
        """Work no more; the locks go with their leases."""
        self._unwatch()
        self.records.close()
        self._timer.cancel()
        self.presence.stop()

    # --- what there is --------------------------------------------------------------------------------------------

    def find(self, ident: str) -> Entry:
        """Return a topic that is live."""
        key = self.keys.topic(ident)
        kept = self._registry.get(key)
        if kept is None:
            raise self._missing(ident)
        entry = entries.decoded(kept.value, Entry, key)
        if entry.state == "creating":
            raise Denial(Kind.TOPIC_PROVISIONING, f"topic {ident} is being made; try again in a moment")
        return entry

    def topics(self) -> list[Entry]:
        """Return all topics that can be read, by id."""
        found = self._registry.list(self.keys.topics)
        read = [self._reader.read(key, kept, Entry) for key, kept in found.items()]
        return [entry for entry in read if entry is not None]

    def deletions(self) -> list[Deletion]:
        """Return what is being deleted."""
        found = self._registry.list(self.keys.deleted)
        read = [self._reader.read(key, kept, Deletion) for key, kept in found.items()]
        return [entry for entry in read if entry is not None]

    def masters(self) -> dict[str, str]:
        """Return who works on what, by the names of the locks."""
        found = self._registry.list(self.keys.masters)
        return {key[len(self.keys.masters) :]: kept.value.decode(errors="replace") for key, kept in found.items()}

    def watch(self, told: Watcher) -> Cancel:
        """Tell of topics that come and go from now on; `topics` are those that are there."""
        self._watchers.append(told)
        return lambda: self._watchers.remove(told) if told in self._watchers else None

    def _missing(self, ident: str) -> Denial:
        if self._registry.get(self.keys.fence(ident)) is not None:
            return Denial(Kind.TOPIC_DELETING, f"topic {ident} is being deleted; try again in a moment", FENCED_MS)
        return Denial(Kind.TOPIC_NOT_FOUND, f"there is no topic {ident}; create it first")

    def _heard(self, events: Sequence[Event]) -> None:
        for event in events:
            kept = Kept(event.value, event.revision) if event.value is not None else None
            entry = self._reader.read(event.key, kept, Entry)
            now = entry if entry is not None and entry.state == "live" else None
            was = self._live.get(event.key)
            if was is not None and (now is None or now.incarnation != was.incarnation):
                del self._live[event.key]
                self._tell("gone", was)
            if now is not None and event.key not in self._live:
                self._live[event.key] = now
                self._tell("live", now)

    def _tell(self, what: Literal["live", "gone"], entry: Entry) -> None:
        for told in list(self._watchers):
            told(what, entry)

    # --- create ---------------------------------------------------------------------------------------------------

    def create(self, ident: str, settings: Settings) -> Answer[Entry]:
        """Make a topic, or find the one that was made with the same settings."""
        incarnation = f"{self._random.getrandbits(128):032x}"
        entry = Entry(
            id=ident,
            incarnation=incarnation,
            created_ms=self._now_ms(),
            state="creating",
            master=self.broker,
            settings=dict(settings),
        )
        try:
            check_id(ident, "topic id", TOPIC_ID_BYTES_MAX)
            found = self._there(entry)
        except PenstockError as error:
            return Answer.refused(error)
        if found is not None:
            return Answer.of(found)
        lock = self.keys.master(ident, incarnation)
        return self._locked(lock, lambda at: self._create(entry, lock, at))

    def _there(self, wanted: Entry) -> Entry | None:
        """Return the topic that is as wanted; None if there is none yet."""
        key = self.keys.topic(wanted.id)
        kept = self._registry.get(key)
        if kept is None:
            if self._registry.get(self.keys.fence(wanted.id)) is not None:
                raise self._missing(wanted.id)
            return None
        entry = entries.decoded(kept.value, Entry, key)
        if entry.incarnation == wanted.incarnation:
            return None
        if entry.state == "creating":
            raise Denial(Kind.TOPIC_PROVISIONING, f"topic {wanted.id} is being made; try again in a moment")
        if entry.settings != wanted.settings:
            raise Denial(Kind.TOPIC_EXISTS, _differing(entry, wanted))
        return entry

    def _create(self, entry: Entry, lock: str, at: int) -> Answer[Entry]:
        """Write down that a topic is to be made, make it, and write that down; `at` fences the lock."""
        key = self.keys.topic(entry.id)

        def compose() -> Draft[Entry]:
            found = self._there(entry)
            if found is not None:
                return Draft(found)
            guards = {key: 0, self.keys.fence(entry.id): 0, lock: at}
            return Draft(entry, {key: entries.encoded(entry)}, (), guards, proof=(key,))

        def begun(there: Entry) -> Answer[Entry]:
            if there.incarnation != entry.incarnation:
                return Answer.of(there)
            return self._provision(entry, lock, at, give_up=True)

        return self._attempt(compose).then_ask(begun)

    def _provision(self, entry: Entry, lock: str, at: int, *, give_up: bool) -> Answer[Entry]:
        answer: Answer[Entry] = Answer()

        def provisioned(_: None, error: Exception | None) -> None:
            if error is None:
                self._enliven(entry, lock, at).then(_passed_on(answer))
                return
            text = f"the storage of topic {entry.id} cannot be made: {error}"
            failed = Denial(Kind.STORAGE, text)
            if not give_up or isinstance(error, Elsewhere):  # the node that has it goes on
                answer.refuse(failed)
                return
            # Whether or not this is written down: whoever finds the entry does one or the other.
            self._discard(entry, lock, at).then(lambda _, __: answer.refuse(failed))

        try:
            self._storage.provision(entry.id, entry.incarnation, entry.settings).then(provisioned)
        except PenstockError as error:
            provisioned(None, error)
        return answer

    def _enliven(self, entry: Entry, lock: str, at: int) -> Answer[Entry]:
        key = self.keys.topic(entry.id)
        live = msgspec.structs.replace(entry, state="live")

        def compose() -> Draft[Entry]:
            kept = self._registry.get(key)
            there = entries.decoded(kept.value, Entry, key) if kept is not None else None
            if kept is None or there is None or there.incarnation != entry.incarnation:
                raise self._missing(entry.id)
            if there.state == "live":
                return Draft(there)
            self._check_lock(lock, at)
            return Draft(live, {key: entries.encoded(live)}, (), {key: kept.revision, lock: at}, proof=(key,))

        return self._attempt(compose)

    def _discard(self, entry: Entry, lock: str, at: int) -> Answer[None]:
        """Move a topic that could not be made to those that are deleted."""

        def compose() -> Draft[None]:
            kept = self._registry.get(self.keys.topic(entry.id))
            if kept is None or entries.decoded(kept.value, Entry, entry.id).incarnation != entry.incarnation:
                return Draft(None)
            self._check_lock(lock, at)
            draft = self._gone(entry, kept.revision)
            return draft._replace(guards={**draft.guards, lock: at})

        return self._attempt(compose)

    # --- delete ---------------------------------------------------------------------------------------------------

    def delete(self, ident: str) -> Answer[None]:
        """Let a topic be gone for everybody; what it stored goes in a while."""
        key = self.keys.topic(ident)

        def compose() -> Draft[Entry]:
            entry = self.find(ident)
            kept = self._registry.get(key)
            draft = self._gone(entry, kept.revision if kept is not None else 0)
            return Draft(entry, draft.puts, draft.deletes, draft.guards, draft.proof)

        def deleted(entry: Entry) -> None:
            self._clock.call_soon(lambda: self._take_up_deletion(entry.id, entry.incarnation))

        return self._attempt(compose).then_make(deleted)

    def _gone(self, entry: Entry, revision: int) -> Draft[None]:
        """Return the one step by which a topic is gone, and its name nobody's."""
        gone = Deletion(
            id=entry.id,
            incarnation=entry.incarnation,
            phase="fencing",
            since_ms=self._now_ms(),
            master=self.broker,
            settings=entry.settings,
        )
        key, listed = self.keys.topic(entry.id), self.keys.deletion(entry.id, entry.incarnation)
        puts = {listed: entries.encoded(gone), self.keys.fence(entry.id): entry.incarnation.encode()}
        return Draft(None, puts, [key, self.keys.table(entry.id)], {key: revision}, proof=(listed,))

    def _take_up_deletion(self, ident: str, incarnation: str) -> None:
        lock = self.keys.master(ident, incarnation)
        listed = self.keys.deletion(ident, incarnation)
        self._take_up(lock, lambda at: self._finish(listed, lock, at))

    def _finish(self, listed: str, lock: str, at: int) -> Answer[None]:
        """Do what is left of a deletion."""
        kept = self._registry.get(listed)
        if kept is None:
            return Answer.of(None)
        gone = entries.decoded(kept.value, Deletion, listed)
        if gone.phase == "purging":
            return self._purge(gone, listed, lock, at)
        fenced = self._storage.fence(gone.id, gone.incarnation)
        return fenced.then_ask(lambda _: self._fenced(gone, listed, lock, at)).then_ask(
            lambda _: self._purge(gone, listed, lock, at)
        )

    def _fenced(self, gone: Deletion, listed: str, lock: str, at: int) -> Answer[None]:
        purging = msgspec.structs.replace(gone, phase="purging", master=self.broker)
        fence = self.keys.fence(gone.id)

        def compose() -> Draft[None]:
            kept = self._registry.get(listed)
            if kept is None or entries.decoded(kept.value, Deletion, listed).phase == "purging":
                return Draft(None)
            self._check_lock(lock, at)
            return Draft(
                None, {listed: entries.encoded(purging)}, [fence], {listed: kept.revision, lock: at}, proof=(listed,)
            )

        return self._attempt(compose)

    def _purge(self, gone: Deletion, listed: str, lock: str, at: int) -> Answer[None]:
        """Remove what a topic stored, a piece in a turn, while it is this broker's to do."""
        emptied: Answer[None] = Answer()

        def go_on(step: int) -> None:
            try:
                self._check_lock(lock, at)
                if not self.may_work():
                    raise Refusal(
                        "unavailable", f"what topic {gone.id} stored is purged later: this broker is not well"
                    )
                self._storage.purge(gone.id, gone.incarnation, step).then(lambda done, error: told(step, done, error))
            except PenstockError as error:
                emptied.refuse(error)

        def told(step: int, done: bool | None, error: Exception | None) -> None:
            if error is not None:
                emptied.refuse(error)
            elif done:
                emptied.give(None)
            else:
                self._clock.call_soon(lambda: go_on(step + 1))

        go_on(0)
        return emptied.then_ask(lambda _: self._forget(listed, lock, at))

    def _forget(self, listed: str, lock: str, at: int) -> Answer[None]:
        def compose() -> Draft[None]:
            kept = self._registry.get(listed)
            if kept is None:
                return Draft(None)
            self._check_lock(lock, at)
            return Draft(None, {}, [listed], {listed: kept.revision, lock: at})

        return self._attempt(compose)

    # --- work that nobody does --------------------------------------------------------------------------------------

    def scan(self) -> None:
        """Take up what nobody works on, now and again after a while."""
        self._timer.cancel()
        self._timer = self._clock.call_at(self._clock.monotonic() + self._scan_ns(), self.scan)
        if not self.may_work():
            return
        self.records.tidy()
        for gone in self.deletions():
            self._take_up_deletion(gone.id, gone.incarnation)
        for entry in self.topics():
            if entry.state == "creating":
                lock = self.keys.master(entry.id, entry.incarnation)
                self._take_up(lock, lambda at, entry=entry, lock=lock: self._go_on(entry, lock, at))  # type: ignore[misc]
        self._release_left()

    def _release_left(self) -> None:
        """Give back locks that came when nobody waited for them any more."""
        for lock, kept in self._registry.list(self.keys.masters).items():
            if kept.value == self._lock_value and lock not in self._jobs:
                self.presence.remove(lock, kept.value)

    def _go_on(self, entry: Entry, lock: str, at: int) -> Answer[Entry]:
        is_late = self._now_ms() - entry.created_ms >= PROVISION_MS_MAX
        return self._provision(entry, lock, at, give_up=is_late)

    def _take_up(self, lock: str, work: Callable[[int], Answer[T]]) -> None:
        there = self._registry.get(lock)
        if lock not in self._jobs and (there is None or there.value == self._lock_value):
            self._locked(lock, work).then(lambda _, error: self._worked(lock, error))

    def _worked(self, lock: str, error: Exception | None) -> None:
        if isinstance(error, Refusal):
            _log.info("%s is taken up again: %s", lock, error)
        elif error is not None:
            _log.error("%s failed, and is taken up again: %r", lock, error)

    def _locked(self, lock: str, work: Callable[[int], Answer[T]]) -> Answer[T]:
        """Do some work that only one broker does at a time."""
        self._jobs.add(lock)
        done = self.presence.take(lock, self._lock_value).then_ask(work)

        def over(_: T | None, __: Exception | None) -> None:
            self._jobs.discard(lock)
            self.presence.release(lock)

        answer: Answer[T] = Answer()
        done.then(over)
        done.then(_passed_on(answer))
        return answer

    def _check_lock(self, lock: str, at: int) -> None:
        if not self.presence.holds(lock, at):
            raise Refusal("gone", f"{self.broker} lost {lock}; another broker goes on")

    def _attempt(self, compose: Callable[[], Draft[T]]) -> Answer[T]:
        return attempt(self._registry, self._clock, compose)

    def _scan_ns(self) -> int:
        return int(SCAN_NS * (1 - SCAN_JITTER * self._random.random()))

    def _now_ms(self) -> int:
        return self._clock.now() // MILLISECOND


def _differing(entry: Entry, wanted: Entry) -> str:
    names = sorted({*entry.settings, *wanted.settings})
    other = [name for name in names if entry.settings.get(name) != wanted.settings.get(name)]
    shown = ", ".join(f"{name} {entry.settings.get(name)}, not {wanted.settings.get(name)}" for name in other)
    return f"topic {entry.id} exists with {shown}. Ask for it as it is, or delete it first"


def _passed_on(answer: Answer[T]) -> Callable[[T | None, Exception | None], None]:
    def told(value: T | None, error: Exception | None) -> None:
        if error is not None:
            answer.refuse(error)
        else:
            answer.give(value)  # type: ignore[arg-type]

    return told
