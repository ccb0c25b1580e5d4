"""The bytes between node and lookup service: vectors, the same result however cut, clean errors."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.dialects.nsq.lookup import codec
from penstock.dialects.nsq.lookup.codec import Command, Decoder, Faulty, Identity, Replies, Target, identity, target

NAMES = st.text("abcXYZ019._-", min_size=1, max_size=64)
CHANNELS = st.one_of(st.just(""), NAMES)


def decode(*parts: bytes) -> list[Command]:
    decoder = Decoder()
    return [command for part in parts for command in decoder.feed(part)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def test_vectors_of_the_protocol() -> None:
    assert bytes.fromhex("20205631") == codec.MAGIC
    assert codec.register("t1", "ch") == bytes.fromhex("52454749535445522074312063680a")
    assert bytes.fromhex("000000024f4b") == codec.OK
    assert decode(bytes.fromhex("2020563152454749535445522074312063680a")) == [("REGISTER", [b"t1", b"ch"])]


def test_what_a_node_encodes_the_service_decodes() -> None:
    me = Identity(version="1", tcp_port=1, http_port=2, hostname="h", broadcast_address="a")
    wire = codec.MAGIC + codec.identify(me) + codec.register("t") + codec.unregister("t", "c") + codec.PING
    (word, body), *rest = decode(wire)
    assert word == "IDENTIFY"
    assert isinstance(body, bytes)
    assert identity(body) == me
    assert rest == [("REGISTER", [b"t"]), ("UNREGISTER", [b"t", b"c"]), ("PING", [])]


@st.composite
def traffic(draw: st.DrawFn) -> bytes:
    parts = [codec.MAGIC]
    if draw(st.booleans()):
        body = draw(st.binary(max_size=300))
        parts.append(b"IDENTIFY\n" + struct.pack(">I", len(body)) + body)
    for topic, channel in draw(st.lists(st.tuples(NAMES, CHANNELS), max_size=20)):
        parts.append(draw(st.sampled_from([codec.register, codec.unregister]))(topic, channel))
        parts.append(draw(st.sampled_from([b"", codec.PING, b"PING\r\n"])))
    return b"".join(parts)


@given(traffic(), st.lists(st.integers(0, 10000), max_size=30))
def test_any_cut_gives_the_same_commands(wire: bytes, places: list[int]) -> None:
    assert decode(*cut(wire, places)) == decode(wire)


@given(traffic())
def test_a_byte_at_a_time_gives_the_same_commands(wire: bytes) -> None:
    assert decode(*(wire[at : at + 1] for at in range(len(wire)))) == decode(wire)


@given(st.one_of(st.binary(max_size=500), st.binary(max_size=500).map(lambda tail: codec.MAGIC + tail)), st.data())
@example(codec.MAGIC + b"IDENTIFY\n\xff\xff\xff\xff", None)
def test_garbage_ends_in_one_fault_or_waits_for_more(wire: bytes, data: st.DataObject | None) -> None:
    commands = decode(wire)
    if data is not None:
        places = data.draw(st.lists(st.integers(0, 600), max_size=10))
        assert decode(*cut(wire, places)) == commands
    assert all(command[0] != "fault" for command in commands[:-1])


@given(st.lists(st.binary(max_size=50), max_size=20), st.lists(st.integers(0, 2000), max_size=10))
def test_replies_are_the_same_however_cut(replies: list[bytes], places: list[int]) -> None:
    decoder = Replies()
    wire = b"".join(map(codec.reply, replies))
    assert [reply for part in cut(wire, places) for reply in decoder.feed(part)] == replies


@given(st.binary(max_size=100), st.lists(st.integers(0, 200), max_size=5))
def test_what_is_no_reply_is_found_out_or_waits_for_more(garbage: bytes, places: list[int]) -> None:
    decoder = Replies()
    try:
        for part in cut(garbage, places):
            assert all(isinstance(reply, bytes) for reply in decoder.feed(part))
    except Faulty as faulty:
        assert str(faulty).startswith("a reply of ")


def test_wrong_magic_is_bad_protocol_at_the_first_wrong_byte() -> None:
    assert decode(b"  V2") == decode(b"  ", b"V", b"2") == [("fault", "E_BAD_PROTOCOL", "")]
    assert decode(b"G") == [("fault", "E_BAD_PROTOCOL", "")]
    assert codec.error("E_BAD_PROTOCOL", "") == codec.reply(b"E_BAD_PROTOCOL")


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    decoder = Decoder()
    assert decoder.feed(codec.MAGIC + b"R" * 16383) == []
    assert decoder.feed(b"R") == [("hang up",)]
    assert decoder.feed(b"\n") == []


def test_a_body_beyond_the_limit_is_refused_before_it_comes() -> None:
    assert decode(codec.MAGIC + b"IDENTIFY\n" + struct.pack(">I", 70000)) == [
        ("fault", "E_BAD_BODY", "IDENTIFY body too big 70000 > 65536")
    ]
    assert decode(codec.MAGIC + b"IDENTIFY\n" + struct.pack(">i", -1)) == [
        ("fault", "E_BAD_BODY", "IDENTIFY failed to read body")
    ]


def test_both_forms_of_register() -> None:
    assert target("REGISTER", [b"t"], names_partitions=False) == Target("t")
    assert target("REGISTER", [b"t", b"0"], names_partitions=False) == Target("t", "0")
    assert target("REGISTER", [b"t", b"0"], names_partitions=True) == Target("t", "", 0)
    assert target("REGISTER", [b"t", b"7", b"c"], names_partitions=True) == Target("t", "c", 7)


@pytest.mark.parametrize(
    ("args", "names_partitions", "code", "text"),
    [
        ([], False, "E_INVALID", "REGISTER insufficient number of params"),
        ([b"t"], True, "E_INVALID", "REGISTER insufficient number of params"),
        ([b"t:x"], False, "E_BAD_TOPIC", "REGISTER topic name 't:x' is not valid"),
        ([b""], False, "E_BAD_TOPIC", "REGISTER topic name '' is not valid"),
        ([b"t", b"c/"], False, "E_BAD_CHANNEL", "REGISTER channel name 'c/' is not valid"),
        ([b"t", b"1024"], True, "E_BAD_PARTITIONID", "REGISTER partition '1024' is not valid"),
        ([b"t", b"-1"], True, "E_BAD_PARTITIONID", "REGISTER partition '-1' is not valid"),
        ([b"t", b"c"], True, "E_BAD_PARTITIONID", "REGISTER partition 'c' is not valid"),
    ],
)
def test_a_bad_register_says_what_is_bad(args: list[bytes], names_partitions: bool, code: str, text: str) -> None:
    with pytest.raises(Faulty) as caught:
        target("REGISTER", args, names_partitions=names_partitions)
    assert (caught.value.code, str(caught.value)) == (code, text)


@pytest.mark.parametrize(
    ("body", "partitions"),
    [
        (b'{"distributed_id":"x"}', True),
        (b'{"distributed_id":""}', True),
        (b'{"distributed_id":null}', True),
        (b'{"version":"0.3.7-HA.1.9"}', True),
        (b'{"version":"1.3.0"}', False),
    ],
)
def test_youzans_nodes_are_told_by_what_they_say_of_themselves(body: bytes, partitions: bool) -> None:
    said = codec.service(body)
    assert said is not None
    assert said.names_partitions is partitions
