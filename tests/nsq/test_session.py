"""NSQ sessions: the commands of the skeleton, their errors, and what survives a kill."""

from __future__ import annotations

import gc
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from penstock.dialects.nsq.choices import NsqChoices
from penstock.errors import Refusal
from penstock.node.topic import Topic
from penstock.peers.line import Line
from penstock.registry.answer import Answer
from penstock.settings import TopicSettings
from tests.nsq.parts import SECOND, Broker, Client, dpub, pub, sized


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def subscribed(broker: Broker, topic: str = "t", channel: str = "ch", rdy: int = 1, **identify: object) -> Client:
    client = broker.client()
    client.identify(**identify)
    client.sub(topic, channel, rdy)
    return client


def channel_of(broker: Broker, topic: str = "t", channel: str = "ch"):  # type: ignore[no-untyped-def]
    return broker.node.topic(topic).subscription(channel)


def test_nsq_case_02_publish_then_subscribe(broker: Broker) -> None:
    producer = broker.client()
    producer.pub("t", b"hello")
    assert producer.replies() == ["OK"]
    consumer = subscribed(broker)
    (message,) = consumer.messages()
    assert (message.body, message.attempts) == (b"hello", 1)
    consumer.fin(message)
    assert consumer.frames() == []
    assert channel_of(broker).depth() == 0


def test_nsq_case_03_every_channel_gets_a_copy(broker: Broker) -> None:
    first, second = subscribed(broker, channel="a"), subscribed(broker, channel="b")
    broker.client().pub("t", b"hello")
    for consumer in (first, second):
        (message,) = consumer.messages()
        assert (message.body, message.attempts) == (b"hello", 1)


def test_nsq_case_04_empty_command(broker: Broker) -> None:
    client = broker.client()
    client.send(b"\n\n")
    assert client.replies() == ["E_INVALID invalid command "]
    assert client.closed


def test_nsq_case_05_unknown_command(broker: Broker) -> None:
    client = broker.client()
    client.send(b"ASDF\n")
    assert client.replies() == ["E_INVALID invalid command ASDF"]
    assert client.closed


def test_nsq_case_06_message_too_big(tmp_path: Path) -> None:
    client = Broker(tmp_path, max_msg_size=100).client()
    client.pub("t", b"x" * 105)
    assert client.replies() == ["E_BAD_MESSAGE PUB message too big 105 > 100"]
    assert client.closed


@pytest.mark.parametrize(
    ("bodies", "reply"),
    [
        ([b""], "E_BAD_MESSAGE PUB invalid message body size 0"),
        ([b"x" * 100] * 11, "E_BAD_BODY MPUB body too big 1148 > 1000"),
        ([b"x"] * 5 + [b""] + [b"x"] * 5, "E_BAD_MESSAGE MPUB invalid message(5) body size 0"),
        ([b"x" * 101] * 5, "E_BAD_MESSAGE MPUB message too big 101 > 100"),
    ],
)
def test_nsq_case_07_nothing_is_stored_of_what_has_a_wrong_size(
    tmp_path: Path, bodies: list[bytes], reply: str
) -> None:
    broker = Broker(tmp_path, max_msg_size=100, max_body_size=1000)
    client = broker.client()
    if len(bodies) == 1:
        client.pub("t", *bodies)
    else:
        client.mpub("t", bodies)
    assert client.replies() == [reply]
    assert client.closed
    assert "t" not in broker.node.topics or broker.node.topic("t").depth() == 0


def test_nsq_case_08_deferred_publish(broker: Broker) -> None:
    consumer = subscribed(broker)
    producer = broker.client()
    producer.send(dpub("t", 1000, b"later"))
    assert producer.replies() == ["OK"]
    assert channel_of(broker).waiting() == 1
    broker.advance(0.999)
    assert consumer.messages() == []
    broker.advance(0.001)
    assert [message.body for message in consumer.messages()] == [b"later"]
    producer.send(dpub("t", 3600100, b"x"))
    assert producer.replies() == ["E_INVALID DPUB timeout 3600100 out of range 0-3600000"]


def test_nsq_case_09_touch_keeps_the_lease(broker: Broker) -> None:
    consumer = subscribed(broker, msg_timeout=1000)
    broker.client().pub("t", b"hello")
    (message,) = consumer.messages()
    broker.advance(0.6)
    consumer.send(b"TOUCH " + message.id + b"\n")
    broker.advance(0.6)
    consumer.fin(message)
    assert consumer.frames() == []
    assert channel_of(broker).expired_leases == 0


