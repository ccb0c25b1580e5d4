"""A relay and a Kafka that answers by script, by the numbers of the specification's cases.

Where these look into a produce request of version 0, which no broker takes any more, record batches (version 2) are
looked into: cases 1 and 2 in `test_dory.py`, 29 and 30 in `test_faults.py`. A message still counts 26 bytes beside its
key and value (case 20), as it had there.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.clock import MILLISECOND, SECOND
from penstock.config import FilterConfig, LimitsConfig, MemoryConfig, RoutingConfig
from penstock.dialect import Hindered
from penstock.dialects.dory.forwarder import Forwarder
from penstock.node.declared import declare
from penstock.relays.kafka.config import KafkaRelayConfig, PerTopic
from penstock.settings import TopicSettings
from tests.kafka.scripted import CUT, CUT_AFTER, SILENT, Taken, Way
from tests.site import PLAIN as NODE

PLAIN = KafkaRelayConfig(topics=("*",), idempotence=False, pause_min_ns=100 * MILLISECOND, pause_initial_ns=SECOND)
NUMBERED = KafkaRelayConfig(topics=("*",), pause_min_ns=100 * MILLISECOND, pause_initial_ns=SECOND)
EITHER = pytest.mark.parametrize("config", [PLAIN, NUMBERED], ids=["plain", "idempotent"])
BODIES = [b"message %d" % number for number in range(3000)]


@EITHER
def test_everything_that_is_published_arrives_once_and_is_finished(config: KafkaRelayConfig) -> None:
    way = Way(config)
    way.publish(*BODIES)
    way.publish(b"one more")
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == sorted([*BODIES, b"one more"])
    assert way.router.books.counts.acked == 3001
    assert way.router.held == 0


def test_the_status_pages_of_dory_can_ask_the_relay_what_it_holds() -> None:
    way = Way(PLAIN)
    relay: Forwarder = way.relay
    assert isinstance(way.relay, Forwarder)  # which is how the pages find it
    way.kafka.fate = SILENT
    way.publish(b"sent", b"as well")
    assert list(relay.queues()) == [("t", 0, 0, 2)]
    assert relay.metadata_times()[0] > 0


def test_what_status_pages_show_of_the_relay_is_in_its_samples() -> None:
    way = Way(PLAIN)
    way.kafka.fate = SILENT
    way.publish(b"sent", b"as well")
    samples = list(way.relay.samples())
    waiting = {(each.labels["topic"], each.labels["for"]): each.value for each in samples if each.name == "waiting"}
    assert waiting == {("t", "batch"): 0, ("t", "send"): 0, ("t", "ack"): 2}
    figures = {each.name: each.value for each in samples}
    assert figures["unseen"] == 0
    updated_ms, modified_ms = way.relay.metadata_times()
    assert 0 < figures["metadata_updated_timestamp_seconds"] == updated_ms / 1000
    assert 0 < figures["metadata_modified_timestamp_seconds"] == modified_ms / 1000


def test_a_relay_that_cannot_send_says_why_and_stops_saying_so_once_it_can() -> None:
    way = Way(PLAIN)
    assert isinstance(way.relay, Hindered)
    assert way.relay.hindrances() == []
    way.kafka.is_away = True
    for line in way.router.lines.values():
        line.failed("it hung up")
    way.run(0.1)
    (said,) = way.relay.hindrances()
    assert "nothing is sent to Kafka: broker" in said
    assert "it hung up" in said
    way.kafka.is_away = False
    way.until(lambda: not way.relay.hindrances())


def test_dory_case_17_keys_go_to_their_partitions() -> None:
    way = Way(PLAIN)
    keys = [0, 1, 2, 3, 12345, 0xFFFFFFFF]
    way.publish(*(b"%d" % key for key in keys), route=list(keys))
    way.until(lambda: not way.left())
    assert way.kafka.log == {
        ("t", 0): [b"0", b"3", b"12345", b"4294967295"],
        ("t", 1): [b"1"],
        ("t", 2): [b"2"],
    }


def test_dory_case_19_single_messages_are_spread_as_brokers_lead() -> None:
    way = Way(PLAIN, starts=False)
    way.kafka.have("t", *((number, 1 if number < 3 else 2, 0) for number in range(10)))
    way.start()
    way.publish_each(*BODIES[:40])
    way.until(lambda: not way.left())
    assert len(way.kafka.got) == 40
    first = [next(iter(got.sets))[1] for got in way.kafka.got if got.broker == 1]
    assert first == [0, 1, 2] * 4
    other = [next(iter(got.sets))[1] for got in way.kafka.got if got.broker == 2]
    assert other == [3, 4, 5, 6, 7, 8, 9] * 4


def test_dory_case_20_a_message_that_is_too_long_is_thrown_away() -> None:
    way = Way(replace(PLAIN, message_max_bytes=1000))
    way.publish(b"x" * 974, b"y" * 975)
    way.until(lambda: not way.left())
    assert way.kafka.bodies == [b"x" * 974]
    assert way.discarded("too_long") == 1
    report, _ = way.site.node.discards.reports()
    assert [sample[:3] for sample in report.too_long] == [b"t y"]


def test_dory_case_21_beyond_the_rate_messages_are_thrown_away() -> None:
    way = Way(replace(PLAIN, rate_interval_ns=SECOND, rate_count=3))
    way.publish(*BODIES[:10])
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == BODIES[:3]
    assert way.discarded("rate_limit") == 7
    report, _ = way.site.node.discards.reports()
    assert (report.rate_limited, report.discarded["t"].count) == ({"t": 7}, 7)


def test_a_topic_without_a_rate_goes_whole_and_one_with_a_rate_of_nothing_not_at_all() -> None:
    without, nothing = PerTopic(topic="t", rate_interval="0", rate_count=0), PerTopic(topic="n", rate_count=0)
    way = Way(replace(PLAIN, rate_interval_ns=SECOND, rate_count=3, per_topic=(without, nothing)), starts=False)
    way.kafka.have("n", (0, 1, 0))
    way.start()
    way.publish(*BODIES[:10])
    way.publish(*BODIES[10:15], to="n")
    way.until(lambda: not way.left() and not way.left("n"))
    assert sorted(way.kafka.bodies) == BODIES[:10]
    assert way.discarded("rate_limit") == 5


def test_dory_case_22_while_kafka_is_away_messages_wait_unseen_and_arrive_when_it_comes() -> None:
    way = Way(PLAIN, starts=False)
    way.kafka.is_away = True
    way.start()
    way.publish(*BODIES[:6])
    way.run(600)
    assert (way.relay.waiting(), list(way.relay.queues())) == (6, [])
    way.kafka.is_away = False
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == sorted(BODIES[:6])


def test_between_two_requests_others_have_their_turn() -> None:
    way = Way(replace(PLAIN, request_bytes=1))
    turns: list[str] = []

    def sent(*_: object) -> None:
        turns.append("request")
        way.site.machine.clock.call_soon(lambda: turns.append("others"))

    way.relay.watch = lambda stage, *_: sent() if stage == "send" else None
    way.publish(*BODIES[:4], route=[0] * 4)
    way.until(lambda: not way.left())
    assert turns == ["request", "others"] * 4


@EITHER
def test_dory_case_23_a_message_that_is_refused_too_often_is_thrown_away(config: KafkaRelayConfig) -> None:
    way = Way(replace(config, failed_attempts_max=2))
    fetches = way.kafka.fetches
    way.kafka.fate = 2
    way.publish(b"x")
    way.until(lambda: not way.left())
    assert way.requests == [[b"x"]] * 3
    assert way.kafka.fetches == fetches
    assert way.discarded("attempt_limit") == 1
    way.kafka.fate = 0
    way.publish(b"y")
    way.until(lambda: not way.left())
    assert way.kafka.bodies == [b"y"]


@EITHER
def test_dory_case_24_a_leader_that_moved_is_asked_for_once_and_nothing_is_lost(
    config: KafkaRelayConfig,
) -> None:
    way = Way(config)
    fetches = way.kafka.fetches
    way.kafka.script.append(6)
    way.publish(b"x")
    way.until(lambda: not way.left())
    assert way.requests == [[b"x"]] * 2
    assert way.kafka.fetches == fetches + 1
    assert way.kafka.bodies == [b"x"]
    assert (way.site.node.discards.total(), way.site.node.discards.duplicates) == (0, {})


@EITHER
def test_dory_case_25_other_errors_cost_the_messages_and_no_pause(config: KafkaRelayConfig) -> None:
    way = Way(config)
    way.kafka.script.extend((10, 99))
    way.publish(b"x")
    way.run(0.1)
    way.publish(b"y")
    way.until(lambda: not way.left())
    assert way.requests == [[b"x"], [b"y"]]
    assert way.discarded("error_ack") == 2
    assert way.router.books.counts.pauses == 0
    way.publish(*BODIES[:100])
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == sorted(BODIES[:100])


def test_dory_case_26_a_connection_that_breaks_before_the_answer_counts_no_attempt_and_makes_duplicates() -> None:
    way = Way(replace(PLAIN, failed_attempts_max=0))
    way.kafka.script.append(CUT_AFTER)
    way.publish(b"x")
    way.until(lambda: not way.left())
    assert way.kafka.bodies == [b"x", b"x"]
    assert way.site.node.discards.duplicates == {"t": 1}
    assert way.site.node.discards.total() == 0


def test_dory_case_26_with_numbers_there_are_none() -> None:
    way = Way(replace(NUMBERED, failed_attempts_max=0))
    way.kafka.script.extend((0, 0, CUT_AFTER, CUT, CUT_AFTER))
    for start in range(0, 3000, 300):
        way.publish(*BODIES[start : start + 300])
        way.run(0.002)
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == sorted(BODIES)
    assert way.site.node.discards.duplicates == {}


def test_dory_case_27_batches_of_a_topic_go_to_brokers_in_turn_and_the_rest_when_its_time_has_come() -> None:
    way = Way(replace(PLAIN, batching="per_topic", batch_messages=3, batch_time_ns=SECOND), starts=False)
    way.kafka.have("t", (0, 1, 0), (1, 2, 0))
    way.start()
    way.publish(*BODIES[:7])
    way.run(0.5)
    assert sorted(map(len, way.requests)) == [3, 3]
    assert {got.broker for got in way.kafka.got} == {1, 2}
    assert [queue[:2] for queue in way.relay.queues()] == [("t", 1)]
    way.run(1)
    assert [len(request) for request in way.requests] == [3, 3, 1]


def test_dory_case_28_bytes_cut_batches_and_those_that_are_complete_together_share_a_request() -> None:
    way = Way(replace(PLAIN, batching="per_topic", batch_bytes=10), starts=False)
    way.kafka.have("t", (0, 1, 0))
    way.start()
    way.publish_each(*(b"x" * size for size in (4, 4, 3, 0, 10, 5, 5)))
    way.until(lambda: not way.left())
    assert [[len(body) for body in request] for request in way.requests] == [[4, 4], [3, 0, 10], [5, 5]]


def test_a_combined_batch_has_messages_of_several_topics_keyed_or_not() -> None:
    config = replace(
        PLAIN, batching="combined", combined_messages=3, per_topic=(PerTopic(topic="alone", batching="none"),)
    )
    way = Way(config, starts=False)
    way.kafka.have("t", (0, 1, 0))
    way.kafka.have("u", (0, 1, 0), (1, 1, 0))
    way.kafka.have("alone", (0, 1, 0))
    way.start()
    way.publish(b"a")
    way.publish(b"b", to="u", route=[1])
    way.publish(b"c", to="alone")
    assert way.requests == [[b"c"]]
    way.publish(b"d")
    way.until(lambda: not way.left())
    assert way.kafka.got[1].sets == {("t", 0): [b"a", b"d"], ("u", 1): [b"b"]}


def test_dory_case_33_what_waits_for_company_is_sent_when_the_node_stops() -> None:
    way = Way(replace(PLAIN, batching="combined", combined_time_ns=60 * SECOND))
    way.publish(b"x", b"y")
    way.run(0.5)
    assert not way.kafka.bodies
    ended: list[bool] = []
    way.router.drain(lambda: ended.append(True))
    way.until(lambda: bool(ended))
    assert sorted(way.kafka.bodies) == [b"x", b"y"]


def test_what_waits_for_company_is_sent_when_the_node_stops_while_a_topic_is_looked_for_in_vain() -> None:
    way = Way(replace(PLAIN, batching="combined", combined_time_ns=60 * SECOND, topic_autocreate=True))
    way.publish(b"waits")
    way.kafka.creations.append(3)
    way.publish(b"nowhere to go", to="new")
    way.run(0.5)
    ended: list[bool] = []
    way.router.drain(lambda: ended.append(True))
    way.until(lambda: bool(ended), 5)
    assert way.kafka.bodies == [b"waits"]
    assert way.discarded("topic_autocreate_failed") == 1


@pytest.mark.parametrize("durability", ["memory", "os"])
def test_dory_case_32_what_is_never_acked_is_doubtful_and_lost_only_where_nothing_is_stored(
    durability: str,
) -> None:
    way = Way(PLAIN)
    way.kafka.fate = SILENT
    way.topic("t", TopicSettings(durability=durability))  # type: ignore[arg-type]
    way.publish(b"x")
    way.run(0.5)
    thrown: list[tuple[str, str | None]] = []
    way.site.node.discards.listeners.append(lambda told: thrown.append((told.event, told.reason)))
    way.router.drain(lambda: None)
    way.run(1.5)
    way.router.close()
    lost = [("discard", "shutdown")] if durability == "memory" else []
    assert thrown == [("duplicate", None), *lost]


@pytest.mark.parametrize("knows", [True, False], ids=["kafka is silent", "kafka was never found"])
def test_what_still_waits_in_a_memory_topic_is_told_when_the_node_stops(knows: bool) -> None:
    way = Way(replace(PLAIN, in_flight=1), starts=False)
    way.kafka.is_away, way.kafka.fate = not knows, SILENT
    way.kafka.have("kept", (0, 1, 0))
    way.start()
    way.topic("t", TopicSettings(durability="memory"))
    way.run(0.5)
    for number in range(10):  # each by itself, and more than one turn hands out
        way.publish(b"%d" % number, to="kept")
        way.publish(b"%d" % number)
    way.publish(*[b"9"] * 40_000)
    way.run(0.5)
    lost: list[bytes | bytearray | memoryview] = []
    way.site.node.discards.listeners.append(
        lambda told: lost.extend(told.bodies) if (told.topic, told.reason) == ("t", "shutdown") else None
    )
    ended: list[bool] = []
    way.router.drain(lambda: None)
    way.run(1)
    way.router.leftovers.take(lambda: ended.append(True))
    way.run(1)
    assert ended
    way.router.close()
    assert sorted(map(bytes, lost)) == [b"%d" % number for number in [*range(10), *[9] * 40_000]]
    assert way.discarded("shutdown") == 40_010


def test_a_node_that_stops_does_not_wait_for_what_a_paused_subscription_holds_back() -> None:
    way = Way(PLAIN)
    topic = way.topic("t", TopicSettings(durability="memory"))
    way.run(0.5)
    settings = topic.subscription("kafka").settings
    topic.update_subscription("kafka", replace(settings, paused=True))
    way.run(0.5)
    way.publish(b"x")
    assert way.relay.waiting() == 1
    ended: list[bool] = []
    way.router.drain(lambda: None)
    way.router.leftovers.take(lambda: ended.append(True))
    way.run(1)
    assert ended


def test_dory_case_34_a_new_topic_is_known_after_an_update_and_the_next_one_changes_nothing() -> None:
    way = Way(PLAIN)
    way.publish(b"early", to="new")
    way.run(0.5)
    assert way.discarded("bad_topic") == 1
    first = way.relay.metadata_times()
    way.kafka.have("new", (0, 2, 0))
    way.relay.update_metadata()
    way.run(0.5)
    second = way.relay.metadata_times()
    assert second.modified_ms > first.modified_ms
    way.publish(b"x", to="new")
    way.until(lambda: not way.left("new"))
    assert way.kafka.bodies == [b"x"]
    way.relay.update_metadata()
    way.run(0.5)
    third = way.relay.metadata_times()
    assert third.updated_ms > second.updated_ms
    assert third.modified_ms == second.modified_ms


def test_dory_case_35_a_topic_that_cannot_be_made_costs_its_messages_for_that_reason() -> None:
    way = Way(replace(PLAIN, topic_autocreate=True))
    way.kafka.creations.append(17)
    way.publish(b"x", to="new")
    way.publish(b"y")
    way.until(lambda: not way.left("new") and not way.left())
    assert way.discarded("topic_autocreate_failed") == 1
    assert way.discarded("bad_topic") == 0
    assert way.kafka.bodies == [b"y"]


def test_a_topic_is_made_and_its_messages_wait_until_it_is_there() -> None:
    way = Way(replace(PLAIN, topic_autocreate=True))
    way.kafka.creations.append(0)
    way.publish(b"x", to="new")
    way.publish(b"y")
    way.run(2)
    assert not way.kafka.bodies
    way.until(lambda: not way.left("new") and not way.left())
    assert sorted(way.kafka.bodies) == [b"x", b"y"]
    assert way.kafka.asked_for == ["new"]


def test_a_topic_is_looked_for_where_kafka_does_not_know_it_while_it_makes_it() -> None:
    way = Way(replace(PLAIN, topic_autocreate=True))
    way.kafka.creations.append(3)
    way.publish(b"x", to="new")
    way.run(0.4)
    way.kafka.have("new", (0, 1, 0))
    way.until(lambda: not way.left("new"))
    assert way.kafka.bodies == [b"x"]


def test_a_topic_that_kafka_never_makes_holds_the_others_up_once() -> None:
    way = Way(replace(PLAIN, topic_autocreate=True))
    way.kafka.creations.append(3)
    way.publish(b"x", to="new")
    way.publish(b"y")
    way.until(lambda: not way.left("new") and not way.left(), 5)
    way.publish(b"x", to="new")
    way.publish(b"y")
    way.until(lambda: not way.left("new") and not way.left(), 0.2)
    assert way.discarded("topic_autocreate_failed") == 2
    assert way.kafka.bodies == [b"y", b"y"]
    way.run(60)
    way.kafka.creations.append(0)
    way.publish(b"x", to="new")
    way.until(lambda: not way.left("new"))
    assert way.kafka.asked_for == ["new", "new"]
    assert way.discarded("topic_autocreate_failed") == 2


def test_a_topic_that_goes_away_costs_what_waits_for_it() -> None:
    way = Way(replace(PLAIN, batching="per_topic", batch_time_ns=3600 * SECOND))
    way.publish(b"x")
    way.run(0.1)
    del way.kafka.topics["t"]
    way.relay.update_metadata()
    way.until(lambda: not way.left())
    assert way.discarded("bad_topic") == 1


def test_without_a_partition_messages_are_thrown_away() -> None:
    way = Way(PLAIN)
    way.kafka.have("t", (0, 1, 5))
    way.relay.update_metadata()
    way.run(0.5)
    way.publish(b"x")
    way.until(lambda: not way.left())
    assert way.discarded("no_available_partitions") == 1


@EITHER
def test_a_broker_that_does_not_accept_is_left_once_others_lead_its_partitions(config: KafkaRelayConfig) -> None:
    way = Way(config)
    way.kafka.refusing.add(2)
    way.kafka.script.append(CUT)
    way.publish(*BODIES[:100])
    way.run(5)
    way.kafka.have("t", (0, 1, 0), (1, 1, 0), (2, 1, 0))
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == sorted(BODIES[:100])


@pytest.mark.parametrize("code", [2, 6])
def test_the_first_messages_of_a_partition_are_alone_until_kafka_knows_who_sends(code: int) -> None:
    # Of a producer that it does not know, Kafka takes any number: those behind would be in front, and these refused.
    way = Way(replace(NUMBERED, request_bytes=1))
    way.kafka.script.append(code)
    way.publish(b"1", b"2", b"3", route=[0, 0, 0])
    way.until(lambda: not way.left())
    assert way.kafka.log == {("t", 0): [b"1", b"2", b"3"]}
    assert way.kafka.producers == 1


def test_no_more_goes_behind_a_doubtful_set_than_kafka_remembers() -> None:
    way = Way(replace(NUMBERED, request_bytes=1))
    way.publish(b"first", route=[0])
    way.kafka.script.append(Taken(13))
    way.publish(*BODIES[:30], route=[0] * 30)
    way.until(lambda: not way.left())
    assert way.kafka.log == {("t", 0): [b"first", *BODIES[:30]]}
    assert way.kafka.producers == 1


@pytest.mark.parametrize("code", [7, 20])
def test_what_is_given_up_and_may_be_there_keeps_its_number(code: int) -> None:
    way = Way(replace(NUMBERED, failed_attempts_max=0))
    way.publish(b"first", route=[0])
    way.kafka.script.append(Taken(code))
    way.publish(b"given up", route=[0])
    way.publish(b"next", route=[0])
    way.until(lambda: not way.left())
    assert way.kafka.log == {("t", 0): [b"first", b"given up", b"next"]}
    assert way.site.node.discards.total() == 1


def test_what_is_given_up_after_a_lost_answer_keeps_its_number() -> None:
    way = Way(replace(NUMBERED, failed_attempts_max=0))
    way.publish(b"first", route=[0])
    way.kafka.script.extend((CUT_AFTER, 10))
    way.publish(b"given up", route=[0])
    way.run(5)
    way.publish(b"next", route=[0])
    way.until(lambda: not way.left())
    assert way.kafka.log == {("t", 0): [b"first", b"given up", b"next"]}
    assert way.discarded("error_ack") == 1


def test_numbers_that_kafka_forgot_cost_a_new_producer_and_no_message() -> None:
    way = Way(NUMBERED)
    way.publish(*BODIES[:10])
    way.until(lambda: not way.left())
    way.kafka.forget_producers()
    way.publish(*BODIES[10:20])
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == sorted(BODIES[:20])


def test_nothing_goes_without_a_number_while_a_producer_is_made_anew() -> None:
    way = Way(replace(NUMBERED, request_bytes=1))
    way.publish(b"first", route=[0])
    way.until(lambda: not way.left())
    way.kafka.forget_producers()
    way.publish(*BODIES[:20], route=[0] * 20)
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == sorted([b"first", *BODIES[:20]])
    assert way.site.node.discards.total() == 0


def test_a_numbered_set_waits_for_its_partition_while_others_go_on() -> None:
    way = Way(NUMBERED)
    way.kafka.script.append(CUT_AFTER)
    way.publish(b"x", route=[1])
    way.kafka.have("t", (0, 1, 0), (1, -1, 5), (2, 1, 0))
    way.run(5)
    way.publish(*BODIES[:10])
    way.run(1)
    assert sorted(way.kafka.bodies) == sorted([b"x", *BODIES[:10]])
    assert way.left() == 1
    way.kafka.have("t", (0, 1, 0), (1, 2, 0), (2, 1, 0))
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == sorted([b"x", *BODIES[:10]])


@EITHER
def test_a_node_that_is_killed_goes_on_from_its_acks(config: KafkaRelayConfig) -> None:
    way = Way(config)
    way.publish(*BODIES[:1000])
    way.until(lambda: not way.left())
    way.run(1)
    way.kafka.fate = SILENT
    way.publish(*BODIES[1000:1500])
    way.kafka.fate = 0
    way.restart()
    way.publish(*BODIES[1500:2000])
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == sorted(BODIES[:2000])


def test_what_was_in_hand_when_the_node_stopped_goes_before_what_came_later() -> None:
    way = Way(replace(NUMBERED, in_flight=10))
    way.publish(b"first", route=[0])
    way.kafka.fate = SILENT
    way.publish(*BODIES[:20], route=[0] * 20)
    way.router.close()
    way.site.node.close()
    way.kafka.fate = 0
    way.config = replace(NUMBERED, in_flight=3)
    way.restart()
    way.until(lambda: not way.left())
    assert way.kafka.log["t", 0] == [b"first", *BODIES[:20]]


def test_a_subscription_that_is_deleted_is_made_again_and_its_backlog_is_gone() -> None:
    way = Way(PLAIN)
    topic = way.topic()
    way.site.consume(topic, "other")
    way.kafka.fate = SILENT
    way.publish(b"in hand")
    way.kafka.is_away = True
    for line in way.router.lines.values():
        line.failed("it hung up")
    way.publish(b"backlog")
    topic.delete_subscription("kafka").now()
    way.run(0.1)
    way.kafka.is_away, way.kafka.fate = False, 0
    way.publish(b"later")
    way.until(lambda: not way.left() and not way.router.held)
    assert sorted(way.kafka.bodies) == [b"in hand", b"later"]
    counts = way.router.books.counts
    assert (counts.taken, counts.acked, counts.discarded) == (2, 2, 0)


def test_a_topic_that_is_deleted_with_messages_in_hand_leaves_the_books_in_order() -> None:
    way = Way(PLAIN)
    way.kafka.fate = SILENT
    way.publish(b"in hand")
    way.site.node.delete_topic("t").now()
    way.run(0.1)
    assert (way.router.held, way.relay.waiting()) == (1, 0)
    way.topic("t")
    way.kafka.fate = 0
    way.publish(b"of another topic of that name")
    for line in way.router.lines.values():
        line.failed("it hung up")
    way.until(lambda: not way.router.held)
    counts = way.router.books.counts
    assert (counts.taken, counts.acked + counts.discarded) == (2, 2)


def test_what_is_in_hand_counts_as_output_and_beyond_half_of_it_nothing_more_is_read() -> None:
    way = Way(PLAIN, replace(NODE, memory=MemoryConfig(output_bytes=100_000)))
    output = way.site.node.budget.output
    way.kafka.fate = SILENT
    way.publish_each(*[b"%0100d" % number * 10 for number in range(200)])
    assert (way.router.held, way.router.books.held_bytes) == (50, 50_000)
    assert {part.name: part.used for part in way.site.node.memory()}["output"] == 50_000
    assert {sample.name: sample.value for sample in way.relay.samples()}["held_bytes"] == 50_000
    assert way.left() == 200
    way.kafka.fate = 0
    for line in way.router.lines.values():
        line.failed("it hung up")
    way.until(lambda: not way.left())
    assert (way.router.held, output.used) == (0, 0)


def test_beside_clients_that_fill_the_memory_messages_go_one_by_one_until_there_is_room() -> None:
    way = Way(PLAIN, replace(NODE, memory=MemoryConfig(output_bytes=100_000)))
    output = way.site.node.budget.output
    output.used = 100_000
    way.publish_each(*BODIES[:5])
    way.until(lambda: not way.left())
    assert output.used == 100_000
    way.kafka.fate = SILENT
    way.publish_each(*BODIES[5:10])
    assert (way.router.held, way.left()) == (1, 5)
    assert output.refused == 6
    output.used -= 100_000
    way.until(lambda: way.router.held == 5)


def test_nothing_is_kept_of_topics_that_are_gone() -> None:
    way = Way(replace(PLAIN, topics=("*",)))
    for number in range(20):
        way.topic(f"passing{number}")
        way.kafka.fate = SILENT if number % 2 else 0
        way.publish(b"x", to=f"passing{number}")
        way.run(0.1)
        way.site.node.delete_topic(f"passing{number}").now()
    way.kafka.fate = 0
    for line in way.router.lines.values():
        line.failed("it hung up")
    way.until(lambda: not way.router.held)
    way.run(0.1)
    assert [name for name in way.router.lanes if name.startswith("passing")] == []
    assert way.router._leaving == []


def test_a_topic_that_cannot_be_had_yet_is_asked_for_again() -> None:
    way = Way(replace(PLAIN, topics=("t",)), replace(NODE, limits=LimitsConfig(topics=1)), starts=False)
    way.topic("only")
    way.start()
    way.run(20)
    way.site.node.delete_topic("only").now()
    way.run(10)
    assert "t" in way.site.node.topics
    way.publish(b"x")
    way.until(lambda: not way.left())
    assert way.kafka.bodies == [b"x"]


def test_only_messages_with_a_tag_and_a_header_are_relayed() -> None:
    way = Way(replace(PLAIN, tags=("a", "b"), header="region=eu"))
    europe, other = b'{"region":"eu"}', b'{"region":"us"}'
    way.publish(b"1", b"2", b"3", b"4", tag=["a", "b", "c", None], headers=[europe, other, europe, europe])
    way.publish(*BODIES[:40], tag=["b"] * 40, headers=[europe, other] * 20)
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == sorted([b"1", *BODIES[:40:2]])


def test_only_messages_of_traffic_types_that_the_file_allows_are_relayed() -> None:
    static = FilterConfig(topic="t", subscription="kafka", allowed_traffic_types=("production",))
    routing = RoutingConfig(traffic_types={"production": 0, "staging": 1}, filters=(static,))
    way = Way(PLAIN, replace(NODE, routing=routing), starts=False)
    for answer in declare(way.site.node):
        answer.now()
    way.start()
    way.publish(b"1", b"2", b"3", b"4", traffic=[0b01, 0b10, 0b11, None])
    way.until(lambda: not way.left())
    assert sorted(way.kafka.bodies) == [b"1", b"3"]
