"""A node whose registry is far away: whoever creates on first use waits, in order, and is told what became of it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.config import LimitsConfig
from penstock.dialects.nsq import DIALECT
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tcp.server import Server
from penstock.disk import Disk
from penstock.errors import Refusal
from penstock.log.quota import Quota
from penstock.log.shard import Shard
from penstock.node import growth, making
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.registry import EmbeddedRegistry
from penstock.registry.answer import Answer
from penstock.registry.catalog import Catalog
from penstock.registry.records import Growth, TopicRecord
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.nsq.parts import Broker, Client
from tests.registry.far import Far, Trouble


class FarBroker(Broker):
    """A node with its NSQ server, and a registry elsewhere."""

    trouble = Trouble(delay_ns=20 * MILLISECOND)

    def start(self) -> None:
        server = EmbeddedRegistry.open(self.disk, self.clock, f"{self.config.data_dir}/registry")
        self.far = Far(server, self.clock, random.Random(3), self.trouble)
        self.node = Node(self.config, self.clock, self.disk, random.Random(1), self.far, dialects=[DIALECT])
        self.server = Server(self.node, self.config.of(NsqConfig))

    def upset(self, **odds: float) -> None:
        """Let things go wrong from now on."""
        self.far.trouble = Trouble(delay_ns=20 * MILLISECOND, **odds)


@pytest.fixture
def broker(tmp_path: Path) -> FarBroker:
    return FarBroker(tmp_path)


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %b\n" % topic.encode() + len(body).to_bytes(4, "big") + body


def test_publishes_to_a_new_topic_wait_for_it_and_are_answered_in_order(broker: FarBroker) -> None:
    client = broker.client()
    client.send(pub("t", b"one") + pub("t", b"two") + b"NOP\n" + pub("u", b"three"))
    assert client.replies() == []
    assert broker.node.topics == {}
    broker.advance(2)
    assert client.replies() == ["OK", "OK", "OK"]
    reader = broker.client()
    reader.send(b"SUB t ch\nRDY 10\n")
    broker.advance(2)
    frames = reader.frames()
    assert frames[0] == (0, b"OK")
    assert [data[-3:] for _, data in frames[1:]] == [b"one", b"two"]


def test_a_topic_that_is_there_is_not_waited_for_while_another_is_made(broker: FarBroker) -> None:
    first, other = broker.client(), broker.client()
    first.send(pub("t", b"one"))
    broker.advance(2)
    first.send(pub("new", b"two"))
    other.send(pub("t", b"three"))
    assert (first.replies(), other.replies()) == (["OK"], ["OK"])
    broker.advance(2)
    assert first.replies() == ["OK"]


def test_commands_behind_a_subscription_that_is_being_made_wait_for_it(broker: FarBroker) -> None:
    writer, reader = broker.client(), broker.client()
    reader.send(b"SUB t ch\nRDY 1\n")
    writer.send(pub("t", b"one"))
    assert (reader.frames(), writer.frames()) == ([], [])
    broker.advance(3)
    assert writer.replies() == ["OK"]
    frames = reader.frames()
    assert frames[0] == (0, b"OK")
    assert frames[1][1].endswith(b"one")


def test_two_connections_that_want_the_same_get_the_same(broker: FarBroker) -> None:
    clients = [broker.client() for _ in range(4)]
    for client in clients:
        client.send(b"SUB t ch\nRDY 1\n")
    broker.advance(3)
    assert [client.replies() for client in clients] == [["OK"]] * 4
    assert len(broker.node.catalog.topics()) == 1
    assert len(broker.node.topic("t").subscription("ch").seats) == 4


def test_a_registry_that_refuses_costs_the_command_and_says_why(broker: FarBroker) -> None:
    broker.upset(refused=1.0)
    client, subscriber = broker.client(), broker.client()
    client.send(pub("t", b"one") + pub("t", b"two"))
    subscriber.send(b"SUB t ch\n")
    broker.advance(2)
    assert client.replies()[0].startswith("E_PUB_FAILED PUB failed the registry is busy")
    assert subscriber.replies()[0].startswith("E_SUB_FAILED SUB failed the registry is busy")
    assert broker.node.topics == {}


def test_a_client_that_hangs_up_while_its_topic_is_made_harms_nobody(broker: FarBroker) -> None:
    client = broker.client()
    client.send(pub("t", b"one") + b"SUB t ch\n")
    client.abort()
    broker.advance(3)
    assert broker.node.bugs == 0
    again = broker.client()
    again.send(pub("t", b"two"))
    broker.advance(2)
    assert again.replies() == ["OK"]


@pytest.mark.parametrize("odds", [{"answer_lost": 0.5}, {"request_lost": 0.5}, {"late": 0.5}])
def test_a_lost_answer_is_asked_for_again_and_nothing_is_made_twice(broker: FarBroker, odds: dict[str, float]) -> None:
    broker.upset(**odds)
    clients = [broker.client() for _ in range(6)]
    for number, client in enumerate(clients):
        client.send(pub(f"t{number % 3}", b"one") + b"SUB t%d ch\nRDY 1\n" % (number % 3))
    broker.advance(60)
    assert len(broker.far.fates) == 2
    assert sorted(record.name for record in broker.node.catalog.topics()) == ["t0", "t1", "t2"]
    assert sorted(broker.node.topics) == ["t0", "t1", "t2"]
    numbers = [record.number for record in broker.node.catalog.topics()]
    assert len(set(numbers)) == 3
    assert all(client.replies()[:2] == ["OK", "OK"] for client in clients)
    assert broker.node.bugs == 0


def test_what_is_deleted_and_made_again_at_once_is_another_one(broker: FarBroker) -> None:
    made = broker.node.create_topic("t")
    broker.advance(2)
    first = made.now()
    deleted, again = broker.node.delete_topic("t"), broker.node.create_topic("t")
    broker.advance(3)
    deleted.now()
    assert first.deleted
    assert again.now() is broker.node.topic("t")
    assert again.now().record.number == first.record.number + 1


def test_a_pause_keeps_back_what_comes_while_the_registry_is_asked(broker: FarBroker) -> None:
    writer, reader = broker.client(), broker.client()
    reader.send(b"SUB t ch\nRDY 10\n")
    broker.advance(2)
    reader.frames()
    topic = broker.node.topic("t")
    paused = topic.pause(paused=True)
    writer.send(pub("t", b"one"))
    broker.advance(2)
    paused.now()
    assert (writer.replies(), reader.frames()) == (["OK"], [])
    topic.pause(paused=False)
    broker.advance(2)
    assert len(reader.messages()) == 1


def test_a_refused_pause_lets_everything_flow_again(broker: FarBroker) -> None:
    writer, reader = broker.client(), broker.client()
    reader.send(b"SUB t ch\nRDY 10\n")
    broker.advance(2)
    reader.frames()
    broker.upset(refused=1.0)
    paused = broker.node.topic("t").pause(paused=True)
    writer.send(pub("t", b"one"))
    broker.advance(2)
    with pytest.raises(Refusal):
        paused.now()
    writer.send(pub("t", b"two"))
    assert len(reader.messages()) == 2


def test_dead_letters_wait_for_their_topic(broker: FarBroker) -> None:
    broker.client().send(pub("t", b"poison"))
    broker.advance(2)
    topic = broker.node.topic("t")
    topic.create_subscription("audit", SubscriptionSettings(max_attempts=1))
    broker.advance(2)
    seat = topic.attach(topic.subscription("audit"), lambda deliveries: None)
    seat.set_credit(1)
    assert seat.release([1]) == []
    assert "t.dead" not in broker.node.topics
    broker.advance(3)
    assert topic.subscription("audit").counts()["dead_lettered"] == 1
    assert broker.node.topic("t.dead").settings == TopicSettings(durability="fsync")


def test_a_node_that_dies_while_it_waits_has_all_of_it_or_nothing(tmp_path: Path) -> None:
    for step in range(12):
        broker = FarBroker(tmp_path / str(step))
        client: Client = broker.client()
        client.send(pub("t", b"one") + b"SUB t ch\n")
        broker.advance(step * 0.01)
        answered = client.replies()
        broker.kill()
        assert broker.node.lost() == []
        if answered:
            assert "t" in broker.node.topics
        client = broker.client()
        client.send(pub("t", b"two"))
        broker.advance(3)
        assert client.replies() == ["OK"]


def grown(broker: FarBroker, shards: int) -> Answer[None]:
    topic = broker.node.topic("t")
    return topic.update(msgspec.structs.replace(topic.settings, shards=shards))


def test_what_is_published_while_a_topic_gets_more_shards_is_stored_after_that_in_order(broker: FarBroker) -> None:
    client = broker.client()
    client.send(pub("t", b"one"))
    broker.advance(2)
    assert client.replies() == ["OK"]
    answer = grown(broker, 3)
    client.send(pub("t", b"two") + pub("t", b"three"))
    second = grown(broker, 4)
    with pytest.raises(Refusal, match="is getting more shards already"):
        second.now()
    assert (answer.is_given, client.replies()) == (False, [])
    broker.advance(2)
    answer.now()
    assert client.replies() == ["OK", "OK"]
    topic = broker.node.topic("t")
    assert ([shard.end for shard in topic.shards], topic.record.grown[0].ends) == ([3, 0, 0], (1,))
    assert broker.node.budget.input.used == 0


def test_partitions_asked_for_are_answered_once_they_are_there(broker: FarBroker) -> None:
    client = broker.client()
    client.send(b"INTERNAL_CREATE_TOPIC t 0\nINTERNAL_CREATE_TOPIC t 2\n" + pub("t 2", b"one") + b"NOP\n")
    assert client.replies() == []
    broker.advance(5)
    assert client.replies() == ["OK", "OK", "OK"]
    assert broker.node.topic("t").shards[2].end == 1


def test_growth_that_the_registry_refuses_leaves_the_topic_as_it_was(broker: FarBroker) -> None:
    client = broker.client()
    client.send(pub("t", b"one"))
    broker.advance(2)
    broker.upset(refused=1.0)
    answer = grown(broker, 3)
    client.send(pub("t", b"two"))
    broker.advance(15)
    with pytest.raises(Refusal):
        answer.now()
    topic = broker.node.topic("t")
    assert (len(topic.shards), topic.settings.shards, topic.shards[0].end) == (1, 1, 2)
    assert client.replies() == ["OK", "OK"]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_growth_of_which_it_is_not_known_whether_it_was_done_costs_nothing(broker: FarBroker, is_done: bool) -> None:
    client = broker.client()
    client.send(pub("t", b"one"))
    broker.advance(2)
    broker.upset(**{"answer_lost" if is_done else "request_lost": 1.0})
    broker.far.deafen()
    answer = grown(broker, 3)
    client.send(pub("t", b"two"))
    broker.advance(15)
    with pytest.raises(Refusal, match="not known whether this was done"):
        answer.now()
    assert client.replies() == ["OK", "OK"]
    broker.kill()
    assert broker.node.lifecycle.absent.missing == {}
    topic = broker.node.topic("t")
    assert [shard.end for shard in topic.shards] == [2, 0, 0] if is_done else [2]
    again = grown(broker, 4)
    broker.advance(2)
    again.now()
    assert [shard.end for shard in topic.shards] == [2, 0, 0, 0]


def test_a_growth_whose_answers_are_lost_is_done_once_the_record_shows_it(broker: FarBroker) -> None:
    client = broker.client()
    client.send(pub("t", b"one"))
    broker.advance(2)
    broker.upset(answer_lost=1.0)
    answer = grown(broker, 3)
    client.send(pub("t", b"two"))
    broker.advance(2)
    answer.now()
    assert client.replies() == ["OK", "OK"]
    assert len(broker.node.topic("t").shards) == 3


def test_a_growth_that_turns_out_to_be_done_gives_the_topic_its_shards(broker: FarBroker) -> None:
    broker.client().send(pub("t", b"one"))
    broker.advance(2)
    broker.upset(answer_lost=1.0)
    broker.far.deafen()
    answer = grown(broker, 3)
    broker.advance(15)
    with pytest.raises(Refusal):
        answer.now()
    broker.upset()
    topic = broker.node.topic("t")
    assert len(topic.shards) == 1
    broker.far.hear()
    broker.advance(2)
    assert len(topic.shards) == 3
    paused = topic.pause(paused=True)
    broker.advance(2)
    paused.now()


def test_subscriptions_that_are_being_made_count(tmp_path: Path) -> None:
    broker = FarBroker(tmp_path, limits=LimitsConfig(subscriptions=2))
    made = [broker.node.create_topic(name) for name in "tu"]
    broker.advance(2)
    topics = [each.now() for each in made]
    answers = [topics[number % 2].create_subscription(f"s{number}") for number in range(2)]
    with pytest.raises(Refusal, match=r"all topics together have 2 subscriptions already; limits\.subscriptions"):
        topics[0].create_subscription("late").now()
    broker.advance(2)
    assert [len(topic.subscriptions) for topic in topics] == [1, 1]
    topics[0].delete_subscription("s0")
    broker.advance(2)
    answers.append(topics[1].create_subscription("again"))
    broker.advance(2)
    assert [answer.now().name for answer in answers] == ["s0", "s1", "again"]


def test_a_subscription_that_could_not_be_made_counts_no_more(tmp_path: Path) -> None:
    broker = FarBroker(tmp_path, limits=LimitsConfig(subscriptions=1))
    made = broker.node.create_topic("t")
    broker.advance(2)
    broker.upset(refused=1.0)
    refused = made.now().create_subscription("s")
    broker.advance(2)
    with pytest.raises(Refusal, match="busy"):
        refused.now()
    broker.upset()
    again = made.now().create_subscription("s")
    broker.advance(2)
    assert again.now().name == "s"


def test_holds_that_are_being_kept_count_once_each(tmp_path: Path) -> None:
    broker = FarBroker(tmp_path, limits=LimitsConfig(holds=2))
    made = broker.node.create_topic("t")
    broker.advance(2)
    holds, record = broker.node.holds, made.now().record
    broker.upset(refused=1.0)
    refused = holds.hold("query 0", record, [0], SECOND)
    broker.advance(2)
    with pytest.raises(Refusal, match="busy"):
        refused.now()
    broker.upset()
    answers = [holds.hold(f"query {number}", record, [0], SECOND) for number in (1, 1, 2)]
    with pytest.raises(Refusal, match="there are 2 holds already"):
        holds.hold("query 3", record, [0], SECOND).now()
    broker.advance(2)
    for answer in answers:
        answer.now()
    assert len(holds) == 2


def unanswered(broker: FarBroker) -> Topic:
    """Return a topic whose record names three shards, of which its node does not know yet."""
    broker.client().send(pub("t", b"one"))
    broker.advance(2)
    broker.upset(answer_lost=1.0)
    broker.far.deafen()
    answer = grown(broker, 3)
    broker.advance(15)
    with pytest.raises(Refusal):
        answer.now()
    return broker.node.topic("t")


def test_a_growth_that_cannot_say_where_the_others_end_now_does_not_go_by_what_was_said_before(
    broker: FarBroker,
) -> None:
    topic = unanswered(broker)
    broker.client().send(pub("t", b"two"))  # the record says that this is from after the growth
    broker.upset(refused=1.0)
    broker.far.hear()
    broker.advance(2)
    assert ([shard.end for shard in topic.shards], topic.intake.is_held) == ([2], False)
    broker.upset()
    broker.advance(growth.AGAIN_NS / SECOND + 2)
    assert ([shard.end for shard in topic.shards], topic.record.grown[-1].ends) == ([2, 0, 0], (2,))


def test_a_growth_that_somebody_else_wrote_at_the_same_time_is_not_taken_for_ones_own(broker: FarBroker) -> None:
    broker.client().send(pub("t", b"one"))
    broker.advance(2)
    answer, topic = grown(broker, 3), broker.node.topic("t")
    other = Catalog(broker.far.server, broker.clock, random.Random(2))
    settings = msgspec.structs.replace(topic.settings, shards=3)
    other.update_topic("t", settings=settings, grown=(Growth(shards=1, first=1, ends=(0,), at_ns=0),)).now()
    broker.advance(2)
    with pytest.raises(Refusal, match="has 3 shards by now"):
        answer.now()
    assert ([shard.end for shard in topic.shards], topic.intake.is_held) == ([1], False)
    broker.advance(growth.AGAIN_NS / SECOND + 2)
    assert ([shard.end for shard in topic.shards], topic.record.grown[-1].ends) == ([1, 0, 0], (1,))


def test_shards_that_the_record_names_and_that_cannot_be_had_now_stay_on_the_disk_and_are_tried_again(
    broker: FarBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = unanswered(broker)
    broker.upset()
    make, tries = making._shard, []

    def full(node: Node, disk: Disk, record: TopicRecord, path: str, quota: Quota, number: int, *rest: Any) -> Shard:
        tries.append(number)
        if number == 2:
            raise OSError(28, os.strerror(28))
        return make(node, disk, record, path, quota, number, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(making, "_shard", full)
        broker.far.hear()
        broker.advance(2)
    assert (tries, len(topic.shards)) == ([1, 2], 1)
    assert broker.disk.exists(f"{topic.path}/1")
    [said] = [each.getMessage() for each in caplog.records if each.name == "penstock.node" and "shards" in each.msg]
    assert said.startswith("topic t has 1 of the 3 shards that its record names; the others are tried again in 60 s: ")
    assert "No space left on device" in said
    broker.advance(growth.AGAIN_NS / SECOND)
    assert [shard.end for shard in topic.shards] == [1, 0, 0]


def test_fewer_shards_than_a_growth_that_turns_out_to_be_done_are_refused_as_ever(broker: FarBroker) -> None:
    broker.client().send(pub("t", b"one"))
    broker.advance(2)
    broker.upset(answer_lost=1.0)
    broker.far.deafen()
    grown(broker, 3)
    broker.advance(15)
    broker.upset()
    broker.far.show()
    answer = grown(broker, 2)
    broker.advance(2)
    with pytest.raises(Refusal, match="has 3 shards and cannot have 2"):
        answer.now()
