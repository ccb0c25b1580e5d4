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

from tests.cli.program import Node
from tests.dory.test_cases import V
from tests.kafka.brokers import Brokers, wait_for

TOPIC = "orders"


@contextmanager
def between(path: Path, kafka: Brokers) -> Iterator[tuple[Node, str]]:
    """Run a node with Dory's inputs that relays all there is; give it and where its stream socket is."""
    brokers = ", ".join(f'"{address}"' for address in kafka.addresses.split(","))
    with tempfile.TemporaryDirectory(prefix="dory-") as directory:
        stream = f"{directory}/stream"
        (path / "penstock.toml").write_text(
            f'[dory]\nunix_stream_path = "{stream}"\ntcp = true\n[kafka_relay]\ntopics = ["*"]\nbrokers = [{brokers}]\n'
        )
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
