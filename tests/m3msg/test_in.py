"""M3Msg in: what is stored of messages, and what bad producers cost."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from penstock.callers.quota import UserQuota
from penstock.config import CallersConfig, LimitsConfig, NodeConfig
from penstock.dialects.m3msg.config import M3MsgConfig
from penstock.m3 import messages, metrics
from penstock.m3.entries import Metadata
from penstock.m3.metrics import Metric
from penstock.m3.policies import storage_policy
from penstock.settings import SECOND_NS
from tests.callers.parts import user, users_in
from tests.m3msg.producer import POLICY, SENT, Producer, bodies, metric, published, stored
from tests.nsq.certificates import certificates
from tests.served import Served

SOON = 10**6
TOPIC = "aggregated_metrics"


def served(path: Path, node: dict[str, Any] | None = None, **chosen: Any) -> Served:
    return Served(path, m3msg=M3MsgConfig(port=0, **{"ack_flush_interval_ns": SOON, **chosen}), **(node or {}))


def connect(node: Served) -> Producer:
    return Producer(node.ports["m3msg.port"])


def faults(node: Served) -> dict[str, int]:
    entries = node.do(node.node.ledger.entries)
    return {entry.reason.partition(":")[2]: entry.count for entry in entries if entry.reason.startswith("m3msg:")}


AGGREGATED = {
    "key": b"foo",
    "headers": b'{"m3-storage-policy":"10s:2d"}',
    "traffic": 5,
    "event_time": 1_700_000_010 * 10**9,
    "route": 69,
}
TIMER = Metric(b"slow", "timer", 0, (1.0, 2.0), (POLICY, storage_policy("1m:40d")), 1 << 63)
UNAGGREGATED = {
    "key": b"slow",
    "headers": b'{"m3-storage-policies":"10s:2d,1m:40d","m3-type":"timer"}',
    "traffic": -(1 << 63),
    "route": 69,
}


@pytest.mark.parametrize("count", [1, 100])
def test_a_metric_is_stored_with_its_columns_alone_and_among_many(tmp_path: Path, count: int) -> None:
    with served(tmp_path) as node, connect(node) as producer:
        producer.send(*[metric()] * count, shard=69)
        producer.until_acked(count)
        producer.send(*[metrics.encode_unaggregated(TIMER)] * count, shard=69)
        producer.until_acked(2 * count)
        assert (
            stored(node)
            == [(metric(), AGGREGATED)] * count + [(metrics.encode_unaggregated(TIMER), UNAGGREGATED)] * count
        )


def test_ten_thousand_messages_cut_anywhere_are_stored_once_each_in_order_and_acked(tmp_path: Path) -> None:
    values = [metric(b"id.%d" % (number % 977), number % 7, number) for number in range(10_000)]
    names = [Metadata(number % 64, number + 1, SENT + number) for number in range(len(values))]
    wire = b"".join(messages.encoded(*pair) for pair in zip(names, values, strict=True))
    with served(tmp_path) as node, connect(node) as producer:
        at, step = 0, 1
        while at < len(wire):
            producer.say(wire[at : at + step])
            at, step = at + step, step * 7 % 100_003
        assert producer.until_acked(len(names)) == names
        found = stored(node)
        assert bodies(found) == values
        assert [columns["route"] for _, columns in found] == [name.shard for name in names]


@pytest.mark.parametrize(
    ("unreadable", "acked", "kept"),
    [("store", [1, 2, 3], [b"", b"hello", metric()]), ("drop", [1, 2, 3], [metric()]), ("leave", [3], [metric()])],
)
@pytest.mark.parametrize("times", [1, 40])
def test_a_value_that_is_no_metric_is_stored_dropped_or_left_as_chosen(
    tmp_path: Path, unreadable: str, acked: list[int], kept: list[bytes], times: int
) -> None:
    with served(tmp_path, unreadable=unreadable) as node, connect(node) as producer:
        names = producer.send(*[b"", b"hello", metric()] * times)
        wanted = [name for place, name in enumerate(names) if place % 3 + 1 in acked]
        assert sorted(producer.until_acked(len(wanted))) == wanted
        found = stored(node)
        assert bodies(found) == kept * times
        assert found[-1][1]["key"] == b"foo"
        if unreadable == "store":
            assert {found[0][1]["key"], found[1][1]["traffic"]} == {None}
        assert faults(node)["unreadable"] >= 1
        assert node.node.served["m3msg"].running.unreadable == 2 * times  # type: ignore[attr-defined]


def test_values_that_nobody_looks_into_are_stored_as_they_are(tmp_path: Path) -> None:
    with served(tmp_path, payload="opaque", topic="raw") as node, connect(node) as producer:
        producer.send(b"anything", b"", metric())
        producer.until_acked(3)
        assert stored(node, "raw") == [(value, {"route": 5}) for value in (b"anything", b"", metric())]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (struct.pack(">I", (4 << 20) + 1), "bad_message"),
        (b"GET / HTTP/1.1\r\n\r\n", "bad_message"),
        (struct.pack(">I", 3) + b"\x0a\x7f\x00", "bad_message"),
    ],
    ids=["oversize", "another protocol", "garbage"],
)
def test_bytes_that_are_no_message_cost_one_connection_and_nothing_before_them(
    tmp_path: Path, bad: bytes, reason: str
) -> None:
    with served(tmp_path) as node, connect(node) as good, connect(node) as producer:
        names = producer.send(metric(b"before"))
        producer.say(bad + messages.encoded(Metadata(1, 9, SENT), metric(b"after")))
        assert producer.until_end() == names
        assert faults(node) == {reason: 1}
        good.send(metric(b"good"))
        assert len(good.until_acked(1)) == 1
        assert bodies(stored(node)) == [metric(b"before"), metric(b"good")]


def test_a_value_that_no_topic_takes_is_not_acked_and_its_neighbours_are(tmp_path: Path) -> None:
    small = {"node": NodeConfig(message_bytes=1000)}
    with served(tmp_path, small, payload="opaque") as node, connect(node) as producer:
        names = producer.send(b"a", b"x" * 1001, b"y" * 1000)
        assert producer.until_acked(2) == [names[0], names[2]]
        assert bodies(stored(node)) == [b"a", b"y" * 1000]
        assert faults(node) == {"message_too_big": 1}


def test_an_empty_frame_is_a_message(tmp_path: Path) -> None:
    with served(tmp_path) as node, connect(node) as producer:
        producer.say(bytes(4))
        assert producer.until_acked(1) == [Metadata()]
        assert bodies(stored(node)) == [b""]


def test_what_is_refused_is_not_acked_and_the_connection_lives(tmp_path: Path) -> None:
    with served(tmp_path) as node, connect(node) as producer:
        producer.send(metric(b"a"))
        producer.until_acked(1)
        node.do(lambda: setattr(node.node.topic(TOPIC).intake, "closed", "stopping"))
        producer.send(metric(b"b"))
        node.until(lambda: node.node.ledger.total("stopping") == 1)
        node.do(lambda: setattr(node.node.topic(TOPIC).intake, "closed", None))
        again = producer.send(metric(b"b"))
        assert producer.until_acked(2)[1:] == again
        assert bodies(stored(node)) == [metric(b"a"), metric(b"b")]


def test_a_producer_above_its_quota_is_slowed_and_what_is_too_much_is_not_acked(tmp_path: Path) -> None:
    users_in(tmp_path, (), UserQuota(messages_per_second=10))
    with served(tmp_path) as node, connect(node) as first, connect(node) as second:
        first.send(*[metric()] * 400)
        first.until_acked(400)
        second.send(metric(b"refused"))
        node.until(lambda: node.node.ledger.total("rate_limited") == 1)
        node.advance(60)
        names = second.send(metric(b"later"))
        assert second.until_acked(1) == names
        assert bodies(stored(node)) == [metric()] * 400 + [metric(b"later")]


def test_a_topic_that_is_deleted_meanwhile_is_made_again(tmp_path: Path) -> None:
    with served(tmp_path) as node, connect(node) as producer:
        producer.send(metric(b"a"))
        producer.until_acked(1)
        assert node.ask("DELETE", f"topics/{TOPIC}").status == 204
        producer.send(metric(b"b"))
        producer.until_acked(2)
        assert bodies(stored(node)) == [metric(b"b")]


def test_a_message_that_comes_too_slowly_is_given_up(tmp_path: Path) -> None:
    slow = {"limits": LimitsConfig(body_timeout_ns=10 * SECOND_NS)}
    with served(tmp_path, slow) as node, connect(node) as producer:
        names = producer.send(metric())
        producer.say(messages.encoded(Metadata(1, 2, 3), metric())[:-1])
        node.until(lambda: node.node.budget.body.used > 0)
        node.advance(11)
        assert producer.until_end() == names
        assert faults(node) == {"too_slow": 1}
        assert node.do(lambda: node.node.budget.body.used) == 0


def test_a_producer_that_takes_no_acks_is_cut_off_and_nobody_else(tmp_path: Path) -> None:
    with served(tmp_path, payload="opaque") as node, connect(node) as deaf, connect(node) as good:
        deaf.sock.setblocking(False)
        wire = b"".join(messages.encoded(Metadata(1, number, SENT), b"") for number in range(10_000))
        rest = b""

        def more() -> bool:
            nonlocal rest
            while True:
                rest = rest or wire
                try:
                    rest = rest[deaf.sock.send(rest) :]
                except BlockingIOError:
                    return bool(node.node.budget.output.used)
                except ConnectionError:
                    return True

        node.until(more)
        node.advance(6)
        node.until(lambda: faults_in(node) == {"slow_reader": 1})
        good.send(b"good")
        assert len(good.until_acked(1)) == 1
        assert node.do(lambda: node.node.budget.output.used) == 0


def faults_in(node: Served) -> dict[str, int]:
    """Return the same as `faults`, in the node's thread."""
    entries = node.node.ledger.entries()
    return {entry.reason.partition(":")[2]: entry.count for entry in entries if entry.reason.startswith("m3msg:")}


