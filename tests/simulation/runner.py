"""One seed from start to end, and the words for one that failed."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.history import History, Violation
from tests.simulation.kafka.world import KafkaWorld
from tests.simulation.m3msg.world import M3World
from tests.simulation.queues.speech import DynamiqSpeech, SqsSpeech
from tests.simulation.speech import NSQ, Speech
from tests.simulation.timelines.world import TimelineWorld
from tests.simulation.world import Outcome, World

#: The worlds of each seed: a node and its clients, a node that sends to others, and several nodes that share topics.
CLIENTS, KAFKA, M3MSG, CLUSTER, TIMELINES = "clients", "kafka", "m3msg", "cluster", "timelines"
WORLDS = (CLIENTS, KAFKA, M3MSG, CLUSTER, TIMELINES)


class Runs(Protocol):
    """A world."""

    history: History

    def run(self) -> Outcome:
        """Live through it."""


def failure_of(
    seed: int, *, trace: bool = False, speeches: Sequence[Speech] = (), only: str = ""
) -> tuple[Outcome | None, str]:
    """Run a seed, with other dialects beside; return what it came to, and the report of its failure or nothing."""
    make: dict[str, Callable[[], Runs]] = {
        CLIENTS: lambda: World(seed, trace=trace, speeches=(NSQ, SqsSpeech(), DynamiqSpeech(), *speeches)),
        KAFKA: lambda: KafkaWorld(seed, trace=trace),
        M3MSG: lambda: M3World(seed, trace=trace),
        CLUSTER: lambda: ClusterWorld(seed, trace=trace),
        TIMELINES: lambda: TimelineWorld(seed, trace=trace),
    }
    outcomes = []
    for name in (only,) if only else WORLDS:
        world = make[name]()
        try:
            outcomes.append(world.run())
        except Violation as violation:
            return None, _report(seed, name, world, f"broke a promise — {violation}")
        except Exception:
            return None, _report(seed, name, world, f"failed with an exception\n{traceback.format_exc()}")
    return _joined(outcomes), ""


def _joined(outcomes: Sequence[Outcome]) -> Outcome:
    digest = hashlib.blake2b("".join(each.digest for each in outcomes).encode(), digest_size=16).hexdigest()
    return Outcome(digest, *(sum(column) for column in zip(*(each[1:] for each in outcomes), strict=True)))


def _report(seed: int, name: str, world: Runs, what: str) -> str:
    return "\n".join(_lines(seed, name, world.history.last, what))


def _lines(seed: int, name: str, last: Sequence[str], what: str) -> Iterator[str]:
    yield f"seed {seed} {what}"
    yield f"the last {len(last)} events:"
    yield from last
    yield f"again: python -m tests.simulation --seed {seed} --only {name} --trace"
