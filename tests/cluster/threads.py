"""Threads that are none: they work at once, or when a test says so, in an order that it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class InlineThreads:
    """Work is done before `submit` returns."""

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Do the work and call back."""
        try:
            result = work()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    def map(self, work: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Do one after the other."""
        return [work(item) for item in items]

    def tell(self, what: Callable[[], None]) -> None:
        """Call it."""
        what()


class DrawnThreads(InlineThreads):
    """Work waits until it is drawn, and so does its answer."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._waiting: list[Callable[[], None]] = []

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Keep the work."""

        def answer(*found: Any) -> None:
            self._waiting.append(lambda: done(*found))

        self._waiting.append(lambda: InlineThreads.submit(self, pool, work, answer))

    def later(self, call: Callable[[], None]) -> None:
        """Keep what is done without a thread."""
        self._waiting.append(call)

    def run(self, steps: int) -> None:
        """Do so much of what waits."""
        for _ in range(steps):
            if self._waiting:
                self._waiting.pop(self._random.randrange(len(self._waiting)))()

    def run_all(self) -> None:
        """Do all of it, and what comes of it."""
        while self._waiting:
            self.run(1)
