"""The way to Kafka, as a router sees it: a seam, behind which are connections or a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.relays.kafka.cluster import Broker, Cluster
from penstock.relays.kafka.line import Line, Wire
from penstock.relays.kafka.sequences import Sequences


class Found:
    """An answer about what Kafka has."""

    def __init__(self, cluster: Cluster, sequences: Sequences | None) -> None:
        self.cluster = cluster
        #: A new producer, where one was asked for.
        self.sequences = sequences


class Outside(Protocol):
    """The way to Kafka."""

    def open(self, line: Line, sequences: Sequences | None) -> Wire:
        """Connect a line to its broker."""

    def fetch(
        self,
        brokers: Sequence[Broker],
        *,
        producer: bool,
        found: Callable[[Found], None],
        failed: Callable[[str], None],
    ) -> None:
        """Ask what Kafka has, and for a new producer; one broker after the other, until one answers."""

    def create(
        self, brokers: Sequence[Broker], topic: str, made: Callable[[int], None], failed: Callable[[str], None]
    ) -> None:
        """Ask for one topic, which makes it; answers with its error."""

    def close(self) -> None:
        """Ask nothing more."""
