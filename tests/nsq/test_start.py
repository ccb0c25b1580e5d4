from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import id_of
from penstock.dialects.nsq.choices import Extend, NsqChoices
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.places import Position, edges, place
from penstock.dialects.nsq.start import Start
from penstock.errors import Refusal
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.topic import Topic
from penstock.settings import TopicSettings
from tests.nsq.asking import done, post, refused, topic_of
from tests.nsq.parts import SECOND, Broker
from tests.served import Served

EXTENDS: tuple[Extend, ...] = ("on", "off", "auto")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", nsq=NsqConfig(tcp_port=0, http_port=0)) as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("special:-1", Start("special", -1)),
        ("timestamp:1700000000", Start("timestamp", 1700000000)),
        ("virtual_queue:0", Start("virtual_queue", 0)),
        ("msgcount:12", Start("msgcount", 12)),
    ],
)
def test_every_form_is_read(text: str, start: Start) -> None:
    assert Start.of(text) == start


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "special", "special:0", "special:-2", "special:", "timestamp:-1", "timestamp:x", "msgcount:--1"),
        *("msgcount:1.5", "virtual_queue:-1", "other:1", f"msgcount:{1 << 63}", "timestamp:9223372037", "msgcount:٣"),
    ],
)
def test_other_forms_are_not(text: str) -> None:
    assert Start.of(text) is None


@given(st.text(max_size=30))
def test_any_text_is_a_start_or_none(text: str) -> None:
    start = Start.of(text)
    assert start is None or (start.value >= 0 or start == Start("special", -1))


def unexpected(error: Exception) -> None:
    raise error


def found(start: Start, topic: Topic, numbers: Sequence[int] = (0,)) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    start.find(topic, numbers, out.extend, unexpected)
    return out


def publish(broker: Broker, topic: Topic, *bodies: bytes, header: bytes | None = None) -> None:
    columns = None if header is None else {"headers": [header] * len(bodies)}
    topic.publish(Rows.of(bodies, "nsq", columns), broker, lambda receipt, error: None)
    broker.clock.run()


def position(topic: Topic, offset: int) -> Position:
    return place(topic, Receipt(0, 0), id_of(0, offset))


def test_position_of_a_row_plus_its_size_is_the_next_rows(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    for extend in EXTENDS:
        topic = broker.node.create_topic(extend, NsqChoices(extend=extend).put(TopicSettings())).now()
        publish(broker, topic, b"a", b"bbb")
        publish(broker, topic, *[b"x" * number for number in range(1, 40)], header=b'{"a":"b"}')
        publish(broker, topic, b"last")
        shard = topic.shards[0]
        expected = 0
        for offset in range(shard.end):
            found = position(topic, offset)
            assert found.queue_offset == expected
            expected += found.raw_size
        assert expected == shard.weight
        assert position(topic, 0).raw_size == (30 if extend == "off" else 31) + 1
    assert position(broker.node.topics["on"], 1000).raw_size == 0


def test_byte_position_finds_its_row(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    topic = broker.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings())).now()
    for size in range(1, 60):
        publish(broker, topic, *[b"x" * size] * (size % 20 + 1))
    shard = topic.shards[0]
    for offset in range(shard.end):
        at = position(topic, offset).queue_offset
        assert found(Start("virtual_queue", at), topic) == [(0, offset)]
        assert found(Start("virtual_queue", at + 1), topic) == [(0, offset + 1)]
    assert found(Start("virtual_queue", 1 << 50), topic) == [(0, shard.end)]


def test_byte_position_on_disk_is_found_without_stopping_the_loop(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    topic = broker.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings())).now()
    for _ in range(50):
        publish(broker, topic, *[b"x" * 70] * 100)
    broker.kill()
    topic = broker.node.topics["t"]
    out: list[tuple[int, int]] = []
    Start("virtual_queue", 100 * 1234).find(topic, [0], out.extend, unexpected)
    broker.clock.run()
    assert out == [(0, 1234)]


