"""A real node that relays to a real Kafka; what arrived is read back with librdkafka."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.client import Client
from tests.cli.program import Node
from tests.kafka.brokers import LOGIN_MS, USERS, Brokers, wait_for
from tests.m3msg.test_out import published

Name = Callable[[str], str]
HOUR_MS = 3_600_000
BODIES = [b"order %d" % number for number in range(5000)]


def relayed(path: Path, kafka: Brokers, *topics: str, more: str = "", addresses: str = "") -> Node:
    """Return a node that relays topics to Kafka."""
    names = ", ".join(f'"{topic}"' for topic in topics)
    brokers = ", ".join(f'"{address}"' for address in (addresses or kafka.addresses).split(","))
    file = path / "penstock.toml"
    file.write_text(f"[kafka_relay]\ntopics = [{names}]\nbrokers = [{brokers}]\n{more}\n")
    return Node(path, "--config", file)


def sent(node: Node, queue: str, text: str, group: str) -> None:
    """Send to a queue of SQS, which is made if there is none."""
    url = f"http://127.0.0.1:{node.port('sqs.port')}"
    asked = {
        "CreateQueue": {"QueueName": queue},
        "SendMessage": {"QueueUrl": f"{url}/000000000000/{queue}", "MessageBody": text, "MessageGroupId": group},
    }
    for operation, fields in asked.items():
        headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        with urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(fields).encode(), headers), timeout=60
        ) as answer:
            assert answer.status == 200


def figures(node: Node) -> dict[str, int]:
    """Return the relay's figures."""
    with urllib.request.urlopen(f"{node.ready['url']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("penstock_kafka_relay_") and "{" not in line)
    return {name.removeprefix("penstock_kafka_relay_"): int(float(value)) for name, _, value in pairs}


def has(kafka: Brokers, topic: str, bodies: Sequence[bytes]) -> bool:
    """Tell whether a topic has these messages, and none twice."""
    return Counter(message.value() or b"" for message in kafka.read(topic)) == Counter(bodies)


def balanced(node: Node, taken: int, discarded: int) -> None:
    """Wait until so many messages were taken, and see that all of them are accounted for."""
    found: dict[str, int] = {}

    def is_done() -> bool:
        found.update(figures(node))  # all of one moment
        return found["held"] == 0 and found["taken_total"] >= taken

    wait_for(is_done, f"{taken} messages")
    assert (found["taken_total"], found["discarded_total"]) == (taken, discarded)
    assert found["acked_total"] == taken - discarded


def test_what_is_published_arrives_once_and_what_cannot_is_accounted_for(
    tmp_path: Path, one: Brokers, name: Name
) -> None:
    orders, small, again, queue = name("orders"), name("small"), name("again"), name("queue").replace(".", "-")
    one.create(orders, 3)
    one.create(small, 1, max_message_bytes=3000)
    one.create(again, 2)
    one.create(queue, 1)
    more = 'metadata_refresh = "500ms"\npause_initial = "100ms"'
    with relayed(tmp_path, one, orders, small, again, queue, more=more) as node:
        published(node, orders, BODIES)
        balanced(node, 5000, 0)
        assert has(one, orders, BODIES)
        # A queue of SQS is a topic as any other.
        sent(node, queue, "of a queue", "customer")
        balanced(node, 5001, 0)
        (message,) = one.read(queue)
        assert (message.key(), message.value()) == (b"customer", b"of a queue")
        # Kafka refuses what is too large for it.
        for bodies, taken, lost in (([b"first"], 5002, 0), ([b"x" * 5000], 5003, 1), ([b"second", b"third"], 5005, 1)):
            published(node, small, bodies)
            balanced(node, taken, lost)
        assert has(one, small, [b"first", b"second", b"third"])
        # A topic goes away, and another one comes under its name.
        published(node, again, [b"before"])
        balanced(node, 5006, 1)
        one.delete(again)
        published(node, again, [b"between"])
        balanced(node, 5007, 2)
        one.create(again, 1)
        fetches = figures(node)["metadata_fetches_total"]
        wait_for(lambda: figures(node)["metadata_fetches_total"] >= fetches + 2, "Kafka to be asked")
        published(node, again, BODIES[:100])
        balanced(node, 5107, 2)
        assert has(one, again, BODIES[:100])
        assert node.end() == 0


def test_a_time_that_no_broker_takes_costs_nobody_anything(tmp_path: Path, one: Brokers, name: Name) -> None:
    topic = one.create(name("times"))
    strict = one.create(name("strict"), message_timestamp_after_max_ms=1000)
    more = 'batching = "per_topic"\nbatch_messages = 5'
    with relayed(tmp_path, one, topic, strict, more=more) as node:
        now_ms = time.time_ns() // 1_000_000
        said = [now_ms, now_ms + 2 * HOUR_MS, now_ms + HOUR_MS // 60, -1, -5]
        rows = {"body": ["0", "1", "2", "3", "4"], "event_time": [each * 1_000_000 for each in said]}
        with Client(f"127.0.0.1:{node.port('flight.port')}") as client:
            client.publish(topic, pa.table(rows))
            client.publish(strict, pa.table(rows))
        balanced(node, 10, 5)
        taken = {message.value() or b"": message.timestamp()[1] for message in one.read(topic)}
        assert [taken.pop(b"0"), taken.pop(b"2")] == [said[0], said[2]]
        assert sorted(taken) == [b"1", b"3", b"4"]
        assert all(now_ms <= each < now_ms + HOUR_MS // 60 for each in taken.values())
        # A broker that takes less says why it refuses, and so does the node.
        assert "rejected due to invalid timestamp" in node.errors()
        assert node.end() == 0


def test_too_few_replicas_cost_messages_or_make_them_wait_as_is_configured(
    tmp_path: Path, three: Brokers, name: Name
) -> None:
    topic = three.create(name("few"), copies=2, min_insync_replicas=2)
    leader = three.leader(topic)
    (follower,) = [member for member in three.members if member.id in three.in_sync(topic) - {leader.id}]
    follower.stop()
    wait_for(lambda: three.in_sync(topic) == {leader.id}, "one replica to be left")
    with relayed(tmp_path, three, topic) as node:
        published(node, topic, BODIES[:10])
        balanced(node, 10, 10)
        assert node.end() == 0
    more = 'failed_attempts_max = 1000000\npause_initial = "50ms"\npause_min = "20ms"\nerror_actions = { 19 = "pause" }'
    with relayed(tmp_path, three, topic, more=more) as node:
        published(node, topic, BODIES[10:500])
        wait_for(lambda: figures(node)["pauses_total"] >= 3, "Kafka to refuse them again and again")
        found = figures(node)
        assert (found["held"], found["acked_total"], found["discarded_total"]) == (490, 0, 0)
        three.heal()
        balanced(node, 490, 0)
        assert has(three, topic, BODIES[10:500])
        assert node.end() == 0


def test_a_broker_that_believes_a_login_for_a_time_hears_it_again_in_time(
    tmp_path: Path, one: Brokers, name: Name
) -> None:
    topic = one.create(name("logins"))
    user, password = next(iter(USERS.items()))
    more = f'sasl = "scram-sha-256"\nuser = "{user}"\npassword = "{password}"'
    with relayed(tmp_path, one, topic, more=more, addresses=f"127.0.0.1:{one.members[0].sasl_port}") as node:
        sent = 0

        def is_over() -> bool:
            nonlocal sent
            published(node, topic, BODIES[sent : sent + 10])
            sent += 10
            balanced(node, sent, 0)
            return time.monotonic() > end

        end = time.monotonic() + 2.5 * LOGIN_MS / 1000
        wait_for(is_over, "two lives of a login")
        assert figures(node)["pauses_total"] == 0, node.errors()
        assert has(one, topic, BODIES[:sent])
        assert node.end() == 0


def test_kafka_is_away_at_first_and_the_node_is_killed_meanwhile(tmp_path: Path, one: Brokers, name: Name) -> None:
    topic = one.create(name("late"), 2)
    one.members[0].pause()
    more = 'pause_initial = "100ms"\nsocket_timeout = "1s"'
    with relayed(tmp_path, one, topic, more=more) as node:
        published(node, topic, BODIES[:2000])
        wait_for(lambda: figures(node)["metadata_failures_total"] > 0, "Kafka not to answer")
        assert node.end(signal.SIGKILL) < 0
    one.members[0].resume()
    # The second time it comes with TLS, and as somebody.
    user, password = next(iter(USERS.items()))
    more = f'tls = true\ntls_ca = "{one.ca}"\nsasl = "scram-sha-512"\nuser = "{user}"\npassword = "{password}"'
    with relayed(tmp_path, one, topic, more=more, addresses=f"127.0.0.1:{one.members[0].sasl_tls_port}") as node:
        published(node, topic, BODIES[2000:])
        balanced(node, 5000, 0)
        assert has(one, topic, BODIES)
        assert node.end() == 0
