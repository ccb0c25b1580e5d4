"""Kafka's topics brought in: what becomes of a record, and that each comes once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.config import NodeConfig
from penstock.feeds.kafka.config import FeedConfig, KafkaFeedConfig
from penstock.feeds.kafka.feed import Feed
from penstock.feeds.kafka.feeds import Feeds
from penstock.log.reader import Reader
from penstock.settings import TopicSettings
from tests.kafka.brokers import USERS, Brokers, wait_for
from tests.served import Served

#: A topic that comes or goes is noticed soon, and so is a node that was killed.
QUICK: dict[str, str | int] = {
    "topic.metadata.refresh.interval.ms": 200,
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 500,
    "reconnect.backoff.max.ms": 200,
    "fetch.wait.max.ms": 50,
}
COMMIT_NS = 100_000_000
NODE = NodeConfig()
COLUMNS = ("body", "source", "key", "headers", "event_time")


def feed_of(kafka: Brokers | str, *topics: str, name: str = "in", group: str = "", **more: Any) -> FeedConfig:
    brokers = kafka if isinstance(kafka, str) else kafka.addresses
    more = {"properties": QUICK, **more}
    return FeedConfig(name=name, brokers=(brokers,), topics=topics, group=group or f"of {topics[0]}", **more)


def serving(path: Path, *feeds: FeedConfig, node: NodeConfig = NODE, **section: Any) -> Served:
    served = Served(path, node=node)
    part = KafkaFeedConfig(feeds=feeds, **{"commit_interval_ns": COMMIT_NS, **section})
    served.config = msgspec.structs.replace(served.config, parts=(*served.config.parts, part))
    return served


def running(served: Served) -> Feeds:
    found = served.node.served["kafka_feed"].running
    assert isinstance(found, Feeds)
    return found


def one_of(served: Served) -> Feed:
    return running(served).feeds[0]


def send(kafka: Brokers, topic: str, bodies: Iterable[bytes | None], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": kafka.addresses, "linger.ms": 5})
    for body in bodies:
        producer.produce(topic, value=body, **more)
    assert producer.flush(60) == 0


def rows(served: Served, topic: str) -> list[dict[str, Any]]:
    """Return what a topic holds, shard by shard."""
    if topic not in served.node.topics:
        return []
    found = served.node.topic(topic)
    views = [(f"{found.path}/{shard.number}", served.do(shard.view)) for shard in found.shards]
    read = [batch.to_pylist() for path, view in views for batch in Reader(path, view).batches(columns=COLUMNS)]
    return [row for batch in read for row in batch]


def bodies(served: Served, topic: str) -> list[bytes]:
    return [row["body"] for row in rows(served, topic)]


def wait_for_bodies(served: Served, topic: str, expected: Sequence[bytes]) -> None:
    wait_for(lambda: len(bodies(served, topic)) >= len(expected), f"{len(expected)} messages in {topic}")
    assert sorted(bodies(served, topic)) == sorted(expected)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % each for each in range(first, first + count)]


def test_a_record_keeps_key_headers_and_time(tmp_path: Path, one: Brokers, name: Callable[[str], str]) -> None:
    topic = one.create(name("kept"))
    producer = Producer({"bootstrap.servers": one.addresses})
    producer.produce(topic, b"plain")
    producer.produce(
        topic,
        b"\x00\xffwhole",
        key=b"\x00k\xff",
        timestamp=1_700_000_000_123,
        headers=[("text", b"gr\xc3\xbcn"), ("raw", b"\xff\x00"), ("none", None), ("twice", b"a"), ("twice", b"b")],
    )
    producer.produce(topic, None, key=b"gone")
    producer.produce(topic, b"", key=b"")
    assert producer.flush(60) == 0
    with serving(tmp_path, feed_of(one, topic, into="from.{topic}")) as served:
        into = f"from.{topic}"
        wait_for_bodies(served, into, [b"plain", b"\x00\xffwhole", b"", b""])
        plain, whole, gone, empty = rows(served, into)
        assert (plain["key"], plain["headers"]) == (None, None)
        assert abs(plain["event_time"] / 1e9 - time.time()) < 3600
        assert (whole["key"], whole["event_time"]) == (b"\x00k\xff", 1_700_000_000_123_000_000)
        assert msgspec.json.decode(whole["headers"]) == {
            "text": "grün",
            "raw": {"type": "Binary", "value": "/wA="},
            "none": None,
            "twice": ["a", "b"],
        }
        assert (gone["key"], gone["headers"]) == (b"gone", b'{"penstock.tombstone":"true"}')
        assert (empty["key"], empty["headers"], empty["source"]) == (b"", None, "kafka")


def test_each_record_comes_once_whatever_kafka_forgot(tmp_path: Path, one: Brokers, name: Callable[[str], str]) -> None:
    """The node is killed at some moment and goes on from its own log: Kafka's committed offsets are taken away."""
    topic = one.create(name("once"), partitions=3)
    feed = feed_of(one, topic)
    sent = numbered(3000)
    send(one, topic, sent[:2000])
    # Nothing is noted in the registry either, so that what is found is found in the log.
    with serving(tmp_path / "a", feed, commit_interval_ns=3600 * 10**9, batch=100) as served:
        wait_for_bodies(served, topic, sent[:2000])
        copy = served.crash_copy(tmp_path / "b")
        running(served)
    one.admin.delete_consumer_groups([feed.group])[feed.group].result(60)
    send(one, topic, sent[2000:])
    with serving(copy, feed) as served:
        wait_for_bodies(served, topic, sent)
        by_partition: dict[int, list[bytes]] = {}
        for message in one.read(topic):
            by_partition.setdefault(message.partition() or 0, []).append(message.value() or b"")
        here = bodies(served, topic)
        for those in by_partition.values():
            chosen = set(those)
            assert [body for body in here if body in chosen] == those
        wait_for(lambda: committed(one, feed.group, topic, 3) == 3000, "positions told to Kafka")
    with serving(copy, feed) as served:  # an orderly end and a new start add nothing
        send(one, topic, [b"last"])
        wait_for_bodies(served, topic, [*sent, b"last"])