def test_times_and_counts_find_their_row(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    topic = broker.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings())).now()
    for _ in range(10):
        publish(broker, topic, b"a", b"b")
        broker.advance(10)
    began_s = broker.node.started_ns // SECOND
    assert found(Start("timestamp", began_s), topic) == [(0, 0)]
    assert found(Start("timestamp", began_s + 11), topic) == [(0, 4)]
    assert found(Start("timestamp", began_s + 1000), topic) == [(0, 20)]
    assert found(Start("msgcount", 0), topic) == [(0, 0)]
    assert found(Start("msgcount", 7), topic) == [(0, 7)]
    assert found(Start("msgcount", 100), topic) == [(0, 20)]
    assert found(Start("special", -1), topic) == [(0, 20)]


def test_place_in_one_partition_needs_its_number(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    topic = broker.node.create_topic("t", TopicSettings(shards=2)).now()
    assert found(Start("special", -1), topic, [0, 1]) == [(0, 0), (1, 0)]
    for start in (Start("virtual_queue", 0), Start("msgcount", 0)):
        with pytest.raises(Refusal, match="partition"):
            found(start, topic, [0, 1])
        assert found(start, topic, [1]) == [(1, 0)]


def test_positions_of_a_batch_begin_with_its_weight(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    topic = broker.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings())).now()
    publish(broker, topic, b"abc")
    publish(broker, topic, b"de", b"f")
    batch = topic.shards[0].read(1)
    assert batch is not None
    assert edges(topic, 0, batch).tolist() == [33, 65, 96]


# --- over HTTP --------------------------------------------------------------------------------------------------------


def test_setoffset_moves_a_channel(served: Served) -> None:
    done(served, "/topic/create?topic=t")
    done(served, "/channel/create?topic=t&channel=ch")
    post(served, "/mpub?topic=t", b"a\nb\nc\n")
    for text, depth in (("special:-1", 0), ("msgcount:1", 2), ("virtual_queue:31", 2), ("timestamp:0\n", 3)):
        done(served, "/channel/setoffset?topic=t&channel=ch", text.encode())
        assert topic_of(served, "t")["channels"][0]["depth"] == depth


@pytest.mark.parametrize("text", [b"", b"junk", b"special:0", b"\xff", b"x" * 65, b"msgcount:" + b"9" * 200])
def test_setoffset_refuses_other_words(served: Served, text: bytes) -> None:
    done(served, "/topic/create?topic=t")
    done(served, "/channel/create?topic=t&channel=ch")
    post(served, "/pub?topic=t", b"x")
    assert refused(post(served, "/channel/setoffset?topic=t&channel=ch", text)) == (400, "INVALID_OFFSET")
    assert topic_of(served, "t")["channels"][0]["depth"] == 1


def test_setoffset_refuses_a_channel_that_stays_where_it_is(served: Served) -> None:
    done(served, "/topic/create?topic=t")
    done(served, "/channel/create?topic=t&channel=ch")
    served.do(lambda: setattr(served.node.topics["t"].subscriptions["ch"], "no_seek", "look elsewhere"))
    assert refused(post(served, "/channel/setoffset?topic=t&channel=ch", b"msgcount:0"))[0] == 409


def test_setoffset_of_one_partition(served: Served) -> None:
    served.post("topics", {"name": "t", "settings": {"shards": 2}})
    path = "/channel/setoffset?topic=t&channel=ch"
    done(served, "/channel/create?topic=t&channel=ch")
    for number in (0, 1):
        post(served, f"/mpub?topic=t&partition={number}", b"a\nb\n")
    assert refused(post(served, path, b"msgcount:1")) == (400, "BAD_REQUEST")
    done(served, f"{path}&partition=1", b"msgcount:1")
    assert topic_of(served, "t")["channels"][0]["depth"] == 3
    assert refused(post(served, f"{path}&partition=2", b"msgcount:1")) == (404, "E_TOPIC_NOT_EXIST")
    done(served, path, b"special:-1")
    assert topic_of(served, "t")["channels"][0]["depth"] == 0
