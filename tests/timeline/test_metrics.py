"""Metrics of timelines, by the names of the project and by those of the note they come from."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from penstock.cluster.drift import Drift
from penstock.cluster.figures import Figures, Levels, Query, windows_of
from penstock.cluster.health import Health
from penstock.config.check import LABELS_MAX, OWN_LABELS, check_labels
from penstock.dialects.timeline.metrics import describe
from penstock.errors import ConfigError
from penstock.observe.exposition import Exposition
from tests.observe.test_metrics import promtool, value

SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*",?)*)\})? (-?[0-9.e+-]+|\+Inf)'
)
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\.)*)"')

#: Every name of the note's table, and the clean one.
NAMES = {
    "Topic_commands_count": "topic_commands_total",
    "Topic_commands_errors": "topic_command_errors_total",
    "topic_Messages_count": "topic_messages_total",
    "topic_messages_errors": "topic_message_errors_total",
    "topic_Available_messages_count": "topic_available_messages",
    "topic_Waiting_messages_count_bucket": "topic_waiting_messages",
    "topic_Leases_count": "topic_leases_total",
    "topic_Leases_errors": "topic_lease_errors_total",
    "topic_Leases_body_total_bytes": "topic_lease_body_bytes_total",
    "broker_commands_count": "broker_commands_total",
    "broker_commands_errors": "broker_command_errors_total",
    "broker_Active_timedrifts_count": "broker_active_timedrifts",
    "broker_Active_timedrifts_seconds_avg": "broker_timedrift_seconds",
    "broker_Degradation_state": "broker_degradation_state",
    "storage_queries_count": "storage_queries_total",
    "storage_queries_errors": "storage_query_errors_total",
    "storage_query_duration_ms": "storage_query_duration_seconds",
    "Network_broker_bytes_total": "network_bytes_total",
    "Network_broker_latency_ms": "network_latency_seconds",
    "network_broker_tcp_connections_total": "network_tcp_connections",
    "Networkbroker_active_channels_total": "network_active_channels",
    "Networkbroker_active_channels_errors": "network_channel_errors_total",
}
OTHERS = (
    "topic_processing_messages",
    "topic_delivery_latency_seconds",
    "dealer_bucket_moves_total",
    "selector_over_capacity_total",
)


class Broker:
    """What is read of a broker."""

    cluster = "blue"

    def __init__(self) -> None:
        self.figures = Figures()
        self.health = Health()
        self.drift = Drift()
        self.bucket_moves: dict[str, int] = {}


def parsed(text: str) -> dict[str, list[dict[str, str]]]:
    """Return the labels of all samples by family; whatever is not exactly as the format wants it is an error."""
    assert text.endswith("\n")
    families: dict[str, list[dict[str, str]]] = {}
    family, kind, seen = "", "", set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in families, f"{family} is there twice"
            families[family] = []
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family
            assert kind in ("counter", "gauge", "histogram")
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            suffix = found[1].removeprefix(family)
            assert suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",)), line
            labels = LABEL.findall(found[2] or "")
            assert len({name for name, _ in labels}) == len(labels), f"a label is there twice: {line}"
            assert (found[1], found[2]) not in seen, f"a sample is there twice: {line}"
            seen.add((found[1], found[2]))
            families[family].append(dict(labels))
    return families


def exposed(broker: Broker, *, seed_names: bool = False, **labels: str) -> str:
    out = Exposition(labels)
    describe(out, broker, seed_names=seed_names)
    return out.text()


def busy() -> Broker:
    """Return a broker to which everything has happened."""
    broker = Broker()
    figures = broker.figures
    odd = 'a"b\\c é/\n'
    for topic in ("a", odd):
        figures.topic_command("create", topic, is_well=True)
        figures.message("create", topic, 100, failed=3)
        figures.lease("create", topic, 50, body_bytes=5000)
        figures.lease("extend", topic, 2, failed=1)
        figures.command("create-messages", topic, is_well=False)
        figures.query(Query("update", "range", "available", topic), 0.02)
        figures.network("in", "producer", topic, 999)
        figures.latency("consumer", topic, 0.004)
        figures.delivered(topic, np.array([0.0005, 0.004, 3.0, -0.1]))
        figures.channel_errors["consumer", topic] += 1
        broker.health.consumer(topic, "c", is_busy=True)
        broker.drift.add("consumer", topic, "c", 0, 300, 20)
        broker.bucket_moves[topic] = 4
    figures.levels = lambda: [Levels("a", 7, 8, ((1, 2, 3, 4), (5, 6, 7, 8)), 2, 1)]
    figures.connections = lambda: 11
    return broker


@pytest.mark.parametrize("broker", [Broker(), busy()], ids=["idle", "busy"])
def test_every_name_is_there_from_the_start_and_promtool_has_nothing_to_say(broker: Broker) -> None:
    text = exposed(broker)
    families = parsed(text)
    assert set(families) == {f"penstock_{name}" for name in (*NAMES.values(), *OTHERS)}
    assert all(labels["cluster"] == "blue" for samples in families.values() for labels in samples)
    assert promtool(text) == "0"


def test_the_notes_own_names_are_added_where_that_is_set() -> None:
    families = parsed(exposed(busy(), seed_names=True))
    assert set(families) == {f"penstock_{name}" for name in (*NAMES.values(), *OTHERS)} | set(NAMES)
    text = exposed(busy(), seed_names=True)
    labels = {"op": "update", "type": "range", "filter": "available", "topic": "a", "cluster": "blue"}
    assert value(text, "storage_query_duration_ms_bucket", **labels, le="10.0") == 0
    assert value(text, "storage_query_duration_ms_bucket", **labels, le="25.0") == 1
    assert value(text, "storage_query_duration_ms_sum", **labels) == 20


def test_what_happened_is_told() -> None:
    text = exposed(busy())
    there = {"topic": "a", "cluster": "blue"}
    assert value(text, "penstock_topic_messages_total", op="create", **there) == 100
    assert value(text, "penstock_topic_message_errors_total", op="create", **there) == 3
    assert value(text, "penstock_topic_lease_body_bytes_total", **there) == 5000
    assert value(text, "penstock_broker_command_errors_total", command="create-messages", **there) == 1
    assert value(text, "penstock_broker_degradation_state", type="consumers_busy", **there) == 1
    assert value(text, "penstock_broker_active_timedrifts", target="consumer", **there) == 1
    assert value(text, "penstock_broker_timedrift_seconds", target="consumer", **there) == 0.29
    assert value(text, "penstock_topic_waiting_messages", shard="1", window="4", **there) == 8
    assert value(text, "penstock_topic_delivery_latency_seconds_bucket", le="0.001", **there) == 2
    assert value(text, "penstock_topic_delivery_latency_seconds_count", **there) == 4
    assert value(text, "penstock_network_active_channels", type="consumer", **there) == 2
    assert value(text, "penstock_network_tcp_connections", cluster="blue") == 11
    assert value(text, "penstock_dealer_bucket_moves_total", **there) == 4


def test_constant_labels_are_on_every_sample() -> None:
    families = parsed(exposed(busy(), seed_names=True, stage="prod", zone='a"b'))
    assert all(
        (labels["stage"], labels["zone"]) == ("prod", 'a\\"b') for samples in families.values() for labels in samples
    )


def test_a_topic_that_is_gone_is_told_of_no_more() -> None:
    broker = busy()
    broker.figures.forget("a")
    shown = {
        name: labels
        for name, samples in parsed(exposed(broker)).items()
        for labels in samples
        if labels.get("topic") == "a"
    }
    assert set(shown) == {
        f"penstock_{name}"
        for name in (
            "topic_commands_total", "topic_command_errors_total", "topic_available_messages", "topic_waiting_messages",
            "topic_processing_messages", "network_active_channels", "broker_active_timedrifts",
            "broker_timedrift_seconds", "broker_degradation_state", "dealer_bucket_moves_total",
        )
    }  # fmt: skip


def test_waiting_messages_are_told_for_the_four_windows_after_this_one() -> None:
    due_ms = np.array([10_500, 11_000, 11_999, 12_000, 13_500, 14_999, 15_000, 99_000, 9_000])
    assert windows_of(due_ms, 10_700, 1000) == (2, 1, 1, 1)
    assert windows_of(due_ms[:0], 10_700, 1000) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"topic": "x"}, "samples have themselves"),
        ({"le": "x"}, "samples have themselves"),
        ({"__x": "x"}, "begins with __"),
        ({"9x": "x"}, "is no name of a label"),
        ({"": "x"}, "is no name of a label"),
        ({"a-b": "x"}, "is no name of a label"),
        ({f"l{number}": "x" for number in range(LABELS_MAX + 1)}, "at most 10"),
    ],
)
def test_labels_that_cannot_be_stop_the_start(labels: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_labels(labels)


def test_labels_that_can_be_are_taken() -> None:
    check_labels({"stage": "prod", "_x9": ""} | {f"l{number}": "" for number in range(LABELS_MAX - 2)})


def test_every_label_that_samples_have_is_known_as_such(tmp_path: Path) -> None:
    from tests.observe.test_metrics import scrape
    from tests.served import Served

    used = {name for samples in parsed(exposed(busy())).values() for labels in samples for name in labels}
    with Served(tmp_path / "data") as served:
        served.post("topics", {"name": "orders"})
        served.post("topics/orders/subscriptions", {"name": "audit"})
        served.publish("orders", "x")
        used |= {name for samples in parsed(scrape(served)).values() for labels in samples for name in labels}
    assert used <= OWN_LABELS
