"""The acceptance cases of the specification that are about input, by number, and its vectors.

Cases 1 to 3 end in the log here: what becomes of a message that Kafka does not know is the relay's business.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.config import TopicConfig
from penstock.delivery.source import Delivery
from penstock.dory import encode
from tests.dory.senders import TIME_MS, M, dory
from tests.served import Served

VECTORS = {
    1: "00000031010000000000000a736f6d6520746f706963000001a1dde77ff7000000000000000b68656c6c6f20776f726c64",
    2: "0000003501010000000000003039000a736f6d6520746f706963000001a1dde782db000000000000000b68656c6c6f20776f726c64",
    3: "00000031010000000000000a736f6d6520746f706963000001a1dde7817e000000000000000b68656c6c6f20776f726c64"
    "0000003501010000000000003039000a736f6d6520746f706963000001a1dde7817f000000000000000b68656c6c6f20776f726c64",
    4: "0000002601000000000000066f7264657273000001a1dde85029000000026b31000000026869",
    5: "0000002a010100000000ffffffff00066f7264657273000001a1dde85091000000026b31000000026869",
    6: "0000002201000000000000066f7264657273000001a1dde850fa0000000000000000",
    7: "0000002401000000000000066f7264657273000001a1ddf1a5290000000000000003616263",
    8: "0000003501010000000000000001000a736f6d6520746f7069630000000000003039000000000000000b68656c6c6f20776f726c64",
}
V = {number: bytes.fromhex(text) for number, text in VECTORS.items()}
STREAMS = ["stream", "tcp"]
INPUT = {"stream": "UnixStreamInput", "tcp": "TcpInput", "datagram": "UnixDgInputAgent"}
NS = 1_000_000


def changed(wire: bytes, **fields: int) -> bytes:
    """Return M with other numbers in some of its fields, at their places."""
    places = {
        "api_key": (4, ">h"),
        "version": (6, ">h"),
        "flags": (8, ">h"),
        "topic_size": (10, ">h"),
        "key_size": (21, ">i"),
        "value_size": (25, ">i"),
        "size": (0, ">i"),
    }
    data = bytearray(wire)
    for name, value in fields.items():
        at, form = places[name]
        struct.pack_into(form, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("number", "topic", "rows"),
    [
        (1, "some topic", [(b"hello world", {"event_time": 0x1A1DDE77FF7 * NS})]),
        (2, "some topic", [(b"hello world", {"event_time": 0x1A1DDE782DB * NS, "route": 12345})]),
        (4, "orders", [(b"hi", {"event_time": 0x1A1DDE85029 * NS, "key": b"k1"})]),
        (5, "orders", [(b"hi", {"event_time": 0x1A1DDE85091 * NS, "key": b"k1", "route": 4294967295})]),
        (6, "orders", [(b"", {"event_time": 0x1A1DDE850FA * NS})]),
        (8, "some topic", [(b"hello world", {"event_time": 12345 * NS, "route": 1})]),
    ],
)
@pytest.mark.parametrize("transport", ["datagram", "stream", "tcp"])
def test_vectors_are_stored_as_their_clients_meant_them(
    tmp_path: Path, number: int, topic: str, rows: list[tuple[bytes, dict[str, object]]], transport: str
) -> None:
    # The vectors are of a time that is to come: a clock that is before them would set them to its own.
    with dory(tmp_path, {"ahead_s": 3 * 365 * 86400}) as node, node.open(transport) as line:
        line.say(V[number])
        assert node.until_stored(1, topic) == rows
        assert node.count(INPUT[transport] + "ForwardMsg") == 1


def test_vector_3_has_both_formats_in_one_connection(tmp_path: Path) -> None:
    with dory(tmp_path, {"ahead_s": 3 * 365 * 86400}) as node, node.open("stream") as line:
        line.say(V[3])
        first, second = 0x1A1DDE7817E * NS, 0x1A1DDE7817F * NS
        found = node.until_stored(2, "some topic")
        assert [(body, row["event_time"], row.get("route")) for body, row in found] == [
            (b"hello world", first, None),
            (b"hello world", second, 12345),
        ]
        assert line.is_open()


def malformed(tmp_path: Path, *wires: bytes) -> None:
    """Show that each of these datagrams is counted as malformed, and that the good one after them is stored."""
    with dory(tmp_path) as node, node.open("datagram") as line:
        for wire in wires:
            line.say(wire)
        line.say(M)
        node.until_stored(1)
        assert node.thrown() == {"malformed": len(wires)}
        assert node.count("InputAgentDiscardMsgMalformed") == len(wires)
        assert set(node.served.do(lambda: node.served.node.discards.reports()[0].malformed)) <= set(wires)


def test_dory_case_4_a_datagram_whose_size_field_is_not_its_size_is_malformed(tmp_path: Path) -> None:
    malformed(tmp_path, V[7])


def test_dory_case_5_an_empty_datagram_is_malformed(tmp_path: Path) -> None:
    malformed(tmp_path, b"")


def test_dory_case_6_a_datagram_of_its_head_alone_is_malformed(tmp_path: Path) -> None:
    malformed(tmp_path, bytes.fromhex("0000000801000000"))


def test_dory_case_7_a_datagram_of_an_unknown_kind_is_counted_as_such(tmp_path: Path) -> None:
    with dory(tmp_path) as node, node.open("datagram") as line:
        line.say(bytes.fromhex("00000008012c0000"), M)
        node.until_stored(1)
        assert node.thrown() == {"unsupported_api_key": 1}
        assert node.count("InputAgentDiscardMsgUnsupportedApiKey") == 1


def test_dory_case_8_versions_that_nobody_knows_are_counted_one_by_one(tmp_path: Path) -> None:
    with dory(tmp_path) as node, node.open("datagram") as line:
        line.say(changed(M, version=1), changed(M, version=-1), M)
        node.until_stored(1)
        assert node.thrown() == {"unsupported_version": 2}
        assert node.served.do(lambda: node.served.node.discards.reports()[0].versions) == {1: 1, -1: 1}
        assert node.count("InputAgentDiscardAnyPartitionMsgUnsupportedApiVersion") == 2


def test_dory_case_9_an_unknown_kind_comes_before_an_unknown_version(tmp_path: Path) -> None:
    with dory(tmp_path) as node, node.open("datagram") as line:
        line.say(changed(M, api_key=999, version=7), M)
        node.until_stored(1)
        assert node.thrown() == {"unsupported_api_key": 1}


def test_dory_case_10_fields_that_contradict_each_other_are_malformed(tmp_path: Path) -> None:
    malformed(
        tmp_path,
        changed(M, flags=1),
        changed(M, topic_size=0),
        changed(M, topic_size=-1),
        changed(M, key_size=-1),
        changed(M, value_size=-1),
        changed(M + b"x", size=len(M) + 1),
        changed(M, size=-1),
        changed(M, value_size=4),
        changed(M, topic_size=3000),
        changed(M, key_size=(1 << 31) - 1),
    )


@pytest.mark.parametrize("transport", STREAMS)
@pytest.mark.parametrize("wire", ["00000003", "fffffffb", "00000000"])
def test_dory_case_11_a_size_below_its_own_field_ends_the_connection(tmp_path: Path, transport: str, wire: str) -> None:
    with dory(tmp_path) as node, node.open(transport) as line:
        line.say(M + bytes.fromhex(wire))
        assert line.until_end() == b""
        node.until_thrown(malformed=1)
        assert node.count(INPUT[transport] + "InvalidSizeField") == 1
        assert node.count("InputAgentDiscardMsgMalformed") == 0
        node.until_stored(1)


@pytest.mark.parametrize("transport", STREAMS)
def test_dory_case_12_a_message_of_its_size_alone_is_passed_over(tmp_path: Path, transport: str) -> None:
    with dory(tmp_path) as node, node.open(transport) as line:
        line.say(bytes.fromhex("00000004") + M + bytes.fromhex("00000007010000") + M)
        node.until_stored(2)
        node.until_thrown(malformed=2)
        assert node.count("InputAgentDiscardMsgMalformed") == 2
        assert line.is_open()


@pytest.mark.parametrize("transport", STREAMS)
def test_dory_case_13_a_size_above_the_limit_ends_the_connection_before_its_body_comes(
    tmp_path: Path, transport: str
) -> None:
    with dory(tmp_path, max_stream_msg_size=5000) as node, node.open(transport) as line:
        line.say(bytes.fromhex("0000138c"))
        node.served.until(lambda: node.served.node.budget.body.used == 4)
        node.served.advance(3600)  # nobody is hurried
        assert line.is_open()
        with node.open(transport) as other:
            other.say(bytes.fromhex("0000138d"))
            assert other.until_end() == b""
        node.until_thrown(malformed=1)
        assert node.count(INPUT[transport] + "MsgBodyTooLarge") == 1
        assert line.is_open()


@pytest.mark.parametrize("transport", STREAMS)
def test_dory_case_14_pieces_make_messages_and_a_part_at_the_end_is_an_unclean_disconnect(
    tmp_path: Path, transport: str
) -> None:
    with dory(tmp_path) as node:
        with node.open(transport) as line:
            for piece in (M[:3], M[3:20], M[20:]):
                line.say(piece)
            line.say(M + M[:1])
        node.until_stored(2)
        node.until(INPUT[transport] + "UncleanDisconnect", 1)
        node.until_thrown(**{"unclean_tcp" if transport == "tcp" else "unclean_unix": 1})
        with node.open(transport) as line:
            line.say(M)
        node.until(INPUT[transport] + "CleanDisconnect", 1)
        assert node.served.do(lambda: node.served.node.budget.body.used) == 0


def test_dory_case_15_a_reset_in_the_middle_is_a_socket_error_and_no_discard(tmp_path: Path) -> None:
    with dory(tmp_path) as node, node.open("tcp") as line:
        line.say(M[:10])
        node.served.until(lambda: node.served.node.budget.body.used == 10)
        line.reset()
        node.until("TcpInputSocketError", 1)
        assert node.thrown() == {}
        assert node.served.do(lambda: node.served.node.budget.body.used) == 0


def test_dory_case_16_a_datagram_of_the_limit_is_taken_and_one_above_it_is_malformed(tmp_path: Path) -> None:
    sized = {size: encode("t", b"x" * (size - 29), timestamp_ms=TIME_MS) for size in (2000, 2001)}
    hidden = changed(sized[2001], size=2000)  # the kernel cuts it to what it says: it is still too large
    with dory(tmp_path, max_datagram_msg_size=2000) as node, node.open("datagram") as line:
        line.say(sized[2000], sized[2001], hidden, sized[2000])
        assert {len(body) for body, _ in node.until_stored(2)} == {2000 - 29}
        node.until_thrown(malformed=2)


def test_dory_case_22_what_finds_no_room_is_dropped_whole_and_an_empty_message_always_does(tmp_path: Path) -> None:
    settings = {"topic": TopicConfig(durability="memory")}
    with dory(tmp_path, settings, max_buffer=1280) as node, node.open("stream") as line:
        line.say(*[encode("t", b"x" * 121, timestamp_ms=TIME_MS) for _ in range(5)])
        line.say(encode("t", b"y", timestamp_ms=TIME_MS + 1), encode("t", b"", timestamp_ms=TIME_MS))
        assert [len(body) for body, _ in node.until_stored(6)] == [121] * 5 + [0]
        node.until_thrown(no_memory=1)
        assert node.count("InputAgentDiscardMsgNoMem") == 1
        lost = node.served.do(lambda: node.served.node.discards.reports()[0].discarded["t"])
        assert (lost.count, lost.min_ms, lost.max_ms) == (1, TIME_MS + 1, TIME_MS + 1)

        assert finished(node.served) == 6  # as a relay does whose other side is there again
        line.say(encode("t", b"z", timestamp_ms=TIME_MS))
        node.until_stored(7)
        node.until_thrown(no_memory=1)


def finished(served: Served) -> int:
    """Take everything of topic t, ack it, and return how many messages that were."""
    acked: list[int] = []

    async def work() -> int:
        topic = served.node.topic("t")
        subscription = await topic.subscribe("relay")
        seat = topic.attach(subscription, take)
        seat.set_credit(100)
        seat.ack(acked)
        seat.close()
        return len(acked)

    def take(deliveries: list[Delivery]) -> None:
        acked.extend(id_ for delivery in deliveries for id_, _, _ in delivery.each())

    return served.run(work())


def test_a_durable_topic_holds_the_pool_no_longer_than_until_the_append(tmp_path: Path) -> None:
    with dory(tmp_path, max_buffer=1280) as node, node.open("stream") as line:
        for number in range(50):
            line.say(*[encode("t", b"x" * 121, timestamp_ms=TIME_MS) for _ in range(5)])
            node.until_stored(5 * (number + 1))
        assert node.running.pool.used == 0
        assert node.thrown() == {}
