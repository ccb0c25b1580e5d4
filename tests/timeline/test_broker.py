"""A running node holds back what it is not well enough for, counts what happens and tells clients where to go."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.callers import Caller
from penstock.client.timeline import wire
from penstock.client.wire import encoded
from penstock.cluster.records import BrokerRecord, ClientRecord
from penstock.dialects.timeline.errors import Fault, of_refusal
from penstock.dialects.timeline.metrics import describe
from penstock.errors import Refusal
from penstock.observe.exposition import Exposition
from penstock.registry.answer import Answer
from penstock.registry.embedded import EmbeddedRegistry
from tests.observe.test_metrics import promtool, value
from tests.timeline.desk import Consuming, Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "data", broker="here")
    desk.topic(dealer="gladiator")
    membership = desk.service.membership
    membership.resident = lambda: 10
    membership.memory_max_bytes = 100
    yield desk
    desk.node.close()


def refused(call: Any) -> tuple[int, int]:
    """Return the kind with which something is refused, and for how long nobody should ask again."""
    try:
        call()
    except Fault as fault:
        return fault.kind, fault.throttled_ms
    except Refusal as refusal:
        return of_refusal(refusal).kind, of_refusal(refusal).throttled_ms
    return 0, 0


def pong(desk: Desk, *consumers: Consuming, ahead_ms: int, seconds: int) -> None:
    """Let consumers answer the node's pings with a clock that is ahead."""
    for _ in range(seconds):
        desk.advance(1)
        for consumer in consumers:
            for words in consumer.said():
                if words.ping is not None:
                    sent_ms = words.ping.local_ts_ms
                    said = wire.Pong(local_ts_ms=sent_ms, partner_ts_ms=desk.now_ms + ahead_ms)
                    consumer.talk.received(None, encoded(wire.Up(pong=said)))


def from_three_machines(desk: Desk) -> list[Consuming]:
    consumers = []
    for number in range(3):
        desk.caller = Caller(desk.node.gate, f"127.0.0.{number + 1}:1", "flight.port")
        consumers.append(desk.consumer(f"c{number}"))
    return consumers


def metrics(desk: Desk, *, seed_names: bool = False) -> str:
    out = Exposition()
    describe(out, desk.service.membership, seed_names=seed_names)
    return out.text()


def test_timeline_case_36_a_clock_that_is_off_stops_creates_and_pushes_until_it_is_right(desk: Desk) -> None:
    producer = desk.producer()
    consumers = from_three_machines(desk)
    desk.made(producer, ("due", 8_000))
    held = desk.made(producer, ("held", 0))
    (holder,) = [each for each in consumers if each.ids() == held]
    pong(desk, *consumers, ahead_ms=600, seconds=5)
    assert desk.node.health.reasons() == ("time_drift",)
    labels = {"type": "time_drift", "topic": "", "cluster": "penstock"}
    assert value(metrics(desk), "penstock_broker_degradation_state", **labels) == 1
    assert (
        value(metrics(desk), "penstock_broker_active_timedrifts", target="consumer", topic="t", cluster="penstock") == 3
    )
    assert refused(lambda: desk.create(producer, ("no", 0)))[0] == 201
    assert refused(lambda: desk.change("extend-lease", holder.session, ("held", 2), new_ms=1000))[0] == 201
    assert refused(lambda: desk.change("release", holder.session, ("held", 2), new_ms=1000))[0] == 201
    assert desk.kinds("delete", holder.session, ("held", 2)) == [0]
    status, told = desk.ask("POST", "/v1/lease", {"session_id": desk.greet("poller"), "limit": 1})
    assert (status, told["error"]["kind"]) == (503, 201)
    pong(desk, *consumers, ahead_ms=600, seconds=10)
    assert [each.ids() for each in consumers] == [[], [], []]
    for consumer in consumers:
        consumer.status(100)
    pong(desk, *consumers, ahead_ms=10, seconds=30)
    assert desk.node.health.state == "healthy"
    assert sorted(name for each in consumers for name in each.ids()) == ["due"]
    desk.made(producer, ("yes", 0))


