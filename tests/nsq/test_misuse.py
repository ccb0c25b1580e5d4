"""Clients that do not read, do not speak or vanish: each costs little, for a while, and only itself."""

from __future__ import annotations

import gc
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tcp.server import MAGIC_TIMEOUT_NS, Connection
from penstock.dialects.nsq.tcp.session import Session
from tests.nsq.caller import Caller
from tests.nsq.certificates import certificates
from tests.nsq.parts import SECOND, Broker, Client, pub
from tests.served import Served

KIB = 1024
FILES = certificates()


class Stuck(Client):
    """A client that does not read; its transport keeps what is written, as asyncio's does, and says when it is full."""

    def __init__(self, broker: Broker) -> None:
        self.high = 0
        self.full = False
        self.reading = True
        self.most = 0
        super().__init__(broker)
        self.send(b"  V2")

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def write(self, data: bytes) -> None:
        super().write(data)
        self.most = max(self.most, len(self.out))
        if len(self.out) > self.high and not self.full:
            self.full = True
            self.connection.pause_writing()

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def read(self) -> int:
        """Read everything at last."""
        count = len(self.out)
        self.out.clear()
        if self.full:
            self.full = False
            self.connection.resume_writing()
        self.broker.clock.run()
        return count


def filled(broker: Broker, count: int = 2000, size: int = KIB) -> None:
    broker.client().mpub("t", [b"x" * size] * count)


@pytest.mark.parametrize("asked", [{}, {"output_buffer_timeout": 1000}])
def test_a_consumer_that_does_not_read_holds_a_bounded_amount(tmp_path: Path, asked: dict[str, int]) -> None:
    broker = Broker(tmp_path, max_client_output_size=64 * KIB, max_body_size=8 << 20)
    stuck = Stuck(broker)
    stuck.identify(**asked)
    stuck.sub("t", "ch", 2500)
    for _ in range(4):
        filled(broker)
    broker.advance(2)
    # One look hands out at most about 1 MiB, then the full socket is noticed.
    assert stuck.full
    assert stuck.most < 64 * KIB + (2 << 20)
    held = broker.node.topic("t").subscription("ch").in_flight()
    filled(broker)
    assert broker.node.topic("t").subscription("ch").in_flight() == held


def test_who_reads_again_in_time_goes_on_where_he_was(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_client_output_size=64 * KIB, max_body_size=8 << 20)
    stuck = Stuck(broker)
    stuck.sub("t", "ch", 2500)
    filled(broker)
    broker.advance(20)
    received = 0
    while step := stuck.read():
        received += step
    assert received >= 2000 * KIB
    stuck.send(b"NOP\n")
    broker.advance(29)
    assert not stuck.closed


def test_who_does_not_read_for_an_interval_is_cut_off_and_others_get_his_messages(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_client_output_size=64 * KIB, max_body_size=8 << 20)
    stuck = Stuck(broker)
    stuck.identify(heartbeat_interval=10_000)
    stuck.sub("t", "ch", 2500)
    filled(broker)
    for _ in range(2):
        broker.advance(9)
        stuck.send(b"NOP\n")  # it speaks, and still does not read
    broker.advance(9)
    assert stuck.closed
    assert broker.node.ledger.total("nsq:cut_off") == 1
    other = broker.client()
    other.sub("t", "ch", 2500)
    assert len(other.messages()) == 2000
    assert broker.node.topic("t").subscription("ch").in_flight() == 2000


def test_a_publisher_that_does_not_read_is_not_read_either_and_then_cut_off(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_client_output_size=64 * KIB)
    stuck = Stuck(broker)
    stuck.identify(heartbeat_interval=1000)
    sent = 0
    while stuck.is_reading():
        stuck.send(pub("t", b"x") * 1000)
        sent += 1000
    assert 64 * KIB < stuck.most < 80 * KIB
    stuck.read()
    assert stuck.is_reading()
    while stuck.is_reading():
        stuck.send(pub("t", b"x") * 1000)
        sent += 1000
    broker.advance(2)
    assert stuck.closed
    assert broker.node.topic("t").published == sent


def test_a_consumer_that_asks_for_errors_and_does_not_read_them_goes(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_client_output_size=64 * KIB)
    stuck = Stuck(broker)
    stuck.sub("t", "ch", 1)
    while not stuck.closed:
        stuck.send(b"TOUCH 0123456789abcdef\n" * 1000)
        assert stuck.most < 5 * 64 * KIB
    assert broker.node.ledger.total("nsq:cut_off") == 1
    assert not broker.server.connections


