"""The lookup service over TCP: what it learns, how long it believes it, and every error."""

from __future__ import annotations

import struct

import pytest

from penstock.budget import WINDOW_NS
from penstock.clock import SECOND
from tests.nsq.lookup.parts import Service


def test_nsq_case_33_a_producer_is_found_until_it_leaves_and_the_names_stay() -> None:
    service = Service()
    node = service.node("ip.address", tcp_port=5000, http_port=5555)
    assert node.command("REGISTER test_topic channel1") == "OK"
    (listed,) = service.get("/nodes")["producers"]
    assert (listed["topics"], listed["tombstones"]) == (["test_topic"], [False])
    assert service.get("/topics") == {"topics": ["test_topic"]}
    found = service.get("/lookup?topic=test_topic")
    assert found["channels"] == ["channel1"]
    (producer,) = found["producers"]
    assert (producer["broadcast_address"], producer["tcp_port"], producer["http_port"]) == ("ip.address", 5000, 5555)
    assert (producer["hostname"], producer["remote_address"]) == ("h", node.address)
    node.leave()
    assert service.get("/lookup?topic=test_topic") == {"channels": ["channel1"], "producers": []}
    assert service.get("/nodes") == {"producers": []}


def test_nsq_case_34_a_tombstone_hides_a_producer_for_45_seconds() -> None:
    service = Service()
    node = service.node("ip.address", http_port=5555)
    for topic in ("test_topic", "other"):
        node.command(f"REGISTER {topic} c")
    service.post("/topic/tombstone?topic=test_topic&node=ip.address:5555")
    assert service.get("/lookup?topic=test_topic")["producers"] == []
    assert len(service.get("/lookup?topic=other")["producers"]) == 1
    (listed,) = service.get("/nodes")["producers"]
    assert dict(zip(listed["topics"], listed["tombstones"], strict=True)) == {"other": False, "test_topic": True}
    service.advance(44.9)
    node.command("REGISTER test_topic c")
    assert service.get("/lookup?topic=test_topic")["producers"] == []
    service.advance(0.1)
    assert len(service.get("/lookup?topic=test_topic")["producers"]) == 1
    assert service.get("/nodes")["producers"][0]["tombstones"] == [False, False]


def test_nsq_case_34_a_node_without_a_ping_for_300_seconds_is_dropped() -> None:
    service = Service()
    silent, lively = service.node("silent"), service.node("lively")
    for node in (silent, lively):
        node.command("REGISTER t c")
    service.advance(200)
    assert lively.command("PING") == "OK"
    service.advance(100)
    assert len(service.get("/nodes")["producers"]) == 2
    service.advance(1)
    assert [node["broadcast_address"] for node in service.get("/nodes")["producers"]] == ["lively"]
    assert [node["broadcast_address"] for node in service.get("/lookup?topic=t")["producers"]] == ["lively"]
    silent.command("PING")
    assert len(service.get("/lookup?topic=t")["producers"]) == 2


def test_a_topic_takes_headers_where_one_of_its_nodes_does() -> None:
    service = Service()
    first, second = service.node("first"), service.node("second")

    def extends() -> bool:
        return service.get("/lookup?topic=t&metainfo=true")["meta"]["extend_support"] is True

    for node in (first, second):
        node.command("REGISTER t")
    assert not extends()
    assert first.command('DESCRIBE t {"extend_support":true,"partition_num":2}') == "OK"
    assert second.command('DESCRIBE t {"extend_support":false,"replica":3}') == "OK"
    meta = service.get("/lookup?topic=t&metainfo=true")["meta"]
    assert (meta["extend_support"], meta["partition_num"], meta["replica"]) == (True, 2, 3)
    second.command("UNREGISTER t")
    assert extends()
    second.command('DESCRIBE t {"extend_support":false}')
    first.leave()
    assert not extends()
    second.leave()
    assert not extends()


