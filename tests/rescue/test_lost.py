"""Absence never deletes: data goes only after its deletion was written down, whatever became of the registry."""

from __future__ import annotations

import errno
import os
from random import Random
from typing import Literal

import msgspec
import pytest

from penstock.config.tree import NodeConfig
from penstock.errors import CorruptionError, Refusal
from penstock.log import label
from penstock.message import Rows
from penstock.node.node import Node
from penstock.rescue.rebuild import rebuild
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.simulation.disk import Died, Inode, SimDisk
from tests.site import PLAIN, Site

REGISTRY = "data/registry"


@pytest.fixture
def site() -> Site:
    return Site()


def bodies(site: Site, name: str) -> list[bytes]:
    return site.consume(site.node.topic(name), "reader")


def saved(site: Site) -> bytes:
    return bytes(site.machine.platter.files[REGISTRY].data)


def put_back(site: Site, content: bytes | None) -> None:
    """Replace the registry between two lives of the node."""
    site.node.close()
    site.machine.start()
    platter = site.machine.platter
    inode = None
    if content is not None:
        inode = Inode()
        inode.data += content
        inode.sync()
    platter.change("data", [(REGISTRY, inode)])
    platter.sync_directory("data")


def topics(site: Site) -> list[str]:
    return site.machine.disk.list("data/topics")


@pytest.mark.parametrize("recovery", ["cut", "strict"])
@pytest.mark.parametrize("content", [None, b"penstock registry 2\n"])
def test_topics_without_a_registry_keep_the_node_from_starting(
    content: bytes | None, recovery: Literal["cut", "strict"]
) -> None:
    site = Site(msgspec.structs.replace(PLAIN, node=NodeConfig(recovery=recovery)))
    for name in ("a", "b", "c"):
        site.publish(site.node.create_topic(name).now(), name.encode())
    put_back(site, content)
    with pytest.raises(CorruptionError, match=r"holds 3 topics.*`penstock registry rebuild --data data`"):
        site.start()
    assert topics(site) == ["1", "2", "3"]


def test_a_flipped_bit_in_the_last_change_keeps_the_node_from_starting(site: Site) -> None:
    site.publish(site.node.create_topic("a").now(), b"one")
    content = bytearray(saved(site))
    content[-20] ^= 1
    put_back(site, bytes(content))
    with pytest.raises(CorruptionError, match="`penstock registry rebuild`"):
        site.start()
    assert topics(site) == ["1"]


def test_an_older_registry_loses_no_topic_and_gives_no_number_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.publish(site.node.create_topic("a").now(), b"one")
    older = saved(site)
    b = site.node.create_topic("b").now()
    site.publish(b, b"two")
    b.create_subscription("audit").now()
    site.machine.run(1)
    put_back(site, older)
    site.start()
    assert (topics(site), site.machine.disk.list("data/lost")) == (["1"], ["2"])
    found = label.read(site.machine.disk, "data/lost/2")
    assert found is not None
    assert found.name == "b"
    said = "data/lost/2 holds topic 'b', which the registry does not know"
    assert said in caplog.text
    assert said in site.node.lost()[0]
    c = site.node.create_topic("c").now()
    assert c.record.number == 3
    assert c.create_subscription("s").now().number == 2
    assert bodies(site, "a") == [b"one"]
    # It stays there, and is named, until somebody takes it back or removes it.
    site.start()
    assert len(site.node.lost()) == 1
    site.machine.disk.remove("data/lost/2")
    assert site.node.lost() == []


def test_a_registry_from_before_a_subscription_of_a_known_topic_keeps_the_node_from_starting(site: Site) -> None:
    topic = site.node.create_topic("a").now()
    older = saved(site)
    topic.create_subscription("audit").now()
    site.publish(topic, b"one")
    site.machine.run(1)
    newest = saved(site)
    put_back(site, older)
    with pytest.raises(CorruptionError, match="does not know subscription audit of topic a, which is on disk"):
        site.start()
    assert topics(site) == ["1"]
    put_back(site, newest)
    site.start()
    assert site.consume(site.node.topic("a"), "audit") == [b"one"]


def test_a_label_that_is_no_text_costs_nothing(site: Site) -> None:
    site.publish(site.node.create_topic("a").now(), b"one")
    site.node.close()
    site.machine.platter.files["data/topics/1/topic.json"].data[12] = 0xFF
    site.start()
    assert bodies(site, "a") == [b"one"]


def test_a_second_directory_of_the_same_number_gets_a_name_of_its_own(site: Site) -> None:
    for name in ("2", "2.2"):
        site.machine.disk.make(f"data/lost/{name}")
    site.node.create_topic("a").now()
    site.machine.disk.make("data/topics/2")
    site.start()
    assert site.machine.disk.list("data/lost") == ["2", "2.2", "2.3"]


