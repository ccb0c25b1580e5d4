from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.callers import Caller
from penstock.callers.book import Book
from penstock.callers.quota import UserQuota
from penstock.errors import Refusal
from penstock.fanout import Fanouts
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from tests.site import Site


@pytest.fixture
def site() -> Site:
    return Site()


def publish(site: Site, name: str, *bodies: bytes) -> Mapping[str, Receipt | BaseException]:
    told: list[Mapping[str, Receipt | BaseException]] = []
    fanouts: Fanouts = site.node.fanouts
    caller = Caller(site.node.gate, "127.0.0.1:5", "test")
    fanouts.publish(fanouts.topics(name), caller, Rows.of(bodies, "test"), site, told.append)
    site.machine.run()
    (copies,) = told
    return copies


def test_every_topic_gets_a_copy_with_an_id_of_its_own(site: Site) -> None:
    orders, audit = (site.node.create_topic(name).now() for name in ("orders", "audit"))
    site.publish(audit, b"before")
    site.node.fanouts.create("news").now()
    site.node.fanouts.add("news", orders).now()
    site.node.fanouts.add("news", audit).now()
    copies = publish(site, "news", b"hello")
    assert {name: receipt.ids() for name, receipt in copies.items() if isinstance(receipt, Receipt)} == {
        "orders": [1],
        "audit": [2],
    }
    assert site.consume(orders, "s") == [b"hello"]


def test_the_nodes_own_topics_get_no_copies(site: Site) -> None:
    own = site.node.obtain("_penstock.audit").now()
    site.node.fanouts.create("news").now()
    with pytest.raises(Refusal, match="the node's own"):
        site.node.fanouts.add("news", own)


def test_a_name_is_given_once_and_a_topic_is_added_once(site: Site) -> None:
    fanouts, topic = site.node.fanouts, site.node.create_topic("news").now()
    fanouts.create("news").now()  # a topic of the same name is something else
    with pytest.raises(Refusal, match="already"):
        fanouts.create("news").now()
    for _ in range(2):
        assert [each.topic for each in fanouts.add("news", topic).now().targets] == ["news"]
    assert fanouts.names() == ["news"]
    assert fanouts.remove("news", "news").now().targets == ()
    assert fanouts.remove("news", "news").now().targets == ()
    fanouts.delete("news").now()
    for refused in (fanouts.delete("news"), fanouts.add("news", topic), fanouts.remove("news", "x")):
        with pytest.raises(Refusal, match="there is no fan-out news"):
            refused.now()
    assert publish(site, "news", b"x") == {}


def test_a_deleted_topic_gets_nothing_more_nor_does_one_of_its_name(site: Site) -> None:
    fanouts = site.node.fanouts
    fanouts.create("news").now()
    fanouts.add("news", site.node.create_topic("a").now()).now()
    fanouts.add("news", site.node.create_topic("b").now()).now()
    site.node.delete_topic("a").now()
    site.node.create_topic("a").now()
    record = fanouts.get("news")
    assert record is not None
    assert [each.topic for each in record.targets] == ["b"]
    assert list(publish(site, "news", b"x")) == ["b"]


def test_fanouts_survive_a_power_loss(site: Site) -> None:
    site.node.fanouts.create("news").now()
    site.node.fanouts.add("news", site.node.create_topic("a").now()).now()
    site.lose_power()
    assert [topic.name for topic in site.node.fanouts.topics("news")] == ["a"]


def test_a_target_that_refuses_keeps_none_of_the_others_from_theirs(site: Site) -> None:
    fanouts = site.node.fanouts
    fanouts.create("news").now()
    for name in ("a", "b", "c"):
        fanouts.add("news", site.node.create_topic(name).now()).now()
    site.node.topics["b"].intake.closed = "stopping"
    copies = publish(site, "news", b"x")
    assert [isinstance(copies[name], Receipt) for name in ("a", "b", "c")] == [True, False, True]


def test_copies_count_in_the_quota_of_their_publisher_and_are_refused_together(site: Site) -> None:
    site.node.fanouts.create("news").now()
    topics = [site.node.create_topic(name).now() for name in ("a", "b", "c")]
    for topic in topics:
        site.node.fanouts.add("news", topic).now()
    site.node.gate.accounts.apply(Book([], UserQuota(messages_per_second=1)))
    told: list[Mapping[str, Receipt | BaseException]] = []
    caller = Caller(site.node.gate, "127.0.0.1:5", "test")
    for _ in range(2):  # three copies of two are five seconds too many for the second
        site.node.fanouts.publish(topics, caller, Rows.of([b"x"] * 2, "test"), site, told.append)
    (refused,) = told  # the first is told later
    assert {getattr(copy, "code", "") for copy in refused.values()} == {"rate_limited"}
    site.machine.run(0.5)
    assert len(told) == 1
    site.machine.run(1)
    assert all(isinstance(copy, Receipt) for copy in told[1].values())
    assert [topic.published for topic in topics] == [2, 2, 2]
    assert site.node.ledger.total("rate_limited") == 6
