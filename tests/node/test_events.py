"""The delivery history tells what happens to messages, and disturbs nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import MILLISECOND, SECOND
from penstock.config import Config, EventsConfig
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.dialects.nsq.health import trouble
from penstock.errors import Refusal
from penstock.filters.sampler import Sampler, base_of
from penstock.message import Rows
from penstock.node.events import DROPPED, RUN_ROWS_MAX, TOPIC
from penstock.node.topic import Topic
from penstock.settings import SubscriptionSettings, TopicSettings, TrafficSettings
from tests.site import Site

FULL = EventsConfig(mode="full")


def site_of(events: EventsConfig = FULL) -> Site:
    return Site(Config(data_dir="data", events=events))


@pytest.fixture
def site() -> Site:
    return site_of()


def history(site: Site, topic: str | None = None) -> list[dict[str, Any]]:
    """Return what the history tells, after the next flush, in the order it was written."""
    site.machine.run(1.5)
    return written(site, topic)


def written(site: Site, topic: str | None = None) -> list[dict[str, Any]]:
    if TOPIC not in site.node.topics:
        return []
    shard = site.node.topic(TOPIC).shards[0]
    told, offset = [], shard.start
    while offset < shard.end:
        batch = shard.read(offset)
        if batch is None:
            shard.fetch(offset, lambda: None)
            site.machine.run(0.1)
            continue
        for row in range(batch.count):
            event = msgspec.json.decode(batch.row_body(row))
            assert batch.row_value("key", row) == event["topic"].encode()
            assert batch.row_value("tag", row) == event["event"]
            assert batch.row_source(row) == "penstock"
            told.append(event)
        offset = batch.end
    return [event for event in told if topic in (None, event["topic"])]


def rows_of(events: list[dict[str, Any]], kind: str, **like: str | None) -> list[tuple[int, int]]:
    """Return (shard, offset) of all events of a kind."""
    return [
        place
        for event in like_these(events, kind, **like)
        for place in zip(event["shard"], event["offset"], strict=True)
    ]


def like_these(events: list[dict[str, Any]], kind: str, **like: str | None) -> Iterator[dict[str, Any]]:
    for event in events:
        if event["event"] == kind and all(event.get(name) == value for name, value in like.items()):
            yield event


# --- each event -------------------------------------------------------------------------------------------------------


def test_message_is_published_delivered_and_acked(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit")
    before_us = site.machine.clock.now() // 1000
    site.publish(topic, b"one", b"two")
    assert site.seat.ack([1, 2]) == []
    published, delivered, acked = history(site)
    assert published.pop("at_us")[0] >= before_us
    assert published == {
        "event": "published",
        "topic": "t",
        "source": "test",
        "one_in": 1,
        "count": 2,
        "shard": [0, 0],
        "offset": [0, 1],
    }
    delivered.pop("at_us")
    assert delivered == {
        "event": "delivered",
        "topic": "t",
        "subscription": "audit",
        "one_in": 1,
        "count": 2,
        "shard": [0, 0],
        "offset": [0, 1],
        "attempts": [1, 1],
    }
    assert (acked["event"], acked["subscription"], acked["offset"]) == ("acked", "audit", [0, 1])
    assert "attempts" not in acked


def test_release_expiry_and_leave_end_a_lease_each_in_its_own_way(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit", credit=3)
    site.publish(topic, b"a", b"b", b"c")
    site.seat.set_credit(0)
    site.seat.release([1], 0)
    site.machine.run(61)  # the lease of the others
    events = history(site)
    assert rows_of(events, "released") == [(0, 0)]
    assert sorted(rows_of(events, "expired")) == [(0, 1), (0, 2)]
    site.seat.set_credit(3)
    site.seat.close()
    events = history(site)
    assert len(rows_of(events, "released", reason="left")) == 3
    assert [event["attempts"] for event in like_these(events, "released", reason="left")] == [[2, 2, 2]]


def test_dead_letter_is_told_where_it_failed(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit", SubscriptionSettings(max_attempts=1))
    site.publish(topic, b"a")
    site.seat.release([1], 0)
    events = history(site, "t")
    assert rows_of(events, "dead", subscription="audit", reason="attempts") == [(0, 0)]
    assert next(like_these(events, "dead"))["attempts"] == [1]
    assert rows_of(history(site, "t.dead"), "published") == [(0, 0)]
    assert not list(like_these(events, "discarded"))


def test_what_is_not_delivered_is_counted_by_reason(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(rate=5)).now()
    none = SubscriptionSettings(traffic=TrafficSettings(allowed=("no-such",), is_default=False))
    site.consume(topic, "filtered", none)
    site.publish(topic, b"a", b"b")
    refused = site.offer(topic, b"c", b"d", b"e", b"f")
    assert [error.code for error in refused if isinstance(error, Refusal)] == ["rate_limited"]
    told = {
        (event.get("subscription"), event["reason"]): event["count"]
        for event in like_these(history(site), "discarded", topic="t")
    }
    assert told == {(None, "rate_limited"): 4, ("filtered", "filtered"): 2}
    topic.create_subscription("emptied", earliest=True).now()
    topic.subscription("emptied").empty()
    (last,) = like_these(history(site), "discarded", subscription="emptied")
    assert (last["reason"], last["count"], last["one_in"]) == ("removed", 2, 1)
    assert "offset" not in last


def test_invented_names_do_not_fill_the_memory(site: Site) -> None:
    for number in range(5000):
        site.node.ledger.add("not_found", f"t{number}", 1, 0)
    events = list(like_these(history(site), "discarded"))
    assert len(events) < 1100
    assert sum(event["count"] for event in events) == 5000


def test_lease_that_somebody_polled_for_is_told_too(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    subscription = topic.subscribe("audit").now()
    got: list[Delivery] = []
    subscription.holder("api").look(10, SECOND, got.extend)
    site.publish(topic, b"a")
    assert len(got) == 1
    site.machine.run(2)
    events = history(site)
    assert rows_of(events, "delivered") == rows_of(events, "expired") == [(0, 0)]


def test_rows_of_every_shard_are_told(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(shards=4)).now()
    got = site.consume(topic, "audit")
    keys = [b"%d" % number for number in range(40)]
    assert site.offer(topic, *keys, key=keys) == [None]
    events = history(site)
    assert len(got) == 40
    places = rows_of(events, "published")
    assert {shard for shard, _ in places} == {0, 1, 2, 3}
    assert sorted(places) == sorted(rows_of(events, "delivered"))
    assert len(set(places)) == 40


# --- how much ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_of_a_message_everything_is_told_or_nothing(sizes: list[int], random: Any) -> None:
    site = site_of(EventsConfig(one_in=4))
    topic = site.node.create_topic("t", TopicSettings(shards=2)).now()
    subscription = topic.subscribe("audit").now()
    got: list[int] = []
    seat = topic.attach(subscription, lambda deliveries: got.extend(_ids(deliveries)))
    seat.set_credit(2000)
    for number, size in enumerate(sizes):
        topic.publish(Rows.of([b"x"] * size, "test"), site, lambda *_: None, shard=number % 2)
        site.machine.run()
    random.shuffle(got)
    while got:
        size = random.choice([1, 1, 3, 40])
        some, got[:] = got[:size], got[size:]
        assert seat.ack(some) == []
    events = history(site)
    places = [sorted(rows_of(events, kind)) for kind in ("published", "delivered", "acked")]
    assert places[0] == places[1] == places[2]
    assert all(event["one_in"] == 4 for event in events)
    sampler = Sampler(4)
    stored = [(shard.number, offset) for shard in topic.shards for offset in range(shard.end)]
    assert places[0] == [(shard, offset) for shard, offset in stored if sampler.one(base_of("t", shard), offset)]


def _ids(deliveries: list[Delivery]) -> list[int]:
    return [(delivery.shard << 48) + offset + 1 for delivery in deliveries for offset in delivery.offsets()]


def test_one_message_in_so_many_is_told() -> None:
    site = site_of(EventsConfig(one_in=10))
    topic = site.node.create_topic("t").now()
    for _ in range(10):
        site.publish(topic, *[b"x"] * 100)
    assert len(rows_of(history(site), "published")) == pytest.approx(100, abs=2)


def test_events_above_the_rate_are_dropped_and_counted() -> None:
    site = site_of(EventsConfig(mode="full", rate_max=150))
    topic = site.node.create_topic("t").now()
    site.publish(topic, *[b"x"] * 100)
    site.publish(topic, *[b"x"] * 100)
    site.publish(topic, *[b"x"] * 100)
    places = rows_of(history(site), "published")
    assert places == [(0, offset) for offset in range(150)]
    assert site.node.ledger.total(DROPPED, TOPIC) == 150
    site.publish(topic, b"x")
    assert rows_of(history(site), "published")[150:] == [(0, 300)]


def test_long_run_is_told_in_several_messages_of_bounded_size(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit", credit=20_000)
    for _ in range(3):
        site.publish(topic, *[b"x"] * 3000)
    events = list(like_these(history(site), "delivered"))
    assert [event["count"] for event in events] == [RUN_ROWS_MAX, RUN_ROWS_MAX, 9000 - 2 * RUN_ROWS_MAX]
    assert all(
        len(event[name]) == event["count"] for event in events for name in ("shard", "offset", "at_us", "attempts")
    )
    assert all(len(msgspec.json.encode(event)) < 256 << 10 for event in events)
    assert [place for _, place in rows_of(events, "delivered")] == list(range(9000))


def test_switched_off_nothing_is_hooked_in_and_no_topic_made() -> None:
    site = site_of(EventsConfig(mode="off"))
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit")
    site.publish(topic, b"x")
    subscription = topic.subscription("audit")
    assert site.node.events is None
    assert site.node.ledger.on_add is None
    assert subscription.dealer.on_hand is None
    assert subscription.cursors[0].states.recorder is None
    assert history(site) == []
    site.node.close()


def test_topics_of_the_node_itself_are_not_told(site: Site) -> None:
    own = site.node.create_topic("_penstock.other").now()
    site.publish(own, b"x")
    topic = site.node.create_topic("t").now()
    site.publish(topic, b"x")
    history(site)
    got = site.consume(site.node.topic(TOPIC), "reader")
    for _ in range(3):
        events = history(site)
    assert {event["topic"] for event in events} == {"t"}
    assert len(got) == len(events) == 1


# --- trouble ----------------------------------------------------------------------------------------------------------


def test_full_disk_costs_events_and_nobody_else_anything(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(durability="memory")).now()
    got = site.consume(topic, "audit")
    site.publish(topic, b"first")
    told = len(history(site))
    site.machine.fill()
    site.publish(topic, b"second")
    assert len(history(site)) == told
    assert site.node.ledger.total(DROPPED, TOPIC) == 2
    assert site.node.ledger.total("disk_full", TOPIC) > 0
    assert trouble(site.node) is None
    site.machine.make_room()
    site.publish(topic, b"third")
    assert got == [b"first", b"second", b"third"]
    assert rows_of(history(site), "published") == [(0, 0), (0, 2)]
    assert site.node.bugs == 0


def test_disk_that_is_full_before_the_topic_exists_costs_events_only(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(durability="memory")).now()
    site.machine.fill()
    site.publish(topic, b"x")
    assert history(site) == []
    assert site.node.ledger.total(DROPPED) == 1
    site.machine.make_room()
    site.publish(topic, b"y")
    assert rows_of(history(site), "published") == [(0, 1)]


def test_history_is_bounded_by_its_retention() -> None:
    site = site_of(EventsConfig(mode="full", retention_bytes=256 << 10))
    topic = site.node.create_topic("t").now()
    for _ in range(30):
        site.publish(topic, *[b"x"] * 1000)
        site.machine.run(1.5)
    site.machine.run(60)
    shard = site.node.topic(TOPIC).shards[0]
    assert shard.start > 0
    assert shard.stored_bytes() < 512 << 10
    assert site.node.topic(TOPIC).settings.durability == "os"


def test_topic_that_somebody_deleted_is_made_again(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.publish(topic, b"x")
    history(site)
    site.node.delete_topic(TOPIC).now()
    site.publish(topic, b"y")
    assert rows_of(history(site), "published") == [(0, 1)]


def test_failing_part_is_logged_once_a_second_with_a_count(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = site.node.create_topic("t").now()

    def fail(_: object) -> bool:
        raise RuntimeError("a bug in one topic")

    monkeypatch.setattr(topic, "tick", fail)
    site.publish(topic, b"x")
    site.machine.run(3)
    said = [record.getMessage() for record in caplog.records if "tick of topic t failed" in record.getMessage()]
    assert 3 <= len(said) <= 4
    assert site.node.bugs > 200
    assert "(and 9" in said[1]


# --- the end ----------------------------------------------------------------------------------------------------------


def test_last_events_are_written_when_the_node_ends_and_found_when_it_starts_again(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit", credit=1)
    site.publish(topic, b"a", b"b")
    site.node.stop()
    site.seat.ack([1])
    site.node.close()
    site.start()
    events = written(site)
    assert rows_of(events, "published") == [(0, 0), (0, 1)]
    assert rows_of(events, "delivered") == rows_of(events, "acked") == [(0, 0)]
    site.publish(site.node.topic("t"), b"c")
    assert rows_of(history(site), "published") == [(0, 0), (0, 1), (0, 2)]


def test_what_consumers_hold_at_the_end_is_told_as_released(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit")
    gone = site.node.create_topic("gone").now()
    site.publish(topic, b"a")
    site.consume(gone, "audit")
    site.publish(gone, b"b")
    site.node.delete_topic("gone").now()
    site.node.close()
    site.start()
    events = written(site)
    assert rows_of(events, "released", topic="t", reason="stopped") == [(0, 0)]
    assert rows_of(events, "released", topic="gone", reason="removed") == [(0, 0)]


def test_chosen_before_a_crash_is_chosen_after_it() -> None:
    site = site_of(EventsConfig(one_in=5, flush_interval_ns=50 * MILLISECOND))
    topic = site.node.create_topic("t").now()
    site.publish(topic, *[b"x"] * 200)
    published = rows_of(history(site), "published")
    site.start()
    topic = site.node.topic("t")
    got = site.consume(topic, "audit", credit=500)
    assert len(got) == 200
    assert rows_of(history(site), "delivered") == published != []


# --- the sum ----------------------------------------------------------------------------------------------------------


class Play:
    """A subscription and consumers that do whatever comes to their mind."""

    def __init__(self, random: Any, order: str, max_attempts: int) -> None:
        self.random = random
        self.site = site_of(EventsConfig(mode="full", rate_max=1 << 30))
        self.topic: Topic = self.site.node.create_topic("t", TopicSettings(shards=2)).now()
        chosen = msgspec.convert({"max_attempts": max_attempts, "order": order, "key_run": 3}, SubscriptionSettings)
        self.subscription: Subscription = self.topic.subscribe("audit", chosen).now()
        self.held: dict[Seat, list[int]] = {}
        self.published = 0

    def step(self) -> None:
        self.random.choice(
            [self.join, self.publish, self.publish, self.ack, self.ack, self.release, self.leave, self.wait, self.odd]
        )()
        self.site.machine.run(0.01)

    def join(self) -> None:
        held: list[int] = []
        deliver = lambda deliveries: held.extend(_ids(deliveries))  # noqa: E731
        seat = self.topic.attach(self.subscription, deliver, lease_ns=5 * SECOND)
        self.held[seat] = held
        seat.set_credit(self.random.choice([1, 5, 100]))

    def publish(self) -> None:
        count = self.random.choice([1, 2, 30])
        keys = [self.random.choice([b"a", b"b", b"c"]) for _ in range(count)]
        rows = Rows.of([b"x"] * count, "test", {"key": keys})
        self.topic.publish(rows, self, lambda *_: None)
        self.published += count

    def ack(self) -> None:
        self._with_some(lambda seat, ids: seat.ack(ids))

    def release(self) -> None:
        delay_ns = self.random.choice([0, SECOND])
        self._with_some(lambda seat, ids: seat.release(ids, delay_ns))

    def _with_some(self, act: Any) -> None:
        for consumer, held in self.held.items():
            count = self.random.choice([1, 2, 20, 40])
            some, held[:] = held[:count], held[count:]
            if some:
                act(consumer, some)

    def leave(self) -> None:
        if self.held:
            consumer = self.random.choice(list(self.held))
            del self.held[consumer]
            consumer.close()

    def wait(self) -> None:
        self.site.machine.run(self.random.choice([0.1, 2, 6]))

    def odd(self) -> None:
        shard = self.random.randrange(2)
        what = self.random.randrange(12)
        if what == 0:
            self.subscription.empty()
        elif what == 1:
            self.subscription.seek(shard, self.topic.shards[shard].start)
        elif what == 2:
            self.subscription.ack_up_to((shard << 48) + 3)
        elif what == 3:
            self.subscription.remove([(shard << 48) + 2, (shard << 48) + 5])
        elif what < 8:
            self.subscription.holder("api").look(3, 2 * SECOND, lambda _: None)


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.sampled_from(["none", "key", "shard"]), st.sampled_from([0, 2]))
def test_every_delivery_ends_once_or_is_still_out(random: Any, order: str, max_attempts: int) -> None:
    play = Play(random, order, max_attempts)
    for _ in range(40):
        play.step()
    in_flight = play.subscription.in_flight()
    dead = play.subscription.counts()["dead_lettered"]
    held = {
        (cursor.source.number, offset)
        for cursor in play.subscription.cursors
        for holder in cursor.states.leases.holders()
        for offset in cursor.states.leases.of(holder).tolist()
    }
    assert play.site.node.events is not None
    play.site.node.events.flush()
    events = [event for event in written(play.site, "t") if event["event"] != "discarded"]
    mine = [event for event in events if event.get("subscription") == "audit"]
    count = Counter({kind: len(rows_of(mine, kind)) for kind in ("delivered", "acked", "released", "expired", "dead")})
    assert play.site.node.bugs == 0
    assert count["delivered"] == count["acked"] + count["released"] + count["expired"] + in_flight
    places = Counter(rows_of(mine, "delivered"))
    for kind in ("acked", "released", "expired"):
        places.subtract(rows_of(mine, kind))
    assert {place for place, left in places.items() if left} == held
    assert max(places.values(), default=0) <= 1
    assert len(rows_of(events, "published")) == play.published
    assert count["dead"] >= dead  # a seek begins the counts anew
