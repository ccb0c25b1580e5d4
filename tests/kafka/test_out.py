"""A real node that relays to a real Kafka; what arrived is read back with librdkafka."""

from __future__ import annotations

import signal
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cli.program import Node
from tests.kafka.brokers import Brokers, wait_for
from tests.m3msg.test_out import published

Name = Callable[[str], str]
BODIES = [b"order %d" % number for number in range(5000)]


def relayed(path: Path, kafka: Brokers, *topics: str, more: str = "") -> Node:
    """Return a node that relays topics to Kafka."""
    names = ", ".join(f'"{topic}"' for topic in topics)
    brokers = ", ".join(f'"{address}"' for address in kafka.addresses.split(","))
    file = path / "penstock.toml"
    file.write_text(f"[kafka_relay]\ntopics = [{names}]\nbrokers = [{brokers}]\n{more}\n")
    return Node(path, "--config", file)


def values(kafka: Brokers, topic: str) -> list[bytes]:
    return [message.value() or b"" for message in kafka.read(topic)]


def arrived(kafka: Brokers, topic: str, bodies: Sequence[bytes]) -> None:
    """Wait until a topic has these messages, and see that it has no others and none twice."""
    wait_for(lambda: len(values(kafka, topic)) >= len(bodies), f"{len(bodies)} messages of {topic}")
    assert Counter(values(kafka, topic)) == Counter(bodies)


def test_what_nsq_clients_publish_arrives_in_kafka_once(tmp_path: Path, one: Brokers, name: Name) -> None:
    topic = one.create(name("orders"), 3)
    with relayed(tmp_path, one, topic) as node:
        published(node, topic, BODIES)
        arrived(one, topic, BODIES)
        assert {message.partition() for message in one.read(topic)} <= {0, 1, 2}
        assert node.end(signal.SIGTERM) == 0


def figures(node: Node) -> dict[str, int]:
    """Return the relay's figures."""
    with urllib.request.urlopen(f"{node.ready['url']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("penstock_kafka_relay_") and "{" not in line)
    return {name.removeprefix("penstock_kafka_relay_"): int(float(value)) for name, _, value in pairs}


def balanced(node: Node, taken: int, discarded: int) -> None:
    """Wait until so many messages were taken, and see that all of them are accounted for."""
    wait_for(lambda: figures(node)["held"] == 0 and figures(node)["taken_total"] >= taken, f"{taken} messages")
    found = figures(node)
    assert (found["taken_total"], found["discarded_total"]) == (taken, discarded)
    assert found["acked_total"] == taken - discarded


def test_what_kafka_refuses_is_thrown_away_and_the_rest_arrives(tmp_path: Path, one: Brokers, name: Name) -> None:
    topic = one.create(name("small"), 1, max_message_bytes=3000)
    with relayed(tmp_path, one, topic) as node:
        published(node, topic, [b"first"])
        arrived(one, topic, [b"first"])
        for bodies in ([b"x" * 5000], [b"second", b"third"]):
            published(node, topic, bodies)
            wait_for(lambda: figures(node)["held"] == 0, "answers")
        arrived(one, topic, [b"first", b"second", b"third"])
        balanced(node, 4, 1)
        assert node.end() == 0


def test_a_topic_that_is_deleted_and_made_again_costs_only_what_came_between(
    tmp_path: Path, one: Brokers, name: Name
) -> None:
    topic = one.create(name("again"), 2)
    with relayed(tmp_path, one, topic, more='metadata_refresh = "500ms"\npause_initial = "100ms"') as node:
        published(node, topic, [b"before"])
        arrived(one, topic, [b"before"])
        one.delete(topic)
        published(node, topic, [b"between"])
        wait_for(lambda: figures(node)["discarded_total"] == 1, "what nobody can take")
        one.create(topic, 1)
        fetches = figures(node)["metadata_fetches_total"]
        wait_for(lambda: figures(node)["metadata_fetches_total"] >= fetches + 2, "Kafka to be asked")
        published(node, topic, BODIES[:100])
        arrived(one, topic, BODIES[:100])
        balanced(node, 102, 1)
        assert node.end() == 0


def test_kafka_is_away_at_first_and_the_node_is_killed_meanwhile(tmp_path: Path, one: Brokers, name: Name) -> None:
    topic = one.create(name("late"), 2)
    one.members[0].kill()
    with relayed(tmp_path, one, topic, more='pause_initial = "100ms"') as node:
        published(node, topic, BODIES[:2000])
        wait_for(lambda: figures(node)["metadata_failures_total"] > 0, "Kafka not to answer")
        assert node.end(signal.SIGKILL) < 0
    one.heal()
    with relayed(tmp_path, one, topic, more='pause_initial = "100ms"') as node:
        published(node, topic, BODIES[2000:])
        arrived(one, topic, BODIES)
        balanced(node, 5000, 0)
        assert node.end() == 0
