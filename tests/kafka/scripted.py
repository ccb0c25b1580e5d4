"""A Kafka that answers as a test says, for faults that a real one cannot be made to show; and a relay to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from penstock.clock import MILLISECOND, Clock
from penstock.columns import Column
from penstock.config import Config
from penstock.node.topic import Topic
from penstock.relays.kafka.cluster import Broker, Cluster, SaidTopic, cluster
from penstock.relays.kafka.config import KafkaRelayConfig
from penstock.relays.kafka.line import Line
from penstock.relays.kafka.relay import Relay
from penstock.relays.kafka.sequences import Place, Sequences
from penstock.relays.kafka.sets import Request
from penstock.relays.kafka.way import Found
from penstock.settings import TopicSettings
from tests.site import PLAIN, Site

SILENT, CUT, CUT_AFTER = "never answers", "hangs up and has nothing", "takes it and hangs up"


class Taken(NamedTuple):
    """It has the messages, and answers with an error nevertheless."""

    code: int


#: What becomes of a request: a code for all its partitions, or one of the words above.
Fate = int | str | Taken


class Got(NamedTuple):
    """What a request carried: the bodies of each partition."""

    broker: int
    sets: dict[Place, list[bytes]]


class Connection:
    """One connection of a line; it is answered in order."""

    def __init__(self, kafka: Scripted, line: Line, sequences: Sequences | None) -> None:
        self.kafka = kafka
        self.line = line
        self.sequences = sequences
        self.is_ready = False
        self.is_closed = False
        #: Timers are late by chance, and a connection keeps the order.
        self._requests: deque[Request] = deque()
        self._answers: deque[dict[Place, int]] = deque()
        kafka.clock.call_at(kafka.clock.monotonic() + MILLISECOND, self._opened)

    def _opened(self) -> None:
        if self.is_closed:
            return
        if self.line.broker.id in self.kafka.refusing:
            self.is_closed = True
            self.line.failed("it does not accept")
            return
        self.is_ready = True
        self.line.wake()

    def produce(self, request: Request) -> bool:
        self._requests.append(request)
        self.kafka.clock.call_at(self.kafka.clock.monotonic() + MILLISECOND, self._arrived)
        return True

    def close(self) -> None:
        self.is_closed = True
        self.is_ready = False

    def _arrived(self) -> None:
        request = self._requests.popleft()
        if self.is_closed:
            return
        kafka, broker = self.kafka, self.line.broker.id
        bodies = {part.place: [body for group in part.groups for _, body in group.contents()] for part in request}
        kafka.got.append(Got(broker, bodies))
        fate = kafka.script.popleft() if kafka.script else kafka.fate
        if fate == SILENT:
            return
        codes: dict[Place, int] = {}
        for part in request:
            code = fate if isinstance(fate, int) else 0
            if fate != CUT and code == 0:
                code = kafka.append(part.place, self.sequences, part.sequence, bodies[part.place])
            codes[part.place] = fate.code if isinstance(fate, Taken) else code
        if isinstance(fate, str):
            self.is_ready = False
            kafka.clock.call_at(kafka.clock.monotonic() + MILLISECOND, self._cut)
        else:
            self._answers.append(codes)
            kafka.clock.call_at(kafka.clock.monotonic() + MILLISECOND, self._answer)

    def _cut(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.line.failed("it hung up")

    def _answer(self) -> None:
        codes = self._answers.popleft()
        if not self.is_closed:
            self.line.answered(codes)


class Scripted:
    """Brokers, topics, what they have, and what they will say."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.brokers = [Broker(1, "one", 1), Broker(2, "two", 2)]
        self.topics: dict[str, SaidTopic] = {}
        #: The fate of the next requests, then of all others.
        self.script: deque[Fate] = deque()
        self.fate: Fate = 0
        self.refusing: set[int] = set()
        self.is_away = False
        self.fetches = 0
        self.creations: deque[int] = deque()
        self.asked_for: list[str] = []
        self.got: list[Got] = []
        self.log: dict[Place, list[bytes]] = {}
        #: How many were asked for.
        self.producers = 0
        #: The last batches of each producer in a partition: (first number, count).
        self._numbers: dict[tuple[Place, int], deque[tuple[int, int]]] = {}

    def have(self, name: str, *partitions: tuple[int, int, int], error: int = 0) -> None:
        """Have a topic with these partitions: number, leader, error."""
        self.topics[name] = SaidTopic(name, error, partitions)

    @property
    def cluster(self) -> Cluster:
        return cluster(self.brokers, self.topics.values())

    @property
    def bodies(self) -> list[bytes]:
        """Everything it has."""
        return [body for bodies in self.log.values() for body in bodies]

    def append(self, place: Place, sequences: Sequences | None, first: int, bodies: list[bytes]) -> int:
        """Store messages as Kafka does, and return the code of the answer."""
        if sequences is not None:
            if first < 0:  # a producer that does not count
                return 87
            known = self._numbers.setdefault((place, sequences.producer_id), deque(maxlen=5))
            if (first, len(bodies)) in known:
                return 0
            if known and sum(known[-1]) != first:
                return 45
            known.append((first, len(bodies)))
        self.log.setdefault(place, []).extend(bodies)
        return 0

    def forget_producers(self) -> None:
        """Be a Kafka that lost what it knew of producers, but not that they were there."""
        for known in self._numbers.values():
            known.clear()
            known.append((-5000, 1))

    # --- what a router asks ---------------------------------------------------------------------------------------

    def open(self, line: Line, sequences: Sequences | None) -> Connection:
        return Connection(self, line, sequences)

    def fetch(
        self,
        brokers: Sequence[Broker],
        *,
        producer: bool,
        found: Callable[[Found], None],
        failed: Callable[[str], None],
    ) -> None:
        self.clock.call_at(self.clock.monotonic() + MILLISECOND, partial(self._fetched, producer, found, failed))

    def _fetched(self, producer: bool, found: Callable[[Found], None], failed: Callable[[str], None]) -> None:
        if self.is_away:
            failed("it does not accept")
            return
        self.fetches += 1
        self.producers += producer
        found(Found(self.cluster, Sequences(self.producers, 0) if producer else None))

    def create(
        self, brokers: Sequence[Broker], topic: str, made: Callable[[int], None], failed: Callable[[str], None]
    ) -> None:
        self.asked_for.append(topic)
        error = self.creations.popleft()
        if not error:
            self.have(topic, (0, 1, 0))
        self.clock.call_soon(partial(made, error))

    def close(self) -> None:
        pass