def test_both_lifetimes_can_be_configured() -> None:
    service = Service(tombstone_lifetime_ns=10**9, inactive_producer_timeout_ns=5 * 10**9)
    service.node("n").command("REGISTER t")
    service.post("/topic/tombstone?topic=t&node=n:4151")
    service.advance(1)
    assert len(service.get("/lookup?topic=t")["producers"]) == 1
    service.advance(4.5)
    assert service.get("/lookup?topic=t")["producers"] == []


def test_the_service_says_where_it_is() -> None:
    service = Service(broadcast_address="lookup.example")
    node = service.node(identify=False)
    node.send(b"  V1")
    reply = node.identify(broadcast_address="n")
    assert reply["broadcast_address"] == "lookup.example"
    assert (reply["tcp_port"], reply["http_port"], reply["version"]) == (4160, 4161, "1.3.0")
    assert "hostname" in reply


def test_commands_may_be_pipelined_and_are_answered_in_order() -> None:
    service = Service()
    node = service.node()
    node.send(b"REGISTER t c\nPING\nUNREGISTER t c\n")
    assert node.out == b"\0\0\0\2OK" * 3
    assert service.get("/lookup?topic=t")["channels"] == ["c"]


def test_ping_needs_no_introduction() -> None:
    node = Service().node(identify=False)
    node.send(b"  V1PING\n")
    assert node.reply() == "OK"


def test_unregistering_a_topic_takes_its_channels_along() -> None:
    service = Service()
    node, other = service.node("n"), service.node("o")
    for peer in (node, other):
        peer.command("REGISTER t c")
    node.command("UNREGISTER t")
    assert [peer["broadcast_address"] for peer in service.get("/lookup?topic=t")["producers"]] == ["o"]
    records = service.get("/debug")
    assert [record["broadcast_address"] for record in records["channel:t:c"]] == ["o"]


def test_ephemeral_names_go_with_their_last_producer() -> None:
    service = Service()
    node, other = service.node("n"), service.node("o")
    for peer in (node, other):
        peer.command("REGISTER t c#ephemeral")
        peer.command("REGISTER e#ephemeral c")
    node.command("UNREGISTER t c#ephemeral")
    node.command("UNREGISTER e#ephemeral")
    assert service.get("/channels?topic=t") == {"channels": ["c#ephemeral"]}
    other.command("UNREGISTER t c#ephemeral")
    other.command("UNREGISTER e#ephemeral")
    assert service.get("/channels?topic=t") == {"channels": []}
    assert service.get("/topics") == {"topics": ["t"]}


def test_youzans_nodes_name_partitions() -> None:
    service = Service()
    first, second = service.node("n0", distributed_id="a"), service.node("n1", version="0.3.7-HA.1.9")
    assert first.command("REGISTER t 0 c") == "OK"
    assert second.command("REGISTER t 1 c") == "OK"
    found = service.get("/lookup?topic=t&metainfo=true")
    assert {number: peer["broadcast_address"] for number, peer in found["partitions"].items()} == {"0": "n0", "1": "n1"}
    assert found["partitions"]["0"]["distributed_id"] == "a"
    assert found["meta"]["partition_num"] == 2
    assert found["channels"] == ["c"]
    second.command("REGISTER t 2")
    second.command("UNREGISTER t 1")
    assert sorted(service.get("/lookup?topic=t&access=w")["partitions"]) == ["0", "2"]


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("ASDF", "E_INVALID invalid command ASDF"),
        ("", "E_INVALID invalid command "),
        ("register t", "E_INVALID invalid command register"),
        ("IDENTIFY", "E_INVALID cannot IDENTIFY again"),
        ("REGISTER", "E_INVALID REGISTER insufficient number of params"),
        ("REGISTER t:x", "E_BAD_TOPIC REGISTER topic name 't:x' is not valid"),
        ("UNREGISTER t c:x", "E_BAD_CHANNEL UNREGISTER channel name 'c:x' is not valid"),
    ],
)
def test_every_error_is_fatal_and_forgets_the_node(line: str, reply: str) -> None:
    service = Service()
    other = service.node("other")
    node = service.node("n")
    node.command("REGISTER t c")
    assert node.command(line) == reply
    assert node.closed
    assert [listed["broadcast_address"] for listed in service.get("/nodes")["producers"]] == ["other"]
    assert service.faults[-1][0] == reply.split()[0]
    node.send(b"REGISTER late\n")
    assert node.out == b""
    assert service.get("/topics") == {"topics": ["t"]}
    assert other.command("PING") == "OK"


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        (b"", "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"[1]", "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b'{"tcp_port":"x"}', "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"[" * 60000, "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b'{"hostname":"\xff"}', "E_BAD_BODY IDENTIFY missing fields"),
        (b"{}", "E_BAD_BODY IDENTIFY missing fields"),
        (b'{"broadcast_address":"a","tcp_port":1,"http_port":0,"version":"1"}', "E_BAD_BODY IDENTIFY missing fields"),
        (b'{"broadcast_address":"","tcp_port":1,"http_port":2,"version":"1"}', "E_BAD_BODY IDENTIFY missing fields"),
    ],
)
def test_an_introduction_must_be_whole(body: bytes, reply: str) -> None:
    node = Service().node(identify=False)
    node.send(b"  V1IDENTIFY\n" + struct.pack(">I", len(body)) + body)
    assert node.reply() == reply
    assert node.closed


