"""What a topic takes in is stored once, whatever its publishers and its disk do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.clock import SECOND
from penstock.columns import place_of
from penstock.errors import Refusal
from penstock.intake.receipt import Receipt
from penstock.keyed import shard_of
from penstock.message import Rows
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.site import Site

FSYNC = TopicSettings(durability="fsync")


@pytest.fixture
def site() -> Site:
    return Site()


@contextmanager
def failing_syncs(site: Site) -> Iterator[None]:
    """Let every sync of the log fail."""
    disk = site.machine.disk
    real = disk.submit

    def broken() -> None:
        raise OSError(5, "Input/output error")

    def submit(pool: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        real(pool, broken if pool == "sync" else work, done)

    disk.submit = submit  # type: ignore[method-assign]
    try:
        yield
    finally:
        disk.submit = real  # type: ignore[method-assign]


def test_message_that_a_failed_sync_took_back_is_stored_when_it_is_published_again(site: Site) -> None:
    topic = site.node.create_topic("t", FSYNC).now()
    got = site.consume(topic, "audit")
    with failing_syncs(site):
        (error,) = site.offer(topic, b"pay 5", dedup=[b"payment 7"])
        assert isinstance(error, Refusal)
    site.machine.run(2)
    assert site.offer(topic, b"pay 5", dedup=[b"payment 7"]) == [None]
    assert got == [b"pay 5"]
    assert site.offer(topic, b"pay 5", dedup=[b"payment 7"]) == [None]
    assert got == [b"pay 5"]


def test_publisher_that_tries_again_after_a_failed_sync_is_refused_until_the_disk_is_well_and_then_believed(
    site: Site,
) -> None:
    topic = site.node.create_topic("t", FSYNC).now()
    got = site.consume(topic, "audit")
    told: list[BaseException | None] = []

    def again(_: Receipt | None, error: BaseException | None) -> None:
        for number in (1, 2):  # the second was not told yet, and was taken back all the same
            rows = Rows.of([b"%d" % number], "test", {"dedup": [b"key %d" % number]})
            topic.publish(rows, site, lambda _, error: told.append(error))

    def later(receipt: Receipt | None, error: BaseException | None) -> None:
        again(receipt, error)
        site.node.clock.call_at(site.node.clock.monotonic() + 3 * SECOND, lambda: again(None, None))

    with failing_syncs(site):
        topic.publish(Rows.of([b"1"], "test", {"dedup": [b"key 1"]}), site, later)
        topic.publish(Rows.of([b"2"], "test", {"dedup": [b"key 2"]}), object(), lambda _, error: None)
        world = site.machine.scheduler
        world.run_until(world.time_ns + SECOND, lambda: topic.shards[0].sync_errors > 1)
    site.machine.run(4)
    assert [error.code if isinstance(error, Refusal) else error for error in told] == [*["disk_failed"] * 2, None, None]
    assert got == [b"1", b"2"]


def test_rows_that_a_failed_sync_took_back_are_refused_and_not_published(site: Site) -> None:
    topic = site.node.create_topic("t", FSYNC).now()
    assert site.offer(topic, b"kept", dedup=[b"a"]) == [None]
    with failing_syncs(site):
        site.offer(topic, b"lost", b"lost too", b"kept", dedup=[b"b", b"c", b"a"])
    assert (topic.published, topic.intake.published_bytes) == (1, 4)
    ledger = site.node.ledger
    assert (ledger.total("disk_failed", "t"), ledger.total("duplicate", "t")) == (2, 1)


def test_dead_letter_that_a_failed_sync_took_back_is_buried_again(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.node.create_topic("t.dead", FSYNC).now()
    got = site.consume(topic, "audit", SubscriptionSettings(max_attempts=1))
    site.publish(topic, b"poison")
    subscription = topic.subscription("audit")
    assert got == [b"poison"]
    with failing_syncs(site):
        assert site.seat.release([1], 0) == []
        site.machine.run()
        assert site.node.topic("t.dead").published == 0
    site.machine.run(3)
    dead = site.node.topic("t.dead")
    assert (dead.published, dead.depth(), subscription.counts()["dead_lettered"]) == (1, 1, 1)


def test_publisher_whose_callback_fails_costs_the_others_nothing(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    told: list[str] = []

    def fail(receipt: Receipt | None, error: BaseException | None) -> None:
        told.append("first")
        raise RuntimeError("a bug in a dialect")

    site.offer(topic, b"seen before")
    topic.publish(Rows.of([b"1"], "test"), object(), fail)
    topic.publish(Rows.of([b"2"], "test"), object(), lambda _, error: told.append(f"second {error}"))
    site.machine.run()
    assert told == ["first", "second None"]
    assert site.node.bugs == 1


def test_idempotent_batch_with_keys_is_spread_by_key_and_stored_once_also_after_a_restart(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(shards=4)).now()
    keys: list[bytes | None] = [b"key %d" % (row % 7) if row % 5 else None for row in range(40)]
    bodies = [b"%d" % row for row in range(40)]

    def publish(publisher: object) -> Receipt:
        rows = Rows.of(bodies, "test", {"key": keys})
        rows.sequence = b"producer 1 batch 9"
        told: list[Receipt | None] = []
        site.node.topic("t").publish(rows, publisher, lambda receipt, _: told.append(receipt))
        site.machine.run(1)
        (receipt,) = told
        assert receipt is not None
        return receipt

    first = publish(site)
    assert first.repeated == 0
    places = [place_of(id_) for id_ in first.ids()]
    assert [shard for (shard, _), key in zip(places, keys, strict=True) if key is not None] == [
        shard_of(key, 4) for key in keys if key is not None
    ]
    # Another connection, which has another home for what has no key.
    for publisher in (topic, site.node, site.machine):
        again = publish(publisher)
        assert (again.ids(), again.repeated) == (first.ids(), 40)
    site.start()
    again = publish(site)
    assert (again.ids(), again.repeated) == (first.ids(), 40)
    assert sum(shard.rows_between(0, shard.end) for shard in site.node.topic("t").shards) == 40


@pytest.mark.parametrize("restart", [False, True])
def test_sequence_is_known_however_short_the_window_for_keys_is(site: Site, restart: bool) -> None:
    topic = site.node.create_topic("t", TopicSettings(dedup_window_ns=0)).now()
    for body in (b"first", b"second", b"first"):
        if restart:
            site.start()
            topic = site.node.topic("t")
        rows = Rows.of([body], "test")
        rows.sequence = body
        topic.publish(rows, site, lambda *_: None)
        site.machine.run(60)
    assert topic.shards[0].end == 2


def test_message_due_beyond_the_limit_is_refused_and_counted_with_everything_beside_it(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(max_due_ns=60 * SECOND)).now()
    now_ns = site.machine.clock.now()
    (error,) = site.offer(topic, b"near", b"far", due=[None, now_ns + 61 * SECOND])
    assert isinstance(error, Refusal)
    assert error.code == "due_too_far"
    assert "topic t takes nothing due in more than 1m; raise its max_due" in str(error)
    assert (site.node.ledger.total("due_too_far", "t"), topic.published) == (2, 0)
    assert site.offer(topic, b"near", due=[now_ns + 60 * SECOND]) == [None]


def test_due_times_are_not_limited_where_the_limit_is_0_and_to_a_year_where_nobody_chose(site: Site) -> None:
    free, usual = (
        site.node.create_topic("free", TopicSettings(max_due_ns=0)).now(),
        site.node.create_topic("usual").now(),
    )
    far = [site.machine.clock.now() + 366 * 24 * 3600 * SECOND]
    assert site.offer(free, b"x", due=far) == [None]
    (error,) = site.offer(usual, b"x", due=far)
    assert isinstance(error, Refusal)
    assert error.code == "due_too_far"
