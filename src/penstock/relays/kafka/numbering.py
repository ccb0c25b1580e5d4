"""Who this relay is to Kafka: the producer under whose numbers messages go, one after the other over its life."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.relays.kafka.sequences import Sequences
from penstock.relays.kafka.sets import MessageSet


class Numbering:
    """The producer that is in force; where messages have no numbers, there is none."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self.sequences: Sequences | None = None

    @property
    def is_lacking(self) -> bool:
        """Whether a producer has to be asked for before anything goes."""
        return self._is_wanted and self.sequences is None

    def number(self, sets: Sequence[MessageSet]) -> None:
        """Give new sets their numbers."""
        if self.sequences is not None:
            for part in sets:
                part.sequence = self.sequences.take(part.place, part.count)

    def give_up(self, part: MessageSet, count: int, later: Iterable[MessageSet]) -> None:
        """Close the gap that messages of a set leave; what Kafka may have keeps its numbers."""
        if self.sequences is not None and part.sequence >= 0 and not part.is_doubtful:
            self.sequences.give_up(part.place, count, later)

    def forget(self, topic: str) -> None:
        """Begin anew with a topic: what comes under its name is another one."""
        if self.sequences is not None:
            self.sequences.forget(topic)
