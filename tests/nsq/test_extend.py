"""NSQ with headers: Youzan's commands, who may publish and subscribe what, traces, places in the queue, raw ids."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.dialects.nsq import codec
from penstock.dialects.nsq.choices import NsqChoices
from penstock.keyed import shard_of
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.nsq.parts import Broker, Client, Extended, dpub, mpub_ext, mpub_trace, pub, pub_ext, pub_trace, sized

TAG = {"##client_dispatch_tag": "tagA"}


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def extending(broker: Broker, command: str = "SUB t ch", rdy: int = 100, **identify: Any) -> Client:
    client = broker.client()
    client.identify(extend_support=True, **identify)
    client.send(command.encode() + b"\n")
    assert client.replies() == ["OK"]
    client.send(b"RDY %d\n" % rdy)
    return client


def make(broker: Broker, extend: str, name: str = "t", shards: int = 1) -> None:
    broker.node.create_topic(name, NsqChoices(extend=extend).put(TopicSettings(shards=shards))).now()  # type: ignore[arg-type]


def upgrade(broker: Broker, name: str = "t") -> None:
    topic = broker.node.topic(name)
    topic.update(NsqChoices(extend="on").put(topic.settings)).now()


def test_a_header_comes_out_as_it_went_in_with_raw_ids(broker: Broker) -> None:
    producer = broker.client()
    assert producer.pub_ext("t 0", b'{ "a" : "b" }', b"hi") == ["OK"]
    (message,) = extending(broker).extended()
    assert (message.version, message.header, message.body) == (4, b'{ "a" : "b" }', b"hi")
    assert (message.number, message.trace, message.attempts) == (1, 0, 1)


def test_topics_made_by_commands_take_headers_or_do_not(broker: Broker) -> None:
    client = broker.client()
    client.send(pub("a", b"x") + pub_ext("b", {}, b"x") + b"INTERNAL_CREATE_TOPIC c 2 true\n")
    client.send(b"INTERNAL_CREATE_TOPIC d 0\n" + pub_trace("e", 1, b"x") + mpub_ext("f", [({}, b"x")]))
    assert len(client.frames()) == 6
    extending(broker, "SUB g ch")
    topics = broker.node.topics
    assert {name: topic.chosen.of(NsqChoices).extend for name, topic in topics.items()} == {
        **dict.fromkeys("ade", "off"),
        **dict.fromkeys("bcfg", "on"),
    }
    assert topics["c"].settings.shards == 3


def test_creating_a_topic_again_with_a_partition_it_does_not_have_adds_it(broker: Broker) -> None:
    client = broker.client()
    client.send(b"INTERNAL_CREATE_TOPIC t 0\nINTERNAL_CREATE_TOPIC t 0 true\nINTERNAL_CREATE_TOPIC t 1\nNOP\n")
    assert client.replies() == ["OK", "OK", "OK"]
    assert broker.node.topic("t").settings.shards == 2
    reader = broker.client()
    reader.send(b"SUB t ch 1\nRDY 5\n")
    assert reader.replies() == ["OK"]
    client.send(b"INTERNAL_CREATE_TOPIC t 0\nPUB t 1\n" + (1).to_bytes(4, "big") + b"x")
    assert client.replies() == ["OK", "OK"]
    assert [message.body for message in reader.messages()] == [b"x"]
    assert broker.node.topic("t").settings.shards == 2


def test_partition_that_cannot_be_added_is_refused_and_the_connection_lives(broker: Broker) -> None:
    client = broker.client()
    client.send(b"INTERNAL_CREATE_TOPIC t 0\nINTERNAL_CREATE_TOPIC t 0 maybe\n")
    assert client.replies()[1].startswith("E_BAD_EXT ")
    client = broker.client()
    broker.node.topic("t").intake.hold()  # somebody else is adding some, and the registry has not answered yet
    client.send(b"INTERNAL_CREATE_TOPIC t 1\nNOP\n")
    (reply,) = client.replies()
    assert reply.startswith("E_CREATE_TOPIC_FAILED INTERNAL_CREATE_TOPIC topic t is getting more shards already")
    assert not client.closed


@pytest.mark.parametrize(
    "command", [b"PUB t 1024\n", b"PUB_EXT t x\n", b"MPUB t 1.5\n", b"SUB t ch 1024\n", b"SUB t ch -2\n"]
)
def test_a_partition_that_is_none_is_refused(broker: Broker, command: bytes) -> None:
    client = broker.client()
    client.send(command)
    assert client.replies()[0].startswith("E_BAD_PARTITION ")
    assert client.closed


def test_a_partition_the_topic_does_not_have_is_refused(broker: Broker) -> None:
    commands = (pub("%s 1", b"x"), pub_ext("%s 1", {}, b"x"), b"SUB %s ch 1\n", b"SUB_ADVANCED %s ch 1\n")
    for topic in (b"t", b"there"):
        for data in commands:
            client = broker.client()
            client.send(data.replace(b"%s", topic))
            # On this code, and on no other, Youzan's clients drop the node and look the topic up again.
            assert client.replies()[0].startswith("E_TOPIC_NOT_EXIST ")
            assert client.closed
        assert "t" not in broker.node.topics
        broker.node.obtain("there").now()


def test_a_publish_goes_to_the_partition_it_names(broker: Broker) -> None:
    make(broker, "on", shards=3)
    client = broker.client()
    client.send(pub("t 2", b"x") + pub_ext("t 1", {}, b"y") + pub("t -1", b"z") + mpub_ext("t 2", [({}, b"w")]))
    assert client.replies() == ["OK"] * 4
    ends = [shard.end for shard in broker.node.topic("t").shards]
    assert (ends[1] >= 1, ends[2] >= 2, sum(ends)) == (True, True, 4)


# --- who may subscribe ------------------------------------------------------------------------------------------------


def test_nsq_case_43_a_tag_means_nothing_on_a_normal_topic(broker: Broker) -> None:
    client = broker.client()
    client.identify(desired_tag="TAG")
    client.sub("t", "ch", 10)
    broker.client().pub("t", b"a", b"b")
    assert [message.body for message in client.messages()] == [b"a", b"b"]
    assert client.connection.session.seat is not None
    assert client.connection.session.seat.tag == ""


def test_nsq_case_44_a_tag_of_101_bytes(broker: Broker) -> None:
    client = broker.client()
    assert client.identify(desired_tag="x" * 100)["desired_tag"] == "x" * 100
    reply = client.identify(desired_tag="x" * 101)
    assert reply.startswith("E_BAD_BODY IDENTIFY desired tag")
    assert client.closed


def test_nsq_case_45_a_topic_is_upgraded_while_it_is_consumed(broker: Broker) -> None:
    old = broker.client()
    old.sub("t", "ch", 1)
    broker.client().pub("t", b"1", b"2", b"3")
    (first,) = old.messages()
    old.fin(first)
    (second,) = old.messages()
    upgrade(broker)
    assert old.frames() == []
    old.fin(second)
    (code,) = old.replies()
    assert code.startswith("E_SUB_EXTEND_NEED ")
    assert old.closed
    again = broker.client()
    again.send(b"SUB t ch\n")
    assert again.replies()[0].startswith("E_SUB_EXTEND_NEED ")
    assert again.closed
    assert broker.client().pub_ext("t", {"a": "b"}, b"4") == ["OK"]
    messages = extending(broker).extended()
    assert sorted((m.body, m.version, m.header) for m in messages) == [(b"3", 0, b""), (b"4", 4, b'{"a":"b"}')]
    assert all(1 <= m.attempts <= 4000 for m in messages)


def test_places_in_the_queue_go_on_across_an_upgrade_and_a_restart(broker: Broker) -> None:
    producer = broker.client()
    producer.pub("t", b"1", b"22")
    upgrade(broker)
    producer.pub_ext("t", {"a": "b"}, b"333")
    producer.pub("t", b"4444")
    broker.advance(5)
    broker.kill()
    broker.client().pub("t", b"5")
    messages = extending(broker, "SUB_ADVANCED t ch").extended(detailed=True)
    assert [m.raw_size for m in messages] == [31, 32, 33 + 9 + 3, 31 + 4, 31 + 1]
    assert_contiguous(messages)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("waited", [False, True])
def test_rows_from_before_an_upgrade_weigh_the_same_after_a_crash(
    broker: Broker, published: bool, waited: bool
) -> None:
    producer = broker.client()
    producer.pub("t", b"1", b"22")
    upgrade(broker)
    if published:
        producer.pub_ext("t", {"a": "b"}, b"333")
    if waited:
        broker.advance(5)
    before = 31 + 32 + (33 + 9 + 3 if published else 0)
    for _ in range(2):
        broker.kill()
        producer = broker.client()
        producer.send(pub_trace("t", 7, b"4444"))
        ((_, reply),) = producer.frames()
        assert struct.unpack(">2xQQQI", reply)[2:] == (before, 31 + 4)
        before += 31 + 4


def test_an_upgrade_cannot_be_taken_back(broker: Broker) -> None:
    make(broker, "off")
    upgrade(broker)
    topic = broker.node.topic("t")
    with pytest.raises(Exception, match="for good"):
        topic.update(NsqChoices(extend="off").put(topic.settings)).now()


def test_a_client_of_the_extension_may_not_read_a_normal_topic(tmp_path: Path) -> None:
    broker = Broker(tmp_path, allow_sub_ext_compatible=True)
    make(broker, "off")
    client = broker.client()
    client.identify(extend_support=True)
    client.send(b"SUB t ch\n")
    assert client.replies()[0].startswith("E_SUB_EXTEND_FORBIDDON ")
    assert client.closed


def test_a_plain_client_reads_an_extend_topic_where_that_is_allowed(tmp_path: Path) -> None:
    broker = Broker(tmp_path, allow_sub_ext_compatible=True)
    make(broker, "on")
    client = broker.client()
    client.identify(desired_tag="tagA")
    client.sub("t", "ch", 10)
    broker.client().pub_ext("t", TAG, b"mine")
    broker.client().pub_ext("t", {}, b"other")
    (message,) = client.messages()
    assert (message.body, len(message.id.decode())) == (b"mine", 16)
    assert codec.hex_id(message.id) == 1


def test_both_kinds_of_clients_read_an_auto_topic(broker: Broker) -> None:
    make(broker, "auto")
    plain, extended = broker.client(), extending(broker, "SUB t other")
    plain.sub("t", "ch", 10)
    broker.client().pub_ext("t", {"a": "b"}, b"x")
    assert [m.body for m in plain.messages()] == [b"x"]
    assert [(m.body, m.header) for m in extended.extended()] == [(b"x", b'{"a":"b"}')]


# --- who may publish --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compatible", [True, False])
def test_nsq_case_46_headers_to_a_normal_topic(tmp_path: Path, compatible: bool) -> None:
    broker = Broker(tmp_path, allow_ext_compatible=compatible)
    make(broker, "off")
    producer = broker.client()
    replies = [producer.pub_ext("t", header)[0] for header in ({"##trace_id": "123"}, TAG, {}, {"custom": "x"})]
    if compatible:
        assert replies[0].startswith("OK")
        assert len(replies[0]) == 30
        assert replies[1:3] == ["OK", "OK"]
        assert replies[3].startswith("E_EXT_NOT_SUPPORT ")
    else:
        assert all(reply.startswith("E_EXT_NOT_SUPPORT ") for reply in replies)
    assert not producer.closed
    consumer = broker.client()
    consumer.sub("t", "ch", 10)
    assert len(consumer.messages()) == (3 if compatible else 0)


def test_nsq_case_47_a_traced_publish(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_msg_size=100)
    client = broker.client()
    client.send(pub_trace("t", 123, b"12345") + pub_trace("t", 0, b"x"))
    (_, first), (_, second) = client.frames()
    assert first == b"OK" + struct.pack(">QQQI", 1, 123, 0, 35)
    assert second == b"OK" + struct.pack(">QQQI", 2, 0, 35, 31)
    client.send(pub_trace("t", 1, b"x" * 105))
    assert client.replies() == ["E_BAD_MESSAGE PUB_TRACE message too big 113 > 100"]
    assert client.closed


@pytest.mark.parametrize("count", [3, 300])
def test_every_traced_publish_of_a_run_is_told_its_own_place(broker: Broker, count: int) -> None:
    producer = broker.client()
    traced = [n % 3 != 0 for n in range(count)]
    headers = [{"##trace_id": str(n)} if is_traced else {"n": str(n)} for n, is_traced in enumerate(traced)]
    producer.send(b"".join(pub_ext("t", header, b"x" * (n % 7 + 1)) for n, header in enumerate(headers)))
    replies = [data for _, data in producer.frames()]
    assert [len(reply) == 30 for reply in replies] == traced
    messages = extending(broker, "SUB_ADVANCED t ch", rdy=2500).extended(detailed=True)
    assert_contiguous(messages)
    for n, (reply, message) in enumerate(zip(replies, messages, strict=True)):
        if traced[n]:
            told = struct.unpack_from(">QQQI", reply, 2)
            assert told == (message.number, n, message.queue_offset, message.raw_size)


def test_mpub_trace_tells_where_the_first_went_and_what_all_weigh(broker: Broker) -> None:
    client = broker.client()
    client.send(pub("t", b"1234567890") + mpub_trace("t", [(7, b"a"), (8, b"bb")]))
    _, (_, reply) = client.frames()
    assert reply == b"OK" + struct.pack(">QQQI", 2, 0, 40, 31 + 32)
    consumer = broker.client()
    consumer.send(b"SUB_ADVANCED t ch\nRDY 10\n")
    assert consumer.frames()[0] == (0, b"OK")
    consumer.hang_up()
    consumer = broker.client()
    consumer.send(b"SUB_ADVANCED t ch\n")
    assert consumer.replies() == ["OK"]
    consumer.send(b"RDY 10\n")
    assert [m.trace for m in consumer.extended(extended=False, detailed=True)] == [0, 7, 8]


@pytest.mark.parametrize("count", [4, 120])
def test_nsq_case_48_many_messages_with_their_own_headers(broker: Broker, count: int) -> None:
    items = [(b"" if n % 4 == 0 else b'{"n":"%d"}' % n, b"body %d" % n) for n in range(count)]
    producer = broker.client()
    producer.send(mpub_ext("t", items))
    assert producer.replies() == ["OK"]
    messages = extending(broker, rdy=2500).extended()
    assert [(m.header, m.body) for m in messages] == items
    assert [m.version for m in messages] == [4 if header else 0 for header, _ in items]


def test_nsq_case_50_a_header_filter_means_nothing_on_a_normal_topic(broker: Broker) -> None:
    client = broker.client()
    client.identify(ext_filter={"type": 1, "filter_ext_key": "a", "filter_data": "b"})
    client.sub("t", "ch", 10)
    broker.client().pub("t", b"x")
    assert len(client.messages()) == 1


def test_a_header_filter_finishes_what_it_refuses(broker: Broker) -> None:
    client = extending(broker, ext_filter={"type": 1, "filter_ext_key": "a", "filter_data": "b"})
    inverse = extending(
        broker, "SUB t other", ext_filter={"type": 1, "filter_ext_key": "a", "filter_data": "b", "inverse": True}
    )
    producer = broker.client()
    for n in range(40):
        producer.send(pub_ext("t", {"a": "b" if n % 4 == 0 else "c"}, b"%d" % n))
    producer.pub("t", b"plain")
    assert [m.body for m in client.extended()] == [b"%d" % n for n in range(0, 40, 4)]
    assert [m.body for m in inverse.extended()] == [*(b"%d" % n for n in range(40) if n % 4), b"plain"]
    assert broker.node.topic("t").subscription("ch").depth() == 0


def test_a_header_filter_that_cannot_work_is_refused(broker: Broker) -> None:
    client = broker.client()
    reply = client.identify(ext_filter={"type": 2, "filter_ext_key": "a", "filter_data": "("})
    assert reply.startswith("E_BAD_BODY IDENTIFY ext_filter is invalid")
    assert client.closed


def test_nsq_case_57_headers_that_break_the_rules(tmp_path: Path) -> None:
    bad: list[Any] = [{"##client_dispatch_tag": 5}, {"a b": "x"}]
    producer = (strict := Broker(tmp_path / "strict")).client()
    for header in (*bad, b"[]", b"{", b'"x"'):
        assert producer.pub_ext("t", header)[0].startswith("E_INVALID_JSON_HEADER PUB_EXT ")
    assert not producer.closed
    assert strict.node.topic("t").published == 0
    lenient = Broker(tmp_path / "lenient", header_rules="lenient")
    producer = lenient.client()
    assert [producer.pub_ext("t", header)[0] for header in bad] == ["OK", "OK"]
    assert producer.pub_ext("t", b"[]")[0].startswith("E_INVALID_JSON_HEADER ")
    tagged = extending(lenient, desired_tag="5")
    assert tagged.extended() == []
    assert len(extending(lenient).extended()) == 2


def test_a_topic_may_have_its_own_rules_for_headers(broker: Broker) -> None:
    broker.node.create_topic("t", NsqChoices(extend="on", header_rules="lenient").put(TopicSettings())).now()
    producer = broker.client()
    assert producer.pub_ext("t", {"a b": 5}) == ["OK"]
    assert producer.pub_ext("u", {"a b": 5})[0].startswith("E_INVALID_JSON_HEADER ")


def test_traced_publishes_with_keys_are_told_their_places_in_their_partitions(broker: Broker) -> None:
    make(broker, "on", shards=3)
    producer = broker.client()
    headers = [{"##trace_id": str(n), "##key": f"key {n}"} for n in range(40)]
    producer.send(b"".join(pub_ext("t", header, b"x" * (n + 1)) for n, header in enumerate(headers)))
    told = {struct.unpack_from(">QQQI", data, 2) for _, data in producer.frames()}
    messages = extending(broker, "SUB_ADVANCED t ch").extended(detailed=True)
    assert {(m.number, m.trace, m.queue_offset, m.raw_size) for m in messages} == told
    assert len({m.number >> 48 for m in messages}) == 3


def test_a_wrong_trace_id_is_told_first(broker: Broker) -> None:
    producer = broker.client()
    for trace in (5, "x", "-1", "18446744073709551616"):
        assert producer.pub_ext("t", {"##trace_id": trace, "a b": 1})[0].startswith("INVALID_TRACE_ID PUB_EXT ")
    assert producer.pub_ext("t", {"##trace_id": "", "a": "b"}) == ["OK"]
    assert not producer.closed
    (message,) = extending(broker).extended()
    assert message.header == b'{"a":"b"}'


@pytest.mark.parametrize("count", [5, 200])
def test_bad_headers_in_a_run_are_told_in_order_with_the_others(broker: Broker, count: int) -> None:
    producer = broker.client()
    bad = {1, 2, count - 1}
    commands = [pub_ext("t", b"[]" if n in bad else {"n": str(n)}, b"%d" % n) for n in range(count)]
    producer.send(b"".join(commands) + pub("t", b"last"))
    replies = producer.replies()
    assert [reply == "OK" for reply in replies] == [n not in bad for n in range(count)] + [True]
    assert [m.body for m in extending(broker, rdy=2500).extended()] == [
        *(b"%d" % n for n in range(count) if n not in bad),
        b"last",
    ]


def test_nsq_case_61_the_stream_stays_in_step_after_a_bad_header(broker: Broker) -> None:
    producer = broker.client()
    producer.send(mpub_ext("t", [(b"nonsense", b"a"), ({}, b"b")]) + pub("t", b"c"))
    first, second = producer.replies()
    assert first.startswith("E_INVALID_JSON_HEADER MPUB_EXT ")
    assert second == "OK"
    assert broker.node.topic("t").published == 1


@pytest.mark.parametrize(
    "data",
    [
        b"PUB_EXT t\n" + sized(struct.pack(">H", 2) + b"{}"),
        b"PUB_EXT t\n" + sized(b"\0\0"),
        b"PUB_EXT t\n" + sized(b"x"),
        b"PUB_EXT t\n" + sized(b""),
        b"PUB_EXT t\n" + sized(struct.pack(">H", 500) + b"{}"),
        b"PUB_TRACE t\n" + sized(b"12345678"),
        b"MPUB_EXT t\n" + sized(struct.pack(">I", 1) + sized(struct.pack(">H", 9) + b"{}")),
        b"MPUB_TRACE t\n" + sized(struct.pack(">I", 1) + sized(b"1234")),
    ],
)
def test_a_body_that_ends_too_soon_is_fatal(broker: Broker, data: bytes) -> None:
    client = broker.client()
    client.send(pub_ext("t", {}, b"good") + data)
    first, second = client.replies()
    assert first == "OK"
    assert second.startswith("E_BAD_BODY ")
    assert client.closed


def test_reserved_headers_fill_their_columns(broker: Broker) -> None:
    producer = broker.client()
    due_ms = broker.clock.now() // 1_000_000 + 5_000
    header = {"##key": "k", "##due_ms": str(due_ms), "##dedup": "once", "##traffic_types": "3"}
    assert producer.pub_ext("t", header) == ["OK"]
    assert producer.pub_ext("t", header) == ["OK"]
    consumer = extending(broker)
    assert consumer.extended() == []
    broker.advance(5)
    assert [m.header for m in consumer.extended()] == [msgspec.json.encode(header)]


def test_a_header_with_a_due_time_beyond_the_limit_costs_its_own_message_alone(broker: Broker) -> None:
    broker.node.create_topic("t", TopicSettings(max_due_ns=60_000_000_000)).now()
    producer = broker.client()
    far = {"##due_ms": str(broker.clock.now() // 1_000_000 + 61_000)}
    producer.send(pub_ext("t", {}, b"one") + pub_ext("t", far, b"two") + pub_ext("t", {}, b"three"))
    first, second, third = producer.replies()
    assert (first, third, producer.closed) == ("OK", "OK", False)
    assert second.startswith("E_INVALID PUB_EXT a message is due at ")
    assert [m.body for m in extending(broker).extended()] == [b"one", b"three"]


def test_a_repeated_message_is_told_the_place_of_the_first(broker: Broker) -> None:
    producer = broker.client()
    header = {"##trace_id": "9", "##dedup": "once"}
    first, second = producer.pub_ext("t", header), producer.pub_ext("t", header)
    assert len(first[0]) == 30
    assert first == second


# --- places, order, raw ids -------------------------------------------------------------------------------------------


def assert_contiguous(messages: list[Extended]) -> None:
    for one, other in pairwise(messages):
        assert other.queue_offset == one.queue_offset + one.raw_size


@pytest.mark.parametrize("word", ["SUB t ch", "SUB_ADVANCED t ch 0", "SUB t ch 0"])
def test_a_topic_that_keeps_its_order_must_be_asked_for_it(tmp_path: Path, word: str) -> None:
    broker = Broker(tmp_path)
    broker.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings(ordered=True))).now()
    client = broker.client()
    client.send(word.encode() + b"\n")
    name = word.split()[0]
    assert client.replies() == [f"E_SUB_ORDER_IS_MUST {name} t keeps its order; use SUB_ORDERED"]
    assert client.closed
    assert broker.node.topic("t").subscriptions == {}


def test_a_topic_that_keeps_its_order_is_read_in_order_by_everybody(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    topic = broker.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings(ordered=True))).now()
    client = broker.client()
    client.send(b"SUB_ORDERED t ch 0\nRDY 5\n")
    assert client.replies() == ["OK"]
    assert topic.subscribe("other").now().settings.order == "shard"
    broker.kill()
    assert broker.node.topic("t").settings.ordered
    client = broker.client()
    client.send(b"SUB_ORDERED t ch 0\nRDY 5\n")
    assert client.replies() == ["OK"]
    broker.client().pub("t", b"a", b"b")
    assert [message.body for message in client.extended(extended=False, detailed=True)] == [b"a"]


def test_nsq_case_52_ordered_messages_stand_one_after_the_other(broker: Broker) -> None:
    producer = broker.client()
    bodies = [b"x" * (n % 13 + 1) for n in range(100)]
    producer.send(b"".join(pub_ext("t", {"n": str(n)}, body) for n, body in enumerate(bodies)))
    assert producer.replies() == ["OK"] * 100
    got: list[Extended] = []
    consumer = extending(broker, "SUB_ORDERED t ch 0", rdy=10)
    while len(got) < 100:
        (message,) = consumer.extended(detailed=True)
        got.append(message)
        if len(got) == 50:
            consumer.hang_up()
            consumer = extending(broker, "SUB_ORDERED t ch 0", rdy=10)
            (again,) = consumer.extended(detailed=True)
            assert (again.number, again.attempts) == (message.number, 2)
        consumer.fin(message)
    assert [m.body for m in got] == bodies
    assert_contiguous(got)


def test_ordered_messages_cannot_be_sampled(broker: Broker) -> None:
    client = broker.client()
    client.identify(sample_rate=10)
    client.send(b"SUB_ORDERED t ch 0\n")
    assert client.replies() == ["E_INVALID SUB_ORDERED cannot be used with sample_rate"]


def test_details_come_on_normal_topics_too(broker: Broker) -> None:
    broker.client().pub("t", b"a", b"bb")
    client = broker.client()
    client.send(b"SUB_ADVANCED t ch -1\n")
    assert client.replies() == ["OK"]
    client.send(b"RDY 5\n")
    messages = client.extended(extended=False, detailed=True)
    assert [(m.queue_offset, m.raw_size, m.body) for m in messages] == [(0, 31, b"a"), (31, 32, b"bb")]


@pytest.mark.parametrize(
    ("start", "left"),
    [
        ("special:-1", []),
        ("virtual_queue:62", [2, 3]),
        ("msgcount:3", [3]),
        ("timestamp:1700000001", [2, 3]),
        ("timestamp:0", [0, 1, 2, 3]),
    ],
)
def test_a_channel_begins_where_its_only_client_asks(broker: Broker, start: str, left: list[int]) -> None:
    producer = broker.client()
    producer.pub("t", b"0", b"1")
    broker.advance(2)
    producer.pub("t", b"2", b"3")
    client = broker.client()
    client.send(f"SUB_ADVANCED t ch 0 {start}\nRDY 10\n".encode())
    frames = client.frames()
    assert frames[0] == (0, b"OK")
    assert [data[38:] for _, data in frames[1:]] == [b"%d" % n for n in left]
    other = broker.client()
    other.send(b"SUB_ADVANCED t ch 0 msgcount:0\nRDY 10\n")
    assert other.frames() == [(0, b"OK")]


def test_a_channel_that_stays_where_it_is_begins_nowhere_else(broker: Broker) -> None:
    broker.client().pub("t", b"0")
    broker.node.topics["t"].subscribe("ch").now().no_seek = "look elsewhere"
    client = broker.client()
    client.send(b"SUB_ADVANCED t ch 0 msgcount:0\n")
    assert client.replies() == ["E_INVALID SUB_ADVANCED failed subscription ch stays where it is: look elsewhere"]


@pytest.mark.parametrize("start", ["special:-2", "nonsense", "timestamp:", "timestamp:x", "special:", "offset:5"])
def test_a_start_that_says_nothing_is_refused(broker: Broker, start: str) -> None:
    client = broker.client()
    client.send(f"SUB_ADVANCED t ch 0 {start}\n".encode())
    assert client.replies()[0].startswith("E_INVALID SUB_ADVANCED start ")


def test_nsq_case_58_a_raw_id_may_hold_a_newline_and_a_space(broker: Broker) -> None:
    producer = broker.client()
    for n in range(40):
        producer.send(pub_trace("t", 0x200A200A0A0A2020 + n, b"%d" % n))
    consumer = broker.client()
    consumer.send(b"SUB_ADVANCED t ch\n")
    assert consumer.replies() == ["OK"]
    consumer.send(b"RDY 100\n")
    messages = consumer.extended(extended=False, detailed=True)
    ten = messages[9]
    assert ten.number == 10
    assert b"\n" in ten.id
    consumer.fin(ten)
    assert consumer.frames() == []
    consumer.fin(ten)
    assert consumer.replies() == ["E_FIN_FAILED FIN 000000000000000a failed ID not in flight"]
    consumer.send(b"TOUCH " + messages[0].id + b"\nREQ " + messages[0].id + b" 0\n")
    (again,) = consumer.extended(extended=False, detailed=True)
    assert (again.number, again.attempts) == (1, 2)
    consumer.fin(again, *messages[1:9], *messages[10:])
    assert consumer.frames() == []
    assert broker.node.topic("t").subscription("ch").counts()["acked"] == 40


def test_commands_sent_behind_sub_are_read_in_its_form(broker: Broker) -> None:
    producer = broker.client()
    producer.pub("t", *(b"%d" % n for n in range(12)))
    stream = b"SUB_ADVANCED t ch\nRDY 20\nFIN " + struct.pack(">QQ", 10, 32) + b"\nNOP\n"
    together, apart = broker.client(), broker.client()
    together.send(stream)
    together.hang_up()
    for at in range(len(stream)):
        apart.send(stream[at : at + 1])
    frames = apart.frames()
    assert len([1 for kind, _ in frames if kind == 2]) == 12
    assert broker.node.topic("t").subscription("ch").counts()["acked"] == 1
    assert not apart.closed


@pytest.mark.parametrize(
    "data", [b"FIN " + bytes(16) + b"\n", b"FIN " + b"x" * 17 + b"\n", b"REQ " + b"x" * 16 + b"\n"]
)
def test_a_raw_id_that_cannot_be_one_is_fatal(broker: Broker, data: bytes) -> None:
    client = extending(broker)
    client.send(data)
    assert client.replies()[0].startswith("E_INVALID ")
    assert client.closed


@pytest.mark.parametrize("count", [3, 400])
def test_sampling_keeps_about_its_share_and_finishes_the_rest(broker: Broker, count: int) -> None:
    client = broker.client()
    client.identify(sample_rate=42)
    client.sub("t", "ch", 2500)
    broker.client().pub("t", *(b"%d" % n for n in range(count)))
    got = client.messages()
    client.fin(*got)
    subscription = broker.node.topic("t").subscription("ch")
    assert subscription.depth() == subscription.in_flight() == 0
    assert count < 100 or 0.3 * count < len(got) < 0.56 * count


@pytest.mark.parametrize("word", [b"FIN ", b"REQ ", b"TOUCH "])
@pytest.mark.parametrize("raw", [True, False])
def test_an_id_of_all_bits_is_nobodys(broker: Broker, word: bytes, raw: bool) -> None:
    client = broker.client()
    client.send(b"SUB_ADVANCED t ch\n" if raw else b"SUB t ch\n")
    id_ = b"\xff" * 16 if raw else b"f" * 16
    client.send(word + id_ + (b" 5\n" if word == b"REQ " else b"\n"))
    name = word.decode().strip()
    assert client.replies() == ["OK", f"E_{name}_FAILED {name} ffffffffffffffff failed ID not in flight"]
    assert not client.closed
    assert broker.node.bugs == 0


def test_a_word_of_ours_is_no_command(broker: Broker) -> None:
    client = broker.client()
    client.send(b"fault a b\n")
    assert client.replies() == ["E_INVALID invalid command fault"]
    assert broker.node.bugs == 0


def test_no_topic_is_made_where_that_is_switched_off(tmp_path: Path) -> None:
    for mode in ("channels", "off"):
        broker = Broker(tmp_path / mode, auto_create=mode)
        commands = (pub("t", b"x"), dpub("t", 1, b"x"), mpub_ext("t", [({}, b"x")]), pub_ext("t", {}, b"x"))
        for data in (*commands, b"SUB t ch\n", b"SUB_ORDERED t ch 0\n"):
            client = broker.client()
            client.send(data)
            assert client.replies()[0].startswith("E_TOPIC_NOT_EXIST ")
            assert client.closed
        client = broker.client()
        client.send(b"INTERNAL_CREATE_TOPIC t 0\n" + pub("t", b"x"))
        assert client.replies() == ["OK", "OK"]


@pytest.mark.parametrize("word", ["SUB", "SUB_ADVANCED", "SUB_ORDERED"])
def test_no_channel_is_made_where_that_is_switched_off(tmp_path: Path, word: str) -> None:
    command = f"{word} t ch 0\n".encode()
    broker = Broker(tmp_path / "off", auto_create="off")
    broker.node.create_topic("t").now()
    client = broker.client()
    client.send(command)
    assert client.replies() == [f"E_SUB_CHANNEL_NOT_REGISTERED {word} t has no channel ch; make it first"]
    assert client.closed
    assert broker.node.topic("t").subscriptions == {}
    broker.node.topic("t").subscribe("ch", SubscriptionSettings()).now()
    client = broker.client()
    client.send(command)
    assert client.replies() == ["OK"]
    broker = Broker(tmp_path / "channels", auto_create="channels")
    broker.node.create_topic("t").now()
    client = broker.client()
    client.send(command)
    assert client.replies() == ["OK"]


def test_a_subscriber_with_a_partition_reads_that_shard_alone(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings(shards=2))).now()
    one, all_ = broker.client(), broker.client()
    for client, command in ((one, b"SUB t ch 1\n"), (all_, b"SUB t ch\n")):
        client.identify()
        client.send(command)
        assert client.replies() == ["OK"]
    one.send(b"RDY 100\n")
    producer = broker.client()
    producer.send(b"".join(pub(f"t {number % 2}", b"%d" % number) for number in range(20)))
    assert producer.replies() == ["OK"] * 20
    assert [message.body for message in one.messages()] == [b"%d" % number for number in range(1, 20, 2)]
    all_.send(b"RDY 100\n")
    assert [message.body for message in all_.messages()] == [b"%d" % number for number in range(0, 20, 2)]


@pytest.mark.parametrize("seed", range(5))
def test_nsq_case_42_clients_that_come_and_go_stall_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    broker = Broker(tmp_path)
    producer = broker.client()
    tags = ["", "a", "b", "c"]
    clients: list[Client] = []
    sent = 0
    finished: set[bytes] = set()

    def consume() -> None:
        for client in clients:
            for message in client.messages():
                finished.add(message.body[-8:])
                client.fin(message)

    for _ in range(300):
        action = rng.randrange(4)
        if action == 0 and len(clients) < 6:
            client = broker.client()
            client.identify(extend_support=True, desired_tag=rng.choice(tags))
            client.sub("t", "ch", rng.choice([1, 5, 50]))
            clients.append(client)
        elif action == 1 and clients and rng.random() < 0.5:
            clients.pop(rng.randrange(len(clients))).hang_up()
        else:
            tag = rng.choice(tags)
            header = msgspec.json.encode({"##client_dispatch_tag": tag} if tag else {})
            producer.send(b"".join(pub_ext("t", header, b"%08d" % (sent + row)) for row in range(5)))
            sent += 5
        if rng.random() < 0.7:
            consume()
    for client in clients:
        client.hang_up()
    clients[:] = [broker.client()]
    clients[0].identify(extend_support=True)
    clients[0].sub("t", "ch", 2500)
    for _ in range(10):
        consume()
        broker.advance(1)
    assert finished == {b"%08d" % number for number in range(sent)}


def test_of_pipelined_publishes_to_several_shards_only_those_are_refused_that_are_not_stored(broker: Broker) -> None:
    settings = NsqChoices(extend="on").put(TopicSettings(shards=2, quota_bytes=100_000))
    broker.node.create_topic("t", settings).now()
    few, many = (next(f"k{n}" for n in range(9) if shard_of(b"k%d" % n, 2) == shard) for shard in range(2))
    producer = broker.client()
    producer.send(
        pub_ext("t", {"##key": few}, b"a")
        + pub_ext("t", {"##key": many}, bytes(120_000))
        + pub_ext("t", {"##key": few, "##trace_id": "7"}, b"c")
    )
    frames = producer.frames()
    assert [data[:12] for _, data in frames[:2]] == [b"OK", b"E_PUB_FAILED"]
    assert struct.unpack(">2sQQ", frames[2][1][:18]) == (b"OK", 2, 7)
    assert broker.node.topic("t").published == 2
    assert not producer.closed