def committed(kafka: Brokers, group: str, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.addresses, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, each) for each in range(partitions)], 30)
        return sum(max(each.offset, 0) for each in found)
    finally:
        consumer.close()


def test_partitions_keep_their_order_in_shards_and_topics_may_be_named_by_a_pattern(
    tmp_path: Path, one: Brokers, name: Callable[[str], str]
) -> None:
    prefix = name("many")
    topics = [one.create(f"{prefix}.{word}", partitions=5) for word in ("a", "b")]
    with serving(tmp_path, feed_of(one, f"^{prefix}[.].*", into="all"), batch=50) as served:
        served.do(lambda: served.node.obtain("all", TopicSettings(shards=3)))
        sent = {}
        for topic in topics:
            for partition in range(5):
                sent[topic, partition] = [f"{topic} {partition} {each}".encode() for each in range(100)]
                send(one, topic, sent[topic, partition], partition=partition)
        wait_for_bodies(served, "all", [body for each in sent.values() for body in each])
        here = bodies(served, "all")
        for those in sent.values():
            chosen = set(those)
            assert [body for body in here if body in chosen] == those
        topics.append(one.create(f"{prefix}.later"))
        send(one, topics[-1], [b"later"])
        wait_for(lambda: b"later" in bodies(served, "all"), "a topic that came later")
        wait_for(lambda: one_of(served).behind == 0 and one_of(served).partitions == 11, "all partitions at their end")


def test_nodes_of_one_group_hand_partitions_over_without_loss_or_repetition(
    tmp_path: Path, one: Brokers, name: Callable[[str], str]
) -> None:
    topic = one.create(name("shared"), partitions=4)
    feed = feed_of(one, topic)
    sent: list[bytes] = []

    def more() -> None:
        sent.extend(numbered(400, len(sent)))
        send(one, topic, sent[-400:])

    with serving(tmp_path / "a", feed, batch=30) as first:
        more()
        wait_for(lambda: one_of(first).partitions == 4, "the first to read all partitions")
        with serving(tmp_path / "b", feed, batch=30) as second:
            more()
            wait_for(lambda: one_of(first).partitions == 2 == one_of(second).partitions, "partitions to be shared")
            more()
            wait_for(lambda: len(bodies(second, topic)) > 0, "the second to read something")
            more()
        more()  # the second left, and the first has all of them again
        wait_for(lambda: one_of(first).partitions == 4, "the first to have all partitions again")
        with serving(tmp_path / "b", feed_of(one, topic, group="another group", start="latest")) as second:
            here = bodies(second, topic)
            wait_for(lambda: len(bodies(first, topic)) + len(here) >= len(sent), "all messages")
        assert sorted([*bodies(first, topic), *here]) == sent


