"""A node as a broker of a cluster: what it observes, what it holds back, and where it sends clients."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.cluster.entries import Entry, Settings
from penstock.cluster.overseer import Overseer
from penstock.cluster.records import BrokerRecord, ClientRecord
from penstock.node.membership import Membership
from penstock.registry.answer import Answer
from penstock.registry.embedded import EmbeddedRegistry
from penstock.settings import TopicSettings
from tests.site import Site


class Nothing:
    """A storage that has nothing to do."""

    def provision(self, ident: str, incarnation: str, settings: Settings) -> Answer[None]:
        return Answer.of(None)

    def fence(self, ident: str, incarnation: str) -> Answer[None]:
        return Answer.of(None)

    def purge(self, ident: str, incarnation: str, step: int) -> Answer[bool]:
        return Answer.of(True)


class Here:
    """A node that is the broker "here", with a topic."""

    def __init__(self) -> None:
        self.site = Site()
        node = self.site.node
        self.overseer = Overseer(node.registry, node.clock, Random(3), "blue", "here", Nothing())
        self.membership = Membership(node, self.overseer, "1.0", lambda: "grpc://here:7071")
        self.membership.resident = lambda: 10
        self.membership.memory_max_bytes = 100
        self.topic: Entry = self.overseer.create("a", {"bucket_count": 8}).now()

    @property
    def now_ms(self) -> int:
        return self.site.machine.clock.now() // MILLISECOND

    def run(self, seconds: float) -> None:
        self.site.machine.run(seconds)

    def other(self, ident: str, state: str = "healthy", consumers: int = 0) -> None:
        """Let another broker say something, with so many consumers of the topic."""
        registry, keys = self.site.node.registry, self.overseer.keys
        records = self.overseer.records
        said = BrokerRecord(
            id=ident,
            life=ident,
            since_ms=1,
            addresses=(f"grpc://{ident}:7071",),
            state="degraded" if state == "degraded" else "healthy",
            consumers={"a": consumers} if consumers else {},
        )
        registry.propose({keys.broker(ident): _encoded(said)}).now()
        for number in range(consumers):
            self.put_consumer(f"{ident}-{number}", ident)
        assert records.broker == "here"

    def put_consumer(self, ident: str, broker: str) -> None:
        record = ClientRecord(id=ident, topic="a", incarnation=self.topic.incarnation, broker=broker, since_ms=0)
        self.site.node.registry.propose({self.overseer.keys.consumer("a", ident): _encoded(record)}).now()


def _encoded(record: BrokerRecord | ClientRecord) -> bytes:
    return msgspec.msgpack.encode(record)


@pytest.fixture
def here() -> Here:
    return Here()


def drift(here: Here, offset_ms: int, seconds: int) -> None:
    """Let three consumers say a time that is ahead, once a second."""
    for _ in range(seconds):
        for ident in ("c1", "c2", "c3"):
            here.membership.ponged("consumer", "a", ident, here.now_ms, here.now_ms + offset_ms)
        here.run(1)


def test_a_broker_says_who_it_is_and_what_it_has(here: Here) -> None:
    here.membership.join("consumer", here.topic, "c1", rack="r").now()
    here.membership.join("producer", here.topic, "p1", group="g").now()
    here.run(2)
    (said,) = here.overseer.records.brokers()
    assert (said.id, said.addresses, said.version, said.state) == ("here", ("grpc://here:7071",), "1.0", "healthy")
    assert (said.consumers, said.producers) == ({"a": 1}, {"a": 1})
    assert [each.rack for each in here.overseer.records.members("a", here.topic.incarnation)] == ["r"]
    here.membership.leave("consumer", "a", "c1").now()
    here.run(2)
    assert here.overseer.records.brokers()[0].consumers == {}


def test_a_broker_alone_writes_nothing_while_nothing_happens(here: Here) -> None:
    here.membership.join("consumer", here.topic, "c1").now()
    here.run(5)
    revision = here.site.node.registry.revision
    here.membership.figures.connections = lambda: 7
    here.run(120)
    assert here.site.node.registry.revision == revision
    here.other("there")
    here.run(25)
    assert here.overseer.records.brokers()[0].connections == 7
    assert here.site.node.registry.revision - revision <= 8, "what changes all the time is said every ten seconds"


def test_timeline_case_46_clocks_that_are_ahead_of_this_one_stop_creates_and_retention_until_they_are_not(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = here.site.node
    topic = node.create_topic("log", TopicSettings()).now()
    retained: list[int] = []
    monkeypatch.setattr(topic.storage, "retain", lambda: retained.append(1))
    period_s = node.config.node.retention_check_ns // SECOND
    here.run(period_s + 1)
    assert retained
    drift(here, 600, 5)
    assert node.health.reasons() == ("time_drift",)
    assert not node.health.may_push("a")
    assert not here.overseer.may_work()
    done = len(retained)
    drift(here, 600, 2 * period_s)
    assert len(retained) == done, "what is old by a wrong clock is not"
    drift(here, 0, 40)
    assert node.health.state == "healthy"
    here.run(period_s + 1)
    assert len(retained) > done


def test_a_purge_waits_while_the_clock_is_wrong(here: Here) -> None:
    drift(here, -700, 5)
    here.overseer.delete("a").now()
    here.run(60)
    assert [gone.phase for gone in here.overseer.deletions()] == ["purging"]
    drift(here, 0, 45)
    assert here.overseer.deletions() == []


def test_a_registry_that_is_away_is_a_partition_and_ends_with_it(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = here.site.node.registry
    assert isinstance(registry, EmbeddedRegistry)
    changed: list[tuple[str, ...]] = []
    here.membership.changed.append(lambda: changed.append(here.membership.health.reasons()))
    here.run(3)
    monkeypatch.setattr(registry, "_broken", "the disk is gone")
    here.run(4)
    assert here.membership.health.state == "healthy"
    here.run(3)
    assert here.membership.health.reasons() == ("partition",)
    monkeypatch.setattr(registry, "_broken", "")
    here.run(8)
    assert changed == [("partition",), ()]


def test_little_memory_is_seen_and_told_to_the_others(here: Here) -> None:
    here.membership.resident = lambda: 95
    here.run(3)
    (said,) = here.overseer.records.brokers()
    assert (said.state, said.reasons) == ("degraded", ("memory",))
    here.membership.resident = lambda: 79
    here.run(3)
    assert here.overseer.records.brokers()[0].state == "healthy"


def test_clients_are_sent_to_brokers_with_room_and_to_those_that_are_degraded_last(here: Here) -> None:
    here.other("full", consumers=7)
    here.other("sick", "degraded", consumers=2)
    here.other("some", consumers=3)
    here.run(1)
    found = here.membership.preference("consumer", "a")
    assert [(each.broker, each.weight) for each in found] == [("some", 1), ("here", 2), ("full", 3), ("sick", 4)]
    assert found[0].address == "grpc://some:7071"
    assert not any(here.membership.figures.over_capacity.values())


def test_a_client_over_capacity_is_told_so_and_counted(here: Here) -> None:
    for number in range(7):
        here.membership.join("consumer", here.topic, f"c{number}").now()
    (only,) = here.membership.preference("consumer", "a")
    assert (only.broker, only.over_capacity) == ("here", True)
    assert here.membership.figures.over_capacity == {"a": 1}


def test_a_broker_that_carries_too_much_sends_clients_away_until_it_does_not(here: Here) -> None:
    moved: list[str] = []
    asked_s: list[float] = []

    def follow(role: str, topic: str, ident: str, target: object) -> None:
        moved.append(ident)
        asked_s.append(here.now_ms / 1000)

    here.membership.suggested.append(follow)
    for number in range(16):
        here.membership.join("consumer", here.topic, f"c{number:02}").now()
    here.other("there", consumers=4)
    here.run(2)
    assert moved == [], "it is so for three windows before somebody is asked to move"
    here.run(3)
    # 16 and 4: the mean is 10, and 13 are let pass.
    assert len(moved) == 3
    assert len(set(moved)) == 3
    here.run(50)
    assert len(moved) == 3, "they were asked, and nobody is asked twice in a minute"
    for ident in moved:
        here.membership.leave("consumer", "a", ident).now()
        here.put_consumer(ident, "there")
    here.run(120)
    assert len(moved) == 3, "it carries no more than its share and a third"


def test_other_brokers_clocks_are_heard_by_what_they_say(here: Here) -> None:
    here.other("there")
    here.run(1)
    registry, keys = here.site.node.registry, here.overseer.keys
    for number in range(3):
        for ident in ("b1", "b2", "b3"):
            said = BrokerRecord(id=ident, life=ident, since_ms=number, said_ms=here.now_ms + 800)
            registry.propose({keys.broker(ident): _encoded(said)}).now()
        here.run(1)
    here.run(2)
    assert here.site.node.health.reasons() == ("time_drift",)
    (level,) = here.site.node.drift.levels()
    assert (level.target, level.active) == ("broker", 3)


def test_the_time_that_a_broker_says_is_that_of_saying_it(here: Here) -> None:
    here.other("there")
    here.run(1)
    heard: list[int] = []
    here.site.node.registry.watch(
        here.overseer.keys.broker("here"),
        here.site.node.registry.revision,
        lambda events: heard.extend(
            here.now_ms - msgspec.msgpack.decode(event.value, type=BrokerRecord).said_ms
            for event in events
            if event.value is not None
        ),
    )
    for number in range(30):
        here.membership.join("consumer", here.topic, f"c{number}").now()
        here.run(1)
    assert len(heard) >= 30
    assert max(heard) <= 1


def test_the_clock_of_a_broker_that_is_gone_counts_no_more(here: Here) -> None:
    registry, keys = here.site.node.registry, here.overseer.keys
    for ident in ("b1", "b2", "b3"):
        said = BrokerRecord(id=ident, life=ident, since_ms=1, said_ms=here.now_ms + 800)
        registry.propose({keys.broker(ident): _encoded(said)}).now()
    here.run(1)
    assert [level.active for level in here.site.node.drift.levels()] == [3]
    registry.propose({}, [keys.broker(ident) for ident in ("b1", "b2", "b3")]).now()
    here.run(2)
    assert list(here.site.node.drift.levels()) == []


def test_a_broker_that_leaves_takes_everything_back(here: Here) -> None:
    here.membership.join("consumer", here.topic, "c1").now()
    here.run(2)
    here.membership.close().now()
    here.run(1)
    left = here.site.node.registry.list("timeline/blue/")
    assert [key.removeprefix("timeline/blue/") for key in left] == ["tables/a", "topics/a"]
    assert here.site.node.membership is None
