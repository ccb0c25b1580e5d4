"""Our questions and record batches, to a real broker and read back by librdkafka and by Kafka's own tool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.columns import Column
from penstock.kafka import coordinator
from penstock.kafka.codes import CODES, named
from penstock.kafka.compression import NUMBERS, CodecName, Compression
from penstock.kafka.exchange import SPOKEN, Api
from penstock.kafka.produce import Part
from penstock.kafka.producer_id import Producer
from penstock.kafka.records import Piece, laid_out, sealed
from tests.kafka.brokers import Brokers, wait_for
from tests.kafka.line import Line
from tests.simulation.kafka.partition import Partition, Records

Name = Callable[[str], str]
#: key, value, time, headers
Message = tuple[bytes | None, bytes, int, dict[str, str | None]]


@pytest.fixture
def line(one: Brokers) -> Iterator[Line]:
    with Line(one.members[0].port) as line:
        line.negotiate()
        yield line


def pieces_of(messages: list[Message], cuts_at: int | None = None) -> list[Piece]:
    """Return messages as one piece, or as two that are cut somewhere."""
    if cuts_at is not None and 0 < cuts_at < len(messages):
        return [*pieces_of(messages[:cuts_at]), *pieces_of(messages[cuts_at:])]
    bodies = [value for _, value, _, _ in messages]
    cuts = np.cumsum([0, *map(len, bodies)]).astype(np.int32)
    keys: Column = pa.array([key for key, _, _, _ in messages], pa.binary())
    headers: Column = pa.array([json.dumps(each).encode() if each else None for *_, each in messages], pa.binary())
    return [Piece(cuts, b"".join(bodies), [time for _, _, time, _ in messages], keys, headers)]


def read_back(one: Brokers, topic: str) -> list[Message]:
    found: list[Message] = []
    for each in one.read(topic):
        headers = each.headers()
        pairs = list(headers.items()) if isinstance(headers, dict) else list(headers or [])
        key, value = each.key(), each.value()
        assert key is None or isinstance(key, bytes)
        assert value is None or isinstance(value, bytes)
        found.append(
            (
                key,
                value or b"",
                each.timestamp()[1],
                {name: said.decode() if isinstance(said, bytes) else None for name, said in pairs},
            )
        )
    return found


def test_topics_are_found_and_take_records_in_every_version(one: Brokers, name: Name) -> None:
    topic, other = one.create(name("versions"), 3), one.create(name("versions"))
    sent = []
    with Line(one.members[0].port) as line:
        line.negotiate()
        newest = dict(line.versions)
        for api in (Api.METADATA, Api.PRODUCE, Api.INIT_PRODUCER_ID):
            for version in range(SPOKEN[api][0], newest[api] + 1):
                line.versions = {**newest, api: version}
                said = line.metadata([topic, "nobody made this"])
                assert [(each.id, each.port) for each in said.brokers] == [(1, one.members[0].port)]
                found = {each.name: each for each in said.topics}
                assert sorted(found[topic].partitions) == [(0, 1, 0), (1, 1, 0), (2, 1, 0)]
                assert CODES[found["nobody made this"].error] == "INVALID_TOPIC_EXCEPTION"
                assert line.producer().id >= 0
                sent.append(f"{api.name} {version}".encode())
                batch = sealed(laid_out(pieces_of([(None, sent[-1], 1, {})]))).pieces
                done = line.produce(Part(topic, 1, batch), Part(topic, 2, batch), Part(other, 0, batch))
                places = {(each.topic, each.partition, each.error, each.offset) for each in done.parts}
                row = len(sent) - 1
                assert places == {(topic, 1, 0, row), (topic, 2, 0, row), (other, 0, 0, row)}
    assert [each.value() for each in one.read(other)] == sent


def test_who_looks_after_transactions_is_told_in_every_version(one: Brokers, line: Line, name: Name) -> None:
    newest = dict(line.versions)
    for version in range(SPOKEN[Api.FIND_COORDINATOR][0], newest[Api.FIND_COORDINATOR] + 1):
        line.versions = {**newest, Api.FIND_COORDINATOR: version}

        def found(version: int = version) -> bool:  # one that has just started is not ready yet
            asked = [coordinator.request(version, name("slot"))]
            place = coordinator.answer(line.ask(Api.FIND_COORDINATOR, asked))
            return place == (0, "127.0.0.1", one.members[0].port)

        wait_for(found, "a coordinator")


def test_a_topic_is_made_by_asking_for_it_only_if_one_says_so(line: Line, name: Name) -> None:
    topic = name("made")
    assert CODES[line.metadata([topic]).topics[0].error] == "UNKNOWN_TOPIC_OR_PARTITION"
    line.metadata([topic], autocreate=True)
    wait_for(lambda: bool(line.metadata([topic]).topics[0].partitions), f"{topic} to be made")
    assert topic in {each.name for each in line.metadata(None).topics}


KEYS = st.none() | st.binary(min_size=1, max_size=200)
VALUES = st.binary(max_size=300) | st.sampled_from([b"", b"x" * 70_000])
TIMES = st.integers(0, 1_700_000_000_000)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
#: confluent-kafka cuts a name at a NUL.
NAMES = TEXTS.filter(lambda text: "\0" not in text)
HEADERS = st.dictionaries(NAMES, TEXTS | st.none(), max_size=3)
MESSAGES = st.lists(st.tuples(KEYS, VALUES, TIMES, HEADERS), min_size=1, max_size=60)
SETS = st.tuples(MESSAGES, st.integers(0, 60), st.sampled_from(sorted(NUMBERS)), st.none() | st.integers(0, 9))


#: Without shrinking, which would make topics by the hundred.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(max_examples=8, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(sets=st.lists(SETS, min_size=1, max_size=8))
def test_librdkafka_reads_what_we_wrote(
    one: Brokers, line: Line, name: Name, sets: list[tuple[list[Message], int, CodecName, int | None]]
) -> None:
    topic = one.create(name("property"))
    for messages, cut, codec, level in sets:
        made = sealed(laid_out(pieces_of(messages, cut)), Compression(codec, level, percent=1_000_000))
        assert made.codec == codec
        (done,) = line.produce(Part(topic, 0, made.pieces)).parts
        assert done.error == 0, (named(done.error), done.why)
    assert read_back(one, topic) == [message for messages, *_ in sets for message in messages]


def test_kcat_and_kafkas_own_tool_read_large_batches_of_every_codec(one: Brokers, line: Line, name: Name) -> None:
    topic = one.create(name("codecs"), len(NUMBERS))
    shapes: list[list[Message]] = [
        [(None, b"%0100d" % row, 1_700_000_000_000, {}) for row in range(9_000)],
        [(b"key %d" % (row % 7), b"v" * (row % 300), 1_700_000_000_000 - row, {}) for row in range(2_000)],
        [(None, b"v%d" % row, 1_700_000_000_000 + row // 3, {"at": str(row % 5), "no": None}) for row in range(500)],
    ]
    for codec, partition in NUMBERS.items():
        for messages in shapes:
            made = sealed(laid_out(pieces_of(messages)), Compression(codec))
            (done,) = line.produce(Part(topic, partition, made.pieces)).parts
            assert done.error == 0, (named(done.error), done.why)
    assert read_back(one, topic) == [message for messages in shapes for message in messages] * len(NUMBERS)
    for partition in NUMBERS.values():
        assert one.kcat(topic, partition) == [
            f"{'' if key is None else key.decode()}|{value.decode()}|{time}|"
            + ",".join(f"{each}={'NULL' if text is None else text}" for each, text in headers.items())
            for messages in shapes
            for key, value, time, headers in messages
        ]
    said = one.dump(topic, NUMBERS.values())
    for codec in NUMBERS:
        assert len(re.findall(rf"^baseOffset.* compresscodec: {codec} .*isvalid: true", said, re.MULTILINE)) == 3
    assert said.count("| offset:") == sum(map(len, shapes)) * len(NUMBERS)


def test_a_producer_that_counts_is_stored_once(one: Brokers, line: Line, name: Name) -> None:
    topic = one.create(name("counted"))
    me = line.producer()
    messages: list[Message] = [(None, b"%d" % row, 1, {}) for row in range(20)]
    records = laid_out(pieces_of(messages))
    first = Part(topic, 0, sealed(records, producer=me, sequence=0).pieces)
    second = Part(topic, 0, sealed(records, producer=me, sequence=20).pieces)
    gap = Part(topic, 0, sealed(records, producer=me, sequence=60).pieces)
    stranger = Part(topic, 0, sealed(records, producer=Producer(me.id, me.epoch - 1), sequence=40).pieces)
    answers = [line.produce(part).parts[0] for part in (first, first, second, first, gap, stranger)]
    assert [(CODES[each.error], each.offset) for each in answers] == [
        ("NONE", 0),
        ("NONE", 0),
        ("NONE", 20),
        ("NONE", 0),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", -1),
        ("INVALID_PRODUCER_EPOCH", -1),
    ]
    assert read_back(one, topic) == messages * 2


def test_the_simulated_kafka_judges_numbers_as_a_real_one(one: Brokers, line: Line, name: Name) -> None:
    topic = one.create(name("judged"))
    known, other = line.producer(), line.producer()
    simulated = Partition(topic, 0, 1)
    # Of one that it does not know it takes any number; then what follows, or one of the last five again.
    numbers = (
        *((known, number, 2) for number in (0, 4, 2, 4, 6, 8, 10, 12, 0, 2, 4, 12, 13)),
        (known, 12, 1),
        *((other, number, 3) for number in (30, 0, 33, 30, 31)),
    )
    for producer, number, count in numbers:
        messages: list[Message] = [(None, b"%d" % row, 1, {}) for row in range(count)]
        made = sealed(laid_out(pieces_of(messages)), producer=producer, sequence=number)
        (done,) = line.produce(Part(topic, 0, made.pieces)).parts
        records = Records(producer.id, number, tuple(value for _, value, _, _ in messages), 0)
        assert (done.error, number) == (simulated.append(records)[0], number)
    assert len(one.read(topic)) == sum(len(records.bodies) for records in simulated.log)


def test_what_a_broker_refuses_is_told_for_each_partition(one: Brokers, line: Line, name: Name) -> None:
    small, compact = one.create(name("small"), max_message_bytes=1000), one.create(name("c"), cleanup_policy="compact")
    nobody = name("nobody")
    large = sealed(laid_out(pieces_of([(None, bytes(2000), 1, {})]))).pieces
    fine = sealed(laid_out(pieces_of([(b"k", b"v", 1, {})]))).pieces
    broken = [bytes(fine[0]), bytes(fine[1])[:-1] + b"\1"]
    done = line.produce(Part(small, 0, large), Part(compact, 0, large), Part(compact, 9, fine), Part(nobody, 0, fine))
    found = {(each.topic, each.partition): each for each in done.parts}
    assert {place: CODES[each.error] for place, each in found.items()} == {
        (small, 0): "MESSAGE_TOO_LARGE",
        (compact, 0): "INVALID_RECORD",
        (compact, 9): "UNKNOWN_TOPIC_OR_PARTITION",
        (nobody, 0): "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert found[compact, 0].bad[0].row == 0
    assert "compacted topic" in found[compact, 0].bad[0].why.lower()
    (damaged,) = line.produce(Part(compact, 0, broken)).parts
    assert CODES[damaged.error] == "CORRUPT_MESSAGE"
