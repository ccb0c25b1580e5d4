"""A simulated Kafka: brokers that come and go, partitions that change hands, and what is said to whom."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import pack, unpack_from

from penstock.kafka.exchange import Api
from tests.kafka.broker import VERSIONS, Read, bodies, text
from tests.simulation.clock import SimClock
from tests.simulation.host import Host
from tests.simulation.kafka.partition import Partition, Records
from tests.simulation.kafka.plan import COSTLY, COSTLY_AFTER, PAUSING, PAUSING_AFTER, PORTS, UNKNOWN_PRODUCER, Plan
from tests.simulation.kafka.session import CUT, NEVER, Reply, Session
from tests.simulation.network import Weather
from tests.simulation.outgoing import Mood, Outside

LEADER_NOT_AVAILABLE, NOT_LEADER = 5, 6
COORDINATOR_LOADING = 14

#: Told the record batches that a partition's replicas all have from now on.
Committed = Callable[[Partition, list[Records]], None]
Place = tuple[str, int]


class Broker:
    """One broker: a process, while it lives."""

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.port = port
        self.clock: SimClock | None = None
        #: What becomes of those who dial it.
        self.mood: Mood = "accept"


class Kafka:
    """All brokers, and what they know."""

    def __init__(self, host: Host, plan: Plan, committed: Committed) -> None:
        self.random = host.random("kafka")
        self.outside = Outside(host.scheduler, Weather(host.random("kafka's network"), plan.latency_ns, 0.1))
        self.partitions: dict[Place, Partition] = {}
        self.brokers = [Broker(number, port) for number, port in enumerate(PORTS[: plan.brokers], 1)]
        #: Nothing goes wrong any more.
        self.is_well = False
        #: The producers of each life of the node that sent something.
        self.used: dict[int, set[int]] = {}
        self._host = host
        self._plan = plan
        self._committed = committed
        self._producers = 0
        for topic, (_, count) in plan.topics.items():
            for number in range(count):
                self.partitions[topic, number] = Partition(topic, number, self.random.choice(self.brokers).number)
        for broker in self.brokers:
            self.start(broker)

    # --- brokers --------------------------------------------------------------------------------------------------

    def start(self, broker: Broker) -> None:
        """Let a broker run."""
        if broker.clock is None:
            broker.clock = SimClock(self._host.scheduler, 0, self.random)
            self.outside.listen(broker.port, partial(self._accept, broker), broker.clock)
            self._lead()

    def kill(self, broker: Broker) -> None:
        """Let a broker be gone; others lead its partitions in a while, or nobody does."""
        if broker.clock is not None:
            self.outside.die(broker.clock)
            broker.clock = None
            self._host.scheduler.after(int(self.random.random() * 50_000_000), self._lead)

    def move(self) -> None:
        """Let another broker lead some partition."""
        partition, alive = self.random.choice(list(self.partitions.values())), self._alive()
        if alive:
            self._give(partition, self.random.choice(alive))

    def heal(self) -> None:
        """Let everything be well."""
        self.is_well = True
        for broker in self.brokers:
            broker.mood = "accept"
            self.start(broker)
        self._lead()

    def _alive(self) -> list[int]:
        return [broker.number for broker in self.brokers if broker.clock is not None]

    def _lead(self) -> None:
        """Let somebody who is there lead each partition."""
        alive = self._alive()
        for partition in self.partitions.values():
            if partition.leader not in alive:
                self._give(partition, self.random.choice(alive) if alive else -1)

    def _give(self, partition: Partition, leader: int) -> None:
        self._host.record("leader", partition.topic, partition.number, leader)
        self._committed(partition, partition.move(leader, self.random))

    def _accept(self, broker: Broker) -> Session:
        return Session(partial(self._asked, broker, self._host.life))

    # --- questions ------------------------------------------------------------------------------------------------

    def _asked(self, broker: Broker, life: int, data: bytes, reply: Reply) -> None:
        read = Read(data)
        api, version, number = Api(read.number(">h")), read.number(">h"), read.number(">i")
        read.piece(read.number(">h"))

        def say(body: bytes) -> None:
            reply(pack(">ii", 4 + len(body), number) + body)

        if VERSIONS[api] != version:
            say(pack(">hi", 35, 0))
        elif api is Api.API_VERSIONS:
            pairs = b"".join(pack(">hhh", each, known, known) for each, known in VERSIONS.items())
            self._later(broker, reply, partial(say, pack(">hi", 0, len(VERSIONS)) + pairs))
        elif api is Api.METADATA:
            self._later(broker, reply, partial(say, self._metadata()))
        elif api is Api.INIT_PRODUCER_ID:
            self._producers += 1
            error = COORDINATOR_LOADING if self._draws(self._plan.fault_odds) else 0
            self._later(broker, reply, partial(say, pack(">ihqh", 0, error, self._producers, 0)))
        else:
            self._produce(broker, life, read, reply, say)

    def _later(self, broker: Broker, reply: Reply, say: Callable[[], None]) -> None:
        """Answer, sometimes slowly, sometimes never."""
        if self._draws(self._plan.fault_odds / 4):
            reply(self.random.choice((CUT, NEVER)))
            return
        wait_ns = int(self.random.random() * 300_000_000) if self._draws(self._plan.fault_odds / 2) else 0
        self._host.scheduler.at(self._host.scheduler.time_ns + wait_ns, say, broker.clock)

    def _draws(self, odds: float) -> bool:
        return not self.is_well and self.random.random() < odds

    def _metadata(self) -> bytes:
        alive = [broker for broker in self.brokers if broker.clock is not None]
        out = pack(">ii", 0, len(alive))
        for broker in alive:
            out += pack(">i", broker.number) + text("10.0.0.1") + pack(">ih", broker.port, -1)
        out += pack(">hii", -1, 1, len(self._plan.topics))
        for topic, (_, count) in self._plan.topics.items():
            out += pack(">h", 0) + text(topic) + pack(">bi", 0, count)
            for number in range(count):
                partition = self.partitions[topic, number]
                error = 0 if partition.leader >= 0 else LEADER_NOT_AVAILABLE
                out += pack(">hii", error, number, partition.leader) + pack(">iiii", 1, 1, 1, 1)
        return out

    # --- messages -------------------------------------------------------------------------------------------------

    def _produce(self, broker: Broker, life: int, read: Read, reply: Reply, say: Callable[[bytes], None]) -> None:
        if self._draws(self._plan.fault_odds / 2):
            self._host.record("kafka", broker.number, "loses a request")
            reply(self.random.choice((CUT, NEVER)))
            return
        read.number(">h")
        assert read.number(">h") == -1
        read.number(">i")
        parts: list[tuple[Place, bytes]] = []
        for _ in range(read.number(">i")):
            topic = read.piece(read.number(">h")).decode()
            for _ in range(read.number(">i")):
                number = read.number(">i")
                parts.append(((topic, number), read.piece(read.number(">i"))))
        answer = _Answer([place for place, _ in parts], say)
        if self._draws(self._plan.fault_odds / 2):
            self._host.record("kafka", broker.number, "loses an answer")
            lost = self.random.choice((CUT, NEVER))
            answer.say = lambda _: reply(lost)
        for place, data in parts:
            producer, _, sequence, _ = unpack_from(">qhii", data, 43)
            self.used.setdefault(life, set()).add(producer)
            records = Records(producer, sequence, tuple(bodies(data)), life)
            self._append(broker, self.partitions[place], records, answer)

    def _append(self, broker: Broker, partition: Partition, records: Records, answer: _Answer) -> None:
        place = partition.topic, partition.number
        error, after = self._fault()
        if partition.leader != broker.number:
            error, after = NOT_LEADER, False
        count = 0
        if not error or after:
            failed, count = partition.append(records)
            error = failed or error
        self._host.record("append", *place, records.producer, records.sequence, len(records.bodies), error)
        if not count:
            answer.give(place, error)
            return
        epoch, wait_ns = partition.epoch, int(self.random.expovariate(1 / self._plan.commit_ns))

        def commit() -> None:
            if partition.epoch != epoch:
                answer.give(place, NOT_LEADER)
                return
            self._committed(partition, partition.commit(count))
            answer.give(place, error)

        self._host.scheduler.at(self._host.scheduler.time_ns + wait_ns, commit, broker.clock)

    def _fault(self) -> tuple[int, bool]:
        """Return an error to answer with, 0 for none, and whether the messages are taken nevertheless."""
        if not self._draws(self._plan.fault_odds):
            return 0, False
        plan, after = self._plan, self.random.random() < 0.5
        if plan.forgets and self.random.random() < 0.1:
            return self.random.choice(UNKNOWN_PRODUCER), False
        if plan.costly and self.random.random() < 0.5:
            return self.random.choice(COSTLY_AFTER if after else COSTLY), after
        return self.random.choice(PAUSING_AFTER if after else PAUSING), after


class _Answer:
    """What is said of one produce request, when everything is known of its partitions."""

    def __init__(self, places: list[Place], say: Callable[[bytes], None]) -> None:
        self.say = say
        self._places = places
        self._errors: dict[Place, int] = {}

    def give(self, place: Place, error: int) -> None:
        """Learn of one."""
        self._errors[place] = error
        if len(self._errors) < len(self._places):
            return
        topics = dict.fromkeys(topic for topic, _ in self._places)
        out = pack(">i", len(topics))
        for name in topics:
            numbers = [number for topic, number in self._places if topic == name]
            out += text(name) + pack(">i", len(numbers))
            for number in numbers:
                out += pack(">ihqq", number, self._errors[name, number], 0, -1)
        self.say(out + pack(">i", 0))
