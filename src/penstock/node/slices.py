"""Large work in small pieces: one piece in each turn of the loop, whoever's it is, and all of them in turn.

Ten large bodies at once stop the loop no longer than one does. Knows nothing of what the work is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.clock import Clock
from penstock.registry.answer import Answer

#: Does a piece; True when that was the last.
Step = Callable[[], bool]


class Slices:
    """The works under way, the next one first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._works: deque[tuple[Step, Answer[None]]] = deque()

    def do(self, step: Step) -> Answer[None]:
        """Answer once a work is done; what a piece of it raises is why not."""
        answer: Answer[None] = Answer()
        self._works.append((step, answer))
        if len(self._works) == 1:
            self._clock.call_soon(self._next)
        return answer

    def _next(self) -> None:
        step, answer = self._works[0]
        try:
            is_done = step()
        except Exception as error:
            self._works.popleft()
            self._go_on()
            answer.refuse(error)
            return
        if is_done:
            self._works.popleft()
            self._go_on()
            answer.give(None)
        else:
            self._works.rotate(-1)
            self._go_on()

    def _go_on(self) -> None:
        if self._works:
            self._clock.call_soon(self._next)
