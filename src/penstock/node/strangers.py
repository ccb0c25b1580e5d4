"""Topics on a cluster's store that the registry does not know: named to whoever asks, and left alone.

Each node looks for those in its slots, so that each is told once. What is being made has its record first, and what was
deleted has a tombstone until it is gone, so neither is taken for one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.clock import SECOND
from penstock.cluster.slots import slot_of
from penstock.log.kafka.engine import Engine, topic_of
from penstock.log.kafka.look import STATE, label_in
from penstock.log.kafka.store import Store
from penstock.rescue.directories import SHOWN_MAX

if TYPE_CHECKING:
    from penstock.node.node import Node

#: One question to the store for the names of all topics; who puts an older registry back waits for it.
LOOK_NS = 60 * SECOND


class Strangers:
    """What a node found on the store that nobody knows."""

    def __init__(self, node: Node, engine: Engine) -> None:
        self._node = node
        self._engine = engine
        self._next_ns = 0
        self._found: dict[str, str | None] = {}

    def look_at_times(self, ready: set[int], slots: int) -> None:
        """Look again if it is time."""
        now_ns = self._node.clock.monotonic()
        if ready and now_ns >= self._next_ns:
            self._next_ns = now_ns + LOOK_NS
            known = self._known()
            work = partial(_strangers, self._engine.store, known, lambda number: slot_of(number, slots) in ready)
            self._engine.threads.submit("open", work, self._told)

    def _known(self) -> set[str]:
        catalog, cluster = self._node.catalog, self._node.config.cluster.name
        topics = {topic_of(cluster, each.incarnation) for each in catalog.topics()}
        return topics | {topic_of(cluster, each.incarnation) for each in catalog.deleted()}

    def _told(self, found: dict[str, str | None] | None, _: BaseException | None) -> None:
        if found is not None:  # else the store is away, which is told elsewhere
            self._found = found

    def problems(self) -> list[str]:
        """Return a sentence on each of them."""
        known = self._known() if self._found else set()
        left = {topic: name for topic, name in sorted(self._found.items()) if topic not in known}
        sentences = [
            f"{topic}{STATE} and .log in Kafka hold {f'topic {name!r}' if name is not None else 'a topic'}, which etcd "
            "does not know. It comes back by itself when a snapshot of etcd is put back that does; if it is not "
            "wanted, delete both there"
            for topic, name in list(left.items())[:SHOWN_MAX]
        ]
        more = len(left) - len(sentences)
        return sentences + ([f"{more} more topics in Kafka that etcd does not know"] if more else [])


def _strangers(store: Store, known: set[str], is_mine: Callable[[int], bool]) -> dict[str, str | None]:
    """Return what the topics are called that nobody knows, by what they are called there; blocking."""
    found: dict[str, str | None] = {}
    for state in store.topics():
        topic = state.removesuffix(STATE)
        if topic == state or topic in known:
            continue
        try:
            number = int(topic.rpartition(".")[2], 16)
        except ValueError:
            continue
        if is_mine(number) and store.partitions(state):
            label = label_in(store, state)
            found[topic] = label.name if label is not None else None
    return found
