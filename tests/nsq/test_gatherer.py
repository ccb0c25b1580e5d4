"""The output buffer: who asks for a delay gets fewer and larger writes, and nobody else waits for anything."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.tcp.gatherer import joined
from penstock.settings import TopicSettings
from tests.nsq.certificates import certificates
from tests.nsq.parts import Broker, Client, Message
from tests.nsq.test_upgrade import Layered

#: Bytes of a message frame around its body.
FRAME_BYTES = 34


class Counting(Client):
    """A client that counts the writes that come to it."""

    def __init__(self, broker: Broker) -> None:
        self.writes: list[int] = []
        super().__init__(broker)
        self.send(b"  V2")

    def write(self, data: bytes) -> None:
        self.writes.append(len(memoryview(data)))
        super().write(data)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def subscribed(broker: Broker, rdy: int = 100, **identify: Any) -> Counting:
    client = Counting(broker)
    client.identify(**identify)
    client.sub("t", "ch", rdy)
    client.writes.clear()
    return client


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"output_buffer_size": 16384, "output_buffer_timeout": 250},  # what libraries send for a user who chose nothing
        {"output_buffer_size": 65536},
        {"output_buffer_size": -1},
        {"output_buffer_size": -1, "output_buffer_timeout": 1000},
        {"output_buffer_timeout": -1},
    ],
)
def test_a_lone_message_waits_for_nobody_unless_its_client_asked(broker: Broker, asked: dict[str, int]) -> None:
    client = subscribed(broker, **asked)
    broker.client().pub("t", b"hello")
    assert bodies(client.messages()) == [b"hello"]


def test_messages_are_held_for_the_time_that_was_asked_for_and_leave_together(broker: Broker) -> None:
    client = subscribed(broker, output_buffer_timeout=100)
    producer = broker.client()
    producer.pub("t", b"one")
    broker.advance(0.05)
    producer.pub("t", b"two")
    broker.advance(0.049)
    assert client.writes == []
    broker.advance(0.001)
    assert bodies(client.messages()) == [b"one", b"two"]
    assert client.writes == [2 * (FRAME_BYTES + 3)]
    producer.pub("t", b"three")  # its time begins with itself, not with a tick
    broker.advance(0.099)
    assert client.messages() == []
    broker.advance(0.001)
    assert bodies(client.messages()) == [b"three"]


def test_a_full_buffer_leaves_at_once(broker: Broker) -> None:
    client = subscribed(broker, output_buffer_size=200, output_buffer_timeout=1000)
    producer = broker.client()
    for number in range(4):
        producer.pub("t", b"x" * 16 + b"%d" % number)
        assert (client.writes == []) == (number < 3)
    assert len(client.messages()) == 4
    producer.pub("t", b"y" * 5000)
    assert bodies(client.messages()) == [b"y" * 5000]


def test_nothing_is_held_once_the_client_can_take_no_more(broker: Broker) -> None:
    client = subscribed(broker, rdy=2, output_buffer_timeout=1000)
    producer = broker.client()
    producer.pub("t", b"one")
    assert client.messages() == []
    producer.pub("t", b"two")
    messages = client.messages()
    assert bodies(messages) == [b"one", b"two"]
    client.fin(*messages)
    producer.pub("t", b"three")
    assert client.messages() == []
    client.send(b"RDY 0\n")
    assert bodies(client.messages()) == [b"three"]


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (b"CLS\n", b"CLOSE_WAIT"),
        (b"TOUCH 0123456789abcdef\n", b"E_TOUCH_FAILED TOUCH 0123456789abcdef failed ID not in flight"),
        (b"PUB u\n\0\0\0\1x", b"OK"),
    ],
)
def test_a_reply_leaves_at_once_and_overtakes_no_message(broker: Broker, command: bytes, reply: bytes) -> None:
    client = subscribed(broker, output_buffer_timeout=1000)
    broker.client().pub("t", b"held")
    client.send(command)
    frames = client.frames()
    assert [data[26:] if kind == 2 else data for kind, data in frames] == [b"held", reply]


def test_a_heartbeat_takes_what_is_held_with_it(broker: Broker) -> None:
    client = subscribed(broker, output_buffer_timeout=30_000, heartbeat_interval=1000)
    broker.client().pub("t", b"held")
    broker.advance(1)
    assert bodies(client.messages()) == [b"held"]


def test_what_is_held_for_a_client_that_leaves_goes_to_the_others(broker: Broker) -> None:
    client = subscribed(broker, output_buffer_timeout=1000)
    broker.client().pub("t", b"held")
    other = subscribed(broker)
    client.hang_up()
    assert bodies(other.messages()) == [b"held"]
    broker.advance(2)
    assert client.writes == []


class Sealed(Layered):
    """A client behind a layer that counts what comes out of it."""

    def __init__(self, broker: Broker) -> None:
        self.writes = 0
        super().__init__(broker)

    def write(self, data: Any) -> None:
        self.writes += 1
        super().write(data)


@pytest.mark.parametrize(("size", "writes"), [(0, 1), (100, 4), (-1, 8)])
def test_small_frames_of_one_turn_are_sealed_together(tmp_path: Path, size: int, writes: int) -> None:
    files = certificates()
    broker = Broker(tmp_path, tls_cert=str(files.server), tls_key=str(files.server_key))
    made = broker.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings(shards=8)))
    broker.advance(1)  # many shards are made in a thread
    made.now()
    producer = broker.client()
    for shard in range(8):
        producer.send(b"PUB t %d\n\0\0\0\1x" % shard)
    client = Sealed(broker)
    client.upgrade(tls_v1=True, output_buffer_size=size)
    client.sub("t", "ch")
    client.writes = 0
    seat = client.connection.session.seat
    assert seat is not None
    seat.set_credit(8)  # not inside a read, whose output is one write anyway
    assert len(client.messages()) == 8
    assert client.writes == writes


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=20), st.integers(1, 64))
def test_joining_changes_no_byte_and_makes_nothing_too_large(parts: list[bytes], bytes_max: int) -> None:
    pieces = [bytes(piece) for piece in joined(parts, bytes_max)]
    assert b"".join(pieces) == b"".join(parts)
    assert all(len(piece) <= bytes_max or piece in parts for piece in pieces)
    assert all(len(a) + len(b) > bytes_max for a, b in pairwise(pieces))
