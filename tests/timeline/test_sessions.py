"""Sessions, and what every kind of error has to say for itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.callers import Caller
from penstock.client.timeline import wire
from penstock.client.timeline.wire import Kind
from penstock.client.wire import decoded, encoded
from penstock.dialects.timeline import timeline
from penstock.dialects.timeline.errors import KINDS, Fault, of_refusal
from penstock.dialects.timeline.sessions import Session, Sessions
from penstock.errors import REASONS, Refusal
from penstock.node.admission import publish
from penstock.registry.answer import Answer
from tests.fakes import FakeClock
from tests.timeline.desk import Consuming, Desk, Stream


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.topic()
    return desk


def kind_of(call: Any, *arguments: Any, **more: Any) -> int:
    with pytest.raises(Fault) as told:
        call(*arguments, **more)
    return told.value.kind


def test_a_token_is_128_random_bits_in_hex_and_good_for_a_minute_without_use(desk: Desk) -> None:
    tokens = {desk.producer(name=f"p{number}") for number in range(50)}
    assert len(tokens) == 50
    assert all(len(token) == 32 and int(token, 16) >= 0 for token in tokens)
    token = desk.producer()
    for _ in range(3):
        desk.advance(59)
        desk.create(token, (None, 0))
    desk.advance(61)
    assert kind_of(desk.create, token, (None, 0)) == Kind.UNKNOWN_SESSION
    desk.advance(10)
    assert len(desk.service.sessions) == 0


def test_a_session_survives_its_stream_for_a_minute_and_may_open_it_again(desk: Desk) -> None:
    consumer = desk.consumer()
    desk.made(desk.producer(), ("a", 0))
    before = consumer.take()
    consumer.close()
    desk.advance(50)
    again = Consuming(desk, consumer.session)
    again.status(10)
    assert again.take() == before
    desk.advance(100)
    assert again.ended is None, "an open stream keeps its session"
    second = Consuming(desk, consumer.session)
    second.status(10)
    assert second.ended is not None
    assert again.ended is None, "a second stream is refused, the first stays"


def test_roles_are_for_good(desk: Desk) -> None:
    producer, consumer = desk.producer(), desk.greet()
    assert kind_of(desk.create, consumer, ("a", 0)) == Kind.WRONG_ROLE
    assert kind_of(desk.kinds, "extend-lease", producer, ("a", 1), new_ms=1000) == Kind.WRONG_ROLE
    assert kind_of(desk.kinds, "release", producer, ("a", 1)) == Kind.WRONG_ROLE
    assert kind_of(desk.kinds, "shred", producer, ("a", 1)) == Kind.UNKNOWN_COMMAND


def test_a_session_may_ask_so_often_a_second(tmp_path: Path) -> None:
    desk = Desk(tmp_path, max_batch=3)
    desk.topic(rqs_limit_per_client=2)
    producer = desk.producer()
    for _ in range(2):
        desk.create(producer, (None, 0))
    with pytest.raises(Fault) as throttled:
        desk.create(producer, (None, 0))
    assert (throttled.value.kind, throttled.value.throttled_ms) == (Kind.THROTTLED, 501)
    desk.advance(0.501)
    desk.create(producer, (None, 0))
    desk.advance(1)
    assert kind_of(desk.create, producer, *[(None, 0)] * 4) == Kind.PROTOCOL


def test_leases_and_pings_of_a_session_count_in_how_often_it_may_ask(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.topic(rqs_limit_per_client=2)
    consumer = desk.greet()
    asked = {"session_id": consumer, "local_ts_ms": 1}
    assert desk.ask("POST", "/v1/lease", {"session_id": consumer})[0] == 200
    assert desk.ask("POST", "/v1/ping", asked)[0] == 200
    for path, body in (("/v1/lease", {"session_id": consumer}), ("/v1/ping", asked)):
        status, told = desk.ask("POST", path, body)
        assert (status, told["error"]["kind"]) == (429, Kind.THROTTLED), path
        assert told["error"]["throttled_ms"] > 0
    assert desk.ask("POST", "/v1/ping", {"local_ts_ms": 1})[0] == 200, "one without a session counts in none"
    desk.advance(0.501)
    assert desk.ask("POST", "/v1/lease", {"session_id": consumer})[0] == 200


def test_who_does_not_want_to_wait_longer_hears_that_it_takes_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    desk.topic()
    producer = desk.producer()
    held: list[Callable[[], None]] = []
    with monkeypatch.context() as patch:
        patch.setattr(timeline, "publish", lambda *given: held.append(partial(publish, *given)))
        late, patient = desk.creating(producer, ("a", 0), timeout_ms=50), desk.creating(producer, ("b", 0))
    in_time = desk.creating(producer, ("c", 0), timeout_ms=50)
    desk.advance(0.049)
    assert (late.is_given, in_time.now().column("kind").to_pylist()) == (False, [0])
    desk.advance(0.001)
    with pytest.raises(Fault) as fault:
        late.now()
    assert (fault.value.kind, patient.is_given) == (Kind.BROKER_TIMEOUT, False)
    for each in held:
        each()
    desk.settle()
    assert patient.now().column("kind").to_pylist() == [0]
    assert desk.create(producer, ("a", 0))[0]["kind"] == Kind.DUPLICATE_ID, "it was done all the same"


def test_commands_are_answered_in_the_time_they_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path)
    desk.topic()
    never: Answer[Any] = Answer()
    monkeypatch.setitem(desk.service.commands, "count", (wire.Count, lambda caller, asked: never))
    asked = encoded(wire.Count(topic_id="t", timeout_ms=50))
    answer = desk.service.act("count", desk.caller, asked)
    desk.advance(0.05)
    assert answer.now().error.kind == Kind.BROKER_TIMEOUT
    poll = {"session_id": desk.greet(), "wait_ms": 60_000, "timeout_ms": 50}
    assert desk.ask("POST", "/v1/lease", poll) == (200, {"messages": []})


def test_versions_that_are_too_old_are_refused_and_so_is_one_session_too_many(tmp_path: Path) -> None:
    desk = Desk(tmp_path, max_sessions=1)
    desk.topic(minimum_driver_version=7)
    greeting = {"topic_id": "t", "consumer_id": "c"}
    assert desk.kind("consumer-handshake", driver_version=6, **greeting) == Kind.PROTOCOL
    assert desk.kind("consumer-handshake", driver_version=7, **greeting) == 0
    greeting["consumer_id"] = "d"
    assert desk.kind("consumer-handshake", driver_version=7, **greeting) == Kind.THROTTLED


def test_batches_of_one_exchange_are_answered_in_order_whatever_becomes_of_them(desk: Desk) -> None:
    stream = Stream()
    talk = desk.service.offer().exchanges["create-messages"].open(desk.caller, b"", stream)
    producer = desk.producer()
    import pyarrow as pa

    def rows(*ids: str) -> pa.RecordBatch:
        count = len(ids)
        columns = [
            pa.array([each.encode() for each in ids]),
            pa.array([0] * count, pa.uint64()),
            pa.array([b""] * count),
        ]
        return pa.record_batch(columns, wire.CREATED)

    for number, (session, batch) in enumerate(
        [(producer, rows("a")), ("x" * 32, rows("b")), (producer, rows("a", "c"))]
    ):
        talk.received(batch, encoded(wire.CreateMessages(session_id=session, number=number)))
    talk.received(pa.record_batch({"body": [b"x"]}), encoded(wire.CreateMessages(session_id=producer, number=3)))
    desk.settle()
    replies = [decoded(each, wire.Reply) for each in stream.words]
    assert [each.number for each in replies] == [0, 1, 2, 3]
    kinds = [each.error.kind if each.error is not None else 0 for each in replies]
    assert kinds == [0, Kind.UNKNOWN_SESSION, 0, Kind.PROTOCOL]
    assert [batch.column("kind").to_pylist() for batch in stream.batches] == [[0], [Kind.DUPLICATE_ID, 0]]


def test_a_topic_that_is_deleted_ends_its_streams_and_its_name_is_free_again(desk: Desk) -> None:
    consumer, producer = desk.consumer(), desk.producer()
    desk.made(producer, ("a", 99_000))
    assert desk.kind("delete", id="t") == 0
    (told,) = [each for each in consumer.said() if each.end is not None]
    assert consumer.ended is not None
    assert told.error is not None
    assert kind_of(desk.create, producer, ("b", 0)) == Kind.UNKNOWN_SESSION
    assert desk.kind("count", topic_id="t") == Kind.TOPIC_NOT_FOUND
    desk.topic()
    assert desk.count() == 0
    assert desk.made(desk.producer(), ("a", 0)) == ["a"]


def test_a_topic_that_goes_by_another_dialects_way_is_no_timeline_any_more(desk: Desk) -> None:
    consumer = desk.consumer()
    desk.node.delete_topic("t").now()
    desk.settle()
    assert consumer.ended is not None
    assert desk.kind("count", topic_id="t") == Kind.TOPIC_NOT_FOUND
    desk.topic()
    assert desk.node.bugs == 0


def test_a_topic_on_its_way_to_another_node_takes_nothing_and_says_to_greet_again(desk: Desk) -> None:
    producer = desk.producer()
    desk.node.topics["t"].begin_leaving()
    with pytest.raises(Refusal) as told:
        desk.create(producer, ("a", 0))
    error = of_refusal(told.value).error("create-messages")
    assert (error.kind, error.should_retry, error.should_sync) == (Kind.CLUSTER_OFFLINE, True, True)


def test_a_topic_whose_storage_is_not_here_is_offline_and_may_come(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.service.storage, "provision", lambda *_: Answer.of(None))
    desk.topic("far")
    error = desk.act("count", topic_id="far").error
    assert (error.kind, error.should_retry) == (Kind.STORAGE_OFFLINE, True)


def test_what_only_the_core_has_a_word_for_is_the_topics_refusal_with_that_word(desk: Desk) -> None:
    desk.caller = Caller(desk.node.gate, "10.0.0.1:1", "flight.port")
    error = desk.act("consumer-handshake", topic_id="t", consumer_id="c", lease_timeout_ms=1000).error
    assert (error.kind, error.details) == (Kind.TOPIC, {"code": "unauthorized"})


def test_every_kind_is_known_and_every_refusal_of_the_core_has_one() -> None:
    assert set(KINDS) == set(Kind) - {Kind.NONE}
    for kind, known in KINDS.items():
        error = Fault(Kind(kind)).error("op")
        assert (error.kind, error.op, error.module) == (kind, "op", known.module)
        assert error.message
        assert decoded(encoded(wire.Done(error=error)), wire.Done).error == error
    for code in REASONS:
        assert of_refusal(Refusal(code, "text")).kind in KINDS


def test_consumer_that_answered_pings_and_fell_silent_makes_room_for_others(desk: Desk) -> None:
    desk.topic("u", bucket_count=1)
    silent, other = desk.consumer("a", topic="u"), desk.consumer("b", topic="u")
    silent.talk.received(None, encoded(wire.Up(pong=wire.Pong(local_ts_ms=desk.now_ms, partner_ts_ms=desk.now_ms))))
    silent.status(0)
    desk.made(desk.producer("u"), ("m", 0))
    desk.advance(2.9)
    assert (silent.ended, other.ids()) == (None, [])
    desk.advance(2.7)
    assert silent.ended == "no answer to 3 pings"
    error = silent.said()[-1].error
    assert error is not None
    assert error.kind == Kind.NO_CONNECTION
    assert other.ids() == ["m"]
    desk.advance(120)
    assert other.ended is None  # it never answered any


def test_sessions_of_a_topic_are_found_without_a_look_at_those_of_others() -> None:
    looked: list[str] = []

    class Watched(Session):
        def __getattribute__(self, name: str) -> Any:
            looked.append(name)
            return super().__getattribute__(name)

    sessions = Sessions(FakeClock(), 1000)
    for number in range(100):
        sessions.open(Watched("consumer", f"t{number}", "c"))
    mine = [sessions.open(Session("producer", "mine", name)) for name in ("a", "b")]
    looked.clear()
    assert sessions.of("mine") == mine
    assert looked == []
    again = sessions.open(Session("producer", "mine", "a"))
    assert sessions.of("mine") == [mine[1], again]
    sessions.stop()
    assert sessions.of("mine") == []
