"""The load generator counts what its partner counts, and says so when there is none."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench import generator
from bench.asking import make_queue
from bench.ports import free_port
from penstock.dialects.m3msg.config import M3MsgConfig
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.sqs.config import SqsConfig
from tests.dory.senders import dory
from tests.served import Served

ROOT = Path(__file__).parents[2]
PUB_BYTES = len("PUB bench\n0000") + 100


def test_publisher_counts_every_reply_of_its_partner() -> None:
    port = free_port()
    sink = generator.started("sink", port=port, unit=PUB_BYTES)
    seen = generator.load("pub", port=port, count=10_000, patience=5)
    generator.finished(sink)
    assert seen.messages == 10_000


def test_consumer_finishes_every_message_of_its_partner() -> None:
    port = free_port()
    source = generator.started("source", port=port, count=10_000)
    seen = generator.load("sub", port=port, count=10_000, patience=5)
    assert generator.finished(source).messages == seen.messages == 10_000
    assert seen.redelivered == 0


def test_publisher_over_http_counts_what_the_node_stored_and_no_refusal(tmp_path: Path) -> None:
    nsq = NsqConfig(tcp_port=0, http_port=0, max_msg_size=100)
    with Served(tmp_path, nsq=nsq) as served:
        place: dict[str, str | float] = {"dialect": "http", "port": served.ports["nsq.http_port"], "topic": "t"}
        assert generator.load("wait", **place, connections=4, count=1000).messages == 1000
        assert served.do(lambda: served.node.topics["t"].published) == 1000
        with pytest.raises(generator.LoadFailed, match=r"the server answered HTTP/1\.1 413"):
            generator.load("wait", **place, count=1, size=101)


def test_a_queue_is_filled_by_tens_and_drained_to_its_last_message(tmp_path: Path) -> None:
    with Served(tmp_path, sqs=SqsConfig(port=0)) as served:
        port = served.ports["sqs.port"]
        make_queue(port, "q")
        place: dict[str, str | float] = {"dialect": "sqs", "port": port, "topic": "q", "size": 64, "connections": 4}
        assert generator.load("wait", **place, batch=10, count=100).messages == 1000
        assert served.do(lambda: served.node.topics["q"].published) == 1000
        assert generator.load("drain", **place, count=1000).messages == 1000
        assert served.do(lambda: served.node.topics["q"].subscriptions["queue"].counts()["acked"]) == 1000
        with pytest.raises(generator.LoadFailed, match="QueueDoesNotExist"):
            generator.load("wait", **{**place, "topic": "none"}, batch=10, count=1)


def test_reader_of_a_redis_stream_counts_every_entry_however_its_replies_are_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        partner = threading.Thread(target=_give_stream, args=(listener, 3_000))
        partner.start()
        port = listener.getsockname()[1]
        seen = generator.load("read", dialect="redis", port=port, topic="t", count=3_000, batch=1_000)
        partner.join()
    assert seen.messages == 3_000


def _give_stream(listener: socket.socket, entries: int) -> None:
    """Answer XREADs of 1,000 entries, in pieces that end anywhere, also behind a line."""
    line, _ = listener.accept()
    with line:
        for first in range(0, entries, 1000):
            line.recv(4096)
            ids = [b"%d-0" % (number + 1) for number in range(first, first + 1000)]
            rows = [b"*2\r\n$%d\r\n%b\r\n*2\r\n$1\r\nb\r\n$100\r\n%b\r\n" % (len(i), i, b"x" * 100) for i in ids]
            reply = b"*1\r\n*2\r\n$1\r\nt\r\n*1000\r\n" + b"".join(rows)
            cut = len(reply) - len(rows[-1])
            for piece in (reply[:7], reply[7:cut], reply[cut:]):
                line.sendall(piece)


def test_a_partner_that_is_not_there_is_an_error() -> None:
    with pytest.raises(generator.LoadFailed, match="no connection to port"):
        generator.load("pub", port=free_port(), count=1)


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(generator.LoadFailed, match="unknown key speed"):
        generator.load("pub", port=1, speed=9)


#: In a process of its own: this one may have children that live and have not said yet what they spent.
SPENDER = """
import os, resource, subprocess, sys, time
from bench import measure

def said_ns():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((children.ru_utime + children.ru_stime) * 1e9)

subprocess.run([sys.executable, "-c", "sum(range(2_000_000))"], check=True)
before_ns = said_ns()
measured_ns = measure.cpu_ns(os.getpid())
# Times of children are told in ticks, one for the user's part and one for the kernel's.
assert before_ns - 2 * measure.TICK_NS <= measured_ns <= said_ns() + 2 * measure.TICK_NS, (before_ns, measured_ns)
"""


def test_cpu_time_of_a_process_is_what_it_says_itself_and_its_ended_children_said() -> None:
    ran = subprocess.run([sys.executable, "-c", SPENDER], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_producer_of_m3msg_counts_what_the_node_stored_and_acked(tmp_path: Path) -> None:
    m3msg = M3MsgConfig(port=0, ack_flush_interval_ns=10**6)
    with Served(tmp_path, m3msg=m3msg) as served:
        port = served.ports["m3msg.port"]
        assert generator.load("pub", dialect="m3msg", port=port, count=20_000, size=100).messages == 20_000
        topic = served.do(lambda: served.node.topics["aggregated_metrics"])
        assert served.do(lambda: topic.published) == 20_000
        assert served.do(lambda: served.node.ledger.total("m3msg:unreadable")) == 0
        batch = served.do(lambda: topic.shards[0].read(topic.shards[0].start))
        assert batch is not None
        key = batch.row_value("key", 0)
        assert isinstance(key, bytes)
        assert (len(key), batch.row_value("headers", 0)) == (45, b'{"m3-storage-policy":"10s:2d"}')


def test_senders_of_dory_send_what_the_node_stores(tmp_path: Path) -> None:
    with dory(tmp_path) as node:
        for mode, path in (("datagrams", node.datagram), ("stream", node.stream)):
            sent = generator.load(mode, dialect="dory", path=path, topic=mode, count=5_000)
            assert sent.messages == 5_000
            bodies = [body for body, _ in node.until_stored(5_000, mode)]
            assert {len(body) for body in bodies} == {100}
            assert len(set(bodies)) > 1_000
        assert node.thrown() == {}


def test_a_sender_of_datagrams_is_timed_beside_a_publisher_and_nothing_is_lost(tmp_path: Path) -> None:
    with dory(tmp_path, {"nsq": NsqConfig(tcp_port=0, http_port=0)}) as node:
        port = node.served.ports["nsq.tcp_port"]
        seen = generator.load("fire", port=port, path=node.datagram, topic="t", rate=1000, seconds=0.5)
        assert seen.fired > 0
        assert seen.p999_us > 0
        assert seen.cpu_us > 0
        node.served.until(lambda: node.served.node.topics["t"].published == seen.messages + seen.fired)


def test_a_sender_of_datagrams_that_nobody_takes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(generator.LoadFailed, match="no connection to"):
        generator.load("datagrams", dialect="dory", path=str(tmp_path / "none"), count=1)
