"""What follows from what brokers say of messages: they are delivered, go again, or are given up.

Owns the judgement of one answer; that sending stops, and how it goes on, is the router's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.discards import Reason
from penstock.relays.kafka.actions import Action, Actions, changes
from penstock.relays.kafka.books import Books
from penstock.relays.kafka.config import KafkaRelayConfig
from penstock.relays.kafka.group import Group
from penstock.relays.kafka.line import Line
from penstock.relays.kafka.numbering import Numbering
from penstock.relays.kafka.sequences import DUPLICATE, OUT_OF_ORDER, REFUSED, UNKNOWN_PRODUCER
from penstock.relays.kafka.sets import MessageSet


class Verdicts:
    """Judges answers, set by set."""

    def __init__(
        self,
        config: KafkaRelayConfig,
        books: Books,
        numbering: Numbering,
        lines: Mapping[int, Line],
        pause: Callable[[str], None],
    ) -> None:
        self._actions = Actions(changes(config.error_actions))
        self._attempts_max = config.failed_attempts_max
        self._books = books
        self._numbering = numbering
        self._lines = lines
        self._pause = pause

    def answered(self, line: Line, part: MessageSet, code: int) -> None:
        """Do what follows from what a broker says of one set."""
        self._books.heard(part)
        if code == 0 or (code == DUPLICATE and part.sequence >= 0):
            self._books.deliver(part)
            return
        self._books.counts.errors[code] = self._books.counts.errors.get(code, 0) + 1
        part.is_doubtful = part.is_doubtful or (part.sequence >= 0 and code not in REFUSED)
        if part.sequence >= 0 and self._is_of_numbers(line, part, code):
            return
        action = self._actions.of(code)
        if action.discards:
            self._give_up(line, part, part.groups, "error_ack")
        else:
            self._count_failure(line, part)
            if part.groups and action is Action.RESEND:
                self._books.counts.resent += part.count
                line.put_again((part,))
            elif part.groups:
                line.returned.append(part)
        if action.pauses:
            self._pause(f"broker {line.broker.id} answered with error {code} for {part.topic}/{part.partition}")

    def _is_of_numbers(self, line: Line, part: MessageSet, code: int) -> bool:
        """Tell whether an answer is about the number of a set only, and see to it."""
        if code == OUT_OF_ORDER and (part.moved or line.awaits(part.place, part.number)):
            part.moved = False
            line.put_again((part,))
            return True
        if code == OUT_OF_ORDER or code in UNKNOWN_PRODUCER:
            # Kafka forgot what it had of this producer: only a new one can go on, and nothing goes before.
            self._numbering.sequences = None
            for each in self._lines.values():
                each.stop()
            line.returned.append(part)
            self._pause(f"broker {line.broker.id} does not know this producer any more (error {code})")
            return True
        part.moved = False
        return False

    def _count_failure(self, line: Line, part: MessageSet) -> None:
        """Count an attempt that failed; messages with too many are given up."""
        over = [group for group in part.groups if group.failures >= self._attempts_max]
        for group in part.groups:
            group.failures += 1
        if part.is_doubtful and part.sequence >= 0 and len(over) < len(part.groups):
            return  # the broker knows it by its number only as a whole
        if over:
            self._give_up(line, part, over, "attempt_limit")

    def _give_up(self, line: Line, part: MessageSet, groups: list[Group], reason: Reason) -> None:
        """Throw messages of a set away that are not known to be in Kafka."""
        for group in groups:
            self._books.discard(group, reason)
        part.groups = [group for group in part.groups if group not in groups]
        self._numbering.give_up(part, sum(group.count for group in groups), line.later(part))
