"""The node's side: what it announces, to the directory beside it and to services elsewhere, through every outage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from penstock.dialects.nsq.choices import EXTENDED, PLAIN, NsqChoices
from penstock.dialects.nsq.lookup.codec import Identity
from penstock.dialects.nsq.lookup.host import NodeHost
from penstock.dialects.nsq.lookup.link import Channels
from penstock.dialects.nsq.lookup.registrar import Registrar
from penstock.dialects.nsq.lookup.server import Connection
from penstock.settings import TopicSettings
from penstock.wire.dial import Dialling, Failed
from tests.fakes import FakeClock
from tests.nsq.lookup.parts import Service
from tests.nsq.parts import Broker

ME = Identity(version="1.3.0", tcp_port=4150, http_port=4151, hostname="h", broadcast_address="me")
PLACE = ("lookup", 4160)


class Wire:
    """One end of a connection without sockets; what is written arrives in the next turn."""

    def __init__(self, clock: FakeClock, port: int) -> None:
        self._clock = clock
        self._port = port
        self.far: Callable[[bytes], None] = lambda data: None
        self.ends: list[Callable[[], None]] = []
        self.closed = False
        #: Bytes that were written are lost while this is set.
        self.stalled = False

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", self._port) if name == "peername" else None

    def write(self, data: bytes) -> None:
        if not self.stalled:
            self._clock.call_soon(lambda: self.far(data))

    def write_eof(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            for end in self.ends:
                self._clock.call_soon(end)


class FakeNetwork:
    """Services by their address; one that is down refuses."""

    def __init__(self, clock: FakeClock, **services: Service) -> None:
        self.clock = clock
        self.services = services
        self.dials = 0
        self.wires: list[Wire] = []
        self.protocols: list[asyncio.Protocol] = []
        #: Questions not answered yet, when `slow`.
        self.asked: list[Callable[[], None]] = []
        self.slow = False
        self.up = True

    def dial(self, host: str, port: int, link: asyncio.Protocol, failed: Failed) -> Dialling:
        self.dials += 1
        if not self.up or host not in self.services:
            return self.clock.call_at(self.clock.monotonic(), lambda: failed("refused"))
        return self.clock.call_at(self.clock.monotonic(), lambda: self._connect(host, link))

    def _connect(self, host: str, link: asyncio.Protocol) -> None:
        near, far = Wire(self.clock, 1), Wire(self.clock, 60000 + self.dials)
        connection: Connection = self.services[host].lookup.server.connect()
        near.far, far.far = connection.data_received, link.data_received
        for wire in (near, far):
            wire.ends = [lambda: link.connection_lost(None), lambda: connection.connection_lost(None)]
        self.wires.append(near)
        self.protocols.append(link)
        connection.connection_made(cast(Any, far))
        link.connection_made(cast(Any, near))

    def ask(self, host: str, port: int, topic: str, done: Channels) -> None:
        assert port == 4161
        service = next(iter(self.services.values()))

        def answer() -> None:
            done(service.directory.channels(topic))

        if self.slow:
            self.asked.append(answer)
        else:
            self.clock.call_soon(answer)

    def cut(self) -> None:
        """Break every connection."""
        for wire in self.wires:
            wire.abort()
        self.clock.run()


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


@pytest.fixture
def service(broker: Broker) -> Service:
    return Service(broker.clock)


@pytest.fixture
def network(broker: Broker, service: Service) -> FakeNetwork:
    return FakeNetwork(broker.clock, lookup=service)


def beside(broker: Broker, network: FakeNetwork) -> Service:
    """Run a lookup service in the node's process."""
    service = Service(broker.clock, NodeHost(broker.node))
    Registrar(broker.node, ME, service.directory, network).start([])
    return service


def elsewhere(broker: Broker, network: FakeNetwork) -> Registrar:
    """Announce the node to a service elsewhere."""
    registrar = Registrar(broker.node, ME, None, network)
    registrar.start([PLACE])
    broker.clock.run()
    return registrar


