"""The lookup service over HTTP: every path, every status, and what Youzan's clients ask beside it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.callers import Caller
from penstock.dialects.nsq.lookup.directory import Meta
from penstock.registry.answer import Answer
from tests.nsq.lookup.parts import Service


@pytest.fixture
def service() -> Service:
    return Service()


class OneNode:
    """A node that makes whatever it is asked for."""

    def __init__(self) -> None:
        self.topics: dict[str, Meta] = {}

    def elsewhere(self, topic: str) -> None:
        return None

    def names(self) -> list[str]:
        return []

    def meta(self, topic: str) -> Meta | None:
        return self.topics.get(topic)

    def create(self, caller: Caller, topic: str, meta: Meta) -> Answer[None]:
        self.topics[topic] = meta
        return Answer.of(None)

    def upgrade(self, topic: str) -> Answer[None]:
        self.topics[topic] = Meta(extend_support=True)
        return Answer.of(None)

    def replicate(self, topic: str, replicas: int) -> Answer[None]:
        self.topics[topic] = msgspec.structs.replace(self.topics[topic], replica=replicas)
        return Answer.of(None)

    def delete(self, topic: str) -> Answer[None]:
        self.topics.pop(topic, None)
        return Answer.of(None)


def test_ping_and_info(service: Service) -> None:
    assert service.ask("GET", "/ping").content == b"OK"
    assert service.get("/info") == {"version": "1.3.0"}


def test_an_empty_service_has_empty_lists(service: Service) -> None:
    assert service.get("/topics") == {"topics": []}
    assert service.get("/nodes") == {"producers": []}
    assert service.get("/channels?topic=t") == {"channels": []}
    assert service.get("/debug") == {}


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/not_found", 404, "NOT_FOUND"),
        ("POST", "/lookup?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=t", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=t&access=w", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=t&access=x", 400, "INVALID_ACCESS_MODE"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=a:b", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/create?topic=t&partition_num=0", 400, "INVALID_ARG_TOPIC_PARTITION_NUM"),
        ("POST", "/topic/create?topic=t&partition_num=many", 400, "INVALID_ARG_TOPIC_PARTITION_NUM"),
        ("POST", "/topic/create?topic=t&replicator=9", 400, "INVALID_ARG_TOPIC_REPLICATOR"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/topic/meta/update?topic=t&upgradeext=true", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=%20&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/lookup?topic=%ff", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
    ],
)
def test_a_refusal_has_upstreams_status_and_word(
    service: Service, method: str, target: str, status: int, code: str
) -> None:
    answer = service.ask(method, target)
    assert answer.refused == (status, code)
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert service.faults[-1][0] == code


def test_topics_and_channels_are_made_and_deleted(service: Service) -> None:
    service.post("//topic//create?topic=t")  # as ansq writes it
    assert service.get("/lookup?topic=t") == {"channels": [], "producers": []}
    service.post("/channel/create?topic=u&channel=c")
    assert service.get("/topics") == {"topics": ["t", "u"]}
    assert service.get("/channels?topic=u") == {"channels": ["c"]}
    service.post("/channel/delete?topic=u&channel=c")
    assert service.get("/channels?topic=u") == {"channels": []}
    service.post("/topic/delete?topic=u")
    service.post("/topic/delete?topic=unknown")
    assert service.get("/topics") == {"topics": ["t"]}


def test_a_deleted_topic_comes_back_with_its_next_announcement(service: Service) -> None:
    node = service.node()
    node.command("REGISTER t c")
    service.post("/topic/delete?topic=t")
    assert service.get("/nodes")["producers"][0]["topics"] == []
    node.command("REGISTER t c")
    assert len(service.get("/lookup?topic=t")["producers"]) == 1


def test_a_tombstone_needs_the_right_node_and_can_be_taken_back(service: Service) -> None:
    service.node("n").command("REGISTER t")
    service.post("/topic/tombstone?topic=t&node=n:9")
    service.post("/topic/tombstone?topic=none&node=n:4151")
    assert len(service.get("/lookup?topic=t")["producers"]) == 1
    service.post("/topic/tombstone?topic=t&node=n:4151")
    assert service.get("/lookup?topic=t")["producers"] == []
    service.post("/topic/tombstone?topic=t&node=n:4151&restore=true")
    assert len(service.get("/lookup?topic=t")["producers"]) == 1


def test_debug_shows_all_that_is_registered(service: Service) -> None:
    node = service.node("n")
    node.command("REGISTER t c")
    came_ns = service.clock.now()
    service.advance(10)
    service.post("/topic/tombstone?topic=t&node=n:4151")
    found = service.get("/debug")
    assert sorted(found) == ["channel:t:c", "client::", "topic:t:"]
    (record,) = found["topic:t:"]
    assert (record["id"], record["last_update"]) == (node.address, came_ns)
    assert (record["tombstoned"], record["tombstoned_at"]) == (True, service.clock.now())
    assert (found["client::"][0]["tombstoned"], found["client::"][0]["tombstoned_at"]) == (False, 0)


def test_listlookup_has_ports_as_text(service: Service) -> None:
    found = service.get("/listlookup")
    (node,) = found["lookupdnodes"]
    assert node == found["lookupdleader"]
    assert node == {
        "ID": "127.0.0.1:4160",
        "NodeIP": "127.0.0.1",
        "TcpPort": "4160",
        "HttpPort": "4161",
        "RpcPort": "",
        "Epoch": 0,
    }


def test_lookup_for_reading_answers_for_a_topic_nobody_knows(service: Service) -> None:
    assert service.get("/lookup?topic=t&access=r") == {"channels": [], "producers": [], "partitions": {}}


def test_partitions_are_there_only_for_those_who_ask(service: Service) -> None:
    service.node("a").command("REGISTER t")
    service.node("b").command("REGISTER t c")
    assert sorted(service.get("/lookup?topic=t")) == ["channels", "producers"]
    found = service.get("/lookup?topic=t&access=w")
    assert [peer["broadcast_address"] for peer in found["producers"]] == ["a", "b"]
    assert found["partitions"]["0"]["broadcast_address"] == "a"
    assert "meta" not in found
    assert service.get("/lookup?topic=t&metainfo=true")["meta"] == {
        "partition_num": 1,
        "replica": 1,
        "extend_support": False,
        "ordered": False,
        "multi_part": False,
        "disable_channel_auto_create": False,
    }
    assert service.get("/lookup?topic=t&metainfo=true&partition=1")["partitions"] == {}
    assert service.ask("GET", "/lookup?topic=t&access=w&partition=x").refused == (400, "INVALID_ARG_TOPIC_PARTITION")


@pytest.mark.parametrize("path", ["/topic/create", "/topic/creat"])
def test_a_topic_made_in_youzans_form_keeps_what_it_was_made_with(service: Service, path: str) -> None:
    service.post(f"{path}?topic=t&partition_num=2&replicator=2&extend=true")
    meta = service.get("/lookup?topic=t&metainfo=true")["meta"]
    assert (meta["partition_num"], meta["replica"], meta["extend_support"]) == (2, 2, True)
    assert service.get("/topics?metaInfo=true")["meta_info"][0]["topic_name"] == "t"


def test_an_upgrade_to_extended_is_shown(service: Service) -> None:
    service.post("/topic/create?topic=t")
    service.post("/topic/meta/update?topic=t&upgradeext=true&replicator=3")
    meta = service.get("/lookup?topic=t&metainfo=true")["meta"]
    assert (meta["extend_support"], meta["replica"]) == (True, 3)
    service.post("/topic/meta/update?topic=t&upgradeext=false")
    assert service.get("/lookup?topic=t&metainfo=true")["meta"]["extend_support"] is True


def test_the_node_beside_the_service_makes_and_drops_topics_asked_for_in_youzans_form() -> None:
    host = OneNode()
    service = Service(host=host)
    service.post("/topic/create?topic=name")
    assert host.topics == {}
    service.post("/topic/create?topic=t&partition_num=2")
    assert host.topics["t"].partition_num == 2
    service.post("/topic/meta/update?topic=t&upgradeext=true")
    assert host.topics["t"].extend_support
    service.post("/topic/delete?topic=t")
    assert "t" in host.topics
    service.post("/topic/delete?topic=t&partition=**")
    assert "t" not in host.topics


def test_what_the_node_says_of_a_topic_is_newer_than_what_it_was_made_with() -> None:
    host = OneNode()
    service = Service(host=host)
    service.post("/topic/create?topic=t&replicator=2")
    assert service.get("/lookup?topic=t&metainfo=true")["meta"]["replica"] == 2
    host.topics["t"] = Meta(partition_num=4, extend_support=True, replica=3)
    meta = service.get("/lookup?topic=t&metainfo=true")["meta"]
    assert (meta["partition_num"], meta["extend_support"], meta["replica"]) == (4, True, 3)
    service.post("/topic/meta/update?topic=t&replicator=5")
    assert host.topics["t"].replica == 5


@given(st.text(max_size=20), st.text("?&=%+topicchannelnode:*ab019", max_size=60))
def test_no_query_is_a_bug(path: str, query: str) -> None:
    service = Service()
    for known in service.lookup.app.PATHS:
        for method in ("GET", "POST"):
            assert service.ask(method, f"{known}?{query}").status in (200, 400, 404, 405)
    assert service.ask("GET", f"/x{path.replace('?', '')}").status == 404
