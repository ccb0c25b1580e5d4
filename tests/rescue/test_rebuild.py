"""A registry is made again from what is on disk, and nothing that was there is lost on the way."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.errors import ConfigError, CorruptionError
from penstock.log import label
from penstock.log.label import Label
from penstock.rescue.fanouts import file_of
from penstock.rescue.rebuild import Rebuilt, rebuild
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.rescue.test_lost import bodies, put_back, saved, topics
from tests.site import Site


@pytest.fixture
def site() -> Site:
    """A node with two topics, one of them with subscriptions, that was stopped cleanly."""
    site = Site()
    orders = site.node.create_topic("orders", TopicSettings(shards=3, durability="fsync", rate=77)).now()
    site.consume(orders, "audit", SubscriptionSettings(max_attempts=5), credit=1)
    orders.create_subscription("late").now()
    site.publish(orders, b"one", b"two")
    topic = site.node.create_topic("plain").now()
    site.publish(topic, b"three")
    site.node.catalog.set_mapping({"gold": 3}).now()
    site.machine.run(1)
    return site


def rebuilt(site: Site, *, force: bool = False) -> Rebuilt:
    return rebuild(site.machine.disk, site.machine.clock, Random(1), "data", force=force)


def records(site: Site) -> object:
    catalog = site.node.catalog
    # That their files were made is written down when the node stops.
    made = [msgspec.structs.replace(record, is_made=True) for record in catalog.topics()]
    return [(record, catalog.subscriptions(record)) for record in made]


def test_everything_is_as_before(site: Site) -> None:
    before = records(site)
    put_back(site, None)
    made = rebuilt(site)
    assert [(each.topic, each.shards, each.subscriptions, each.remarks) for each in made.topics] == [
        ("orders", 3, ["audit", "late"], []),
        ("plain", 1, [], []),
    ]
    assert made.kept is None
    site.start()
    assert records(site) == before
    assert site.consume(site.node.topic("orders"), "late") == [b"one", b"two"]
    assert bodies(site, "plain") == [b"three"]
    assert site.node.create_topic("next").now().record.number == 3
    assert site.node.topic("next").create_subscription("s").now().number == 4


def test_what_a_damaged_registry_still_tells_is_kept_and_the_file_too(site: Site) -> None:
    before = records(site)
    content = bytearray(saved(site))
    content[40] ^= 1
    put_back(site, bytes(content))
    made = rebuilt(site)
    assert made.kept == "data/registry.old"
    assert bytes(site.machine.platter.files["data/registry.old"].data) == bytes(content)
    site.start()
    assert records(site) == before
    assert site.node.routing.mapping == {"gold": 3}


def test_a_healthy_registry_is_left_alone_unless_forced(site: Site) -> None:
    before = records(site)
    site.node.close()
    site.machine.start()
    content = saved(site)
    with pytest.raises(ConfigError, match="there is nothing to rebuild"):
        rebuilt(site)
    assert saved(site) == content
    assert [each.topic for each in rebuilt(site, force=True).topics] == ["orders", "plain"]
    assert bytes(site.machine.platter.files["data/registry.old"].data) == content
    site.start()
    assert records(site) == before


def test_what_an_older_registry_did_not_know_is_taken_back(site: Site) -> None:
    older = saved(site)
    topic = site.node.create_topic("young").now()
    topic.create_subscription("audit").now()
    site.publish(topic, b"four")
    site.machine.run(1)
    before = records(site)
    put_back(site, older)
    site.start()
    assert len(site.node.lost()) == 1
    site.node.close()
    site.machine.start()
    made = rebuilt(site)
    assert [(each.topic, each.subscriptions) for each in made.topics] == [("young", ["audit"])]
    site.start()
    assert site.node.lost() == []
    assert records(site) == before
    assert site.consume(site.node.topic("young"), "audit") == [b"four"]


def test_a_subscription_that_an_older_registry_did_not_know_is_taken_back(site: Site) -> None:
    topic = site.node.topic("plain")
    older = saved(site)
    topic.create_subscription("audit", earliest=True).now()
    site.publish(topic, b"five")
    site.machine.run(1)
    before = records(site)
    put_back(site, older)
    with pytest.raises(CorruptionError):
        site.start()
    site.machine.start()
    rebuilt(site, force=True)
    site.start()
    assert records(site) == before
    assert b"five" in site.consume(site.node.topic("plain"), "audit")


def test_a_lost_topic_whose_name_or_number_is_taken_gets_others(site: Site) -> None:
    older = saved(site)
    site.publish(site.node.create_topic("young").now(), b"old")
    site.machine.run(1)
    put_back(site, older)
    site.start()
    site.publish(site.node.create_topic("young").now(), b"new")
    site.node.close()
    site.machine.start()
    # A version that counted again from what the registry knew would have given number 3 twice.
    site.machine.disk.rename("data/lost/3", "data/lost/1")
    found = label.read(site.machine.disk, "data/lost/1")
    assert found is not None
    label.write(site.machine.disk, "data/lost/1", msgspec.structs.replace(found, number=1))
    made = rebuilt(site)
    assert [(each.topic, each.number) for each in made.topics] == [("young.2", 5)]
    assert made.topics[0].remarks == [
        "its number was 1 and is 5 now",
        "there is another topic 'young', so it is named 'young.2' now",
    ]
    site.start()
    assert (bodies(site, "young"), bodies(site, "young.2")) == ([b"new"], [b"old"])


def test_labels_of_an_older_version_give_names_and_journals_give_subscriptions(site: Site) -> None:
    assert site.seat.ack([1]) in ([], [1])
    site.machine.run(1)
    put_back(site, None)
    for number in ("1", "2"):
        found = label.read(site.machine.disk, f"data/topics/{number}")
        assert found is not None
        label.write(
            site.machine.disk,
            f"data/topics/{number}",
            Label(
                name=found.name,
                incarnation=found.incarnation,
                number=found.number,
                shards=found.shards,
                durability=found.durability,
            ),
        )
    made = rebuilt(site)
    assert [(each.topic, each.number, each.shards) for each in made.topics] == [("orders", 1, 3), ("plain", 2, 1)]
    assert made.topics[0].subscriptions == ["recovered-1"]
    site.start()
    orders = site.node.topic("orders")
    assert orders.settings == TopicSettings(shards=3, durability="fsync")
    assert len(site.consume(orders, "recovered-1")) == 1


def test_a_directory_without_a_label_is_served_under_a_name_that_is_made_up(site: Site) -> None:
    put_back(site, None)
    site.machine.disk.remove("data/topics/2/topic.json")
    made = rebuilt(site)
    assert [(each.topic, each.number) for each in made.topics] == [("orders", 1), ("lost-2", 2)]
    assert made.topics[1].remarks == ["it has no label: its name is made up, and so are its settings"]
    site.start()
    assert bodies(site, "lost-2") == [b"three"]


def test_a_deleted_topic_does_not_come_back(site: Site) -> None:
    site.node.catalog.delete_topic("plain").now()
    content = bytearray(saved(site))
    content[40] ^= 1
    put_back(site, bytes(content))
    assert [each.topic for each in rebuilt(site).topics] == ["orders"]
    site.start()
    assert topics(site) == ["1"]
    assert site.node.lost() == []


def test_a_change_of_a_topic_is_on_its_label_soon_after(site: Site) -> None:
    orders = site.node.topic("orders")
    orders.pause(paused=True).now()
    orders.delete_subscription("late").now()
    orders.update_subscription("audit", SubscriptionSettings(max_attempts=9)).now()
    site.machine.run(1)
    found = label.read(site.machine.disk, orders.path)
    assert found is not None
    assert found.record is not None
    assert found.record["settings"]["paused"] is True
    assert found.subscriptions is not None
    assert [(each["name"], each["settings"]["max_attempts"]) for each in found.subscriptions] == [("audit", 9)]


def test_fan_outs_come_back_with_what_dialects_know_of_them(site: Site) -> None:
    fanouts, orders = site.node.fanouts, site.node.topic("orders")
    fanouts.create("news", {"sns": {"tags": {"team": "a"}}}).now()
    fanouts.add("news", orders).now()
    fanouts.create("gone").now()
    fanouts.create("empty").now()
    site.machine.run(1)
    fanouts.delete("gone").now()
    site.machine.run(1)
    before = [fanouts.get(name) for name in ("empty", "news")]
    put_back(site, None)
    assert rebuilt(site).fanouts == ["empty", "news"]
    site.start()
    assert [site.node.fanouts.get(name) for name in site.node.fanouts.names()] == before
    assert [topic.name for topic in site.node.fanouts.topics("news")] == ["orders"]


def test_a_fan_out_whose_file_is_damaged_is_told_of(site: Site) -> None:
    for name in ("news", "whole"):
        site.node.fanouts.create(name).now()
    site.machine.run(1)
    put_back(site, None)
    path = f"data/fanouts/{file_of('news')}"
    site.machine.platter.files[path].data[10] ^= 1
    made = rebuilt(site)
    assert (made.fanouts, made.damaged) == (["whole"], [path])


def test_a_fan_out_follows_a_topic_that_got_another_name_and_loses_one_that_is_not_there(site: Site) -> None:
    older, fanouts = saved(site), site.node.fanouts
    fanouts.create("news").now()
    for name in ("young", "gone"):
        fanouts.add("news", site.node.create_topic(name).now()).now()
    fanouts.add("news", site.node.topic("plain")).now()
    site.machine.run(1)
    put_back(site, older)
    site.start()  # nobody knows two of the directories: they are set aside
    assert site.node.fanouts.names() == []
    site.node.create_topic("young").now()
    site.node.close()
    site.machine.start()
    site.machine.disk.remove("data/lost/4")
    assert rebuilt(site).fanouts == ["news"]
    site.start()
    assert [topic.name for topic in site.node.fanouts.topics("news")] == ["young.2", "plain"]
