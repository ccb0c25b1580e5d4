"""The way from Flight's threads to the node's loop and back.

Owns the waiting. Knows nothing of what is asked. Flight's threads never touch the node: they hand a piece of work
to the loop and wait for what comes of it.
Invariant: whoever waits is told, also if the node stops meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from penstock.errors import Refusal

T = TypeVar("T")
#: Told once: what came out, or what went wrong.
Settle: TypeAlias = Callable[[T | None, "BaseException | None"], None]

STOPPING = "the node is stopping; try again when it is back"


class Bridge:
    """Calls into one loop from any thread but its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = Lock()
        self._waiting: set[Future[Any]] = set()
        #: Nothing is asked any more.
        self.stopped = False

    def call(self, work: Callable[[], T]) -> T:
        """Do something on the loop, and return or raise what it does. Budget: one hop, 50 us on an idle loop."""
        future: Future[T] = Future()
        self._send(future, partial(_did, work, future))
        return self._result(future)

    def ask(self, work: Callable[[Settle[T]], None]) -> T:
        """Start something on the loop that tells its end by a callback, and wait for that."""
        future: Future[T] = Future()
        self._send(future, partial(_began, work, future))
        return self._result(future)

    def tell(self, work: Callable[[], None]) -> None:
        """Have something done on the loop, without waiting; nothing happens on a loop that has ended."""
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            return

    def watch(self, future: Future[Any]) -> None:
        """Settle a future too if the node stops before somebody else does; for any thread."""
        with self._lock:
            if not self.stopped:
                self._waiting.add(future)
                future.add_done_callback(self._waiting.discard)
                return
        settled(future, None, Refusal("stopping", STOPPING))

    def stop(self) -> None:
        """Let everybody who waits go."""
        with self._lock:
            self.stopped = True
            waiting, self._waiting = self._waiting, set()
        for future in list(waiting):
            settled(future, None, Refusal("stopping", STOPPING))

    def _send(self, future: Future[T], work: Callable[[], None]) -> None:
        with self._lock:
            if self.stopped:
                raise Refusal("stopping", STOPPING)
            self._waiting.add(future)
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:  # the loop is closed
            raise Refusal("stopping", STOPPING) from None

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result()
        finally:
            with self._lock:
                self._waiting.discard(future)


def settled(future: Future[T], result: T | None, error: BaseException | None) -> None:
    """Settle a future unless somebody did before."""
    try:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]
    except InvalidStateError:
        return


def _did(work: Callable[[], T], future: Future[T]) -> None:
    try:
        settled(future, work(), None)
    except BaseException as error:
        settled(future, None, error)


def _began(work: Callable[[Settle[T]], None], future: Future[T]) -> None:
    try:
        work(partial(settled, future))
    except BaseException as error:
        settled(future, None, error)