@pytest.mark.parametrize("first", [b"", b" ", b"  V"])
def test_half_a_greeting_is_cut_off_after_a_minute_whatever_the_heartbeat(tmp_path: Path, first: bytes) -> None:
    broker = Broker(tmp_path, heartbeat_interval_ns=45 * SECOND)
    client = broker.client(magic=False)
    if first:
        client.send(first)
    broker.advance(59)
    assert not client.closed
    broker.advance(MAGIC_TIMEOUT_NS / SECOND - 59)
    assert len(broker.server.connections) == 0
    assert client.closed


@pytest.mark.parametrize("first", [b"P", b"PUB t\n\0\0\0\5he", b"IDENTIFY\n\0\0"])
def test_half_a_command_is_cut_off_after_two_heartbeats(tmp_path: Path, first: bytes) -> None:
    broker = Broker(tmp_path, heartbeat_interval_ns=10 * SECOND)
    client = broker.client()
    client.send(first)
    broker.advance(19)
    assert not client.closed
    broker.advance(1)
    assert len(broker.server.connections) == 0
    assert broker.node.bugs == 0
    assert client.closed


def test_one_byte_of_a_handshake_is_cut_off_at_its_deadline(tmp_path: Path) -> None:
    broker = Broker(tmp_path, tls_cert=str(FILES.server), tls_key=str(FILES.server_key))
    client = broker.client()
    client.identify(tls_v1=True)
    client.send(b"\x16")
    broker.advance(4.9)
    client.send(b"\x03")  # slow is no better than silent
    assert not client.closed
    broker.advance(0.2)
    assert client.closed


# --- on real sockets ----------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    # The clock of a real socket cannot be set forward, so the interval is a short one.
    nsq = NsqConfig(
        tcp_port=0,
        http_port=0,
        max_client_output_size=64 * KIB,
        max_body_size=8 << 20,
        heartbeat_interval_ns=SECOND // 5,
    )
    with Served(tmp_path, nsq=nsq) as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0


def held() -> list[Connection | Session]:
    """Return the connections and sessions that are still held by anybody."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) in (Connection, Session)]


def since(before: list[Connection | Session]) -> int:
    """Return how many are held that were not before: a test that failed keeps its own in what is told of it."""
    return sum(all(one is not other for other in before) for one in held())


def test_a_real_socket_that_nobody_reads_is_bounded_then_closed(served: Served) -> None:
    with Caller(served.tcp_port) as consumer, Caller(served.tcp_port) as producer:
        producer.identify(heartbeat_interval=-1)
        consumer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        consumer.identify(heartbeat_interval=3000)
        consumer.send(b"SUB t ch\nRDY 2500\n")
        assert consumer.told() == "OK"
        subscription = served.node.topics["t"].subscriptions["ch"]
        open_ = served.nsq_running.server.connections
        (connection,) = served.do(lambda: [one for one in open_ if one.session.seat is not None])
        transport: Any = connection._transport
        items = (struct.pack(">I", 4096) + b"x" * 4096) * 1500
        most = 0
        for _ in range(3):
            producer.send(b"MPUB t\n" + struct.pack(">II", len(items) + 4, 1500) + items)
            assert producer.told() == "OK"
            most = max(most, served.do(transport.get_write_buffer_size))
        assert 0 < most < 64 * KIB + (2 << 20)
        del connection, transport
        # It says that it lives and still does not read: it has one interval to begin.
        closed = False
        while not closed:
            try:
                consumer.send(b"NOP\n")
            except OSError:
                closed = True
            closed = closed or not served.do(lambda: len(subscription.seats))
        assert served.do(subscription.in_flight) == 0
        assert served.do(lambda: served.node.ledger.total("nsq:cut_off")) == 1


def test_one_byte_on_a_real_socket_is_cut_off_at_the_deadline(served: Served) -> None:
    before = held()
    with Caller(served.tcp_port, magic=False) as client:
        client.send(b" ")
        assert client.ended()
        served.until(lambda: since(before) == 0)


@pytest.mark.parametrize("said", [b"", b" ", b"  V2", b"  V2SUB t ch\nRDY 5\n", b"  V2PUB t\n\0\0\0\5he"])
def test_connections_that_are_reset_leave_nothing_behind(served: Served, said: bytes) -> None:
    before, files = held(), len(os.listdir("/proc/self/fd"))
    for _ in range(400):
        client = Caller(served.tcp_port, magic=False)
        if said:
            client.send(said)
        client.reset()
    served.until(lambda: len(os.listdir("/proc/self/fd")) <= files + 2)
    served.until(lambda: since(before) == 0)
    topic = served.node.topics.get("t")
    if topic is not None and "ch" in topic.subscriptions:
        assert served.do(lambda: len(topic.subscriptions["ch"].seats)) == 0
        assert served.do(lambda: len(topic.subscriptions["ch"].dealer.line)) < 5
