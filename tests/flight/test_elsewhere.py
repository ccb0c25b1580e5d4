"""Topics that another node has: who asks is told where, and the SDK goes there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client import Client, Unreachable
from penstock.client.connection import Access, Connection, location_of
from penstock.client.nodes import Nodes
from penstock.client.wire import Read
from penstock.dialects.flight import owners
from penstock.errors import ConfigError, Elsewhere, Refusal
from penstock.pipeline.stage import Line
from penstock.pipeline.target import parsed
from penstock.registry.answer import Answer
from penstock.settings import TopicSettings
from tests.flight.parts import Flown, lasting_port, limited


class Places:
    """What a node knows of others: the names of topics, and the node that has each."""

    def __init__(self, where: dict[str, Flown], node: Flown) -> None:
        self._where = where
        self._node = node

    def refusal(self, name: str) -> Refusal | None:
        there = self._where.get(name)
        return None if there is None or there is self._node else Elsewhere(name, f"n{there.flight.port}")

    def find(self, name: str) -> Answer[Any] | None:
        refusal = self.refusal(name)
        return Answer.refused(refusal) if refusal is not None else None

    def place(self, name: str) -> Any:
        there = self._where.get(name)
        return SimpleNamespace(listeners={owners.LISTENER: f"127.0.0.1:{there.flight.port}"}) if there else None

    def __getattr__(self, name: str) -> Any:
        """A topic that is made here is made as on a lone node."""
        made: dict[str, Any] = {
            "settled": lambda settings: settings,
            "home_of": lambda settings: "",
            "fitting": lambda settings: None,
            "or_elsewhere": lambda name, made: made,
            "is_heir": lambda deleted: True,
            "cleared": lambda deleted: deleted,
            "slots": SimpleNamespace(places=SimpleNamespace(nodes={})),
            "holdings": SimpleNamespace(is_stuck=lambda name: False, coming={}),
        }
        return made[name]


class Pair:
    """Two nodes that know where topics are."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        self._folder = folder
        self.where: dict[str, Flown] = {}
        self._nodes: list[Flown] = []
        self.first, self.second = self.start("first"), self.start("second")

    def start(self, name: str, **config: Any) -> Flown:
        node = self._stack.enter_context(Flown(self._folder / name, **config))
        self.known(node)
        return node

    def forget(self) -> None:
        """Let each node end as a lone one does."""
        for node in self._nodes:
            node.node.share = node.node.places = None

    def known(self, node: Flown) -> None:
        self._nodes.append(node)
        node.node.share = node.node.places = Places(self.where, node)  # type: ignore[assignment]

    def client(self, *nodes: Flown, **options: Any) -> Client:
        return self._stack.enter_context(Client(",".join(map(url, nodes or [self.first])), **options))

    def move(self, topic: str, node: Flown) -> None:
        """Let a topic be at another node; its messages stay behind, where nobody looks for them any more."""
        before = self.where.get(topic)
        self.where[topic] = node
        if before is not None:

            def leave() -> None:
                gone = before.node.topics.pop(topic)
                before.node.ticker.forget(gone)
                gone.begin_leaving()
                gone.delete()
                before.node.tell("left", gone)

            before.do(leave)


def url(node: Flown) -> str:
    return f"grpc://127.0.0.1:{node.flight.port}"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        made = Pair(tmp_path, stack)
        try:
            yield made
        finally:
            made.forget()


def test_call_for_a_topic_elsewhere_says_where(pair: Pair) -> None:
    pair.where["t"] = pair.second
    asked: dict[str, Callable[[], object]] = {
        "put": lambda: pair.first.put("t", pa.record_batch({"body": [b"x"]})),
        "get": lambda: pair.first.read("t"),
        "action": lambda: pair.first.act("topic", name="t"),
        "delete": lambda: pair.first.act("delete-topic", name="t"),
        "exchange": lambda: pair.first.subscribe("t", "s").reader.read_chunk(),
    }
    for what, ask in asked.items():
        with pytest.raises(flight.FlightUnavailableError, match=r"elsewhere: topic t is on node") as caught:
            ask()
        told = json.loads(caught.value.extra_info)
        assert told["location"] == f"grpc+tcp://127.0.0.1:{pair.second.flight.port}", what
        assert told["topic"] == "t"
    assert "elsewhere" not in pair.first.faults()  # nobody did anything wrong


