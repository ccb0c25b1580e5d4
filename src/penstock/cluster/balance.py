"""Balance: which clients should go to another broker, because theirs carries more than its share.

Suggestions only: a client follows one at its next window, and no lease is touched by it. Pure: windows and times are
passed in. What was suggested counts as done, so that nobody is asked twice for one excess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.cluster.broker import Broker
from penstock.cluster.selector import MOST, PREFERRED, score

#: A broker that carries so much more than the mean, for so many windows in a row, is to have less.
EXCESS = 0.30
WINDOWS = 3

#: A client gets at most one suggestion in this time, and has it to follow.
PAUSE_MS = 60_000


class Client(NamedTuple):
    """A client, the broker it is connected to, and how much of that broker's load is its own."""

    id: str
    topic: str
    broker: str
    load: float = 1.0


class Suggestion(NamedTuple):
    """A client that should go from one broker to another."""

    client: str
    source: str
    target: str


class Balance:
    """How long each broker has carried too much, and who was asked when."""

    def __init__(self, *, preferred: int = PREFERRED, most: int = MOST) -> None:
        self._preferred, self._most = preferred, most
        self._streaks: dict[str, int] = {}
        self._window = -1
        #: By client: when it was asked, and to go where.
        self._asked: dict[str, tuple[int, str]] = {}

    def suggestions(
        self, window: int, now_ms: int, brokers: Sequence[Broker], clients: Sequence[Client]
    ) -> list[Suggestion]:
        """Return who should move now; a window is looked at once, however often this is asked."""
        if window == self._window:
            return []
        loads = _loads(brokers, clients)
        self._count(window, _above(loads))
        self._asked = {name: asked for name, asked in self._asked.items() if now_ms - asked[0] < PAUSE_MS}
        here = self._as_suggested(clients, loads)
        out: list[Suggestion] = []
        for source in [name for name, streak in self._streaks.items() if streak >= WINDOWS]:
            while source in _above(loads):
                found = self._best(source, here, brokers, loads)
                if found is None:
                    break
                client, target = found
                here.remove(client)
                loads[source] -= client.load
                loads[target] += client.load
                self._asked[client.id] = now_ms, target
                out.append(Suggestion(client.id, source, target))
        return out

    def _count(self, window: int, above: Iterable[str]) -> None:
        in_a_row = window == self._window + 1
        self._streaks = {name: (self._streaks.get(name, 0) if in_a_row else 0) + 1 for name in sorted(above)}
        self._window = window

    def _as_suggested(self, clients: Sequence[Client], loads: dict[str, float]) -> list[Client]:
        """Move the loads of those who were asked to where they will go; return the others, who may be asked."""
        for client in clients:
            asked = self._asked.get(client.id)
            if asked is not None and asked[1] != client.broker and asked[1] in loads and client.broker in loads:
                loads[client.broker] -= client.load
                loads[asked[1]] += client.load
        return [client for client in clients if client.id not in self._asked]

    def _best(
        self, source: str, here: Sequence[Client], brokers: Sequence[Broker], loads: Mapping[str, float]
    ) -> tuple[Client, str] | None:
        """Return the client whose move leaves the higher of both loads lowest, and the best broker that this is so of.

        Only a broker that stays below the limit with it, and below what the source had, is better for it.
        """
        limit = (1 + EXCESS) * _mean(loads)
        targets = [broker for broker in brokers if broker.state == "healthy" and broker.id != source]
        found: list[tuple[float, tuple[object, ...], str, Client, str]] = []
        # Those of one topic that carry as much are alike: the first of them will do.
        alike = {(one.topic, one.load): one for one in sorted(here, reverse=True) if one.broker == source}
        for client in alike.values():
            for broker in targets:
                after = loads[broker.id] + client.load
                if client.load > 0 and after <= limit and after < loads[source]:
                    rank = score(broker, client.topic, self._preferred, self._most)
                    order = (rank[0], rank[1], broker.cpu, broker.latency_ms, *rank[2:])
                    found.append((max(loads[source] - client.load, after), order, client.id, client, broker.id))
        if not found:
            return None
        best = min(found, key=lambda one: one[:3])
        return best[3], best[4]


def _loads(brokers: Iterable[Broker], clients: Iterable[Client]) -> dict[str, float]:
    loads = {broker.id: 0.0 for broker in brokers if broker.state != "inactive"}
    for client in clients:
        if client.broker in loads:
            loads[client.broker] += client.load
    return loads


def _mean(loads: Mapping[str, float]) -> float:
    return sum(loads.values()) / len(loads) if loads else 0.0


def _above(loads: Mapping[str, float]) -> set[str]:
    """Return the brokers that carry more than their share, by more than the excess that is let pass."""
    limit = (1 + EXCESS) * _mean(loads)
    return {name for name, load in loads.items() if load > limit}