def test_what_the_node_refuses_waits_and_what_no_message_can_be_is_counted(
    tmp_path: Path, one: Brokers, name: Callable[[str], str]
) -> None:
    topic = one.create(name("refused"))
    node = NodeConfig(message_bytes=2000)
    headers = [(f"name{each}", b"v" * 1000) for each in range(70)]
    with serving(tmp_path, feed_of(one, topic, tombstones="skip"), node=node, in_flight_bytes=1 << 20) as served:
        feed = one_of(served)
        send(one, topic, [b"x" * 2001])
        send(one, topic, [b"long headers"], headers=headers)
        send(one, topic, [None, b"good"])
        wait_for_bodies(served, topic, [b"good"])
        assert (feed.refused, feed.skipped, feed.rows) == (2, 1, 1)
        assert served.do(lambda: dict(served.node.discards.totals)) == {("too_long", topic): 2}

        served.do(lambda: setattr(served.node.topic(topic).intake, "closed", "quota_full"))
        sent = [b"%04d" % each + b"x" * 1000 for each in range(2000)]
        send(one, topic, sent)
        wait_for(lambda: feed.state == "held" and feed.retried > 2, "the node to refuse it")
        wait_for(lambda: feed.reader.is_paused, "partitions to be paused")
        assert bodies(served, topic) == [b"good"]
        shown = served.do(lambda: ({part.name: part.used for part in served.node.memory()}["body"], feed.held_bytes))
        assert shown[0] >= shown[1] >= 1 << 20
        served.do(lambda: setattr(served.node.topic(topic).intake, "closed", None))
        wait_for_bodies(served, topic, [b"good", *sent])
        wait_for(lambda: feed.state == "reading", "all to be well")
        body = served.node.budget.body
        wait_for(lambda: served.do(lambda: body.used) == 0, "nothing to be held any more")

        served.do(lambda: setattr(body, "used", body.bytes_max))  # somebody else's
        served.do(lambda: setattr(served.node.topic(topic).intake, "closed", "quota_full"))
        send(one, topic, [b"later"])
        wait_for(lambda: feed.reader.is_paused, "the reader to see that there is no room beside this")
        assert feed.held_bytes == len(b"later")
        served.do(lambda: setattr(served.node.topic(topic).intake, "closed", None))
        send(one, topic, [b"last"])
        wait_for_bodies(served, topic, [b"good", *sent, b"later", b"last"])  # with nothing in hand it reads on


def test_kafka_that_refuses_us_or_has_no_such_topic_is_told_and_read_once_it_is_well(
    tmp_path: Path, one: Brokers, name: Callable[[str], str]
) -> None:
    topic, broker = one.create(name("well")), one.members[0]
    missing = name("missing")
    send(one, topic, [b"one"])
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    login: dict[str, Any] = {"sasl": "SCRAM-SHA-256", "user": "alice", "password_file": str(secret)}
    feeds = (
        feed_of(f"127.0.0.1:{broker.sasl_tls_port}", topic, name="login", tls=True, tls_ca=str(one.ca), **login),
        feed_of(one, missing, name="missing"),
        feed_of("127.0.0.1:9", topic, name="away"),
    )
    with serving(tmp_path / "node", *feeds) as served:
        login_, missing_, away = running(served).feeds
        wait_for(lambda: login_.state == "away" and "refuse" in login_.wrong["brokers"], "a wrong password")
        wait_for(lambda: any("topic" in subject for subject in missing_.wrong), "a topic that is not there")
        wait_for(lambda: away.state == "away", "a broker that is not there")
        text = served.get("/metrics").content.decode()
        assert 'penstock_kafka_feed_state{feed="away",state="away"} 1' in text, text
        secret.write_text(USERS["alice"])
        one.create(missing)
        send(one, missing, [b"two"])
        wait_for_bodies(served, topic, [b"one"])
        wait_for_bodies(served, missing, [b"two"])
        wait_for(lambda: login_.state == missing_.state == "reading", "both to be well")


def test_a_topic_made_anew_is_read_from_its_beginning_and_what_kafka_dropped_is_counted(
    tmp_path: Path, one: Brokers, name: Callable[[str], str]
) -> None:
    topic = one.create(name("anew"))
    feed = feed_of(one, topic)
    send(one, topic, numbered(10))
    with serving(tmp_path, feed) as served:
        wait_for_bodies(served, topic, numbered(10))
        one.delete(topic)
        one.create(topic)
        send(one, topic, numbered(5, 10))
        wait_for_bodies(served, topic, numbered(15))
    send(one, topic, numbered(20, 15))
    drop = TopicPartition(topic, 0, 20)
    one.admin.delete_records([drop])[drop].result(60)
    with serving(tmp_path, feed) as served:
        wait_for_bodies(served, topic, [*numbered(15), *numbered(5, 30)])
        assert one_of(served).missed == 15