def test_flight_of_a_topic_elsewhere_has_its_endpoints_there(pair: Pair) -> None:
    pair.first.do(lambda: pair.first.node.catalog.create_topic("t", TopicSettings(shards=2)))
    pair.where["t"] = pair.second
    info = pair.first.client.get_flight_info(flight.FlightDescriptor.for_path("t"), limited())
    there = f"grpc+tcp://127.0.0.1:{pair.second.flight.port}".encode()
    assert [[place.uri for place in endpoint.locations] for endpoint in info.endpoints] == [[there], [there]]
    assert [json.loads(endpoint.ticket.ticket).get("shard", 0) for endpoint in info.endpoints] == [0, 1]
    listed = list(pair.first.client.list_flights(options=limited()))
    assert [each.descriptor.path for each in listed] == [[b"t"]]


def test_program_is_followed_to_where_its_topic_is(pair: Pair) -> None:
    client = pair.client()
    pair.where["t"] = pair.second
    client.publish("t", [b"1", b"2"])
    assert pair.second.bodies("t") == [b"1", b"2"]
    assert client.topic("t").shards[0].rows == 2
    assert [row for batch in client.read("t", columns=["body"]) for row in batch.column("body").to_pylist()] == [
        b"1",
        b"2",
    ]
    with client.subscribe("t", "s", earliest=True) as subscription:
        batch = subscription.take(10)
        assert batch is not None
        assert [message.body for message in batch] == [b"1", b"2"]
    client.seek("t", "s", offset=0)
    client.delete_topic("t")
    assert "t" not in pair.second.node.topics


def test_topic_that_moves_is_followed_by_publishers_and_consumers(pair: Pair) -> None:
    client = pair.client()
    pair.where["t"] = pair.first
    # A topic that moves takes its log along: what came before has the same id there, and is not shown again.
    pair.forget()
    pair.second.put("t", pa.record_batch({"body": [b"1"]}))
    pair.known(pair.first)
    pair.known(pair.second)
    with client.subscribe("t", "s", create_topic=True) as subscription:
        client.publish("t", b"1")
        first = subscription.take(10)
        assert first is not None
        first.ack()
        pair.move("t", pair.second)
        client.publish("t", b"2")
        second = subscription.take(30)
        assert second is not None
        assert [message.body for message in second] == [b"2"]
    assert pair.second.bodies("t") == [b"1", b"2"]


def test_read_whose_node_dies_in_the_middle_goes_on_at_the_next_row_where_the_topic_is_then(pair: Pair) -> None:
    pair.forget()
    bodies = [b"%d" % number + bytes(1_000_000) for number in range(48)]  # more than is on the way at any time
    for node in (pair.first, pair.second):  # a topic that moves takes its log along
        for body in bodies:
            node.put("t", pa.record_batch({"body": [body]}))
    pair.known(pair.first)
    pair.known(pair.second)
    pair.where["t"] = pair.first
    third = pair.start("third")  # which says where it is
    with Nodes(Access(f"{url(pair.first)},{url(third)}")) as nodes:
        found: list[bytes] = []
        for batch in nodes.read(Read(topic="t", start=0, end=len(bodies), columns=["body"]), 30):
            if not found:
                pair.where["t"] = pair.second
                pair.first.node.share = pair.first.node.places = None
                pair.first.stop()
            found += batch.column("body").to_pylist()
        assert found == bodies
        assert nodes.to("t").location == location_of(f"grpc+tcp://127.0.0.1:{pair.second.flight.port}")


