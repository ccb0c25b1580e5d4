"""An answer that may come later: what was asked for, or why not.

For what leaves the process (a registry elsewhere), on the loop that asked. One that is there at once costs an object
and a call. Knows nothing of what is asked.
Invariant: it is given once, and everybody who asked is told once, in the order in which they did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar, cast

from penstock.errors import InvariantError, PenstockError

T = TypeVar("T")
U = TypeVar("U")
#: Hears what came out, or what went wrong.
Told: TypeAlias = Callable[[T | None, "Exception | None"], None]


class Answer(Generic[T]):
    """What was asked for, or why not; now or later."""

    __slots__ = ("_error", "_told", "_value", "is_given")

    def __init__(self) -> None:
        self.is_given = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._told: list[Told[T]] = []

    @classmethod
    def of(cls, value: T) -> Answer[T]:
        """Return an answer that is there."""
        answer: Answer[T] = cls()
        answer.give(value)
        return answer

    @classmethod
    def refused(cls, error: Exception) -> Answer[T]:
        """Return the answer that it cannot be."""
        answer: Answer[T] = cls()
        answer.refuse(error)
        return answer

    def give(self, value: T) -> None:
        """Say what came out."""
        self._value = value
        self._tell()

    def refuse(self, error: Exception) -> None:
        """Say what went wrong."""
        if isinstance(error, PenstockError) and not isinstance(error, InvariantError):
            # It says all there is to know. Its frames know this answer, and what was read when it was asked: a cycle.
            error.__traceback__ = error.__context__ = None
        self._error = error
        self._tell()

    def then(self, told: Told[T]) -> None:
        """Tell somebody: before this returns if it is known, else once it is."""
        if self.is_given:
            told(self._value, self._error)
        else:
            self._told.append(told)

    def then_make(self, make: Callable[[T], U]) -> Answer[U]:
        """Return the answer that is made of this one; what `make` raises is why not."""
        made: Answer[U] = Answer()

        def told(value: T | None, error: Exception | None) -> None:
            if error is not None:
                made.refuse(error)
                return
            try:
                result = make(cast(T, value))
            except Exception as failure:
                made.refuse(failure)
            else:
                made.give(result)

        self.then(told)
        return made

    def then_ask(self, ask: Callable[[T], Answer[U]]) -> Answer[U]:
        """Return the answer to what is asked once this one is there."""
        asked: Answer[U] = Answer()

        def told(value: T | None, error: Exception | None) -> None:
            if error is not None:
                asked.refuse(error)
                return
            try:
                next_one = ask(cast(T, value))
            except Exception as failure:
                asked.refuse(failure)
            else:
                next_one.then(asked._take)

        self.then(told)
        return asked

    def settled(self) -> Answer[None]:
        """Return the answer that this one was given, whatever it is."""
        settled: Answer[None] = Answer()
        self.then(lambda _, __: settled.give(None))
        return settled

    def now(self) -> T:
        """Return, or raise, what must be there already: with the embedded registry it is."""
        if not self.is_given:
            raise InvariantError("this answer comes later; wait for it")
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for it in a coroutine of the loop."""
        if not self.is_given:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda _, __: None if future.done() else future.set_result(None))
            yield from future.__await__()
        return self.now()

    def _take(self, value: T | None, error: Exception | None) -> None:
        if error is not None:
            self.refuse(error)
        else:
            self.give(cast(T, value))

    def _tell(self) -> None:
        if self.is_given:
            raise InvariantError("an answer is given once")
        self.is_given = True
        told, self._told = self._told, []
        for each in told:
            each(self._value, self._error)


class Underway(Generic[T]):
    """Answers that have not come yet, by name."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer[T]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._answers

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, name: str) -> Answer[T] | None:
        """Return the answer that is waited for under this name."""
        return self._answers.get(name)

    def add(self, name: str, answer: Answer[T]) -> Answer[T]:
        """Keep an answer under a name until it comes, and return it."""

        def came(_: T | None, __: Exception | None) -> None:
            if self._answers.get(name) is answer:
                del self._answers[name]

        if not answer.is_given:
            self._answers[name] = answer
            answer.then(came)
        return answer
