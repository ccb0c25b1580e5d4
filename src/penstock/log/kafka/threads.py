"""Threads for what waits for the network, apart from those that wait for the local disk.

Owns how many there are of each kind, and the way back to the loop. Knows nothing of what they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
U = TypeVar("U")

#: Threads of each pool of a disk that is not left to the local one. A sync waits some milliseconds for Kafka, so these
#: are some thousand syncs a second; a sync that waits for a Kafka that is away must not stop those of another. A fence
#: waits half a second for Kafka and does nothing else, and no topic can be opened before it: all slots at once.
POOLS = {"sync": 16, "read": 4, "seal": 2, "make": 2, "open": 8, "fence": 64}
#: Partitions that are read at once when a topic is taken over.
LOADS = 8


class Threads(Protocol):
    """What runs blocking work."""

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run work of a pool of POOLS, then call `done(result, error)` on the loop."""

    def map(self, work: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Return what work makes of each item, several at once; blocking. The first error is raised, at the end."""

    def tell(self, what: Callable[[], None]) -> None:
        """Call something on the loop; from any thread."""


class RealThreads:
    """Pools of threads, made when they are first needed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._closed = False

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run work of a pool of POOLS, then call `done(result, error)` on the loop."""

        def deliver(future: Future[Any]) -> None:
            error = future.exception()
            result = None if error else future.result()
            self.tell(lambda: done(result, error))

        if self._closed:  # on the way out: who closes something is not in time any more
            self.tell(lambda: done(None, OSError("nothing is written any more: the node ends")))
        else:
            self._pool(pool, POOLS[pool]).submit(work).add_done_callback(deliver)

    def map(self, work: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Return what work makes of each item, several at once; blocking. The first error is raised."""
        wanted = list(items)
        if len(wanted) == 1:
            return [work(wanted[0])]
        begun = [self._pool("load", LOADS).submit(work, item) for item in wanted]
        wait(begun)  # also where one fails: whoever tries again must not meet what the others still write
        return [each.result() for each in begun]

    def tell(self, what: Callable[[], None]) -> None:
        """Call something on the loop; from any thread."""
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:  # the loop is closed: the process is on its way out
            return

    def close(self, *, wait: bool = True) -> None:
        """Take no more work, and wait for what there is."""
        self._closed = True
        for pool in self._pools.values():
            pool.shutdown(wait=wait, cancel_futures=not wait)

    def _pool(self, name: str, count: int) -> ThreadPoolExecutor:
        found = self._pools.get(name)
        if found is None:
            found = self._pools[name] = ThreadPoolExecutor(count, thread_name_prefix=f"penstock-kafka-{name}")
        return found
