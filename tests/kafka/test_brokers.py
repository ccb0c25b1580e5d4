"""The real Kafka that other tests stand on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from tests.kafka.brokers import PATIENCE_S, USERS, Brokers, wait_for


def _produced(settings: dict[str, str | int], topic: str, values: list[bytes]) -> None:
    errors: list[object] = []
    producer = Producer({"log_level": 0, "acks": "all", **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(PATIENCE_S) == 0
    assert errors == []


@pytest.mark.parametrize("mechanism", ["none", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_broker_takes_messages_in_the_clear_with_tls_and_from_users(
    one: Brokers, name: Callable[[str], str], mechanism: str
) -> None:
    topic = one.create(name("listeners"))
    member = one.members[0]
    user: dict[str, str | int] = {}
    if mechanism != "none":
        user = {"sasl.mechanism": mechanism, "sasl.username": "bjorn", "sasl.password": USERS["bjorn"]}
    clear, tls = (member.sasl_port, member.sasl_tls_port) if user else (member.port, member.tls_port)
    _produced(
        {
            "bootstrap.servers": f"127.0.0.1:{clear}",
            "security.protocol": "sasl_plaintext" if user else "plaintext",
            **user,
        },
        topic,
        [b"in the clear"],
    )
    protocol = {"security.protocol": "sasl_ssl" if user else "ssl", "ssl.ca.location": str(one.ca)}
    _produced({"bootstrap.servers": f"localhost:{tls}", **protocol, **user}, topic, [b"with TLS"])
    assert [each.value() for each in one.read(topic)] == [b"in the clear", b"with TLS"]


def test_kcat_and_kafkas_own_dump_read_what_was_produced(one: Brokers, name: Callable[[str], str]) -> None:
    topic = one.create(name("read"))
    _produced({"bootstrap.servers": one.addresses}, topic, [b"first", b"second"])
    said = subprocess.run(
        ["kcat", "-b", one.addresses, "-C", "-q", "-t", topic, "-e"],
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert said.stdout == b"first\nsecond\n"
    assert "isvalid: true" in one.dump(topic)


def test_the_leader_of_a_partition_moves_when_it_is_killed(three: Brokers, name: Callable[[str], str]) -> None:
    topic = three.create(name("moved"), copies=3, min_insync_replicas=2)
    first = three.leader(topic)
    _produced({"bootstrap.servers": three.addresses}, topic, [b"before"])
    first.kill()
    wait_for(lambda: three.leaders(topic).get(0, first.id) != first.id, "another leader")
    _produced({"bootstrap.servers": three.addresses}, topic, [b"after"])
    assert [each.value() for each in three.read(topic)] == [b"before", b"after"]
