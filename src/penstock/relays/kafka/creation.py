"""A topic that Kafka does not have is asked for, which makes it, and looked for until it is there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from penstock.clock import MILLISECOND, SECOND, Clock, Timer
from penstock.discards import Reason
from penstock.relays.kafka.cluster import Broker
from penstock.relays.kafka.knowledge import Knowledge
from penstock.relays.kafka.lane import Lane
from penstock.relays.kafka.way import Found, Outside

_log = logging.getLogger("penstock.kafka")

#: After a topic was asked for, Kafka's other brokers hear of it: looked for after each of these.
CREATION_NS = (3 * SECOND, 6 * SECOND, 12 * SECOND)
#: What an answer to asking for a topic may say: it is there, or it is and has no leader yet.
CREATED = (0, 5)
#: Kafka since it has no ZooKeeper says this while it makes a topic, and also where it makes none.
UNKNOWN = 3
#: So it is looked for, which is sooner over: nothing else is sent meanwhile, and it may never come.
UNKNOWN_NS = (250 * MILLISECOND, 500 * MILLISECOND, SECOND, 2 * SECOND)
#: A topic that did not come then is not asked for again for so long.
REFUSED_NS = 60 * SECOND


class Asker(Protocol):
    """Who wants the topic."""

    def came(self, found: Found) -> None:
        """Hear that it is there."""

    def not_made(self, lane: Lane, reason: Reason) -> None:
        """Hear that it cannot be had."""

    def not_asked(self, why: str) -> None:
        """Hear that Kafka cannot be asked for it."""


class Creation:
    """One topic on its way; there is one at a time, because nothing is sent meanwhile."""

    def __init__(self, lane: Lane, outside: Outside, clock: Clock, knowledge: Knowledge, asker: Asker) -> None:
        self._lane = lane
        self._outside = outside
        self._clock = clock
        self._knowledge = knowledge
        self._asker = asker
        self._timer: Timer | None = None
        self._is_over = False

    def begin(self, brokers: Sequence[Broker]) -> None:
        """Ask for it."""
        self._outside.create(brokers, self._lane.name, self._made, self._failed)

    def cancel(self) -> None:
        """Tell nobody anything."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _made(self, error: int) -> None:
        if self._is_over:
            return
        if error in CREATED:
            self._look_in(CREATION_NS, "bad_topic")
        elif error == UNKNOWN:
            self._look_in(UNKNOWN_NS, "topic_autocreate_failed")
        else:
            _log.warning("topic %s cannot be made in Kafka: error %d", self._lane.name, error)
            self._asker.not_made(self._lane, "topic_autocreate_failed")

    def _look_in(self, waits: Sequence[int], otherwise: Reason) -> None:
        call = partial(self._knowledge.ask, partial(self._looked, waits[1:], otherwise), self._failed)
        self._timer = self._clock.call_at(self._clock.monotonic() + waits[0], call)

    def _looked(self, waits: Sequence[int], otherwise: Reason, found: Found) -> None:
        if self._is_over:
            return
        if self._lane.name in found.cluster.topics:
            self._asker.came(found)
        elif waits:
            self._look_in(waits, otherwise)
        else:
            if otherwise == "topic_autocreate_failed":
                self._lane.refused_until_ns = self._clock.monotonic() + REFUSED_NS
                _log.warning("topic %s did not come into being in Kafka", self._lane.name)
            self._asker.not_made(self._lane, otherwise)

    def _failed(self, why: str) -> None:
        if not self._is_over:
            self._asker.not_asked(f"topic {self._lane.name} cannot be made: {why}")