def test_rows_that_name_their_topics_go_to_the_node_of_each(pair: Pair) -> None:
    client = pair.client()
    pair.where.update(a=pair.first, b=pair.second)
    names, bodies = ["a", "b", "b", "a"], [b"1", b"2", b"3", b"4"]
    for _ in range(2):
        receipt = client.publish(None, pa.table({"topic": names, "body": bodies}))
    assert receipt.places == [("a", 0, 2, 1), ("b", 0, 2, 2), ("a", 0, 3, 1)]
    assert pair.first.bodies("a") == [b"1", b"4"] * 2
    assert pair.second.bodies("b") == [b"2", b"3"] * 2
    with pytest.raises(Refusal, match="row 1 has no topic"):
        client.publish(None, pa.table({"topic": ["a", None], "body": [b"1", b"2"]}))


def test_nodes_that_are_away_are_passed_over(pair: Pair) -> None:
    nobody = f"grpc://127.0.0.1:{lasting_port()}"
    with Client(f"{nobody},{url(pair.first)}") as client:
        assert client.topics() == []
        client.publish("t", b"1")
        assert client.topic("t").shards[0].rows == 1
    with Client(nobody) as client, pytest.raises(Unreachable):
        client.topics()
    with pytest.raises(ConfigError, match="names no node"):
        Client(",")


def test_owner_that_dies_is_asked_for_at_the_others(pair: Pair) -> None:
    client = pair.client(pair.first, patience=60)
    pair.where["t"] = pair.second
    client.publish("t", b"1")
    pair.second.node.share = pair.second.node.places = None
    pair.second.stop()
    third = pair.start("third")
    pair.where["t"] = third
    client.publish("t", b"2")
    assert third.bodies("t") == [b"2"]


def test_whoever_a_node_can_tell_nothing_asks_the_others() -> None:
    with Nodes(Access("grpc://127.0.0.1:1,127.0.0.1:2")) as nodes:
        first = nodes.to("orders")
        nodes.learn("orders", first, Refusal("unavailable", "topic orders cannot be used now: nobody has it yet"))
        assert nodes.to("orders").location != first.location
        nodes.learn("orders", nodes.to("orders"), Refusal("conflict", "that is no reason"))
        assert nodes.to("orders").location != first.location


def test_nodes_that_name_each_other_are_asked_until_one_has_it(pair: Pair) -> None:
    pair.where["t"] = pair.second
    other = dict(pair.where)
    pair.second.node.share = pair.second.node.places = Places(other, pair.second)  # type: ignore[assignment]
    other["t"] = pair.first
    client = pair.client(patience=0)
    with pytest.raises(Elsewhere):
        client.publish("t", b"1")


def test_what_spark_stages_is_staged_and_committed_at_the_owner(pair: Pair) -> None:
    pair.where.update(a=pair.first, b=pair.second)
    rows = pa.record_batch({"topic": ["a", "b", "a"], "body": [b"1", b"2", b"3"]})
    with Line(parsed({"url": url(pair.first)})) as line:
        attempts, count = line.stage("q", 0, iter([rows]))
        assert ([attempt.topic for attempt in attempts], count) == (["a", "b"], 3)
        line.commit("q", 0, list(attempts))
        line.commit("q", 0, list(attempts))
    with Line(parsed({"url": url(pair.first), "topic": "b"})) as line:
        attempts, count = line.stage("q2", 0, iter([rows.drop_columns(["topic"])]))
        assert pair.second.bodies("b") == [b"2"]
        with Line(parsed({"url": url(pair.first), "topic": "b"})) as driver:
            driver.commit("q2", 0, list(attempts))
    assert pair.first.bodies("a") == [b"1", b"3"]
    assert pair.second.bodies("b") == [b"2", b"1", b"2", b"3"]
    with Line(parsed({"url": url(pair.first), "topic": "b"})) as line:
        attempts, _ = line.stage("q3", 0, iter([rows.drop_columns(["topic"])]))
        line.abort("q3", 0, list(attempts))
        assert len(pair.second.node.staging) == 0


def test_location_is_where_the_sdk_goes(pair: Pair) -> None:
    pair.where["t"] = pair.second
    with Connection(Access(url(pair.first))) as connection, pytest.raises(Elsewhere) as caught:
        connection.topic("t")
    assert (caught.value.topic, caught.value.location) == ("t", f"grpc+tcp://127.0.0.1:{pair.second.flight.port}")