def test_acks_wait_for_what_the_topic_promises(tmp_path: Path) -> None:
    with served(tmp_path) as node, connect(node) as producer:
        node.post("topics", {"name": TOPIC, "settings": {"durability": "fsync", "shards": 3}})
        names = producer.send(*[metric(b"id.%d" % number) for number in range(200)])
        assert sorted(producer.until_acked(200)) == names
        assert sorted(bodies(stored(node))) == sorted(metric(b"id.%d" % number) for number in range(200))


def test_more_connections_than_a_listener_takes_are_closed_and_counted(tmp_path: Path) -> None:
    few = {"limits": LimitsConfig(connections_per_address=1)}
    with served(tmp_path, few) as node, connect(node) as first:
        first.send(metric())
        first.until_acked(1)
        with connect(node) as second:
            assert second.until_end() == []
        assert faults(node) == {"too_many_connections": 1}


def test_producers_show_who_they_are_by_a_certificate(tmp_path: Path) -> None:
    made = certificates()
    users_in(tmp_path, (user("someone", ("publish", TOPIC)),))
    tls = {
        "tls_cert": str(made.server),
        "tls_key": str(made.server_key),
        "callers": CallersConfig(anonymous="off", audit="off"),
    }
    with (
        served(tmp_path, tls, tls_client_ca=str(made.authority)) as node,
        Producer(node.ports["m3msg.port"], made.client_context(shown=True)) as producer,
    ):
        names = producer.send(metric())
        assert producer.until_acked(1) == names
        (peer,) = node.node.served["m3msg"].running.peers()
        assert (peer.name, peer.topic) == ("someone", TOPIC)