def test_timeline_case_36_a_clock_that_was_off_is_right_once_nobody_says_otherwise(
    desk: Desk,
) -> None:
    consumers = from_three_machines(desk)
    pong(desk, *consumers, ahead_ms=600, seconds=5)
    for consumer in consumers[1:]:
        consumer.close()
    pong(desk, consumers[0], ahead_ms=600, seconds=15)
    assert desk.node.health.reasons() == ("time_drift",)
    consumers[0].close()
    desk.advance(12)
    assert desk.node.health.reasons() == ()


def test_one_machine_cannot_stop_others_by_a_false_clock_however_often_it_comes(desk: Desk) -> None:
    desk.topic("other")
    producer = desk.producer("other")
    false = [desk.producer("t", name=f"p{number}") for number in range(5)]
    for _ in range(10):
        for session in false:
            desk.act("ping", session_id=session, local_ts_ms=1)
        desk.advance(1)
    drifts = value(metrics(desk), "penstock_broker_active_timedrifts", target="producer", topic="t", cluster="penstock")
    assert drifts == 5
    assert desk.node.health.state == "healthy"
    desk.made(producer, ("a", 0))


def test_timeline_case_37_a_failing_storage_gets_one_operation_in_ten(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = desk.producer()
    tried: list[int] = []
    create = desk.service.topics.find("t").create

    def failing(*given: Any) -> Any:
        tried.append(1)
        return Answer.refused(Refusal("disk_failed", "the disk is gone"))

    timeline = desk.service.topics.find("t")
    monkeypatch.setattr(timeline, "create", failing)
    kinds = [refused(lambda: desk.create(producer, (None, 0))) for _ in range(5)]
    assert [kind for kind, _ in kinds] == [100] * 5
    told = [refused(lambda: desk.create(producer, (None, 0))) for _ in range(30)]
    assert [kind for kind, _ in told] == ([201] * 9 + [100]) * 3
    assert told[0] == (201, 500)
    assert len(tried) == 8
    monkeypatch.setattr(timeline, "create", create)
    told = [refused(lambda: desk.create(producer, (None, 0))) for _ in range(100)]
    assert [kind for kind, _ in told].count(0) == 10
    assert [refused(lambda: desk.create(producer, (None, 0)))[0] for _ in range(20)] == [0] * 20


def test_timeline_case_38_a_producer_whose_requests_fail_is_made_to_wait_and_others_are_not(desk: Desk) -> None:
    producer, other = desk.producer(name="p1"), desk.producer(name="p2")
    desk.made(producer, ("there", 60_000))
    for _ in range(9):
        desk.create(producer, ("late", 1 << 60))
    waits = []
    for _ in range(4):
        kind, throttled_ms = refused(lambda: desk.create(producer, ("late", 1 << 60)))
        assert kind == 429
        waits.append(throttled_ms)
        desk.advance(throttled_ms / 1000)
        assert [row["kind"] for row in desk.create(producer, ("late", 1 << 60))] == [414]
    assert [later / earlier for earlier, later in pairwise(waits)] == [2, 2, 2]
    desk.made(other, (None, 0))
    labels = {"type": "producer_errors", "topic": "t", "cluster": "penstock"}
    assert value(metrics(desk), "penstock_broker_degradation_state", **labels) == 1
    desk.advance(11)
    for _ in range(10):
        desk.made(producer, (None, 0))
    assert value(metrics(desk), "penstock_broker_degradation_state", **labels) == 0


def test_timeline_case_39_three_of_four_busy_consumers_stop_the_topic_until_one_of_four_is(desk: Desk) -> None:
    desk.topic("g", dealer="gladiator")
    consumers = [desk.consumer(f"c{number}", topic="g") for number in range(4)]
    desk.advance(3)
    for consumer in consumers[:3]:
        consumer.status(0)
    desk.settle()
    desk.made(desk.producer("g"), *((None, 0) for _ in range(8)))
    desk.advance(2)
    assert [len(each.ids()) for each in consumers] == [0, 0, 0, 0]
    consumers[0].status(0)
    consumers[1].status(1)
    desk.advance(1)
    assert [len(each.ids()) for each in consumers] == [0, 0, 0, 0], "half of them are busy"
    consumers[2].status(1)
    desk.advance(1)
    assert sum(len(each.ids()) for each in consumers) == 8


def test_timeline_case_39_consumers_that_do_not_read_what_was_pushed_are_busy(desk: Desk) -> None:
    consumers = [desk.consumer(f"c{number}") for number in range(4)]
    producer = desk.producer()

    def stops() -> bool:
        desk.made(producer, (None, 0))
        desk.advance(0.1)
        return not any(each.ids() for each in consumers)

    for each in consumers[:3]:
        each.is_full = True
    desk.advance(1)
    assert not stops(), "for a moment that is nothing"
    desk.advance(1)
    assert stops()
    for each in consumers[:2]:
        each.is_full = False
        each.talk.drained()
    desk.settle()
    assert not stops()


def test_timeline_case_40_without_the_registry_nothing_is_leased_anew_and_holders_may_delete(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = desk.producer(), desk.consumer(room=1)
    desk.made(producer, ("one", 0), ("two", 1))
    desk.advance(1)
    assert consumer.ids() == ["one"]
    registry = desk.node.registry
    assert isinstance(registry, EmbeddedRegistry)
    monkeypatch.setattr(registry, "_broken", "the disk is gone")
    desk.advance(7)
    assert desk.node.health.reasons() == ("partition",)
    consumer.status(100)
    desk.advance(1)
    assert consumer.ids() == []
    assert refused(lambda: desk.create(producer, (None, 0)))[0] == 202
    assert desk.kind("create", id="another") == 202
    assert desk.kind("delete", id="t") == 202
    assert desk.kinds("extend-lease", consumer.session, ("one", 2), new_ms=9_000) == [0]
    assert desk.kinds("delete", consumer.session, ("one", 3)) == [0]
    monkeypatch.setattr(registry, "_broken", "")
    desk.advance(8)
    assert consumer.ids() == ["two"]


def test_little_memory_lets_nobody_in(desk: Desk) -> None:
    desk.service.membership.resident = lambda: 95
    desk.advance(2)
    greeting = {"topic_id": "t", "consumer_id": "c", "lease_timeout_ms": 1000}
    assert desk.kind("consumer-handshake", **greeting) == 201
    desk.service.membership.resident = lambda: 10
    desk.advance(2)
    assert desk.kind("consumer-handshake", **greeting) == 0


def test_little_memory_pushes_nothing_ahead_of_its_time(desk: Desk) -> None:
    desk.topic("early", prefetch_max_ms=1200)
    consumer, producer = desk.consumer(topic="early"), desk.producer("early")
    desk.service.membership.resident = lambda: 95
    desk.advance(2)
    desk.made(producer, ("a", 1000), ("now", 0), ("b", 1100))
    assert consumer.ids() == ["now"]
    desk.advance(0.999)
    assert consumer.ids() == []
    desk.advance(0.001)
    assert consumer.ids() == ["a"]
    desk.advance(0.1)
    assert consumer.ids() == ["b"]
    desk.service.membership.resident = lambda: 10
    desk.advance(2)
    desk.made(producer, ("c", 1000))
    assert consumer.ids() == ["c"]


def test_no_more_messages_go_out_ahead_of_their_time_than_the_topic_lets(desk: Desk) -> None:
    desk.topic("early", prefetch_max_ms=1200, prefetch_max_count=3, dealer="gladiator")
    consumers, producer = [desk.consumer(name, topic="early") for name in "xy"], desk.producer("early")

    def ids() -> list[str]:
        return sorted(name for each in consumers for name in each.ids())

    desk.made(producer, *((f"m{number}", 500 + 100 * number) for number in range(6)), ("now", 0))
    *seen, now = ids()
    assert (len(seen), now) == (3, "now")
    desk.made(producer, ("now2", 0), ("m6", 600))
    assert ids() == ["now2"]
    desk.advance(0.499)
    assert ids() == []
    due = {f"m{number}": 500 + 100 * number for number in range(6)} | {"m6": 600}
    for now_ms in range(500, 1101, 10):
        desk.advance(0.001 if now_ms == 500 else 0.01)
        seen += ids()
        assert sum(due[name] > now_ms for name in seen) <= 3
        assert {name for name, due_ms in due.items() if due_ms <= now_ms} <= set(seen)
    assert sorted(seen) == sorted(due)


def test_timeline_case_44_consumers_hear_where_else_they_should_go_and_lose_no_lease_by_it(desk: Desk) -> None:
    consumers = {f"c{number}": desk.consumer(f"c{number}", room=1000) for number in range(8)}
    desk.advance(3)
    desk.made(desk.producer(), *((None, 0) for _ in range(800)))
    entry = desk.service.overseer.find("t")
    keys, registry = desk.service.overseer.keys, desk.node.registry
    there = BrokerRecord(id="there", life="x", since_ms=1, addresses=("grpc://there:7071",), consumers={"t": 2})
    puts = {keys.broker("there"): msgspec.msgpack.encode(there)}
    for ident in ("d1", "d2"):
        record = ClientRecord(id=ident, topic="t", incarnation=entry.incarnation, broker="there", since_ms=1)
        puts[keys.consumer("t", ident)] = msgspec.msgpack.encode(record)
    registry.propose(puts).now()
    desk.advance(10)
    asked = {
        name: words.switch
        for name, consumer in consumers.items()
        for words in consumer.said()
        if words.switch is not None
    }
    assert len(asked) == 2, "8 and 2: the mean is 5, and 6.5 are let pass"
    assert {switch.broker.address for switch in asked.values()} == {"grpc://there:7071"}
    desk.advance(40)
    assert not [words for each in consumers.values() for words in each.said() if words.switch is not None]
    for name in asked:
        held = [(row["message_id"].decode(), row["version"]) for row in consumers[name].take()]
        assert held
        consumers[name].close()
        assert desk.kinds("delete", consumers[name].session, *held) == [0] * len(held)


def test_what_is_ready_ahead_of_its_time_is_not_available(desk: Desk) -> None:
    there = {"cluster": "penstock", "topic": "early"}
    desk.topic("early", prefetch_max_ms=1200)
    desk.advance((1000 - desk.now_ms % 1000) / 1000)
    now_ms = desk.now_ms
    desk.made(desk.producer("early"), *((None, 500 + 1000 * number) for number in range(1, 5)))
    desk.made(desk.producer("early"), ("now", 0))

    def levels() -> list[float]:
        text = metrics(desk)
        windows = [
            value(text, "penstock_topic_waiting_messages", shard="0", window=str(n), **there) for n in (1, 2, 3, 4)
        ]
        return [value(text, "penstock_topic_available_messages", **there), *windows]

    def counts(**range_: int) -> list[int]:
        return [desk.count(status, topic="early", **range_) for status in ("available", "waiting", "processing")]

    assert levels() == [1, 1, 1, 1, 1]
    assert counts() == counts(from_ms=0) == [1, 4, 0]
    desk.advance(0.4)  # the first of them is ready
    assert desk.service.topics.find("early").subscription.ready() == 2
    assert levels() == [1, 1, 1, 1, 1]
    assert counts() == counts(from_ms=0) == [1, 4, 0]
    assert counts(from_ms=now_ms + 1000, to_ms=now_ms + 2500) == [0, 1, 0]
    desk.advance(1.2)
    assert levels() == [2, 1, 1, 1, 0]
    assert counts() == counts(from_ms=0) == [2, 3, 0]


def test_a_count_between_times_lets_others_have_their_turns(desk: Desk) -> None:
    producer = desk.producer()
    for _ in range(20):
        desk.made(producer, *((None, 60_000) for _ in range(10_000)))
    desk.made(producer, ("soon", 1000))
    asked = wire.Count(topic_id="t", status="waiting", from_ms=desk.now_ms, to_ms=desk.now_ms + 61_000)
    answer = desk.service.act("count", desk.caller, encoded(asked))
    turns = 0
    while not answer.is_given:
        turns += 1
        desk.clock._soon.popleft()()
    assert answer.now().n == 200_001
    assert turns >= 4
    assert desk.count("waiting", to_ms=desk.now_ms + 1001) == 1
    assert desk.count("processing", from_ms=0) == 0


def test_greetings_and_info_tell_the_brokers(desk: Desk) -> None:
    for number in range(7):
        desk.consumer(f"c{number}")
    told = desk.act("consumer-handshake", topic_id="t", consumer_id="c8", lease_timeout_ms=1000)
    assert [(each.id, each.weight, each.over_capacity) for each in told.brokers] == [("here", 1, True)]
    info = desk.act("info", topic_id="t")
    assert [each.id for each in info.preference] == ["here"]
    (broker,) = info.brokers
    assert (broker["id"], broker["state"], broker["consumers"]) == ("here", "healthy", {"t": 7})
    text = metrics(desk)
    assert value(text, "penstock_selector_over_capacity_total", topic="t", cluster="penstock") == 2


def test_info_tells_which_brokers_clock_is_off(desk: Desk) -> None:
    (broker,) = desk.act("info").brokers
    assert not broker["drifting"]
    pong(desk, desk.consumer(), ahead_ms=101, seconds=3)
    (broker,) = desk.act("info").brokers
    assert (broker["drifting"], broker["drift_ms"]) == (True, 101)


def test_a_strict_broker_refuses_who_is_too_many(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "data", clients_preferred=1, clients_most=2, clients_strict=True)
    desk.topic()
    for number in range(2):
        desk.consumer(f"c{number}")
    greeting = {"topic_id": "t", "consumer_id": "c2", "lease_timeout_ms": 1000}
    assert desk.kind("consumer-handshake", **greeting) == 429
    assert len(desk.service.sessions) == 2
    desk.node.close()


def test_consumers_are_dealt_buckets_by_the_table_in_the_registry(desk: Desk) -> None:
    first = desk.consumer("c1")
    desk.consumer("c2", rack="r")
    desk.advance(3)
    table = desk.service.membership.tables.at_present("t")
    assert table is not None
    assert [member.name for member in table.members] == ["c1", "c2"]
    first.close()
    desk.advance(3)
    table = desk.service.membership.tables.at_present("t")
    assert table is not None
    assert [member.name for member in table.members] == ["c2"]


def test_an_operator_has_buckets_dealt_anew_that_leaves_have_scattered(desk: Desk) -> None:
    desk.topic("r", dealer="rack", bucket_count=12)
    assert desk.act("redeal", topic_id="r") == wire.Redealt(is_dealt=False)
    consumers = [desk.consumer(f"c{number}", topic="r", rack="a") for number in range(3)]
    consumers[0].close()
    desk.advance(3)

    def own() -> list[int]:
        table = desk.service.membership.tables.at_present("r")
        assert table is not None
        return list(table.work("c1").own)

    assert own() != list(range(6))
    assert desk.ask("POST", "/v1/redeal", {"topic_id": "r"}) == (200, {"is_dealt": True})
    desk.advance(3)
    assert own() == list(range(6))
    assert desk.kind("redeal", topic_id="none") == 401
    assert desk.service.membership.figures.commands["redeal", "r"] == 2


def test_timeline_case_41_metrics_tell_what_happened_and_promtool_reads_them(desk: Desk) -> None:
    producer, consumer = desk.producer(), desk.consumer(lease_ms=5_000)
    desk.made(producer, ("a", 0, b"12345"), ("b", 1_500), ("c", 2_500), ("d", 2_600), ("e", 9_000))
    desk.create(producer, ("a", 0), ("f", 0))
    desk.settle()
    there = {"topic": "t", "cluster": "penstock"}
    text = metrics(desk)
    assert promtool(text) == "0"
    assert value(text, "penstock_topic_messages_total", op="create", **there) == 7
    assert value(text, "penstock_topic_message_errors_total", op="create", **there) == 1
    assert value(text, "penstock_topic_leases_total", op="create", **there) == 2
    assert value(text, "penstock_topic_processing_messages", **there) == 2
    assert value(text, "penstock_topic_commands_total", op="create", **there) == 1
    assert value(text, "penstock_broker_commands_total", command="create-messages", **there) == 2
    assert value(text, "penstock_network_active_channels", type="producer", **there) == 1
    assert value(text, "penstock_network_active_channels", type="consumer", **there) == 1
    windows = [value(text, "penstock_topic_waiting_messages", shard="0", window=str(n), **there) for n in (1, 2, 3, 4)]
    now_ms = desk.now_ms
    due_ms = [now_ms + ahead for ahead in (1_500, 2_500, 2_600, 9_000)]
    expected = [sum(each // 1000 == now_ms // 1000 + n for each in due_ms) for n in (1, 2, 3, 4)]
    assert windows == expected
    assert sum(windows) == 3
    desk.kinds("release", consumer.session, ("a", 2), new_ms=60_000)
    assert desk.kinds("delete", consumer.session, ("f", 2)) == [0]
    assert desk.kinds("delete", consumer.session, ("f", 2)) == [404]
    desk.advance(20)
    text = metrics(desk)
    assert value(text, "penstock_topic_messages_total", op="release", **there) == 1
    assert value(text, "penstock_topic_leases_total", op="release", **there) == 1
    assert value(text, "penstock_topic_message_errors_total", op="delete", **there) == 1
    assert value(text, "penstock_topic_leases_total", op="expire", **there) > 0
    assert value(text, "penstock_topic_delivery_latency_seconds_count", **there) > 2
    assert desk.kind("delete", id="t") == 0
    desk.advance(1)
    gone = [line for line in metrics(desk).splitlines() if 'topic="t"' in line]
    assert {line.partition("{")[0] for line in gone} == {
        "penstock_topic_commands_total",
        "penstock_topic_command_errors_total",
    }


def test_timeline_case_32_a_large_topic_is_gone_at_once_and_its_name_is_free(desk: Desk) -> None:
    producer, consumer = desk.producer(), desk.consumer()
    for _ in range(10):
        desk.made(producer, *((None, 60_000) for _ in range(10_000)))
    assert desk.count() == 100_000
    answer = desk.service.act("delete", desk.caller, encoded(wire.TimelineDeleteTopic(id="t")))
    assert answer.now().error is None, "it is answered in the same turn"
    greeting: dict[str, Any] = {"topic_id": "t", "consumer_id": "c", "lease_timeout_ms": 1000}
    again = desk.service.act("consumer-handshake", desk.caller, encoded(wire.ConsumerHandshake(**greeting)))
    assert again.now().error.kind == 403
    desk.settle()
    assert consumer.ended is not None
    assert refused(lambda: desk.create(producer, (None, 0)))[0] == 440
    assert desk.kind("consumer-handshake", **greeting) == 401
    desk.topic()
    assert desk.count() == 0


@pytest.mark.parametrize("step", ["before fencing", "after fencing"])
def test_timeline_case_33_a_node_that_died_while_it_deleted_a_topic_goes_on_later(desk: Desk, step: str) -> None:
    desk.made(desk.producer(), ("a", 60_000))
    if step == "after fencing":
        desk.service.storage.purge = lambda *_: Answer()  # type: ignore[method-assign]
    answer = desk.service.act("delete", desk.caller, encoded(wire.TimelineDeleteTopic(id="t")))
    assert answer.now().error is None
    if step == "after fencing":
        desk.settle()
    assert [gone.phase for gone in desk.service.overseer.deletions()] == [
        "fencing" if step == "before fencing" else "purging"
    ]
    desk.kill()
    desk.advance(6)
    assert desk.service.overseer.deletions() == []
    assert "t" not in desk.node.topics
    desk.topic()
    assert desk.count() == 0


def test_timeline_case_34_a_node_that_died_while_it_made_a_topic_goes_on_when_it_is_back(desk: Desk) -> None:
    desk.service.storage.provision = lambda *_: Answer()  # type: ignore[method-assign]
    desk.service.act("create", desk.caller, encoded(wire.TimelineCreate(id="new", bucket_count=8)))
    assert desk.kind("count", topic_id="new") == 402
    desk.kill()
    desk.advance(6)
    assert desk.count(topic="new") == 0
    assert desk.kind("create", id="new", bucket_count=8) == 0
