"""What happened to queues since it was last told, under Dynamiq's StatsD names.

Counts are summed until they are sent; what went into a queue and what left it are told apart, each as a change of the
gauge, as the service told each message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.shown import SPACE


class _Happened:
    """Of one queue."""

    __slots__ = ("approximate", "deleted", "fill", "received", "sent", "was_received")

    def __init__(self) -> None:
        self.sent = self.received = self.deleted = 0
        self.was_received = False
        self.fill = self.approximate = 0


class Stats:
    """What happened, by queue."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._queues: dict[str, _Happened] = {}

    def sent(self, queue: str, count: int = 1) -> None:
        """Count messages that came."""
        if count:
            self._of(queue).sent += count

    def deleted(self, queue: str, count: int) -> None:
        """Count messages that were deleted."""
        if count:
            self._of(queue).deleted += count

    def received(self, queue: str, limit: int, ids: Sequence[int], partitions: int) -> None:
        """Count a receive that had a partition."""
        happened = self._of(queue)
        happened.received += len(ids)
        happened.was_received = True
        happened.fill = 100 * len(ids) // limit
        happened.approximate = approximate_depth(ids, partitions)

    def lines(self) -> Iterator[str]:
        """Yield all of it, and forget it."""
        queues, self._queues = self._queues, {}
        for queue, happened in queues.items():
            name = f"{self._prefix}{queue}."
            if happened.sent:
                yield f"{name}sent.count:{happened.sent}|c\n"
                yield f"{name}depth.count:+{happened.sent}|g\n"
            if happened.was_received:
                yield f"{name}received.count:{happened.received}|c\n"
                yield f"{name}fill.count:{happened.fill}|g\n"
                yield f"{name}approximate_depth.count:{happened.approximate}|g\n"
            if happened.deleted:
                yield f"{name}deleted.count:{happened.deleted}|c\n"
                yield f"{name}depth.count:-{happened.deleted}|g\n"

    def _of(self, queue: str) -> _Happened:
        happened = self._queues.get(queue)
        if happened is None:
            happened = self._queues[queue] = _Happened()
        return happened


def approximate_depth(ids: Sequence[int], partitions: int, nodes: int = 1) -> int:
    """Return how many messages a queue may hold, as the ids of one receive let guess."""
    if len(ids) > 1:
        return len(ids) * SPACE // (max(ids) - min(ids))
    return len(ids) * partitions * nodes
