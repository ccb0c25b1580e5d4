"""What comes back when connections are made anew: sets that were sent and not acked, and messages that were not sent.

Invariant: a numbered set goes to its own partition under its own number, or waits until somebody leads it; only where
its topic is gone, or its producer, it goes like a new message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest

from penstock.relays.kafka.books import Books
from penstock.relays.kafka.cluster import Cluster
from penstock.relays.kafka.group import Group
from penstock.relays.kafka.line import Line
from penstock.relays.kafka.numbering import Numbering
from penstock.relays.kafka.sets import MessageSet


class Recall:
    """Holds sets whose partition nobody leads, and takes back what lines have."""

    def __init__(self, books: Books, numbering: Numbering, lines: dict[int, Line]) -> None:
        #: Sets whose partition nobody leads now: they go there, or nowhere.
        self.stranded: list[MessageSet] = []
        self._books = books
        self._numbering = numbering
        self._lines = lines

    def collect(self) -> list[Group]:
        """Take back what the lines have: first what was sent, then what was not, batch by batch from each of them."""
        has_numbers = self._numbering.sequences is not None
        back: list[list[Group]] = []
        for line in self._lines.values():
            lost = [part for request in line.out for part in request]
            for part in lost:
                self._books.heard(part)
                part.is_doubtful = True
            sets = [*lost, *line.returned, *line.again]
            if has_numbers:  # they keep them, so that nobody has them twice
                self.stranded += sets
            else:
                back.append(self._anew(sets))
        if not has_numbers:
            back.append(self._anew(self.stranded))
            self.stranded = []
        unsent = [list(line.unsent()) for line in self._lines.values()]
        self._lines.clear()
        return list(chain(_interleaved(back), _interleaved(unsent)))

    def place(self, cluster: Cluster) -> list[Group]:
        """Let sets go to whoever leads their partitions now; return what has to go like new messages."""
        sets, self.stranded = sorted(self.stranded, key=lambda each: each.number), []
        return [group for part in sets if not self._is_placed(part, cluster) for group in self._anew([part])]

    def _is_placed(self, part: MessageSet, cluster: Cluster) -> bool:
        topic = cluster.topics.get(part.topic)
        if topic is not None:
            leader = next((each.leader for each in topic.partitions if each.id == part.partition), None)
            if leader is not None and leader in self._lines:
                self._lines[leader].put_again((part,))
                return True
            if part.partition in topic.numbers:
                self.stranded.append(part)
                return True
        # The topic is gone, or is another one of the same name.
        self._numbering.forget(part.topic)
        return False

    def _anew(self, sets: Sequence[MessageSet]) -> list[Group]:
        """Return messages that go under other numbers, or none; Kafka may have them."""
        ordered = sorted(sets, key=lambda each: each.number)
        for part in ordered:
            if part.is_doubtful:
                self._books.doubt(part)
        return [group for part in ordered for group in part.groups]


def _interleaved(queues: Iterable[Sequence[Group]]) -> Iterator[Group]:
    """Yield from each in turn, so that what is rerouted keeps its order as far as can be."""
    return (group for turn in zip_longest(*queues) for group in turn if group is not None)