def addresses(service: Service, topic: str) -> list[str]:
    return [peer["broadcast_address"] for peer in service.get(f"/lookup?topic={topic}&access=r")["producers"]]


# --- in one process ---------------------------------------------------------------------------------------------------


def test_nsq_case_35_a_producer_appears_and_disappears_in_one_process(broker: Broker, network: FakeNetwork) -> None:
    service = beside(broker, network)
    broker.client().pub("t", b"hello")
    assert addresses(service, "t") == ["me"]
    broker.client().sub("t", "ch")
    assert service.get("/lookup?topic=t")["channels"] == ["ch"]
    assert service.get("/debug")["channel:t:ch"][0]["broadcast_address"] == "me"
    broker.node.topic("t").delete_subscription("ch").now()
    assert service.get("/lookup?topic=t")["channels"] == []
    broker.node.delete_topic("t").now()
    assert addresses(service, "t") == []
    assert service.get("/topics") == {"topics": []}
    assert broker.node.bugs == 0


def test_topics_from_before_the_start_are_announced(broker: Broker, network: FakeNetwork) -> None:
    broker.client().sub("old", "ch")
    broker.node.create_topic("weird name").now()
    service = beside(broker, network)
    assert service.get("/topics") == {"topics": ["old"]}
    assert service.get("/channels?topic=old") == {"channels": ["ch"]}


def test_the_node_stays_listed_however_long_it_runs(broker: Broker, network: FakeNetwork) -> None:
    service = beside(broker, network)
    broker.client().pub("t", b"x")
    broker.advance(3600)
    assert addresses(service, "t") == ["me"]


def test_every_shard_is_a_partition(broker: Broker, network: FakeNetwork) -> None:
    service = beside(broker, network)
    broker.node.create_topic("t", NsqChoices(extend="on").put(TopicSettings(shards=3))).now()
    found = service.get("/lookup?topic=t&metainfo=true")
    assert sorted(found["partitions"]) == ["0", "1", "2"]
    assert (found["meta"]["partition_num"], found["meta"]["extend_support"]) == (3, True)


def test_partitions_that_a_topic_gets_later_are_told(broker: Broker, network: FakeNetwork) -> None:
    beside_it, elsewhere = beside(broker, network), network.services["lookup"]
    Registrar(broker.node, msgspec.structs.replace(ME, distributed_id="me:4150"), None, network).start([PLACE])
    topic = broker.node.create_topic("t", TopicSettings()).now()
    topic.subscribe("ch")
    broker.clock.run()
    topic.update(msgspec.structs.replace(topic.settings, shards=3)).now()
    broker.clock.run()
    for service in (beside_it, elsewhere):
        found = service.get("/lookup?topic=t&metainfo=true")
        assert sorted(found["partitions"]) == ["0", "1", "2"]
        assert (found["channels"], found["meta"]["partition_num"]) == (["ch"], 3)


def test_a_topic_asked_for_in_youzans_form_is_made_on_the_node(broker: Broker, network: FakeNetwork) -> None:
    service = beside(broker, network)
    service.post("/topic/creat?topic=t&partition_num=2&replicator=2&extend=true")
    topic = broker.node.topic("t")
    assert (topic.settings.shards, topic.chosen.of(NsqChoices).extend) == (2, "on")
    found = service.get("/lookup?topic=t&access=w&metainfo=true")
    assert sorted(found["partitions"]) == ["0", "1"]
    assert found["meta"]["replica"] == 2
    service.post("/topic/create?topic=plain&partition_num=1&replicator=1")
    assert not service.get("/lookup?topic=plain&metainfo=true")["meta"]["extend_support"]
    service.post("/topic/meta/update?topic=plain&upgradeext=true")
    assert broker.node.topic("plain").chosen.of(NsqChoices).extend == "on"
    service.post("/topic/delete?topic=t&partition=**")
    assert "t" not in broker.node.topics