def test_a_deleted_topic_is_gone_with_its_data_and_leaves_nothing_behind(site: Site) -> None:
    site.publish(site.node.create_topic("a").now(), b"one")
    site.node.delete_topic("a").now()
    assert topics(site) == []
    assert [each.number for each in site.node.catalog.deleted()] == [1]
    site.machine.run(site.node.config.node.retention_check_ns / 1e9 + 1)
    assert site.node.catalog.deleted() == []
    site.start()
    assert site.node.lost() == []


def test_a_deletion_that_dies_anywhere_is_finished_or_never_began(site: Site) -> None:
    for step in range(1, 200):
        site = Site()
        site.publish(site.node.create_topic("kept", TopicSettings(durability="fsync")).now(), b"one")
        site.publish(site.node.create_topic("gone", TopicSettings(shards=2, durability="fsync")).now(), b"two")
        site.machine.platter.fuse = step
        try:
            site.node.delete_topic("gone").now()
        except Died:
            pass
        over = site.machine.platter.fuse is not None
        site.machine.lose_power() if step % 2 else site.machine.start()
        site.node = Node(site.config, site.machine.clock, site.machine.disk, Random(1))
        assert site.node.lost() == [], f"step {step}"
        assert bodies(site, "kept") == [b"one"]
        if "gone" in site.node.topics:
            assert bodies(site, "gone") == [b"two"]
        else:
            assert topics(site) == ["1"]
        if over:
            return
    raise AssertionError("the deletion never came to its end")


def test_a_directory_that_is_another_topic_than_the_deleted_one_is_kept(site: Site) -> None:
    topic = site.node.create_topic("a").now()
    site.publish(topic, b"one")
    site.node.catalog.delete_topic("a").now()
    found = label.read(site.machine.disk, topic.path)
    assert found is not None
    other = label.Label(name="other", incarnation=1, number=1, shards=1, durability="os")
    label.write(site.machine.disk, topic.path, other)
    site.start()
    assert site.machine.disk.list("data/lost") == ["1"]


def test_the_journals_of_passing_subscriptions_go_with_them(site: Site) -> None:
    topic = site.node.create_topic("a").now()
    site.publish(topic, b"one")
    site.consume(topic, "passing", SubscriptionSettings(ephemeral=True))
    site.seat.ack([1])
    site.machine.run(1)
    assert any("/s1." in path for path in site.machine.platter.files)
    site.start()
    assert not any("/s1." in path for path in site.machine.platter.files)


# What could not be made is undone


