"""The NSQ codec: vectors of the protocol, the same result however the stream is cut, and clean errors."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dialects.nsq import codec
from penstock.dialects.nsq.codec import Command, Decoder, Limits
from penstock.message import Rows

LIMITS = Limits(message_bytes_max=1 << 20, body_bytes_max=5 << 20)


def decode(data: bytes, limits: Limits = LIMITS) -> list[Command]:
    return Decoder(limits).feed(data)


def pub(topic: bytes, body: bytes) -> bytes:
    return b"PUB " + topic + b"\n" + struct.pack(">I", len(body)) + body


def mpub(topic: bytes, bodies: list[bytes]) -> bytes:
    items = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    return b"MPUB " + topic + b"\n" + struct.pack(">II", len(items) + 4, len(bodies)) + items


def bodies_of(rows: Rows) -> list[bytes]:
    whole = bytes(memoryview(rows.body))
    cuts = [int(cut) for cut in rows.cuts]
    return [whole[a:b] for a, b in pairwise(cuts)]


def flat(commands: list[Command]) -> list[tuple[object, ...]]:
    """Return commands one by one, runs taken apart."""
    out: list[tuple[object, ...]] = []
    for name, *args in commands:
        if name == "PUB":
            topic, rows, replies = args
            assert isinstance(rows, Rows)
            assert replies == rows.count
            out += [("PUB", topic, body) for body in bodies_of(rows)]
        elif name in ("MPUB", "DPUB"):
            rows = args[1]
            assert isinstance(rows, Rows)
            out.append((name, args[0], tuple(bodies_of(rows)), *args[2:]))
        elif name == "FIN" and not (isinstance(args[0], list) and (not args[0] or isinstance(args[0][0], bytes))):
            out += [("FIN", int(id_)) for id_ in args[0]]  # type: ignore[attr-defined]
        else:
            out.append((name, *[tuple(arg) if isinstance(arg, list) else arg for arg in args]))
    return out


VECTORS = {
    "5355422074312063680a": [("SUB", (b"t1", b"ch"))],
    "52445920310a": [("RDY", (b"1",))],
    "5055422074310a0000000568656c6c6f": [("PUB", "t1", b"hello")],
    "4450554220743120313530300a0000000178": [("DPUB", "t1", (b"x",), b"1500")],
    "4d5055422074310a0000000f000000020000000161000000026262": [("MPUB", "t1", (b"a", b"bb"))],
    "46494e20303132333435363738396162636465660a": [("FIN", 0x0123456789ABCDEF)],
    "524551203031323334353637383961626364656620313530300a": [("REQ", (b"0123456789abcdef", b"1500"))],
    "544f55434820303132333435363738396162636465660a": [("TOUCH", (b"0123456789abcdef",))],
    "4e4f500a": [("NOP", ())],
    "434c530a": [("CLS", ())],
}


@pytest.mark.parametrize(("wire", "commands"), VECTORS.items())
def test_commands_of_the_protocol_vectors_are_decoded(wire: str, commands: list[tuple[object, ...]]) -> None:
    assert flat(decode(bytes.fromhex(wire))) == commands


def test_identify_vector_is_decoded_with_its_body() -> None:
    wire = (
        "4944454e544946590a0000002d7b22636c69656e745f6964223a226331222c22666561747572655f6e65676f74696174696f6e"
        "223a747275657d"
    )
    assert decode(bytes.fromhex(wire)) == [("IDENTIFY", [], b'{"client_id":"c1","feature_negotiation":true}')]


def test_message_frame_is_that_of_the_vector() -> None:
    frames, cuts = codec.messages(0x0123456789ABCDEF, 1, 1500000000000000000, 1, [0, 5], b"hello")
    wire = "000000230000000214d1120d7b16000000013031323334353637383961626364656668656c6c6f"
    assert bytes(frames) == bytes.fromhex(wire)
    assert list(cuts) == [0, len(frames)]


def test_response_and_error_frames_are_those_of_the_vectors() -> None:
    assert codec.OK.hex() == "00000006000000004f4b"
    assert codec.HEARTBEAT.hex() == "0000000f000000005f6865617274626561745f"
    assert codec.CLOSE_WAIT.hex() == "0000000e00000000434c4f53455f57414954"
    unknown = "0000002200000001455f494e56414c494420696e76616c696420636f6d6d616e642041534446"
    assert codec.error("E_INVALID", "invalid command ASDF").hex() == unknown


def test_nsq_case_01_names() -> None:
    for good in (b"test", b"test-with_period.", b"test#ephemeral", b"a" * 64):
        assert codec.is_name(good)
    for bad in (b"test:ephemeral", b"a" * 65, b"a\n", b"", b"#ephemeral", b"a b"):
        assert not codec.is_name(bad)


def traffic(rng: random.Random) -> bytes:
    """Return a random stream of valid commands: runs, odd sizes, bodies that look like commands."""
    out = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.randrange(7)
        size = rng.choice([1, 3, 100, 700, 5000])
        if kind == 0:
            out += [pub(b"metrics", rng.randbytes(100)) for _ in range(rng.choice([1, 3, 400]))]
        elif kind == 1:
            out += [pub(b"metrics", rng.randbytes(rng.randint(1, size))) for _ in range(rng.choice([1, 20, 300]))]
        elif kind == 2:
            out += [pub(b"other", b"xx" + pub(b"other", b"PUB other\n") + b"yy") for _ in range(rng.choice([1, 200]))]
        elif kind == 3:
            out.append(mpub(b"metrics", [rng.randbytes(rng.randint(1, size)) for _ in range(rng.choice([1, 5, 60]))]))
        elif kind == 4:
            out.append(mpub(b"metrics", [rng.randbytes(size) for _ in range(rng.choice([2, 17, 60]))]))
        elif kind == 5:
            out += [b"FIN %016x\n" % rng.randrange(1, 1 << 62) for _ in range(rng.choice([1, 5, 300]))]
        else:
            out += rng.choices([b"NOP\n", b"RDY 5\r\n", b"REQ %016x 5\n" % 7, b"SUB a b\n"], k=3)
    return b"".join(out)


@given(st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_any_cut_of_valid_traffic_gives_the_same_commands(seed: int) -> None:
    rng = random.Random(seed)
    data = traffic(rng)
    whole = flat(decode(data))
    decoder = Decoder(LIMITS)
    cut: list[Command] = []
    at = 0
    while at < len(data):
        step = rng.choice([1, 2, 7, 100, 5000, 70_000])
        cut += decoder.feed(data[at : at + step])
        at += step
    assert flat(cut) == whole
    assert not any(command[0] == "fault" for command in whole)


def test_every_cut_of_a_short_stream_gives_the_same_commands() -> None:
    data = (
        b"SUB a b\nRDY 5\r\n" + pub(b"t", b"hello") + pub(b"t", b"x\n") + mpub(b"t", [b"a", b"bb"]) + b"FIN %016x\n" % 9
    )
    whole = flat(decode(data))
    for at in range(len(data) + 1):
        decoder = Decoder(LIMITS)
        assert flat(decoder.feed(data[:at]) + decoder.feed(data[at:])) == whole


@given(st.binary(max_size=300), st.integers(0, 300))
@settings(max_examples=300, deadline=None)
def test_garbage_gives_commands_or_one_fault_and_never_raises(data: bytes, at: int) -> None:
    limits = Limits(100, 200)
    whole = flat(decode(data, limits))
    decoder = Decoder(limits)
    assert flat(decoder.feed(data[:at]) + decoder.feed(data[at:])) == whole
    faults = [number for number, command in enumerate(whole) if command[0] == "fault"]
    assert faults in ([], [len(whole) - 1])


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (pub(b"t", b"x" * 105), "E_BAD_MESSAGE", "PUB message too big 105 > 100"),
        (pub(b"t", b""), "E_BAD_MESSAGE", "PUB invalid message body size 0"),
        (b"PUB t\n\xff\xff\xff\xff", "E_BAD_MESSAGE", "PUB invalid message body size -1"),
        (mpub(b"t", [b"x" * 100] * 11), "E_BAD_BODY", "MPUB body too big 1148 > 1000"),
        (mpub(b"t", [b"x"] * 5 + [b""] + [b"x"]), "E_BAD_MESSAGE", "MPUB invalid message(5) body size 0"),
        (mpub(b"t", [b"x" * 101] * 3), "E_BAD_MESSAGE", "MPUB message too big 101 > 100"),
        (b"MPUB t\n" + struct.pack(">III", 9, 2, 1) + b"x", "E_BAD_BODY", "MPUB message(1) goes beyond the body"),
        (
            b"MPUB t\n" + struct.pack(">III", 12, 1, 1) + b"xyyy",
            "E_BAD_BODY",
            "MPUB body has 3 bytes after its 1 messages",
        ),
        (b"MPUB t\n" + struct.pack(">II", 4, 0), "E_BAD_BODY", "MPUB invalid message count 0"),
        (pub(b"a:b", b"x"), "E_BAD_TOPIC", 'PUB topic name "a:b" is not valid'),
        (b"PUB\n", "E_INVALID", "PUB insufficient number of parameters"),
        (b"IDENTIFY\n\0\0\0\0", "E_BAD_BODY", "IDENTIFY invalid body size 0"),
    ],
)
def test_nsq_case_06_07_sizes_out_of_bounds_are_faults(data: bytes, code: str, text: str) -> None:
    assert decode(data + b"NOP\n", Limits(100, 1000))[-1] == ("fault", code, text)


def test_a_line_without_an_end_hangs_up() -> None:
    assert decode(b"x" * 17_000) == [("hang up",)]


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=80), st.integers(1, 1 << 40))
@settings(deadline=None)
def test_few_and_many_message_frames_agree(bodies: list[bytes], first_id: int) -> None:
    rows = Rows.of(bodies, "nsq")
    times = list(range(len(bodies)))
    few = codec._few_messages(first_id, rows.count, times, 1, rows.cuts, rows.body)
    ids = np.arange(first_id, first_id + rows.count)
    many = codec._many_messages(ids, np.array(times), 1, np.asarray(rows.cuts, np.int32), rows.body)
    assert bytes(few[0]) == bytes(many[0])
    assert list(few[1]) == list(many[1])
    picks = np.arange(0, rows.count, 2)
    attempts = np.full(len(picks), 3, np.uint16)
    chosen = codec.picked(ids[picks], picks, times, attempts, rows.cuts, rows.body)
    one_by_one = [
        codec.messages(int(ids[row]), 1, times[row], 3, [0, len(bodies[row])], bodies[row])[0] for row in picks.tolist()
    ]
    assert bytes(chosen) == b"".join(bytes(part) for part in one_by_one)


def test_ids_that_are_not_hex_come_back_as_a_line() -> None:
    assert decode(b"FIN zzzzzzzzzzzzzzzz\n") == [("FIN", [b"zzzzzzzzzzzzzzzz"])]
    assert decode(b"FIN \n") == [("FIN", [b""])]
    mixed = b"".join(b"FIN %016x\n" % n for n in range(1, 40)) + b"FIN 0x0000000000000z\n"
    assert flat(decode(mixed))[-1][0] == "FIN"
    assert len(flat(decode(mixed))) == 40