def test_what_a_topic_was_made_with_is_known_after_a_restart(broker: Broker, network: FakeNetwork) -> None:
    service = beside(broker, network)
    service.post("/topic/create?topic=t&partition_num=2&replicator=2&orderedmulti=true")
    service.post("/topic/create?topic=u&partition_num=1")
    service.post("/topic/meta/update?topic=u&replicator=3&upgradeext=true")
    broker.kill()
    service = beside(broker, network)
    meta = service.get("/lookup?topic=t&metainfo=true")["meta"]
    assert (meta["partition_num"], meta["replica"], meta["ordered"], meta["extend_support"]) == (2, 2, True, False)
    meta = service.get("/lookup?topic=u&metainfo=true")["meta"]
    assert (meta["replica"], meta["ordered"], meta["extend_support"]) == (3, False, True)


def test_an_upgrade_asked_of_the_service_is_the_upgrade_of_the_topic(broker: Broker, network: FakeNetwork) -> None:
    service = beside(broker, network)
    old = broker.client()
    old.sub("t", "ch", 10)
    producer = broker.client()
    producer.pub("t", b"before")
    assert [message.body for message in old.messages()] == [b"before"]
    service.post("/topic/meta/update?topic=t&upgradeext=true")
    topic = broker.node.topic("t")
    assert (topic.chosen.of(NsqChoices).extend, topic.shards[0].measures) == ("on", ((0, PLAIN), (1, EXTENDED)))
    assert producer.pub_ext("t", {"##client_dispatch_tag": "x"}) == ["OK", "OK"]
    assert old.replies() == ["E_SUB_EXTEND_NEED topic t takes headers now; subscribe with extend_support"]
    assert old.closed


def test_a_service_elsewhere_sees_every_shard_as_a_partition(broker: Broker, network: FakeNetwork) -> None:
    service = network.services["lookup"]
    broker.node.create_topic("old", NsqChoices(extend="on").put(TopicSettings(shards=2))).now().subscribe("ch").now()
    me = msgspec.structs.replace(ME, distributed_id="me:4150")
    registrar = Registrar(broker.node, me, None, network)
    registrar.start([PLACE])
    broker.node.create_topic("early", TopicSettings(shards=2)).now()  # before the service has answered
    broker.clock.run()
    topic = broker.node.create_topic("t", NsqChoices(extend="on").put(TopicSettings(shards=3))).now()
    topic.subscribe("a").now()
    broker.clock.run()

    def partitions(name: str) -> list[str]:
        return sorted(service.get(f"/lookup?topic={name}&access=r")["partitions"])

    assert (partitions("old"), partitions("early"), partitions("t")) == (["0", "1"], ["0", "1"], ["0", "1", "2"])
    assert (service.directory.channels("old"), service.directory.channels("t")) == (["ch"], ["a"])
    assert service.get("/lookup?topic=t&metainfo=true")["meta"]["partition_num"] == 3
    network.cut()
    broker.advance(20)
    assert (partitions("t"), addresses(service, "t")) == (["0", "1", "2"], ["me"])
    topic.delete_subscription("a").now()
    broker.node.delete_topic("t").now()
    broker.clock.run()
    assert addresses(service, "t") == []
    assert registrar.links[0].connected
    assert not registrar.links[0].problem


def test_known_channels_exist_before_the_first_message(broker: Broker, network: FakeNetwork) -> None:
    service = beside(broker, network)
    for channel in ("a", "b", "c%23ephemeral"):
        service.post(f"/channel/create?topic=t&channel={channel}")
    broker.client().pub("t", b"hello")
    assert sorted(broker.node.topic("t").subscriptions) == ["a", "b"]
    for channel in ("a", "b"):
        client = broker.client()
        client.sub("t", channel, 1)
        assert [message.body for message in client.messages()] == [b"hello"]


def test_a_topic_made_again_gets_no_channels_back_that_were_deleted_here(broker: Broker, network: FakeNetwork) -> None:
    beside(broker, network)
    broker.client().sub("t", "ch")
    broker.node.delete_topic("t").now()
    broker.client().pub("t", b"x")
    assert broker.node.topic("t").subscriptions == {}


