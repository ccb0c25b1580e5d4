"""What logs on Kafka run on: the store that holds them, threads that wait for it, and a disk for what is cached."""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.kafka.disk import CacheDisk
from penstock.log.kafka.store import Store
from penstock.log.kafka.threads import Threads


class Engine(NamedTuple):
    """One for all topics of a node."""

    store: Store
    threads: Threads
    #: Where files of such logs are cached.
    cache: CacheDisk


def topic_of(cluster: str, incarnation: int) -> str:
    """Return what all that the store has of a topic is called after."""
    return f"{cluster}.{incarnation:016x}"