def test_nsq_case_10_rdy_count_is_bounded(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_rdy_count=50)
    client = broker.client()
    assert client.identify()["max_rdy_count"] == 50
    client.sub("t", "ch", 51)
    assert client.replies() == ["E_INVALID RDY count 51 out of range 0-50"]
    assert client.closed


def test_nsq_case_11_late_fin_fails_and_the_connection_lives(broker: Broker) -> None:
    consumer = subscribed(broker, msg_timeout=1000)
    broker.client().pub("t", b"hello")
    (message,) = consumer.messages()
    consumer.send(b"RDY 0\n")
    broker.advance(1.15)
    consumer.fin(message)
    assert consumer.replies() == [f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight"]
    assert not consumer.closed
    assert (channel_of(broker).expired_leases, channel_of(broker).released) == (1, 0)


def test_nsq_case_12_fin_without_an_id(broker: Broker) -> None:
    for command, text in ((b"FIN \n", "invalid message ID"), (b"FIN\n", "FIN insufficient number of params")):
        consumer = subscribed(broker)
        consumer.send(command)
        assert consumer.replies() == [f"E_INVALID {text}"]
        assert consumer.closed


@pytest.mark.parametrize("body", [b"no JSON", b"[]", b'{"client_id":5}', b'{"sample_rate":4294967296}', b"[" * 5000])
def test_an_identify_that_cannot_be_read_is_told_in_nsqds_words(broker: Broker, body: bytes) -> None:
    client = broker.client()
    client.send(b"IDENTIFY\n" + sized(body))
    assert client.replies() == ["E_BAD_BODY IDENTIFY failed to decode JSON body"]
    assert client.closed


@pytest.mark.parametrize("body", [b"null", b"{}", b'{"client_id":"\xff","user_agent":null}'])
def test_an_identify_that_go_reads_is_read(broker: Broker, body: bytes) -> None:
    client = broker.client()
    client.send(b"IDENTIFY\n" + sized(body))
    assert client.replies() == ["OK"]
    assert broker.node.bugs == 0


def test_a_delayed_publish_with_a_wrong_time_is_refused_before_its_message_comes(broker: Broker) -> None:
    for delay, text in (("x", "could not parse timeout x"), ("3600001", "timeout 3600001 out of range 0-3600000")):
        client = broker.client()
        client.send(f"DPUB t {delay}\n".encode())
        assert client.replies() == [f"E_INVALID DPUB {text}"]
        assert client.closed


def test_nsq_case_13_requeue(broker: Broker) -> None:
    consumer = subscribed(broker)
    broker.client().pub("t", b"hello")
    (message,) = consumer.messages()
    consumer.send(b"REQ " + message.id + b" 0\n")
    (message,) = consumer.messages()
    assert message.attempts == 2
    consumer.send(b"REQ " + message.id + b" 7200000\n")
    for _ in range(119):
        broker.advance(30)
        consumer.send(b"NOP\n")
    assert consumer.messages() == []
    broker.advance(30)
    assert [m.attempts for m in consumer.messages()] == [3]
    consumer.send(b"REQ " + message.id + b" -1\n")
    assert consumer.replies() == ["E_INVALID REQ could not parse timeout -1"]
    assert consumer.closed


def test_nsq_case_14_silent_client_is_cut_off_and_nop_keeps_it(broker: Broker) -> None:
    silent, lively = broker.client(), broker.client()
    for client in (silent, lively):
        client.identify(heartbeat_interval=1000)
    for _ in range(5):
        broker.advance(0.9)
        lively.send(b"NOP\n")
    assert silent.closed
    assert not lively.closed


def test_nsq_case_15_heartbeats_off(broker: Broker) -> None:
    client = broker.client()
    client.identify(heartbeat_interval=-1)
    broker.advance(600)
    assert not client.closed
    client.send(b"SUB t ch\n")
    assert client.replies() == ["E_INVALID cannot SUB with heartbeats disabled"]


def test_nsq_case_16_heartbeat_interval_too_long(tmp_path: Path) -> None:
    client = Broker(tmp_path, max_heartbeat_interval_ns=300_000_000_000).client()
    assert client.identify(heartbeat_interval=300001) == "E_BAD_BODY IDENTIFY heartbeat interval (300001) is invalid"
    assert client.closed


def test_nsq_case_17_output_buffering(broker: Broker) -> None:
    client = broker.client()
    for size, timeout in ((-1, -1), (0, 0), (65536, 30000)):
        reply = client.identify(output_buffer_size=size, output_buffer_timeout=timeout)
        assert isinstance(reply, dict)
    assert "output buffer size (65537) is invalid" in client.identify(output_buffer_size=65537)
    assert client.closed


def test_nsq_case_18_paused_channel(broker: Broker) -> None:
    consumer = subscribed(broker)
    topic = broker.node.topic("t")
    settings = channel_of(broker).settings
    topic.update_subscription("ch", type(settings)(paused=True)).now()
    broker.client().pub("t", b"hello")
    assert consumer.messages() == []
    topic.update_subscription("ch", settings).now()
    assert len(consumer.messages()) == 1


def test_nsq_case_19_paused_topic_keeps_messages_to_itself(broker: Broker) -> None:
    subscribed(broker, rdy=0)
    topic = broker.node.topic("t")
    topic.pause(paused=True).now()
    broker.client().pub("t", b"hello")
    assert (topic.depth(), channel_of(broker).depth()) == (1, 0)
    topic.pause(paused=False).now()
    assert (topic.depth(), channel_of(broker).depth()) == (0, 1)


def test_nsq_case_25_ephemeral_topic_and_channel_go_with_their_last_client(broker: Broker) -> None:
    consumer = subscribed(broker, "t#ephemeral", "c#ephemeral")
    broker.client().pub("t#ephemeral", b"hello")
    assert len(consumer.messages()) == 1
    consumer.hang_up()
    assert "t#ephemeral" not in broker.node.topics


def test_nsq_case_26_restart_keeps_what_was_not_read(broker: Broker) -> None:
    producer = broker.client()
    producer.pub("t", *(b"%d" % n for n in range(300)))
    assert producer.replies() == ["OK"] * 300
    consumer = subscribed(broker, rdy=150)
    read = consumer.messages()
    assert [message.body for message in read] == [b"%d" % n for n in range(150)]
    consumer.send(b"RDY 0\n")
    consumer.fin(*read)
    broker.kill()
    assert (broker.node.topic("t").depth(), channel_of(broker).depth()) == (0, 150)
    rest = subscribed(broker, rdy=500).messages()
    assert [message.body for message in rest] == [b"%d" % n for n in range(150, 300)]


def test_nsq_case_27_consumers_of_a_channel_are_bounded(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_channel_consumers=1)
    subscribed(broker)
    second = broker.client()
    second.send(b"SUB t ch\n")
    assert second.replies()[0].startswith("E_SUB_FAILED SUB failed")
    assert second.closed


def test_nsq_case_28_publish_after_the_last_channel_is_gone(broker: Broker) -> None:
    consumer = subscribed(broker)
    broker.node.topic("t").delete_subscription("ch").now()
    assert consumer.closed
    broker.client().pub("t", b"hello")
    assert broker.node.topic("t").depth() == 1


def test_nsq_case_59_one_segment_or_one_byte_at_a_time(broker: Broker) -> None:
    stream = b"SUB t ch\nRDY 5\n" + pub("t", b"hello") + pub("t", b"again")
    together, apart = broker.client(), broker.client()
    together.send(stream)
    for at in range(len(stream)):
        apart.send(stream.replace(b"t ch", b"u ch").replace(b"PUB t", b"PUB u")[at : at + 1])
    for client in (together, apart):
        frames = client.frames()
        assert [data for kind, data in frames if kind == 0] == [b"OK"] * 3
        assert [data[26:] for kind, data in frames if kind == 2] == [b"hello", b"again"]


def test_nsq_case_62_delay_survives_a_kill(broker: Broker) -> None:
    subscribed(broker, rdy=0)
    producer = broker.client()
    producer.send(dpub("t", 3000, b"later"))
    assert producer.replies() == ["OK"]
    broker.advance(1)
    broker.kill()
    consumer = subscribed(broker)
    broker.advance(1.999)
    assert consumer.messages() == []
    broker.advance(0.001)
    assert [message.body for message in consumer.messages()] == [b"later"]


def test_wrong_magic_is_told_so(broker: Broker) -> None:
    client = broker.client(magic=False)
    client.send(b"GET / HTTP/1.1\r\n\r\n")
    assert client.replies()[0].startswith("E_BAD_PROTOCOL")
    assert client.closed


def test_a_client_that_says_nothing_is_cut_off_after_a_minute(broker: Broker) -> None:
    client = broker.client(magic=False)
    client.send(b" ")
    broker.advance(61)
    assert client.closed


def test_half_a_command_hurts_nobody(broker: Broker) -> None:
    half = broker.client()
    half.send(b"PUB t\n\0\0\0\5he")
    other = broker.client()
    other.pub("t", b"whole")
    assert other.replies() == ["OK"]
    half.hang_up()
    assert [message.body for message in subscribed(broker).messages()] == [b"whole"]


@pytest.mark.parametrize(
    ("stream", "reply"),
    [
        (b"RDY 1\n", "E_INVALID cannot RDY in current state"),
        (b"FIN 0123456789abcdef\n", "E_INVALID cannot FIN in current state"),
        (b"REQ 0123456789abcdef 0\n", "E_INVALID cannot REQ in current state"),
        (b"TOUCH 0123456789abcdef\n", "E_INVALID cannot TOUCH in current state"),
        (b"CLS\n", "E_INVALID cannot CLS in current state"),
        (b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
        (b"SUB t:t ch\n", 'E_BAD_TOPIC SUB topic name "t:t" is not valid'),
        (b"SUB t c:h\n", 'E_BAD_CHANNEL SUB channel name "c:h" is not valid'),
        (b"AUTH\n\0\0\0\1x", "E_AUTH_DISABLED AUTH disabled"),
        (b"IDENTIFY\n\0\0\0\2[]", "E_BAD_BODY"),
    ],
)
def test_commands_out_of_place_are_fatal(broker: Broker, stream: bytes, reply: str) -> None:
    client = broker.client()
    client.send(stream + b"NOP\n")
    (text,) = client.replies()
    assert text.startswith(reply)
    assert client.closed


def test_cls_stops_deliveries_and_fin_still_works(broker: Broker) -> None:
    consumer = subscribed(broker)
    broker.client().pub("t", b"a", b"b")
    (message,) = consumer.messages()
    consumer.send(b"CLS\nRDY 5\n")
    consumer.fin(message)
    assert consumer.replies() == ["CLOSE_WAIT"]
    assert channel_of(broker).counts()["acked"] == 1
    assert not consumer.closed


def test_foreign_fin_is_refused_and_not_fatal(broker: Broker) -> None:
    holder, other = subscribed(broker), subscribed(broker, rdy=0)
    broker.client().pub("t", b"hello")
    (message,) = holder.messages()
    other.fin(message)
    assert other.replies() == [f"E_FIN_FAILED FIN {message.id.decode()} failed client does not own message"]
    holder.fin(message)
    assert holder.frames() == []


def test_after_a_kill_acked_messages_stay_away_and_the_others_come(broker: Broker) -> None:
    broker.client().pub("t", *(b"%d" % n for n in range(50)))
    consumer = subscribed(broker, rdy=50)
    messages = consumer.messages()
    consumer.send(b"RDY 0\n")
    consumer.fin(*messages[::2])
    broker.kill()
    again = subscribed(broker, rdy=100).messages()
    assert [message.body for message in again] == [message.body for message in messages[1::2]]


def test_order_and_bodies_survive_random_sizes_and_cuts(broker: Broker) -> None:
    rng = random.Random(3)
    bodies = [rng.randbytes(rng.choice([1, 5, 100, 700, 3000])) for _ in range(4000)]
    bodies[7], bodies[1234] = b"zzPUB t\nzz", b"PUB t\n\0\0\0\1a"
    data = b"".join(pub("t", body) for body in bodies)
    consumer = subscribed(broker, rdy=777)
    producer = broker.client()
    got: list[bytes] = []
    at = 0
    while at < len(data) or len(got) < len(bodies):
        step = rng.choice([1, 7, 100, 5000, 70_000, 200_000])
        producer.send(data[at : at + step])
        at += step
        messages = consumer.messages()
        got += [message.body for message in messages]
        consumer.fin(*messages)
    assert got == bodies
    assert len(producer.replies()) == len(bodies)
    assert channel_of(broker).counts()["acked"] == len(bodies)


def test_a_slow_reader_is_first_not_served_then_cut_off(broker: Broker) -> None:
    consumer = subscribed(broker, rdy=100)
    consumer.connection.pause_writing()
    broker.client().pub("t", b"hello")
    assert consumer.messages() == []
    consumer.connection.resume_writing()
    assert len(consumer.messages()) == 1
    consumer.connection.pause_writing()
    broker.advance(29)
    consumer.send(b"NOP\n")
    broker.advance(35)
    assert consumer.closed


def test_connection_that_is_hung_up_on_gets_no_more_messages(broker: Broker) -> None:
    wrong, right = subscribed(broker, rdy=5), subscribed(broker, rdy=5)
    wrong.send(b"FIN nothing\n")
    assert wrong.closed
    broker.client().pub("t", b"a", b"b")
    assert [(message.body, message.attempts) for message in right.messages()] == [(b"a", 1), (b"b", 1)]


def test_ack_before_a_fatal_error_in_the_same_read_survives_a_kill(broker: Broker) -> None:
    broker.client().pub("t", b"a")
    consumer = subscribed(broker)
    (message,) = consumer.messages()
    consumer.send(b"FIN " + message.id + b"\nWHAT\n")
    assert consumer.replies() == ["E_INVALID invalid command WHAT"]
    broker.kill()
    assert subscribed(broker).messages() == []


def test_client_that_goes_when_the_journal_fails_gives_its_messages_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = subscribed(broker)
    broker.client().pub("t", b"one")
    assert len(consumer.messages()) == 1

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(broker.node.topic("t"), "flush_at_once", True)
        patch.setattr(channel_of(broker), "flush", fail)
        with pytest.raises(OSError, match="Input"):
            consumer.hang_up()
    assert [message.body for message in subscribed(broker).messages()] == [b"one"]


def test_client_that_cannot_be_served_is_hung_up_on_and_the_publisher_hears_nothing_of_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = subscribed(broker)

    def fail(*_: object) -> None:
        raise RuntimeError("a bug in the dialect")

    monkeypatch.setattr(channel_of(broker).seats[0], "deliver", fail)
    producer = broker.client()
    producer.pub("t", b"one")
    assert producer.replies() == ["OK"]
    assert not producer.closed
    assert consumer.closed
    assert broker.node.bugs == 1
    assert [message.body for message in subscribed(broker).messages()] == [b"one"]


def test_delays_beyond_what_the_topic_allows_are_refused(broker: Broker) -> None:
    broker.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings(max_due_ns=60_000_000_000))).now()
    consumer = subscribed(broker)
    producer = broker.client()
    producer.pub("t", b"hello")
    (message,) = consumer.messages()
    consumer.send(b"REQ " + message.id + b" 61000\n")
    (reply,) = consumer.replies()
    assert reply.startswith(f"E_REQ_FAILED REQ {message.id.decode()} failed a message shall wait for 1m1s, but topic t")
    consumer.fin(message)
    assert (consumer.frames(), consumer.closed) == ([], False)
    producer.replies()
    producer.send(dpub("t", 61_000, b"x"))
    assert producer.replies()[0].startswith("E_DPUB_FAILED DPUB failed a message is due at ")


