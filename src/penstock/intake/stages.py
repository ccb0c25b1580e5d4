"""Everything that is staged on a node: in its own directory, and with those topics that are not on its own disk.

Owns which of them an attempt is in: a topic that may go to another node takes what was staged for it along. Knows
nothing of commits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.disk import Disk
from penstock.errors import Refusal
from penstock.intake.staging import Staging, Writer, name_of
from penstock.log.manifest import STAGED_SUFFIX

#: Where they are, below the directory of a topic.
DIRECTORY = "staging"


class Stages:
    """The staged batches of a node."""

    def __init__(self, disk: Disk, path: str, now_ns: int) -> None:
        disk.make(path)
        self._own = Staging(disk, path, now_ns)
        #: By topic.
        self._apart: dict[str, Staging] = {}

    def open(self, topic: str, disk: Disk, path: str, now_ns: int) -> None:
        """Find what was staged for a topic that came, below its own directory; more goes there, too."""
        self._apart[topic] = Staging(disk, f"{path}/{DIRECTORY}", now_ns, STAGED_SUFFIX)

    @staticmethod
    def look_through(disk: Disk, path: str) -> None:
        """Read what `open` reads, so that nothing of it must be fetched while the loop waits; blocking."""
        Staging(disk, f"{path}/{DIRECTORY}", 0, STAGED_SUFFIX)

    def close(self, topic: str) -> None:
        """Know no more of what is staged for a topic, which went."""
        self._apart.pop(topic, None)

    def __len__(self) -> int:
        return sum(len(each) for each in self._all())

    def _all(self) -> list[Staging]:
        return [self._own, *self._apart.values()]

    def _with(self, name: str) -> Staging:
        return next((each for each in self._all() if each.has(name)), self._own)

    def has(self, name: str) -> bool:
        """Tell whether an attempt is complete."""
        return any(each.has(name) for each in self._all())

    def topic(self, names: list[str]) -> str | None:
        """Return the one topic of complete attempts; None if there are several, or rows say it."""
        topics = {self._with(name).topic(name) for name in names}
        return topics.pop() if len(topics) == 1 else None

    def writer(
        self, query: str, batch: int, attempt: str, topic: str | None, schema: pa.Schema, home: int | None = None
    ) -> Writer:
        """Begin an attempt of batches for one topic, or with a column that names it; for any thread."""
        place = self._own if topic is None else self._apart.get(topic, self._own)
        return place.writer(query, batch, attempt, topic, schema, home)

    def add(self, query: str, batch: int, attempt: str, now_ns: int) -> None:
        """Take note of an attempt whose writer finished."""
        name = name_of(query, batch, attempt)
        place = next((each for each in self._all() if each.is_begun(name)), None)
        if place is None:
            raise Refusal("unavailable", f"the topic of attempt {attempt} went to another node; stage it there")
        place.add(query, batch, attempt, now_ns)

    def check(self, names: list[str]) -> None:
        """Refuse attempts that are not what was written; blocking."""
        for name in names:
            self._with(name).check([name])

    def batches(self, name: str) -> Iterator[pa.RecordBatch]:
        """Yield what an attempt wrote, in order; blocking. CorruptionError if it never will."""
        return self._with(name).batches(name)

    def remove(self, names: list[str]) -> None:
        """Drop attempts; those that are not there are none."""
        for name in names:
            self._with(name).remove([name])

    def of_query(self, query: str, topic: str | None, batch_max: int) -> list[str]:
        """Return the complete attempts of a query's batches up to one, for a topic."""
        return [name for each in self._all() for name in each.of_query(query, topic, batch_max)]

    def sweep(self, now_ns: int, needed: set[str]) -> int:
        """Drop what nobody committed within a day; return how many attempts."""
        return sum(each.sweep(now_ns, needed) for each in self._all())
