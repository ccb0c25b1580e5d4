"""What Kafka was last heard to have, when that was, and when it is asked again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from penstock.clock import MILLISECOND, Clock, Timer
from penstock.relays.kafka.books import Counts
from penstock.relays.kafka.cluster import Cluster
from penstock.relays.kafka.numbering import Numbering
from penstock.relays.kafka.way import Found, Outside


class Times(NamedTuple):
    """When Kafka last said what it has, and when that was news; 0 = never."""

    updated_ms: int = 0
    modified_ms: int = 0


class Knowledge:
    """Asks, one question at a time."""

    def __init__(
        self, refresh_ns: int, clock: Clock, random: Random, outside: Outside, numbering: Numbering, counts: Counts
    ) -> None:
        self.cluster: Cluster | None = None
        self.times = Times()
        self.is_asking = False
        self._refresh_ns = refresh_ns
        self._clock = clock
        self._random = random
        self._outside = outside
        self._numbering = numbering
        self._counts = counts
        self._timer: Timer | None = None
        self._is_closed = False

    def ask(self, found: Callable[[Found], None], failed: Callable[[str], None]) -> None:
        """Ask what Kafka has, and for a producer where one is lacking."""
        self.is_asking = True
        known = list(self.cluster.brokers.values()) if self.cluster is not None else []
        self._outside.fetch(
            known,
            producer=self._numbering.is_lacking,
            found=partial(self._answered, found),
            failed=partial(self._failed, failed),
        )

    def _answered(self, told: Callable[[Found], None], found: Found) -> None:
        self.is_asking = False
        self._counts.metadata_fetched += 1
        self.times = self.times._replace(updated_ms=self._clock.now() // MILLISECOND)
        if not self._is_closed:
            told(found)

    def _failed(self, told: Callable[[str], None], why: str) -> None:
        self.is_asking = False
        self._counts.metadata_failed += 1
        if not self._is_closed:
            told(why)

    def learn(self, found: Found) -> Cluster:
        """Take an answer for what holds from now on."""
        if found.cluster != self.cluster:
            self.times = self.times._replace(modified_ms=self._clock.now() // MILLISECOND)
        self.cluster = found.cluster
        if found.sequences is not None:
            self._numbering.sequences = found.sequences
        return found.cluster

    def arm(self, call: Callable[[], None], wait_ns: int | None = None) -> None:
        """Let it be asked again after so long, or as often as is configured, give or take a fifth."""
        if self._timer is not None:
            self._timer.cancel()
        if wait_ns is None:
            wait_ns = int(self._refresh_ns * self._random.uniform(0.8, 1.2))
        self._timer = self._clock.call_at(self._clock.monotonic() + wait_ns, call)

    def close(self) -> None:
        """Tell nobody anything any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
