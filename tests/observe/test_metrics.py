from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.callers.account import Account
from penstock.callers.quota import UserQuota
from penstock.client.wire import PipelineReport, QueryReport
from penstock.intake.dedup import Dedup
from penstock.log.quota import Quota
from penstock.message import Rows
from penstock.observe.exposition import Exposition
from penstock.observe.quotas import OTHERS, USERS_MAX, describe
from tests.served import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as node:
        yield node


def scrape(served: Served) -> str:
    answer = served.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return answer.content.decode()


def value(text: str, name: str, **labels: str) -> float:
    """Return one sample."""
    for line in text.splitlines():
        found = re.fullmatch(r"(\w+)(?:{(.*)})? (\S+)", line)
        if found and found[1] == name:
            there = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
            if there == labels:
                return float(found[3])
    raise AssertionError(f"{name}{labels} is not in:\n{text}")


def promtool(text: str) -> str:
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing: apt-get install prometheus"
    done = subprocess.run([program, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    return f"{done.returncode} {done.stdout}{done.stderr}".strip()


def test_metrics_of_an_empty_node_pass_promtool(served: Served) -> None:
    assert promtool(scrape(served)) == "0"


def test_metrics_of_a_node_with_odd_names_pass_promtool(served: Served) -> None:
    odd = 'a"b\\c é/'
    path = "a%22b%5Cc%20%C3%A9%2F"
    served.post("topics", {"name": odd})
    served.post(f"topics/{path}/subscriptions", {"name": odd})
    served.post(f"topics/{path}/messages", raw="garbage")
    served.post(f"topics/{path}/messages", {"body": "x"})
    served.post("topics", {"name": "memory", "settings": {"durability": "memory"}})
    served.publish("memory", "x")
    text = scrape(served)
    assert promtool(text) == "0"
    escaped = 'a\\"b\\\\c é/'
    assert value(text, "penstock_topic_published_messages_total", topic=escaped) == 1
    assert value(text, "penstock_subscription_depth_messages", topic=escaped, subscription=escaped) == 1


def test_promtool_would_find_a_fault() -> None:
    assert promtool("# TYPE x counter\nx 1\n") != "0"


def test_metrics_tell_what_happened_to_messages(served: Served) -> None:
    served.post("topics", {"name": "orders"})
    served.post("topics/orders/subscriptions", {"name": "audit"})
    served.publish("orders", "aa", "bb", "cc", "dd")
    served.publish("orders", "late", due="1h")
    served.publish("orders", "twice", dedup="d")
    served.publish("orders", "twice", dedup="d")
    leased = served.lease("orders", "audit", max=3)
    receipts = [message["receipt"] for message in leased]
    served.post("topics/orders/subscriptions/audit/ack", {"receipts": receipts[:1]})
    served.post("topics/orders/subscriptions/audit/release", {"receipts": receipts[1:2]})
    served.lease("orders", "audit", max=100, lease="10m", wait="20s")
    served.advance(120)
    subscription = served.node.topics["orders"].subscriptions["audit"]
    served.until(lambda: subscription.expired_leases == 1)
    text = scrape(served)
    topic, shard = {"topic": "orders"}, {"topic": "orders", "shard": "0"}
    assert value(text, "penstock_topic_published_messages_total", **topic) == 6
    assert value(text, "penstock_topic_published_bytes_total", **topic) == 17
    assert value(text, "penstock_topic_depth_messages", **topic) == 0
    assert value(text, "penstock_shard_stored_messages", **shard) == 6
    assert value(text, "penstock_shard_segment_bytes", **shard) > 0
    assert value(text, "penstock_shard_end_offset", **shard) == 6
    assert value(text, "penstock_shard_damaged_ranges", **shard) == 0
    labels = {"topic": "orders", "subscription": "audit"}
    names = ("acked", "filtered", "expired", "dead_lettered", "removed")
    finished = {
        name: value(text, "penstock_subscription_finished_messages_total", reason=name, **labels) for name in names
    }
    assert finished == {"acked": 1, "filtered": 0, "expired": 0, "dead_lettered": 0, "removed": 0}
    passed = value(text, "penstock_subscription_passed_messages_total", **labels)
    held = value(text, "penstock_subscription_held_messages", **labels)
    assert (passed, held) == (6, 5)
    assert value(text, "penstock_subscription_in_flight_messages", **labels) == 3
    assert value(text, "penstock_subscription_depth_messages", **labels) == 1
    assert value(text, "penstock_subscription_waiting_messages", **labels) == 1
    assert value(text, "penstock_subscription_released_messages_total", **labels) == 1
    assert value(text, "penstock_subscription_expired_leases_total", **labels) == 1
    assert value(text, "penstock_subscription_consumers", **labels) == 0
    assert value(text, "penstock_ledger_messages_total", reason="duplicate", topic="orders") == 1


def test_metrics_tell_how_long_messages_wait_and_are_out(served: Served) -> None:
    served.post("topics", {"name": "orders"})
    served.post("topics/orders/subscriptions", {"name": "audit"})
    served.publish("orders", *["x"] * 20)
    served.advance(20)
    leased = served.lease("orders", "audit", max=100, lease="10m")
    assert len(leased) == 20
    served.advance(3)
    receipts = [message["receipt"] for message in leased]
    served.post("topics/orders/subscriptions/audit/ack", {"receipts": receipts[:17]})
    served.advance(40)
    served.post("topics/orders/subscriptions/audit/ack", {"receipts": receipts[17:18]})
    served.post("topics/orders/subscriptions/audit/release", {"receipts": receipts[18:]})
    again = served.lease("orders", "audit", max=100, lease="15m", wait="20s")
    assert len(again) == 2  # how long these waited was counted when they first went out
    text = scrape(served)
    assert promtool(text) == "0"
    labels = {"topic": "orders", "subscription": "audit"}
    latency, lease = "penstock_subscription_delivery_latency_seconds", "penstock_subscription_lease_seconds"
    # The clock also goes by itself while the test runs, so only bounds far away are asked for.
    assert value(text, f"{latency}_bucket", le="10.0", **labels) == 0
    assert value(text, f"{latency}_bucket", le="300.0", **labels) == 20
    assert value(text, f"{latency}_count", **labels) == 20
    assert 400 <= value(text, f"{latency}_sum", **labels) < 2000
    assert value(text, f"{lease}_bucket", le="1.0", **labels) == 0
    assert value(text, f"{lease}_bucket", le="30.0", **labels) == 17
    assert value(text, f"{lease}_count", **labels) == 18
    assert 3 * 17 + 43 <= value(text, f"{lease}_sum", **labels) < 1000


def test_histograms_of_subscriptions_that_got_nothing_are_left_out(served: Served) -> None:
    served.post("topics", {"name": "orders"})
    served.post("topics/orders/subscriptions", {"name": "audit"})
    assert "_bucket{topic=" not in scrape(served)


def test_metrics_tell_who_is_connected_by_dialect(served: Served) -> None:
    text = scrape(served)
    assert value(text, "penstock_connections", dialect="api") >= 1


def test_metrics_tell_of_the_node_and_its_process(served: Served) -> None:
    text = scrape(served)
    assert value(text, "penstock_up") == 1
    assert value(text, "penstock_bugs_total") == 0
    assert abs(value(text, "penstock_start_time_seconds") - served.node.started_ns / 1e9) < 1
    assert value(text, "penstock_memory_max_bytes", part="input") == served.node.budget.input.bytes_max
    assert value(text, "penstock_memory_bytes", part="cache") == served.do(lambda: served.node.memory()[4].used)
    assert value(text, "penstock_memory_refusals_total", part="output") == 0
    assert value(text, "process_resident_memory_bytes") > 1 << 20
    assert value(text, "process_cpu_seconds_total") > 0
    assert 3 < value(text, "process_open_fds") < value(text, "process_max_fds")
    served.until(lambda: sum(served.api._context.lag.counts) > 0)
    assert value(scrape(served), "penstock_loop_lag_seconds_count") > 0
    served.do(served.node.stop)
    assert value(scrape(served), "penstock_up") == 0


def test_idempotence_keys_forgotten_before_their_time_are_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.intake.intake.Dedup", partial(Dedup, keys_max=2))
    served.post("topics", {"name": "t"})
    rows = Rows.of([b"x"] * 5, "test", {"dedup": [b"%d" % number for number in range(5)]})
    served.do(lambda: served.node.topic("t").publish(rows, served, lambda _, error: None))
    text = scrape(served)
    assert value(text, "penstock_topic_forgotten_keys_total", topic="t") == 3
    assert promtool(text) == "0"


def test_metrics_tell_of_pipelines_as_they_last_reported(served: Served) -> None:
    query = QueryReport(
        name='by"day"', state="running", batch=7, rows_total=60, lag_rows=2, batch_ms=250, late_rows=3, dead_rows=1
    )
    report = PipelineReport(
        name="a\\b é", pid=42, host="h", state="running", started_ms=1500, restarts=1, queries=[query]
    )
    served.do(lambda: served.node.pipelines.report(report))
    text = scrape(served)
    assert promtool(text) == "0"
    pipeline = {"pipeline": "a\\\\b é"}
    labels = {**pipeline, "query": 'by\\"day\\"'}
    assert value(text, "penstock_pipeline_up", **pipeline) == 1
    assert value(text, "penstock_pipeline_restarts_total", **pipeline) == 1
    assert value(text, "penstock_pipeline_start_time_seconds", **pipeline) == 1.5
    assert abs(value(text, "penstock_pipeline_report_time_seconds", **pipeline) - served.clock.now() / 1e9) < 60
    found = {
        name: value(text, f"penstock_pipeline_query_{name}", **labels)
        for name in ("rows_total", "late_rows_total", "dead_rows_total", "batches_total", "lag_rows", "batch_seconds")
    }
    assert list(found.values()) == [60, 3, 1, 7, 2, 0.25]
    served.advance(31)
    assert value(scrape(served), "penstock_pipeline_up", **pipeline) == 0


def test_many_users_with_quotas_are_not_all_told_apart() -> None:
    accounts = [Account(f"user-{number}", Quota()) for number in range(USERS_MAX + 3)]
    for account in accounts:
        account.configure(UserQuota(topics=5))
        account.refused["topics"] = 2
    out = Exposition()
    describe(out, accounts, Counter({"user-0": 1, f"user-{USERS_MAX}": 3, f"user-{USERS_MAX + 1}": 4}))
    text = out.text()
    assert value(text, "penstock_user_refused_total", user=OTHERS, reason="topics") == 6
    assert value(text, "penstock_user_used", user=OTHERS, reason="topics") == 7
    assert value(text, "penstock_user_used", user="user-0", reason="topics") == 1
    assert len(set(re.findall('user="([^"]*)"', text))) == USERS_MAX + 1


def test_what_filters_took_and_refused_is_counted_by_kind_and_missing_types_are_named(served: Served) -> None:
    served.ask("PUT", "routing", {"traffic_types": {"production": 0}})
    served.post("topics", {"name": "metrics"})
    served.post("topics/metrics/subscriptions", {"name": "all"})
    filters = {"traffic": {"allowed": ["production"]}, "shard_set": "0..9"}
    served.post("topics/metrics/subscriptions", {"name": "some", "settings": filters})
    lost = {"traffic": {"allowed": ["production", "moon"], "is_default": True}}
    served.post("topics/metrics/subscriptions", {"name": "lost", "settings": lost})
    for traffic, route in ((1, 1), (1, 10), (2, 1), (2, 10), (3, 9)):
        served.publish("metrics", "x", traffic=traffic, route=route)
    for name, count in (("all", 5), ("some", 2), ("lost", 5)):
        assert len(served.lease("metrics", name, max=10, wait="20s")) == count
    text = scrape(served)
    labels = {"topic": "metrics", "subscription": "some"}
    prefix = "penstock_subscription_filter_"
    assert value(text, prefix + "accepted_messages_total", **labels) == 2
    assert value(text, prefix + "refused_messages_total", **labels, filter="shard-set") == 2
    assert value(text, prefix + "refused_messages_total", **labels, filter="routing") == 1
    assert f'{prefix}accepted_messages_total{{topic="metrics",subscription="all"}}' not in text
    gauge = "penstock_routing_missing_traffic_types"
    assert value(text, gauge, topic="metrics", subscription="lost", traffic_type="moon") == 1
    assert value(text, "penstock_routing_traffic_types") == 1
    assert promtool(text) == "0"