def test_a_user_who_may_not_publish_there_is_told_by_the_end(tmp_path: Path) -> None:
    made = certificates()
    users_in(tmp_path, (user("someone", ("publish", "other")),))
    tls = {"tls_cert": str(made.server), "tls_key": str(made.server_key)}
    with (
        served(tmp_path, tls, tls_client_ca=str(made.authority)) as node,
        Producer(node.ports["m3msg.port"], made.client_context(shown=True)) as producer,
    ):
        producer.send(metric())
        assert producer.until_end() == []
        assert faults(node) == {"forbidden": 1}


def test_nobody_publishes_who_may_not(tmp_path: Path) -> None:
    with served(tmp_path, {"callers": CallersConfig(anonymous="off", audit="off")}) as node, connect(node) as producer:
        assert producer.until_end() == []
        assert faults(node) == {"unauthorized": 1}
        assert TOPIC not in node.node.topics


def test_figures_and_peers_are_told(tmp_path: Path) -> None:
    with served(tmp_path) as node, connect(node) as producer:
        producer.send(metric())
        producer.until_acked(1)
        text = node.get("/metrics").content.decode()
        assert "penstock_m3msg_messages_acked_total 1\n" in text
        assert "penstock_m3msg_connections 1\n" in text
        (peer,) = node.get("peers?dialect=m3msg").json["peers"]
        assert (peer["listener"], peer["topic"]) == ("m3msg.port", TOPIC)


def test_a_producer_that_resets_in_the_middle_costs_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as node:
        for _ in range(5):
            with connect(node) as producer:
                producer.send(metric())
                producer.until_acked(1)
                producer.say(messages.encoded(Metadata(1, 2, 3), metric())[:20])
                producer.reset()
        node.until(lambda: published(node) == 5 and node.node.budget.body.used == 0)
        node.until(lambda: not node.node.served["m3msg"].running.connections)  # type: ignore[attr-defined]
        assert node.do(lambda: node.node.bugs) == 0
