"""The acceptance cases of M3Msg, by their numbers. Case 48 needs Spark: tests/pipeline/rollup/test_m3.py."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.dialects.m3msg.config import M3MsgConfig
from penstock.m3 import acks, entries, messages, metrics, placement
from penstock.m3.entries import Metadata
from penstock.m3.frames import FrameTooLarge
from penstock.m3.messages import MessageReader
from tests.m3 import test_frames, test_metrics, test_placement
from tests.m3msg.producer import SENT, Producer, bodies, metric, published, stored
from tests.served import Served

#: Acks that wait for as long as a test may take, unless enough of them are there.
LATE = 3600 * 10**9


def served(path: Path, **chosen: object) -> Served:
    return Served(path, m3msg=M3MsgConfig(port=0, **chosen))  # type: ignore[arg-type]


@contextlib.contextmanager
def producing(path: Path, **chosen: object) -> Iterator[tuple[Served, Producer]]:
    with served(path, **chosen) as node, Producer(node.ports["m3msg.port"]) as producer:
        yield node, producer


# --- the wire, and M3Msg in: cases 1 to 9 -----------------------------------------------------------------------------


def test_m3msg_case_1_every_vector_is_read_and_written() -> None:
    assert messages.encoded(*messages.message(test_frames.MESSAGE[4:])) == test_frames.MESSAGE
    assert messages.encoded(*messages.message(test_frames.EMPTY[4:])) == test_frames.EMPTY
    told = [entries.entry(each) for each in acks.ack(test_frames.ACK[4:])]
    assert acks.acks([told]).wire == test_frames.ACK
    said = placement.decode(test_placement.VECTOR)
    assert placement.encode(said, metadata=False) == test_placement.VECTOR
    for vector in (test_metrics.AGGREGATED, test_metrics.UNTAGGED):
        assert metrics.encode(metrics.decode(vector, 0)) == vector
    assert metrics.encode_unaggregated(metrics.decode(test_metrics.SAMPLE, 0)) == test_metrics.SAMPLE


def test_m3msg_case_2_a_message_above_the_encoders_limit_is_an_error_and_nothing_is_sent() -> None:
    with pytest.raises(FrameTooLarge):
        messages.encoded(Metadata(), b"0123456789", 4)


def test_m3msg_case_3_a_frame_above_the_decoders_limit_is_an_error_before_anything_is_held() -> None:
    reader = MessageReader(8)
    assert reader.feed(struct.pack(">I", 1 << 30)) is None
    assert (bool(reader.frames.fault), reader.frames.held) == (True, 0)


def test_m3msg_case_4_a_stream_that_ends_inside_a_frame_delivers_nothing_of_it(tmp_path: Path) -> None:
    with producing(tmp_path) as (node, producer):
        names = producer.send(metric(b"whole"))
        producer.until_acked(1)
        producer.say(struct.pack(">I", 100) + bytes(50))
        producer.sock.shutdown(1)
        assert producer.until_end() == names
        assert bodies(stored(node)) == [metric(b"whole")]
        node.until(lambda: node.node.budget.body.used == 0)


def test_m3msg_case_5_acks_leave_when_enough_are_there_in_one_frame_and_in_order(tmp_path: Path) -> None:
    with producing(tmp_path, ack_buffer_size=2, ack_flush_interval_ns=LATE) as (node, producer):
        first = producer.send(metric(b"a"))
        node.until(lambda: published(node) == 1)
        second = producer.send(metric(b"b"))
        assert producer.until_acked(2) == first + second
        (wire,) = producer.reads
        assert acks.ack(wire[4:]) == first + second


def test_m3msg_case_6_a_single_ack_leaves_after_the_flush_interval(tmp_path: Path) -> None:
    with producing(tmp_path, ack_buffer_size=100, ack_flush_interval_ns=10**6) as (_, producer):
        names = producer.send(metric())
        assert producer.until_acked(1) == names


def test_m3msg_case_7_what_may_be_acked_is_acked_when_the_node_ends(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(served(tmp_path, ack_flush_interval_ns=LATE))
        producer = stack.enter_context(Producer(node.ports["m3msg.port"]))
        names = producer.send(metric(b"a"), metric(b"b"))
        node.until(lambda: published(node) == 2)
        node.stop()
        assert producer.until_end() == names


def test_m3msg_case_8_a_producer_that_lost_its_acks_sends_again_and_is_acked(tmp_path: Path) -> None:
    with served(tmp_path, ack_buffer_size=2, ack_flush_interval_ns=LATE) as node:
        with Producer(node.ports["m3msg.port"]) as producer:
            producer.send(metric(b"a"))
            node.until(lambda: published(node) == 1)
            producer.reset()
        node.until(lambda: not node.node.served["m3msg"].running.connections)  # type: ignore[attr-defined]
        with Producer(node.ports["m3msg.port"]) as again:
            names = again.send(metric(b"a"), metric(b"b"))
            assert again.until_acked(2) == names
        assert bodies(stored(node)) == [metric(b"a"), metric(b"a"), metric(b"b")]


def test_m3msg_case_9_each_connection_gets_its_own_acks_and_no_others(tmp_path: Path) -> None:
    with producing(tmp_path, ack_flush_interval_ns=10**6) as (node, one), Producer(node.ports["m3msg.port"]) as other:
        mine = one.send(*[metric(b"one")] * 3, shard=1)
        others = other.send(*[metric(b"other")] * 2, shard=2)
        assert one.until_acked(3) == mine
        assert other.until_acked(2) == others
        assert sorted(bodies(stored(node))) == sorted([metric(b"one")] * 3 + [metric(b"other")] * 2)
        assert {name.sent_ns for name in mine} == {SENT, SENT + 1, SENT + 2}