class Way:
    """A node on a simulated machine, its relay, and a scripted Kafka."""

    def __init__(self, config: KafkaRelayConfig, node: Config = PLAIN, *, starts: bool = True) -> None:
        self.site = Site(node)
        self.kafka = Scripted(self.site.machine.clock)
        self.kafka.have("t", (0, 1, 0), (1, 2, 0), (2, 1, 0))
        self.config = config
        if starts:
            self.start()

    def start(self) -> None:
        self.relay = Relay(self.site.node, self.config, self.kafka, Random(3))
        self.router = self.relay.router
        self.run(0.1)

    def restart(self) -> None:
        """Kill the node and begin another process on the same disk."""
        for line in self.router.lines.values():
            line.close()
        self.site.start()
        self.kafka.clock = self.site.machine.clock
        self.start()

    def run(self, seconds: float = 1.0) -> None:
        self.site.machine.run(seconds)

    def until(self, holds: Callable[[], bool], seconds: float = 600.0) -> None:
        """Let time pass until something holds."""
        for _ in range(int(seconds * 20)):
            if holds():
                return
            self.run(0.05)
        raise AssertionError("it never holds")

    def topic(self, name: str = "t", settings: TopicSettings | None = None) -> Topic:
        topic = self.site.node.obtain(name, settings)
        self.site.machine.run(0)
        return topic.now()

    def publish(self, *bodies: bytes, to: str = "t", **columns: Column) -> None:
        assert self.site.offer(self.topic(to), *bodies, **columns) == [None]

    def publish_each(self, *bodies: bytes, seconds: float = 0.01) -> None:
        """Publish one after the other, each in its own turn."""
        for body in bodies:
            self.publish(body)
            self.run(seconds)

    @property
    def requests(self) -> list[list[bytes]]:
        """The bodies of each request."""
        return [[body for bodies in got.sets.values() for body in bodies] for got in self.kafka.got]

    def discarded(self, reason: str) -> int:
        return self.site.node.discards.total(reason)

    def left(self, name: str = "t") -> int:
        """How many messages are not finished."""
        subscription = self.topic(name).subscription(self.config.subscription)
        return subscription.depth() + subscription.in_flight()