def test_full_topic_refuses_and_the_connection_lives(broker: Broker) -> None:
    broker.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings(quota_bytes=100_000))).now()
    producer = broker.client()
    producer.send(pub("t", bytes(90_000)))
    assert producer.replies() == ["OK"]
    producer.send(pub("t", bytes(90_000)))
    (reply,) = producer.replies()
    assert reply.startswith("E_PUB_FAILED PUB failed topic t holds its quota_bytes of 100KB: ")
    assert not producer.closed


def test_half_a_command_is_forgotten_with_its_connection(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    half = b"MPUB t\n" + struct.pack(">II", 4 << 20, 1) + struct.pack(">I", 4 << 20) + bytes(1 << 20)
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(20):
            client = broker.client()
            client.send(half)
            client.hang_up()
        assert tracemalloc.get_traced_memory()[0] < 3 << 20
    finally:
        tracemalloc.stop()
        gc.enable()


class Full:
    """A way to another node that has no room."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def when_free(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)

    def free(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


def test_who_was_held_back_goes_on_once_and_waits_for_what_it_needs_next(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, line = broker.client(), Full()
    session = client.connection.session
    asked: Answer[Topic] = Answer()
    obtain = broker.node.obtain
    monkeypatch.setattr(broker.node, "obtain", lambda name, *more: asked if name == "a" else obtain(name, *more))
    for _ in range(2):  # one command may publish several batches
        session.publisher.hold_back(cast(Line, line))
    client.send(pub("a", b"1") + pub("b", b"2"))
    line.free()
    broker.advance(0)
    assert client.replies() == []
    asked.refuse(Refusal("limit_reached", "there are enough"))
    broker.advance(0)
    assert client.replies() == ["E_PUB_FAILED PUB failed there are enough", "OK"]


def test_who_rests_is_not_woken_by_room_nor_who_lacks_room_by_the_end_of_its_rest(broker: Broker) -> None:
    client, line = broker.client(), Full()
    session = client.connection.session
    for frees_s, rests_s in ((0, 2), (2, 0)):
        session.publisher.hold_back(cast(Line, line))
        session.rest_until(broker.clock.monotonic() + max(rests_s, 1) * SECOND)
        client.send(pub("t", b"x"))
        if not frees_s:
            line.free()
        broker.advance(0 if rests_s else 1)
        assert client.replies() == []
        line.free()
        broker.advance(rests_s)
        assert client.replies() == ["OK"]
