"""One change of the registry, asked for until it is known what became of it.

Owns what an answer means: a conflict is looked at again, because a change is composed from what the registry shows; a
lost answer is asked for again, word by word. Knows nothing of what is changed.
Invariant: what is composed is guarded by what it was composed from, so that no change is made twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from penstock.clock import MILLISECOND, SECOND, Clock
from penstock.errors import Refusal
from penstock.registry.answer import Answer
from penstock.registry.registry import Lease, Registry, UnknownOutcomeError

T = TypeVar("T")

#: Whoever conflicts this often is one of very many who want the same thing at once.
CONFLICTS_MAX = 20
#: A lost answer is asked for again after this time, and given up after that: clients wait no longer either.
AGAIN_NS = 100 * MILLISECOND
PATIENCE_NS = 10 * SECOND


class Draft(NamedTuple, Generic[T]):
    """What is to be put and deleted, what that was composed from, and what comes out of it."""

    made: T
    puts: Mapping[str, bytes] = {}
    deletes: Iterable[str] = ()
    guards: Mapping[str, int] = {}
    #: The keys that show whether it was done, by values nobody else puts; all if none is named. (A counter goes on.)
    proof: Iterable[str] = ()
    #: What is put goes when this lease does.
    lease: Lease | None = None


class UnansweredError(Refusal):
    """A change that was given up: it may have been done, or still be done."""

    def __init__(self, error: Exception) -> None:
        text = f"the registry does not answer, so it is not known whether this was done ({error}); try again"
        super().__init__("unavailable", text)


#: Composes the change from what the registry shows now; raises the Refusal of one that cannot be.
Compose = Callable[[], Draft[T]]


def attempt(registry: Registry, clock: Clock, compose: Compose[T]) -> Answer[T]:
    """Make a change, and answer with what came out of it."""
    return _Attempt(registry, clock, compose).answer


class _Attempt(Generic[T]):
    def __init__(self, registry: Registry, clock: Clock, compose: Compose[T]) -> None:
        self.answer: Answer[T] = Answer()
        self._registry = registry
        self._clock = clock
        self._compose = compose
        self._conflicts = 0
        self._until_ns = 0
        #: Its answer was lost at least once, so it may have been done.
        self._doubtful = False
        self._go()

    def _go(self) -> None:
        try:
            self._draft = self._compose()
        except Exception as refusal:
            self.answer.refuse(refusal)
            return
        self._doubtful = False
        self._propose()

    def _propose(self) -> None:
        draft = self._draft
        if not draft.puts and not draft.deletes:
            self.answer.give(draft.made)
        else:
            self._registry.propose(draft.puts, draft.deletes, draft.guards, draft.lease).then(self._told)

    def _told(self, revision: int | None, error: Exception | None) -> None:
        if error is None or (self._doubtful and _is(error, "conflict") and self._is_done()):
            self.answer.give(self._draft.made)
        elif isinstance(error, UnknownOutcomeError) or (self._doubtful and _is(error, "unavailable")):
            self._doubt(error)  # what is refused now may have been done before
        elif _is(error, "conflict") and self._conflicts < CONFLICTS_MAX:
            self._conflicts += 1
            self._go()
        else:
            self.answer.refuse(error)

    def _doubt(self, error: Exception) -> None:
        now_ns = self._clock.monotonic()
        self._doubtful = True
        self._until_ns = self._until_ns or now_ns + PATIENCE_NS
        if self._is_past() and self._is_done():
            self.answer.give(self._draft.made)
        elif now_ns >= self._until_ns:
            self.answer.refuse(UnansweredError(error))
        else:
            self._clock.call_at(now_ns + AGAIN_NS, self._propose)

    def _is_past(self) -> bool:
        """Tell whether a guard holds no longer: then it was done, or never will be as it is."""
        for key, revision in self._draft.guards.items():
            entry = self._registry.get(key)
            if (entry.revision if entry else 0) != revision:
                return True
        return False

    def _is_done(self) -> bool:
        """Tell whether the registry shows what was asked for: then the answer that was lost said yes."""
        draft = self._draft
        for key in draft.proof or {*draft.puts, *draft.deletes}:
            entry = self._registry.get(key)
            if (entry.value if entry else None) != draft.puts.get(key):
                return False
        return True


def _is(error: Exception, code: str) -> bool:
    return isinstance(error, Refusal) and error.code == code