def test_a_stranger_may_not_register() -> None:
    for word in ("REGISTER", "UNREGISTER"):
        node = Service().node(identify=False)
        node.send(f"  V1{word} t\n".encode())
        assert node.reply() == "E_INVALID client must IDENTIFY"
        assert node.closed


def test_another_protocol_is_told_so() -> None:
    node = Service().node(identify=False)
    node.send(b"  V2")
    assert node.reply() == "E_BAD_PROTOCOL"
    assert node.closed


def test_a_client_that_says_nothing_is_cut_off_after_a_minute() -> None:
    service = Service()
    silent, lively = service.node(identify=False), service.node()
    silent.send(b"  ")
    service.advance(59)
    assert not silent.is_closed()
    service.advance(1)
    assert silent.is_closed()
    assert not lively.is_closed()
    assert not service.lookup.server.connections - {lively.connection}


def test_names_without_end_are_refused() -> None:
    service = Service(lookup_names_max=3)
    node = service.node()
    node.command("REGISTER t c")
    node.command("REGISTER t c")
    node.command("REGISTER u")
    assert node.command("REGISTER v").startswith("E_INVALID the directory holds 3 names")
    service.post("/topic/delete?topic=t")
    assert service.node().command("REGISTER v w") == "OK"
    assert service.ask("POST", "/topic/create?topic=x").status == 503


def test_registrations_without_end_are_refused_and_end_with_their_node() -> None:
    service = Service(lookup_registrations_max=4)
    first, second = service.node(), service.node("n2")
    assert [first.command(f"REGISTER {name}") for name in ("t c", "u", "t c")] == ["OK"] * 3
    assert second.command("REGISTER t") == "OK"
    assert second.command("REGISTER u").startswith("E_INVALID the directory holds 4 registrations")
    third = service.node("n3")
    assert third.command("REGISTER u") == "OK"  # the second was hung up on and is under no name any more
    first.connection.connection_lost(None)
    assert third.command("REGISTER t c") == "OK"
    service.post("/topic/delete?topic=t")
    assert [third.command(f"REGISTER {name}") for name in "vwx"] == ["OK"] * 3
    assert third.command("REGISTER y").startswith("E_INVALID the directory holds 4 registrations")


@pytest.mark.parametrize("begun", [b"REGISTER t", b"IDENTIFY\n\x00\x00\x10\x00{"])
def test_a_command_that_does_not_go_on_is_cut_off(begun: bytes) -> None:
    service = Service()
    slow, idle = service.node(identify=False), service.node(identify=False)
    for peer in (slow, idle):
        peer.send(b"  V1")
    slow.send(begun)
    service.advance(WINDOW_NS / SECOND + 2)
    assert (slow.is_closed(), idle.is_closed()) == (True, False)
    assert "did not come whole" in slow.reply()
    assert service.lookup.server.bodies.used == 0