class Failing:
    """Makes the simulated disk refuse files or directories whose path holds a word."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, word: str, number: int) -> None:
        self.left: int | None = None

        def guarded(name: str) -> None:
            real = getattr(SimDisk, name)

            def call(disk: SimDisk, path: str, **options: bool) -> object:
                if word in path and (name == "make" or options.get("create")) and self.left != 0:
                    self.left = self.left - 1 if self.left is not None else None
                    raise OSError(number, os.strerror(number), path)
                return real(disk, path, **options)

            monkeypatch.setattr(SimDisk, name, call)

        guarded("open")
        guarded("make")


@pytest.mark.parametrize(("number", "code"), [(errno.EMFILE, "unavailable"), (errno.ENOSPC, "disk_full")])
@pytest.mark.parametrize("word", ["topics/1", "topics/1/0", "topics/1/0/state"])
def test_a_topic_whose_files_cannot_be_made_is_undone(
    site: Site, monkeypatch: pytest.MonkeyPatch, word: str, number: int, code: str
) -> None:
    with monkeypatch.context() as patch:
        Failing(patch, word, number)
        with pytest.raises(Refusal, match="topic a could not be made") as caught:
            site.node.create_topic("a").now()
    assert caught.value.code == code
    assert (site.node.topics, site.node.catalog.topics()) == ({}, [])
    topic = site.node.create_topic("a").now()
    site.publish(topic, b"one")
    assert topic.record.number == 2
    site.start()
    assert topics(site) == ["2"]
    assert site.node.lost() == []
    assert bodies(site, "a") == [b"one"]


def test_a_topic_that_could_not_even_be_undone_can_be_created_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Failing(patch, "topics/1", errno.ENOSPC)
        patch.setattr(site.node.catalog, "delete_topic", refuse)
        with pytest.raises(Refusal):
            site.node.create_topic("a").now()
    assert [record.name for record in site.node.catalog.topics()] == ["a"]
    site.publish(site.node.create_topic("a").now(), b"one")
    assert bodies(site, "a") == [b"one"]


def refuse(*_: object) -> None:
    raise Refusal("disk_full", "no space left")


def test_a_subscription_whose_journal_cannot_be_read_is_undone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = site.node.create_topic("a").now()
    with monkeypatch.context() as patch:
        patch.setattr(type(topic.shards[0]), "journal", too_many)
        with pytest.raises(Refusal, match="subscription s of topic a could not be made") as caught:
            topic.create_subscription("s").now()
    assert caught.value.code == "unavailable"
    assert (topic.subscriptions, site.node.catalog.subscriptions(topic.record)) == ({}, [])
    site.publish(topic, b"one")
    assert site.consume(topic, "s") == [b"one"]


def too_many(*_: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def grown(site: Site) -> bytes:
    """Let a topic get more shards and messages in all of them; return the registry from before."""
    topic = site.node.create_topic("a").now()
    site.publish(topic, b"one")
    older = saved(site)
    topic.update(msgspec.structs.replace(topic.settings, shards=4)).now()
    for number in range(40):
        rows = Rows.of([b"later"], "test", {"key": [b"key %d" % number]})
        topic.publish(rows, site, lambda _, __: None)
    site.machine.run(1)
    return older


def test_a_registry_from_before_a_topic_got_more_shards_keeps_the_node_from_starting(site: Site) -> None:
    put_back(site, grown(site))
    before = label.read(site.machine.disk, "data/topics/1")
    for _ in range(2):  # also when it is tried again
        with pytest.raises(CorruptionError, match="data/registry knows 1 of the 4 shards of topic a that are on disk"):
            site.start()
        assert label.read(site.machine.disk, "data/topics/1") == before


def test_shards_that_only_the_directories_tell_of_are_taken_back(site: Site) -> None:
    put_back(site, grown(site))
    found = label.read(site.machine.disk, "data/topics/1")
    assert found is not None
    assert found.record is not None
    older = {**found.record, "settings": {**found.record["settings"], "shards": 1}, "orphan_from": [0], "grown": []}
    label.write(site.machine.disk, "data/topics/1", msgspec.structs.replace(found, shards=1, record=older))
    with pytest.raises(CorruptionError, match="of the 4 shards"):
        site.start()
    site.machine.start()
    (made,) = rebuild(site.machine.disk, site.machine.clock, Random(1), "data", force=True).topics
    assert (made.shards, made.remarks) == (
        4,
        ["it has 4 shards on disk, and its record knew 1: its keys may move"],
    )
    site.start()
    assert sorted(bodies(site, "a")) == [b"later"] * 40 + [b"one"]


@pytest.mark.parametrize("gone", ["data/topics/1", "data/topics/1/1"])
def test_a_topic_whose_files_are_gone_is_not_served_as_a_new_one(site: Site, gone: str) -> None:
    for name in ("a", "b"):
        site.publish(site.node.create_topic(name, TopicSettings(shards=2)).now(), b"one")
    site.node.close()
    site.machine.start()
    site.machine.disk.remove(gone)
    site.start()
    assert bodies(site, "b") == [b"one"]
    (said,) = site.node.lost()
    assert said.startswith("topic a is not open: ")
    assert said.endswith(
        "nobody deleted it. Put it back from a backup and start the node again, or delete the topic and make it anew"
    )
    for use in (site.node.topic, lambda name: site.node.obtain(name).now()):
        with pytest.raises(Refusal, match="topic a is not open") as caught:
            use("a")
        assert caught.value.code == "unavailable"
    with pytest.raises(Refusal, match="topic a exists already"):
        site.node.create_topic("a").now()
    site.node.delete_topic("a").now()
    assert site.node.lost() == []
    assert site.node.create_topic("a").now().record.number == 3


def unflagged(site: Site) -> None:
    """Let the record of topic a be as an earlier version wrote it."""
    entry = site.node.registry.get("topic/a")
    assert entry is not None
    record = msgspec.msgpack.decode(entry.value)
    del record["is_made"]
    site.node.registry.propose({"topic/a": msgspec.msgpack.encode(record)}).now()


def test_of_topics_of_an_earlier_version_it_is_written_down_at_the_first_start_that_they_are_there(site: Site) -> None:
    site.publish(site.node.create_topic("a").now(), b"one")
    site.node.lifecycle.absent.mark()
    unflagged(site)
    site.machine.start()  # it was killed
    site.start()
    assert [record.is_made for record in site.node.catalog.topics()] == [True]
    site.machine.start()
    site.machine.disk.remove("data/topics/1")
    site.start()
    assert site.node.lost()[0].startswith("topic a is not open: data/topics/1 is gone")


def test_a_node_that_died_between_the_record_of_a_topic_and_its_files_makes_them(site: Site) -> None:
    site.node.catalog.create_topic("a", TopicSettings()).now()
    site.start()
    site.publish(site.node.topic("a"), b"one")
    assert bodies(site, "a") == [b"one"]
    assert site.node.lost() == []
