"""Dory's clients, a node and a real Kafka: the acceptance cases that end in a record, or in the report of one that is
not there."""

from __future__ import annotations

import json
import socket
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.dory import encode
from tests.cli.program import Node
from tests.dory.test_cases import V
from tests.kafka.brokers import Brokers, wait_for

TOPIC = "orders"


@contextmanager
def between(path: Path, kafka: Brokers, more: str = "") -> Iterator[tuple[Node, str]]:
    """Run a node with Dory's inputs that relays all there is; give it and where its stream socket is."""
    brokers = ", ".join(f'"{address}"' for address in kafka.addresses.split(","))
    with tempfile.TemporaryDirectory(prefix="dory-") as directory:
        stream = f"{directory}/stream"
        dory = f'[dory]\nunix_stream_path = "{stream}"\ntcp = true\n'
        relay = f'[kafka_relay]\ntopics = ["*"]\nbrokers = [{brokers}]\n{more}\n'
        (path / "penstock.toml").write_text(dory + relay)
        ports = ("--set=dory.http_port=0", "--set=dory.tcp_port=0")
        with Node(path, "--config=penstock.toml", *ports) as node:
            yield node, stream
            assert node.end() == 0


def asked(node: Node, path: str, data: bytes | None = None) -> Any:
    """Return what a page of Dory's says."""
    url = f"http://127.0.0.1:{node.port('dory.http_port')}{path}"
    with urllib.request.urlopen(url, data=data, timeout=60) as answer:
        text = answer.read().decode()
    return json.loads(text) if path.endswith("json") else text


def counted(node: Node, name: str) -> int:
    return sum(each["value"] for each in asked(node, "/counters/json")["counters"] if each["name"] == name)


def times(node: Node) -> tuple[int, int]:
    """Return when Kafka was asked last, and when it last said something new."""
    found = asked(node, "/metadata_fetch_time/json")
    return found["last_updated"], found["last_modified"]


@pytest.fixture(scope="module", autouse=True)
def _orders(shared_one: Brokers) -> None:
    shared_one.create(TOPIC)


def test_dory_case_1_a_message_with_a_partition_key_becomes_a_record(tmp_path: Path, one: Brokers) -> None:
    seen = len(one.read(TOPIC))
    with between(tmp_path, one) as (node, _):
        with socket.create_connection(("127.0.0.1", node.port("dory.tcp_port"))) as tcp:
            tcp.sendall(V[4])
            wait_for(lambda: len(one.read(TOPIC)) == seen + 1, "its record")
        assert counted(node, "TcpInputForwardMsg") == 1
        record = one.read(TOPIC)[-1]
        assert (record.key(), record.value()) == (b"k1", b"hi")


def test_dory_case_2_a_message_without_key_and_value_becomes_a_record_without(tmp_path: Path, one: Brokers) -> None:
    seen = len(one.read(TOPIC))
    with between(tmp_path, one) as (_, stream), socket.socket(socket.AF_UNIX) as line:
        line.connect(stream)
        line.sendall(V[6])
        wait_for(lambda: len(one.read(TOPIC)) == seen + 1, "its record")
        record = one.read(TOPIC)[-1]
        assert (record.key(), record.value()) == (None, None)


def test_dory_case_3_messages_of_a_topic_that_kafka_lacks_are_told_and_nothing_is_said(
    tmp_path: Path, one: Brokers
) -> None:
    with between(tmp_path, one) as (node, stream), socket.socket(socket.AF_UNIX) as line:
        line.connect(stream)
        line.sendall(V[3])
        report: dict[str, Any] = {}

        def is_told() -> bool:
            report.update(asked(node, "/discards/json")["unfinished_report"])
            return bool(report["bad_topic_msg_count"] == 2)

        wait_for(is_told, "its report")
        assert report["recent_bad_topic"] == ["some topic"]
        line.settimeout(0.2)
        with pytest.raises(TimeoutError):  # it is open, and nothing is said on it
            line.recv(1)


def test_dory_case_34_a_new_topic_is_known_after_an_update_and_the_next_one_changes_nothing(
    tmp_path: Path, one: Brokers, name: Callable[[str], str]
) -> None:
    with between(tmp_path, one) as (node, _):
        wait_for(lambda: times(node)[1] > 0, "what Kafka has at the start")
        before = times(node)
        made = one.create(name("made"), 1)
        asked(node, "/metadata_update", b"")
        wait_for(lambda: times(node)[1] > before[1], "the topic")
        changed = times(node)
        asked(node, "/metadata_update", b"")
        wait_for(lambda: times(node)[0] > changed[0], "an update")
        assert times(node)[1] == changed[1]
        assert one.read(made) == []


def test_dory_case_35_a_topic_is_made_where_kafka_allows_it_and_costs_its_messages_where_it_does_not(
    tmp_path: Path, one: Brokers, name: Callable[[str], str]
) -> None:
    new = name("made")
    with between(tmp_path, one, "topic_autocreate = true") as (node, stream), socket.socket(socket.AF_UNIX) as sender:
        sender.connect(stream)
        sender.sendall(encode("größe", b"no topic of Kafka's can be called so") + encode(new, b"first"))
        wait_for(lambda: new in one.admin.list_topics(timeout=60).topics and len(one.read(new)) == 1, "its record")
        sender.sendall(encode(new, b"second"))
        wait_for(lambda: [each.value() for each in one.read(new)] == [b"first", b"second"], "the next one")
        report = asked(node, "/discards/json")["unfinished_report"]
        assert [(each["topic"], each["count"]) for each in report["discard_topic"]] == [("größe", 1)]
        assert report["bad_topic_msg_count"] == 0


def test_a_topic_that_no_broker_makes_costs_its_messages_for_that_reason(
    tmp_path: Path, three: Brokers, name: Callable[[str], str]
) -> None:
    known, new = three.create(name("known")), name("never")
    with between(tmp_path, three, "topic_autocreate = true") as (node, stream), socket.socket(socket.AF_UNIX) as sender:
        sender.connect(stream)
        sender.sendall(encode(new, b"nowhere to go") + encode(known, b"goes on"))
        wait_for(lambda: [each.value() for each in three.read(known)] == [b"goes on"], "the other topic's record")
        report = asked(node, "/discards/json")["unfinished_report"]
        assert [(each["topic"], each["count"]) for each in report["discard_topic"]] == [(new, 1)]
        assert report["bad_topic_msg_count"] == 0