def test_a_closed_registrar_is_found_nowhere(broker: Broker, network: FakeNetwork) -> None:
    service = Service(broker.clock)
    registrar = Registrar(broker.node, ME, service.directory, network)
    registrar.start([])
    broker.client().pub("t", b"x")
    registrar.close()
    assert addresses(service, "t") == []
    broker.client().pub("u", b"x")
    assert service.get("/topics") == {"topics": ["t"]}


# --- elsewhere --------------------------------------------------------------------------------------------------------


def test_nsq_case_35_a_producer_appears_and_disappears_elsewhere(
    broker: Broker, service: Service, network: FakeNetwork
) -> None:
    registrar = elsewhere(broker, network)
    assert registrar.links[0].connected
    broker.client().sub("t", "ch")
    assert addresses(service, "t") == ["me"]
    assert service.get("/channels?topic=t") == {"channels": ["ch"]}
    broker.node.delete_topic("t").now()
    broker.clock.run()
    assert addresses(service, "t") == []
    assert service.get("/topics") == {"topics": ["t"]}
    assert service.faults == []


def test_a_connect_tells_every_channel_and_topics_without_one(
    broker: Broker, service: Service, network: FakeNetwork
) -> None:
    broker.client().sub("t", "a")
    broker.client().sub("t", "b")
    broker.client().pub("bare", b"x")
    broker.node.create_topic("weird name").now()
    elsewhere(broker, network)
    assert service.get("/topics") == {"topics": ["bare", "t"]}
    assert service.get("/channels?topic=t") == {"channels": ["a", "b"]}


def test_a_ping_every_15_seconds_keeps_the_node_listed(broker: Broker, service: Service, network: FakeNetwork) -> None:
    elsewhere(broker, network)
    broker.client().pub("t", b"x")
    broker.advance(1000)
    assert addresses(service, "t") == ["me"]
    assert network.dials == 1


def test_a_service_that_is_down_is_tried_again_later_and_later(
    broker: Broker, service: Service, network: FakeNetwork
) -> None:
    network.up = False
    registrar = elsewhere(broker, network)
    assert registrar.links[0].problem == "refused"
    broker.advance(60)
    # at the latest at 0, .25, .75, 1.75, 3.75, 7.75, 15.75, 30.75, 45.75 s; each pause may be half as long
    assert 9 <= network.dials <= 14
    network.up = True
    broker.client().pub("t", b"x")
    broker.advance(15)
    assert addresses(service, "t") == ["me"]
    assert registrar.links[0].problem == ""


def test_a_lost_connection_comes_back_soon_with_what_changed_meanwhile(
    broker: Broker, service: Service, network: FakeNetwork
) -> None:
    registrar = elsewhere(broker, network)
    broker.client().sub("gone", "ch")
    broker.client().sub("t", "ch")
    network.cut()
    assert addresses(service, "t") == []
    broker.node.delete_topic("gone").now()
    broker.client().sub("new", "ch")
    broker.advance(0.25)
    assert registrar.links[0].connected
    assert {topic: addresses(service, topic) for topic in ("gone", "t", "new")} == {
        "gone": [],
        "t": ["me"],
        "new": ["me"],
    }


def test_a_service_that_stops_answering_is_dropped(broker: Broker, service: Service, network: FakeNetwork) -> None:
    registrar = elsewhere(broker, network)
    network.wires[0].stalled = True
    broker.advance(30)
    assert "1 commands were not answered" in registrar.links[0].problem
    broker.advance(0.25)
    assert network.dials == 2
    assert registrar.links[0].connected


@pytest.mark.parametrize("reply", [b"\0\0\0\x09E_INVALID", b"HTTP/1.1 400 Bad Request\r\n", b"\0\0\0\x02OK" * 3])
def test_a_service_that_answers_wrongly_is_dropped_and_tried_again(
    broker: Broker, network: FakeNetwork, reply: bytes
) -> None:
    registrar = elsewhere(broker, network)
    (link,) = registrar.links
    network.protocols[0].data_received(reply)
    broker.clock.run()
    assert not link.connected
    assert link.problem.startswith("it sent no lookup protocol")
    broker.advance(1)
    assert link.connected


