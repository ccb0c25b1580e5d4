"""Slots that come and go while their topics do: whatever comes between, each topic ends up open where its slot is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SECOND
from penstock.cluster.deal import slot_of
from penstock.cluster.places import SLOTS
from penstock.errors import Elsewhere, Refusal
from penstock.log.kafka.disk import SharedDisk
from penstock.log.kafka.engine import topic_of
from penstock.log.kafka.store import AwayError, Partition
from penstock.message import Rows
from penstock.moves.redrive import Redriven, redrive
from penstock.node import holdings, making
from penstock.node.node import Node
from penstock.node.share import ClusterShare
from penstock.node.topic import Topic
from penstock.settings import TopicSettings
from tests.cluster.fake_store import FakeWriter
from tests.node.test_share import Cluster, Consumer, made, publish


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def share_of(node: Node) -> ClusterShare:
    assert node.share is not None
    return node.share


def lose(cluster: Cluster, number: int) -> None:
    """Let the key of a slot go, as the end of a lease does."""
    cluster.server.propose({}, [f"{SLOTS}{number}"])


def slot_of_topic(node: Node, name: str) -> int:
    record = node.catalog.topic(name)
    assert record is not None
    return slot_of(record.incarnation, share_of(node).slots.count)


def works(cluster: Cluster, topic: Topic) -> bool:
    heard = publish(topic, b"more")
    cluster.run()
    return heard.oks == 1


def begin_again(cluster: Cluster, node: Node, name: str) -> None:
    """Let the store not answer a send of a topic, so that its slot is taken from the beginning."""
    cluster.store.lose_next(kept=True)
    publish(node.topic(name), b"doubtful")
    cluster.run(SECOND // 2)
    cluster.store.heal()


def test_a_slot_that_is_lost_while_its_topics_are_opened_and_taken_again_has_them(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    publish(made(cluster, one, "t"), b"a")
    cluster.run()
    begin_again(cluster, one, "t")
    clock, number, writer = cluster.clocks["one"], slot_of_topic(one, "t"), cluster.store.writer

    def fenced(name: str) -> FakeWriter:
        clock.stalled.add("open")
        return writer(name)

    cluster.store.writer = fenced  # type: ignore[method-assign]
    cluster.run(SECOND)
    cluster.store.writer = writer  # type: ignore[method-assign]
    assert len(clock.held) == 1
    opening, clock.held = clock.held, []
    lose(cluster, number)
    clock.stalled.clear()
    cluster.run()
    assert number in share_of(one).holdings.ready
    clock.held = opening
    clock.let_threads_go()
    cluster.run()
    assert works(cluster, one.topic("t"))
    assert Consumer(cluster, one.topic("t")).bodies == [b"a", b"doubtful", b"more"]


def test_a_topic_that_comes_while_its_slot_is_given_up_goes_along(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    names = [made(cluster, one, f"t{number}").name for number in range(24)]
    cluster.clocks["one"].stalled.add("sync")
    for name in names[:12]:
        publish(one.topic(name), b"unsynced")
    two = cluster.start("two")
    cluster.run(3 * SECOND)
    leaving = [name for name in names if one.topics[name].is_leaving]
    assert leaving
    # Nobody makes a topic in a slot that is on its way.
    numbers = {slot_of_topic(one, name) for name in leaving}
    assert not numbers & share_of(one).holdings.ready
    cluster.clocks["one"].let_threads_go()
    cluster.run(20 * SECOND)
    assert sorted([*one.topics, *two.topics]) == sorted(names)
    for node in (one, two):
        assert all(works(cluster, topic) for topic in list(node.topics.values()))


def test_a_store_that_is_away_while_a_slot_is_given_up_does_not_bring_it_back(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    names = [made(cluster, one, f"t{number}").name for number in range(12)]
    cluster.clocks["one"].stalled.add("sync")
    for name in names:
        publish(one.topic(name), b"unsynced")
    two = cluster.start("two")
    cluster.run(3 * SECOND)
    leaving = [name for name in names if one.topics[name].is_leaving]
    assert leaving

    failed = set()

    def away(writer: str, partition: Partition, records: object) -> None:
        if writer not in failed:
            failed.add(writer)
            raise AwayError("the store did not answer in time")

    cluster.store.before_send = away
    cluster.clocks["one"].let_threads_go()
    cluster.run(30 * SECOND)
    assert len(failed) > 1
    assert sorted([*one.topics, *two.topics]) == sorted(names)
    assert sorted(share_of(one).holdings.ready) == sorted(share_of(one).slots.mine)
    assert sorted(share_of(two).holdings.ready) == sorted(share_of(two).slots.mine)
    assert share_of(two).holdings.lost == 0
    assert all(works(cluster, topic) for node in (one, two) for topic in list(node.topics.values()))


def test_a_slot_that_is_lost_while_it_is_given_up_is_dropped(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    names = [made(cluster, one, f"t{number}").name for number in range(12)]
    cluster.clocks["one"].stalled.add("sync")
    heard = {name: publish(one.topic(name), b"unsynced") for name in names}
    cluster.start("two")
    cluster.run(3 * SECOND)
    leaving = {name: one.topics[name] for name in names if one.topics[name].is_leaving}
    assert leaving
    for number in {slot_of_topic(one, name) for name in leaving}:
        lose(cluster, number)
    cluster.run(SECOND)
    # What it waits for the store may answer, or may not: nobody here asks any more.
    assert not leaving.keys() & one.topics.keys()
    assert all(topic.disk.failed is not None for topic in leaving.values() if isinstance(topic.disk, SharedDisk))
    cluster.clocks["one"].let_threads_go()
    cluster.run()
    assert not any(heard[name].oks for name in leaving)


def test_a_topic_that_could_not_be_made_is_there_once_the_store_answers(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    cluster.store.is_away = True
    answers: list[Exception | None] = []
    one.obtain("t").then(lambda _, error: answers.append(error))
    cluster.run()
    assert isinstance(answers[0], Refusal)
    assert answers[0].code == "unavailable"
    assert "did not answer" in str(answers[0])
    with pytest.raises(Refusal, match="topic t cannot be used now: the store did not answer in time; try again"):
        one.topic("t")
    cluster.store.heal()
    cluster.run()
    assert works(cluster, one.topic("t"))
    assert share_of(one).problems() == []
    record = one.catalog.topic("t")
    assert record is not None
    assert record.is_made


def test_a_node_has_no_problem_with_a_slot_that_went_elsewhere(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    made(cluster, one, "t")
    begin_again(cluster, one, "t")
    cluster.store.is_away = True
    cluster.run()
    assert share_of(one).problems() == [f"slot {slot_of_topic(one, 't')}: the store did not answer in time"]
    share_of(one).leave()
    cluster.run()
    cluster.store.heal()
    cluster.run()
    assert works(cluster, two.topic("t"))
    assert share_of(one).problems() == share_of(two).problems() == []


def test_nothing_of_a_topic_is_cached_where_it_was(cluster: Cluster, tmp_path: Path) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    publish(made(cluster, one, "t"), b"a")
    cluster.run()
    share_of(one).leave()
    cluster.run()
    assert Consumer(cluster, two.topic("t")).bodies == [b"a"]
    assert list((tmp_path / "one" / "shared").iterdir()) == []
    assert len(list((tmp_path / "two" / "shared").iterdir())) == 1
    with pytest.raises(Elsewhere):
        one.topic("t")


def test_the_send_of_a_topic_that_is_deleted_meanwhile_does_not_cost_its_slot(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    topic = made(cluster, one, "t")

    def delete(*_: object) -> None:
        cluster.store.heal()
        one.lifecycle.vanished(topic)
        for each in cluster.store.topics():
            cluster.store.drop(each)

    cluster.store.before_send = delete
    heard = publish(topic, b"a")
    cluster.run()
    assert heard.oks == 0
    assert len(heard) == 1
    assert share_of(one).holdings.lost == 0


def test_a_redrive_goes_on_where_its_topic_comes_again(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    letters, target = made(cluster, one, "letters"), made(cluster, one, "target")
    while slot_of_topic(one, "letters") == slot_of_topic(one, "target"):
        one.delete_topic("target")
        cluster.run()
        target = made(cluster, one, "target")
    publish(letters, b"a", b"b")
    cluster.run()
    told: list[Redriven] = []
    target.intake.hold()
    redrive(one, letters, "target", 10, told.append)
    cluster.run()
    lose(cluster, slot_of_topic(one, "letters"))
    cluster.run()
    again = one.topic("letters")
    assert again is not letters
    target.intake.release()
    cluster.run()
    assert [each.problem for each in told] == ["topic letters went away"]
    assert Consumer(cluster, target).bodies == [b"a", b"b"]
    assert one.redrives == {}
    assert cluster.server.list("redrive/") == {}
    assert not [seat for seat in again.subscription("redrive").named.values() if seat.leases()]
    assert one.bugs == 0


@pytest.mark.parametrize("what", ["a shard", "a look through"])
def test_what_was_opened_of_a_topic_that_cannot_be_opened_holds_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    made(cluster, one, "t", TopicSettings(log="kafka", shards=2))
    for shard in range(2):
        one.topic("t").publish(Rows.of([b"x" * 1000], "test"), shard, lambda *_: None, shard)
    cluster.run()
    assert [shard.end for shard in one.topic("t").shards] == [1, 1]
    room, name = (making, "_shard") if what == "a shard" else (holdings, "_look_through")
    well, tries = getattr(room, name), []

    def fails(*given: Any) -> Any:
        if what == "a look through" or given[5] == 1:
            tries.append(given)
            if len(tries) < 4:
                raise AwayError("the store did not answer in time")
        return well(*given)

    monkeypatch.setattr(room, name, fails)
    before = two.quota.used
    share_of(one).leave()
    cluster.run()
    assert len(tries) == 4
    cluster.run()
    assert two.quota.used - before == sum(shard.stored_bytes() for shard in two.topic("t").shards)
    assert works(cluster, two.topic("t"))


def test_a_topic_whose_log_is_gone_from_the_store_is_deleted_and_made_anew(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    names = [made(cluster, one, f"t{number}").name for number in range(12)]
    slot = slot_of_topic(one, "t0")
    gone = topic_of("c", one.topics["t0"].record.incarnation)
    cluster.store.drop(f"{gone}.log")
    publish(one.topic("t0"), b"lost")
    cluster.run(10 * SECOND)
    assert sorted(one.topics) == sorted(names[1:])
    assert slot in share_of(one).holdings.ready
    assert all(works(cluster, one.topic(name)) for name in names[1:])
    with pytest.raises(Refusal, match="delete the topic in Penstock and make it anew"):
        one.topic("t0")
    deleted = one.delete_topic("t0")
    cluster.run(30 * SECOND)
    deleted.now()
    assert share_of(one).problems() == []
    assert f"{gone}.state" not in cluster.store.topics()
    assert one.catalog.deleted() == []
    assert works(cluster, made(cluster, one, "t0"))
    assert one.bugs == 0


def test_a_topic_that_is_deleted_while_another_try_to_open_it_is_under_way_is_gone(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    gone = topic_of("c", made(cluster, one, "t").record.incarnation)
    cluster.store.drop(f"{gone}.log")
    publish(one.topic("t"), b"lost")
    cluster.run(10 * SECOND)
    clock = cluster.clocks["one"]
    clock.stalled.add("open")
    cluster.run(2 * SECOND)
    assert "t" in share_of(one).holdings.coming
    deleted = one.delete_topic("t")
    cluster.run()
    assert not deleted.is_given
    clock.let_threads_go()
    cluster.run(30 * SECOND)
    deleted.now()
    assert cluster.store.topics() == []
    assert one.catalog.topics() == []


def test_a_topic_that_waits_for_its_slot_is_not_deleted_for_that(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    made(cluster, one, "t")
    cluster.store.is_away = True
    publish(one.topic("t"), b"a")
    cluster.run(60 * SECOND)
    assert "t" not in one.topics
    refused: list[Exception | None] = []
    one.delete_topic("t").then(lambda _, error: refused.append(error))
    cluster.run()
    assert isinstance(refused[0], Refusal)
    cluster.store.heal()
    cluster.run()
    assert works(cluster, one.topic("t"))


def test_two_clusters_of_one_name_on_one_kafka_lose_nothing_and_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Cluster(tmp_path / "1"), Cluster(tmp_path / "2")
    second.store = first.store
    one, two = first.start("one"), second.start("two")
    first.run()
    topic = made(first, one, "t")
    sent = publish(topic, b"1")
    first.run()
    second.run()
    made(second, two, "u")
    late = publish(topic, b"2")
    first.run()
    assert sent.oks == 1
    assert late.oks == 0
    assert "another cluster called c uses the same Kafka" in caplog.text
    assert Consumer(first, first.owner("t").topic("t")).bodies[0] == b"1"
