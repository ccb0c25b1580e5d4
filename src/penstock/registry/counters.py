"""Counters: the numbers that topics and subscriptions get, each given once and never again.

Invariant: no number is given that was ever seen, whatever became of the counter: not one of a topic that is on disk,
nor one that a registry had before an older copy of it was put back.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from penstock.registry.reader import Reader
from penstock.registry.registry import Entry, Event, Registry

COUNTERS = "counter/"
TOPIC_COUNTER = "counter/topic"
SUBSCRIPTION_COUNTER = "counter/subscription"


class Counters:
    """The counters of a registry."""

    def __init__(self, registry: Registry, reader: Reader) -> None:
        self._registry = registry
        self._reader = reader
        #: The largest numbers that were seen, by counter: what is put back from a backup has smaller ones.
        self._seen: dict[str, int] = {}
        registry.watch(COUNTERS, registry.revision, self._heard)

    def next(self, counter: str) -> tuple[int, int] | None:
        """Return the next number, and the revision that guards it; None where the counter cannot be read."""
        entry = self._registry.get(counter)
        if not self._is_number(counter, entry):
            return None
        number = max(_number(entry), self._seen.get(counter, 0)) + 1
        return number, entry.revision if entry else 0

    def begin_after(self, topic: int, subscription: int) -> None:
        """Give no number up to these any more: what is on disk had them, whatever the registry knows of it."""
        for counter, number in ((TOPIC_COUNTER, topic), (SUBSCRIPTION_COUNTER, subscription)):
            self._seen[counter] = max(self._seen.get(counter, 0), number)

    def subscriptions(self) -> int:
        """Return the largest number that a subscription was ever given; any, where nobody can tell.

        None is given then, so none is given twice.
        """
        entry = self._registry.get(SUBSCRIPTION_COUNTER)
        return _number(entry) if self._is_number(SUBSCRIPTION_COUNTER, entry) else sys.maxsize

    def look(self) -> None:
        """Tell which counters cannot be read: whoever meets them otherwise meets them too late."""
        for counter in (TOPIC_COUNTER, SUBSCRIPTION_COUNTER):
            self._is_number(counter, self._registry.get(counter))

    def _heard(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.value is not None and event.value.isdigit():
                self._seen[event.key] = max(self._seen.get(event.key, 0), int(event.value))

    def _is_number(self, counter: str, entry: Entry | None) -> bool:
        """Tell whether a counter says a number, or is not there; else that is told."""
        if entry is None or entry.value.isdigit():
            return True
        what, least = counter.removeprefix(COUNTERS), self._seen.get(counter, 0)
        self._reader.note(
            counter,
            entry,
            f"registry entry {counter} is no number, so no {what} is made. Put back what was there, or a number that "
            f"no {what} ever had (more than {least}, which is known here); do not remove the key",
        )
        return False


def _number(entry: Entry | None) -> int:
    return int(entry.value) if entry is not None else 0
