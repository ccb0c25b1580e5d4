"""The NSQ codec: vectors of the protocol, the same result however the stream is cut, and clean errors."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columns import SMALL, Column
from penstock.dialects.nsq import choices, codec
from penstock.dialects.nsq.codec import Command, Decoder, Form, Limits, extended, frames
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tcp.identify import agree
from penstock.log import weight
from penstock.message import Batch, Rows
from tests.nsq.parts import item, mpub_ext, mpub_trace, pub_ext, pub_trace, sized

LIMITS = Limits(message_bytes_max=1 << 20, body_bytes_max=5 << 20)


def decode(data: bytes, limits: Limits = LIMITS) -> list[Command]:
    return feed(Decoder(limits), data)


def feed(decoder: Decoder, data: bytes) -> list[Command]:
    """Decode one read to its end, whatever the decoder stops at."""
    if decoder.plain and (body := decoder.again(data)):
        return [("PUB", decoder.topic, Rows(1, [0, len(body)], body, codec.SOURCE), 1, decoder.shard)]
    commands = decoder.feed(data)
    while decoder.stopped:
        commands += decoder.go_on()
    return commands


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
            topic, rows, replies, shard = args
            assert isinstance(rows, Rows)
            assert replies == rows.count
            out += [("PUB", topic, body, *([shard] if shard != -1 else [])) for body in bodies_of(rows)]
        elif name in EXTENDED:
            out += extended_of(str(name), *args)
        elif name in ("MPUB", "DPUB"):
            rows = args[1]
            assert isinstance(rows, Rows)
            out.append((name, args[0], tuple(bodies_of(rows)), *(args[2:] if name == "DPUB" else ())))
        elif name == "FIN" and not (isinstance(args[0], list) and (not args[0] or isinstance(args[0][0], bytes))):
            out += [("FIN", int(id_)) for id_ in args[0]]  # type: ignore[attr-defined]
        else:
            out.append((name, *[tuple(arg) if isinstance(arg, list) else arg for arg in args]))
    return out


EXTENDED = ("PUB_EXT", "PUB_TRACE", "MPUB_EXT", "MPUB_TRACE")


def extended_of(name: str, topic: object, rows: object, *args: object) -> list[tuple[object, ...]]:
    """Return publishes of the extension one by one: (word, topic, partition, header or trace, body ...)."""
    assert isinstance(rows, Rows)
    extra: Any = args[0] if name.endswith("EXT") else rows.columns["trace"]
    # A large group is an Arrow array, where no header is b"".
    listed = [one or None for one in extra] if isinstance(extra, list) else [one or None for one in extra.to_pylist()]
    assert isinstance(extra, list) == (rows.count <= SMALL)
    pairs = list(zip(listed, bodies_of(rows), strict=True))
    if name.startswith("M"):
        return [(name, topic, args[-1], tuple(pairs))]
    return [(name, topic, args[-1], *pair) for pair in pairs]


TAGGED = b'{"##client_dispatch_tag":"tagA"}'

VECTORS = {
    "5055425f45585420743120300a0000002400207b222323636c69656e745f64697370617463685f746167223a2274616741227d6869": [
        ("PUB_EXT", "t1", 0, TAGGED, b"hi")
    ],
    "5055425f45585420743120300a0000001800147b22232374726163655f6964223a22313233227d6869": [
        ("PUB_EXT", "t1", 0, b'{"##trace_id":"123"}', b"hi")
    ],
    (
        "4d5055425f45585420743120300a00000034000000020000002400207b222323636c69656e745f64697370617463685f74616722"
        "3a2274616741227d6869000000040000796f"
    ): [("MPUB_EXT", "t1", 0, ((TAGGED, b"hi"), (None, b"yo")))],
    "5055425f545241434520743120300a0000000a000000000000007b6869": [("PUB_TRACE", "t1", 0, 123, b"hi")],
    "5355422074312063680a": [("SUB", (b"t1", b"ch"))],
    "52445920310a": [("RDY", (b"1",))],
    "5055422074310a0000000568656c6c6f": [("PUB", "t1", b"hello")],
    "4450554220743120313530300a0000000178": [("DPUB", "t1", (b"x",), 1500)],
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


def test_extended_identify_vector_is_decoded_with_its_body() -> None:
    wire = (
        "4944454e544946590a000000587b22636c69656e745f6964223a226332222c22666561747572655f6e65676f74696174696f6e223a"
        "747275652c22657874656e645f737570706f7274223a747275652c22646573697265645f746167223a2274616741227d"
    )
    ((_, _, body),) = decode(bytes.fromhex(wire))
    agreed = agree(bytes(body), NsqConfig())  # type: ignore[call-overload]
    assert (agreed.client_id, agreed.extend_support, agreed.desired_tag) == ("c2", True, "tagA")


def test_raw_fin_vector_is_decoded_by_position() -> None:
    decoder = Decoder(LIMITS)
    decoder.raw_ids = True
    wire = bytes.fromhex("46494e20000000000000000a00000000000000200a")
    assert decoder.feed(wire) == [("FIN", [10])]


def test_traced_reply_is_that_of_the_vector() -> None:
    wire = "00000022000000004f4b0000000000000007000000000000007b000000000000019000000037"
    assert codec.traced(7, 123, 400, 55).hex() == wire
    assert codec.traced(7, -1, 400, 55)[18:26] == b"\xff" * 8


HEAD = "14d1120d7b16000000010000000000000007000000000000007b"
TAGGED_HEX = "04 0020 7b222323636c69656e745f64697370617463685f746167223a2274616741227d"
EDGES = np.array([400, 433])


@pytest.mark.parametrize(
    ("form", "header", "wire"),
    [
        (Form(True, True), TAGGED, f"0000004300000002{HEAD}{TAGGED_HEX}6869"),
        (Form(True, True), None, f"0000002100000002{HEAD}006869"),
        (Form(True, True, True), None, f"0000002d00000002{HEAD}000000000000000190000000216869"),
        (Form(True, False, True), None, f"0000002c00000002{HEAD}0000000000000190000000216869"),
        (Form(True), None, f"0000002000000002{HEAD}6869"),
    ],
)
def test_extended_message_frames_are_those_of_the_vectors(form: Form, header: bytes | None, wire: str) -> None:
    columns: dict[str, Column] = {"trace": [123]} | ({"headers": [header]} if header else {})
    batch = Batch(6, 1, 1500000000000000000, [0, 2], b"hi", "nsq", columns, 400)
    frames_, cuts = extended.whole(form, 7, batch, EDGES if form.detailed else None)
    assert bytes(frames_) == bytes.fromhex(wire)
    assert list(cuts) == [0, len(frames_)]


def test_message_frame_is_that_of_the_vector() -> None:
    frames, cuts = codec.messages(0x0123456789ABCDEF, 1, 1500000000000000000, 1, [0, 5], b"hello")
    wire = "000000230000000214d1120d7b16000000013031323334353637383961626364656668656c6c6f"
    assert bytes(frames) == bytes.fromhex(wire)
    assert list(cuts) == [0, len(frames)]


def test_response_and_error_frames_are_those_of_the_vectors() -> None:
    assert codec.OK.hex() == "00000006000000004f4b"
    assert codec.HEARTBEAT.hex() == "0000000f000000005f6865617274626561745f"
    assert codec.CLOSE_WAIT.hex() == "0000000e00000000434c4f53455f57414954"
    failed = (
        "0000003d00000001455f46494e5f4641494c45442046494e2030313233343536373839616263646566206661696c6564204944206e6f"
        "7420696e20666c69676874"
    )
    assert codec.error("E_FIN_FAILED", "FIN 0123456789abcdef failed ID not in flight").hex() == failed
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
        kind = rng.randrange(9)
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
        elif kind == 6:
            out += single_traffic(rng)
        elif kind == 7:
            out.append(many_traffic(rng))
        else:
            out += rng.choices([b"NOP\n", b"RDY 5\r\n", b"REQ %016x 5\n" % 7, b"SUB a b\n", pub(b"t 7", b"x")], k=3)
    return b"".join(out)


def single_traffic(rng: random.Random) -> list[bytes]:
    """Return a run of PUB_EXT or PUB_TRACE, of one size or of many."""
    count, size = rng.choice([1, 3, 400]), rng.choice([1, 50, 300])
    sizes = [size if rng.random() < 0.5 else rng.randint(1, size) for _ in range(count)]
    if rng.random() < 0.5:
        sizes = [size] * count
    if rng.random() < 0.3:
        return [b"PUB_TRACE t\n" + sized(rng.randbytes(8 + one)) for one in sizes]
    headers = [b"", b'{"tag":"%d"}' % rng.randrange(5), b'{"PUB_EXT t\n":"\n"}']
    return [b"PUB_EXT t\n" + sized(item(rng.choice(headers), rng.randbytes(one))) for one in sizes]


def many_traffic(rng: random.Random) -> bytes:
    """Return an MPUB_EXT or MPUB_TRACE."""
    count = rng.choice([1, 16, 17, 60])
    if rng.random() < 0.5:
        return mpub_trace("t 3", [(rng.randrange(1 << 64), rng.randbytes(rng.randint(1, 9))) for _ in range(count)])
    headers = [b"", b'{"a":"b"}']
    return mpub_ext("t -1", [(rng.choice(headers), rng.randbytes(rng.randint(1, 99))) for _ in range(count)])


def raw_traffic(rng: random.Random) -> bytes:
    """Return acks in raw ids, which hold newlines, spaces and commands, among other traffic."""
    out = []
    for _ in range(rng.randint(1, 8)):
        ids = [rng.choice([b"FIN FIN ", b"\n\n\n\n    ", b"REQ \n 1\n", rng.randbytes(7) + b"x"]) for _ in range(60)]
        words = [id_ + rng.choice([b"FIN \nFIN", bytes(8), b" \n \n \n \n"]) for id_ in ids]
        kind = rng.randrange(5)
        count = rng.choice([1, 5, 60])
        if kind == 0:
            out += [b"FIN " + word + b"\n" for word in words[:count]]
        elif kind == 1:
            out += [b"REQ " + word + b" %d\n" % rng.randrange(5000) for word in words[: count // 3 + 1]]
        elif kind == 2:
            out += [b"TOUCH " + word + b"\n" for word in words[: count // 3 + 1]]
        elif kind == 3:
            out += [pub(b"t", rng.randbytes(50)) for _ in range(count)]
        else:
            out += [b"NOP\n", b"RDY 7\n"]
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
        cut += feed(decoder, data[at : at + step])
        at += step
    assert flat(cut) == whole
    assert not any(command[0] == "fault" for command in whole)


def raw_decoder() -> Decoder:
    decoder = Decoder(LIMITS)
    decoder.raw_ids = True
    return decoder


@given(st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_any_cut_of_traffic_in_raw_ids_gives_the_same_commands(seed: int) -> None:
    rng = random.Random(seed)
    data = raw_traffic(rng)
    whole = flat(feed(raw_decoder(), data))
    decoder = raw_decoder()
    cut: list[Command] = []
    at = 0
    while at < len(data):
        step = rng.choice([1, 2, 7, 20, 21, 22, 500])
        cut += feed(decoder, data[at : at + step])
        at += step
    assert flat(cut) == whole
    assert not any(command[0] == "fault" for command in whole)


@given(st.binary(max_size=300), st.integers(0, 300))
@settings(max_examples=300, deadline=None)
def test_garbage_in_raw_ids_never_raises(data: bytes, at: int) -> None:
    data = b"FIN " + data
    whole = flat(feed(raw_decoder(), data))
    decoder = raw_decoder()
    assert flat(feed(decoder, data[:at]) + feed(decoder, data[at:])) == whole


def test_every_cut_of_a_short_stream_gives_the_same_commands() -> None:
    data = (
        b"SUB a b\nRDY 5\r\n" + pub(b"t", b"hello") + pub(b"t", b"x\n") + mpub(b"t", [b"a", b"bb"]) + b"FIN %016x\n" % 9
    )
    data += pub_ext("t 0", b"{}", b"hi") * 2 + mpub_ext("t", [(b"", b"a"), (b"{}", b"b")]) + pub_trace("t", 5, b"x")
    data += b"SUB_ORDERED a b 0\nAUTH\n" + sized(b"secret") + b"NOP\n"
    whole = flat(decode(data))
    assert whole[-1] == ("NOP", ())
    for at in range(len(data) + 1):
        decoder = Decoder(LIMITS)
        assert flat(feed(decoder, data[:at]) + feed(decoder, data[at:])) == whole
    raw = b"".join(b"%b " % word + struct.pack(">QQ", 0x0A20, 0x200A) + end for word, end in RAW)
    whole = flat(feed(raw_decoder(), raw))
    assert [command[0] for command in whole] == ["FIN", "REQ", "TOUCH", "FIN"]
    for at in range(len(raw) + 1):
        decoder = raw_decoder()
        assert flat(feed(decoder, raw[:at]) + feed(decoder, raw[at:])) == whole


def test_a_read_that_is_one_more_pub_gives_what_the_long_way_gives() -> None:
    limits = Limits(message_bytes_max=100, body_bytes_max=1000)
    first = pub(b"t 3", b"one")
    reads = [pub(b"t 3", body) for body in (b"x", b"two", bytes(100), pub(b"t 3", b"in"))]
    others = [pub(b"t 3", b""), pub(b"t 3", bytes(101)), pub(b"t", b"one"), pub(b"t 3", b"one")[:-1], reads[0] * 2]
    others += [b"FIN %016x\n" % 9, b"PUB t 3\n", b"PUB t 3\n\0\0\0"]
    for read in [*reads, *others, b""]:
        short, long = Decoder(limits), Decoder(limits)
        assert flat(feed(short, first)) == flat(long.feed(first)) == [("PUB", "t", b"one", 3)]
        assert bool(short.again(read)) is (read in reads)
        assert flat(feed(short, read)) == flat(long.feed(read))
    decoder = Decoder(limits)
    feed(decoder, first + b"PUB")  # a command in part: what comes next is the rest of it
    assert not decoder.again(first)
    feed(decoder, b" !\n")
    assert not decoder.again(first)


RAW = [(b"FIN", b"\n"), (b"REQ", b" 1500\n"), (b"TOUCH", b"\n"), (b"FIN", b"\n")]


@given(st.binary(max_size=300), st.integers(0, 300))
@settings(max_examples=300, deadline=None)
def test_garbage_gives_commands_or_one_fault_and_never_raises(data: bytes, at: int) -> None:
    limits = Limits(100, 200)
    whole = flat(decode(data, limits))
    decoder = Decoder(limits)
    assert flat(feed(decoder, data[:at]) + feed(decoder, data[at:])) == whole
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
def test_sizes_out_of_bounds_are_faults(data: bytes, code: str, text: str) -> None:
    assert decode(data + b"NOP\n", Limits(100, 1000))[-1] == ("fault", code, text)


def test_a_line_without_an_end_hangs_up() -> None:
    assert decode(b"x" * 17_000) == [("hang up",)]


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=80), st.integers(1, 1 << 40))
@settings(deadline=None)
def test_few_and_many_message_frames_agree(bodies: list[bytes], first_id: int) -> None:
    rows = Rows.of(bodies, "nsq")
    times = list(range(len(bodies)))
    few = frames._few_messages(first_id, rows.count, times, 1, rows.cuts, rows.body)
    ids = np.arange(first_id, first_id + rows.count)
    many = frames._many_messages(ids, np.array(times), 1, np.asarray(rows.cuts, np.int32), rows.body)
    assert bytes(few[0]) == bytes(many[0])
    assert list(few[1]) == list(many[1])
    picks = np.arange(0, rows.count, 2)
    attempts = np.full(len(picks), 3, np.uint16)
    chosen = codec.picked(ids[picks], picks, times, attempts, rows.cuts, rows.body)
    one_by_one = [
        codec.messages(int(ids[row]), 1, times[row], 3, [0, len(bodies[row])], bodies[row])[0] for row in picks.tolist()
    ]
    assert bytes(chosen) == b"".join(bytes(part) for part in one_by_one)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=300), st.integers(1, 7))
@settings(deadline=None, max_examples=50)
def test_frames_cut_out_of_a_batch_are_those_made_for_the_rows_alone(bodies: list[bytes], step: int) -> None:
    rows = Rows.of(bodies, "nsq")
    picks = np.arange(0, rows.count, step)
    whole = codec.messages(1, rows.count, 9, 1, rows.cuts, rows.body)
    alone = codec.picked(picks + 1, picks, 9, 1, rows.cuts, rows.body)
    assert bytes(codec.gathered(whole, picks)) == bytes(alone)


FORMS = [Form(raw, ext, detailed) for raw in (True, False) for ext in (True, False) for detailed in (True, False)]


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.sampled_from([None, b"{}", b'{"a":"b"}'])), min_size=1, max_size=50)
)
@settings(deadline=None, max_examples=30)
def test_few_and_many_extended_frames_agree(rows: list[tuple[bytes, bytes | None]]) -> None:
    count = len(rows)
    made = Rows.of([body for body, _ in rows], "nsq", {"headers": [h for _, h in rows], "trace": list(range(count))})
    batch = Batch(5, count, list(range(count)), made.cuts, made.body, "nsq", made.columns, 400)
    edges = weight.edges(batch, [(0, choices.EXTENDED)])
    all_rows = np.arange(count)
    picks = all_rows[::2]
    attempts = np.arange(len(picks)).astype(np.uint16)
    for form in FORMS:
        at = edges if form.detailed else None
        few = extended._few(form, 6, batch, all_rows, 1, at)
        many = extended._many(form, 6, batch, None, 1, at)
        assert bytes(few[0]) == bytes(many[0])
        assert list(few[1]) == list(many[1])
        some = extended._few(form, 6, batch, picks, attempts, at)[0]
        assert bytes(some) == bytes(extended._many(form, 6, batch, picks, attempts, at)[0])
    assert bytes(extended.whole(Form(), 6, batch, None)[0]) == bytes(
        codec.messages(6, count, batch.timestamp, 1, batch.cuts, batch.body)[0]
    )


def test_ids_that_are_not_hex_come_back_as_a_line() -> None:
    assert decode(b"FIN zzzzzzzzzzzzzzzz\n") == [("FIN", [b"zzzzzzzzzzzzzzzz"])]
    assert decode(b"FIN \n") == [("FIN", [b""])]
    mixed = b"".join(b"FIN %016x\n" % n for n in range(1, 40)) + b"FIN 0x0000000000000z\n"
    assert flat(decode(mixed))[-1][0] == "FIN"
    assert len(flat(decode(mixed))) == 40
