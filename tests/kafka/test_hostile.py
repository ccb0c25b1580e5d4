"""What a broker may say, and what it may not: garbage, half answers, and answers that lie about their size."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.kafka.exchange import ANSWER_BYTES_MAX, Api, Exchange
from penstock.kafka.opening import Opening
from penstock.kafka.versions import Unsupported, chosen
from penstock.kafka.wire import BadAnswer
from tests.kafka.answers import READERS, good, read

CHOICES = range(len(READERS))


@pytest.mark.parametrize("choice", CHOICES)
def test_an_answer_that_is_cut_anywhere_or_has_more_is_refused(choice: int) -> None:
    api, version, _ = READERS[choice]
    whole = good(api, version)
    read(choice, whole)
    for end in range(4, len(whole)):
        # What follows the list of versions is not looked at.
        if api is Api.API_VERSIONS and end >= len(whole) - 5:
            continue
        with pytest.raises(BadAnswer, match="byte "):
            read(choice, whole[:end])
    if api is not Api.API_VERSIONS:
        with pytest.raises(BadAnswer, match="1 bytes more"):
            read(choice, whole + b"\0")


@settings(max_examples=200)
@given(st.sampled_from(CHOICES), st.data())
def test_an_answer_with_anything_changed_is_read_or_refused(choice: int, data: st.DataObject) -> None:
    whole = bytearray(good(*READERS[choice][:2]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 4))] = data.draw(
            st.binary(max_size=5) | st.sampled_from([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 5])
        )
        whole = whole or bytearray(1)
    try:
        read(choice, bytes(whole))
    except PenstockError:
        pass


@pytest.mark.parametrize("choice", CHOICES)
def test_a_size_that_lies_costs_no_memory(choice: int) -> None:
    whole = good(*READERS[choice][:2])
    tracemalloc.start()
    try:
        for at in range(4, len(whole)):
            for lie in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x7f\xff"):
                try:
                    read(choice, whole[:at] + lie + whole[at + len(lie) :])
                except PenstockError:
                    pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.integers(1, 60))
def test_answers_are_the_same_however_they_arrive(bodies: list[bytes], step: int) -> None:
    stream = b"".join(struct.pack(">ii", 4 + len(body), number) + body for number, body in enumerate(bodies, 1))

    def heard(pieces: list[bytes]) -> list[tuple[int, bytes]]:
        exchange = Exchange(None)
        for _ in bodies:
            exchange.ask(Api.PRODUCE, 8, [b"question"])
        found = [answer for piece in pieces for answer in exchange.feed(piece)]
        assert not exchange.fault
        assert exchange.waiting == 0
        return [(asked.number, reader._take(reader._end - reader._at)) for asked, reader in found]

    whole = heard([stream])
    assert whole == list(enumerate(bodies, 1))
    assert heard([stream[at : at + step] for at in range(0, len(stream), step)]) == whole


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (struct.pack(">i", ANSWER_BYTES_MAX + 1), "an answer of 4194305 bytes"),
        (struct.pack(">i", -1), "an answer of -1 bytes"),
        (struct.pack(">i", 3), "an answer of 3 bytes"),
        (struct.pack(">ii", 4, 2), "answer 2, where the one to METADATA 1 was due"),
        (struct.pack(">ii", 4, 1) * 2, "answer 1 to nothing that was asked"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an answer of 1213486160 bytes"),
    ],
)
def test_a_stream_that_is_not_kafkas_ends_with_a_reason(said: bytes, why: str) -> None:
    exchange = Exchange("me")
    exchange.ask(Api.METADATA, 4, [b""])
    exchange.feed(said)
    assert why in exchange.fault
    assert exchange.feed(bytes(1_000_000)) == []
    assert exchange._have == 0


def test_a_broker_before_kafka_2_4_is_asked_again_and_one_that_is_too_old_or_too_new_is_named() -> None:
    exchange = Exchange("me")
    opening = Opening(exchange)
    opening.begin()
    ((asked, reader),) = exchange.feed(struct.pack(">iih", 6, 1, 35))
    again = b"".join(map(bytes, opening.answered(asked, reader)))
    assert again[4:8] == struct.pack(">hh", Api.API_VERSIONS, 0)
    old = struct.pack(">hi", 0, 3) + b"".join(
        struct.pack(">hhh", api, 0, newest) for api, newest in ((0, 6), (3, 6), (22, 1))
    )
    ((asked, reader),) = exchange.feed(struct.pack(">ii", 4 + len(old), 2) + old)
    assert opening.answered(asked, reader) == ()
    assert opening.versions == {Api.PRODUCE: 6, Api.METADATA: 6, Api.INIT_PRODUCER_ID: 1}
    for theirs, words in (
        ((0, 2), "versions 0 to 2 of PRODUCE"),
        ((20, 30), "versions 20 to 30"),
        ((0, -1), "none of"),
    ):
        with pytest.raises(Unsupported, match=words):
            chosen({0: theirs}, [Api.PRODUCE])