def test_channels_known_elsewhere_get_every_message_although_the_answer_comes_later(
    broker: Broker, service: Service, network: FakeNetwork
) -> None:
    elsewhere(broker, network)
    for channel in ("a", "b", "mine"):
        service.post(f"/channel/create?topic=t&channel={channel}")
    network.slow = True
    producer = broker.client()
    producer.pub("t", b"one")
    consumer = broker.client()
    consumer.sub("t", "mine", 10)
    producer.pub("t", b"two")
    network.asked.pop()()
    producer.pub("t", b"three")
    assert [message.body for message in consumer.messages()] == [b"one", b"two", b"three"]
    for channel in ("a", "b"):
        client = broker.client()
        client.sub("t", channel, 10)
        assert [message.body for message in client.messages()] == [b"one", b"two", b"three"]


def test_an_answer_for_a_topic_that_went_makes_nothing(broker: Broker, service: Service, network: FakeNetwork) -> None:
    elsewhere(broker, network)
    service.post("/channel/create?topic=t&channel=a")
    network.slow = True
    broker.client().pub("t", b"one")
    broker.node.delete_topic("t").now()
    network.asked.pop()()
    assert "t" not in broker.node.topics
    assert broker.node.bugs == 0


def test_what_a_topic_was_made_with_reaches_a_service_elsewhere(
    broker: Broker, service: Service, network: FakeNetwork
) -> None:
    def meta(topic: str) -> tuple[bool, int, bool]:
        told = service.get(f"/lookup?topic={topic}&metainfo=true")["meta"]
        return told["extend_support"], told["partition_num"], told["ordered"]

    broker.node.create_topic("before", NsqChoices(extend="on").put(TopicSettings(shards=3, ordered=True))).now()
    elsewhere(broker, network)
    assert meta("before") == (True, 3, True)
    broker.client().pub("plain", b"x")
    broker.client().pub_ext("extended", {}, b"x")
    assert (meta("plain"), meta("extended")) == ((False, 1, False), (True, 1, False))
    plain = broker.node.topic("plain")
    plain.update(NsqChoices(extend="on").put(plain.settings)).now()
    broker.clock.run()
    assert meta("plain") == (True, 1, False)
    network.cut()
    broker.advance(1)
    assert meta("plain") == (True, 1, False)


def test_a_service_that_does_not_ask_what_topics_are_like_is_not_told(
    broker: Broker, service: Service, network: FakeNetwork
) -> None:
    service.lookup.server.me = lambda: ME
    registrar = elsewhere(broker, network)
    broker.client().pub_ext("t", {}, b"x")
    assert addresses(service, "t") == ["me"]
    assert service.get("/lookup?topic=t&metainfo=true")["meta"]["extend_support"] is False
    assert registrar.links[0].connected


def test_the_list_of_services_can_be_replaced(broker: Broker, service: Service, network: FakeNetwork) -> None:
    network.services["second"] = second = Service(broker.clock)
    registrar = elsewhere(broker, network)
    broker.client().pub("t", b"x")
    registrar.replace([("second", 4160)])
    broker.clock.run()
    assert (addresses(service, "t"), addresses(second, "t")) == ([], ["me"])
    registrar.replace([("second", 4160), PLACE, PLACE])
    broker.clock.run()
    assert addresses(service, "t") == ["me"]
    assert network.dials == 3
    registrar.close()
    registrar.replace([("third", 4160)])
    broker.advance(60)
    assert (addresses(service, "t"), addresses(second, "t")) == ([], [])
    assert network.dials == 3


def test_a_watcher_that_fails_costs_a_report_and_not_the_topic(broker: Broker) -> None:
    def broken(*_: object) -> None:
        raise ValueError("bug")

    broker.node.watchers.append(broken)
    client = broker.client()
    client.pub("t", b"x")
    assert client.replies() == ["OK"]
    assert broker.node.bugs == 1
