"""M3's metrics in, aggregates as M3's metrics out."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from penstock.dialects.flight.config import FlightConfig
from penstock.dialects.m3msg.config import M3MsgConfig
from penstock.m3 import metrics
from penstock.m3.metrics import Metric
from penstock.m3.policies import StoragePolicy, storage_policy
from penstock.m3.wire import bytes_field, number_field
from penstock.pipeline.jobs.rollup import Rollup, m3, rolled
from penstock.pipeline.jobs.rollup.options import Aggregations
from tests.cli.program import ANY_PORTS, NO_HISTORY
from tests.fakes import START_NS
from tests.m3.test_metrics import AGGREGATED, SAMPLE, aggregates, samples
from tests.m3msg.producer import Producer, bodies, stored
from tests.pipeline.data import Data
from tests.served import Served

ROOT = Path(__file__).parents[3]
POLICY, MINUTE = storage_policy("10s:2d"), storage_policy("1m:40d")
WINDOW_NS = 10 * 10**9
END_NS = (START_NS // WINDOW_NS + 1) * WINDOW_NS
#: A second after 2026 began, which no metadata of these tests waits for.
TAKEN_US = START_NS // 1000


SUMS = Aggregations(counter=("sum",), gauge=("sum",), timer=("sum",))


def source(spark: SparkSession, data: Data) -> DataFrame:
    reader = spark.read.format("penstock").options(**data.options(subscribe="t", columns=",".join(Rollup.COLUMNS)))
    return reader.load()


def timer(id_: bytes, *values: float, policies: tuple[StoragePolicy, ...] = (POLICY,), traffic: int = 0) -> bytes:
    return metrics.encode_unaggregated(Metric(id_, "timer", START_NS, values, policies, traffic))


def counter(id_: bytes, value: int, traffic: int = 0) -> bytes:
    return metrics.encode_unaggregated(Metric(id_, "counter", START_NS, (value,), (POLICY,), traffic))


def rows_of(found: pa.Array) -> list[Any]:
    """Return rows, with NaN as what can be compared."""
    return [repr(row) for row in found.to_pylist()]


@given(st.lists(st.one_of(aggregates.map(metrics.encode), samples.map(metrics.encode_unaggregated)), max_size=30))
def test_many_bodies_say_what_each_says_alone(values: list[bytes]) -> None:
    taken = pa.array([TAKEN_US] * len(values), pa.int64())
    whole = m3.read(pa.array(values, pa.binary()), taken)
    alone = [m3.read(pa.array([value, None], pa.binary()), pa.array([TAKEN_US] * 2)) for value in values]
    assert rows_of(whole) == [rows_of(each)[0] for each in alone]
    assert all(each.to_pylist()[1]["reason"] == "no body" for each in alone)


def test_a_metric_asks_for_what_was_in_force_when_it_was_taken() -> None:
    def stage(cutover_ns: int, traffic: int) -> bytes:
        pipeline = bytes_field(1, b"") + bytes_field(6, number_field(1, traffic))
        return bytes_field(1, number_field(1, cutover_ns) + bytes_field(3, bytes_field(1, pipeline)))

    wrapped = bytes_field(1, bytes_field(1, b"a") + number_field(2, 1)) + bytes_field(2, stage(0, 1) + stage(9000, 2))
    body = number_field(1, 1) + bytes_field(2, wrapped)
    found = m3.read(pa.array([body] * 3), pa.array([8, 9, 10])).to_pylist()
    assert [row["bits"] for row in found] == [1, 2, 2]


def test_m3msg_case_48_a_timer_of_1_to_100_has_upstreams_aggregates(spark: SparkSession, data: Data) -> None:
    topic = data.topic("t")
    for first in range(1, 101, 20):
        topic.append(timer(b"t", *range(first, first + 20), traffic=1 << first % 3))
    options = Rollup(format="m3", output="m3", policies=("10s:2d",), names="suffix")
    output = rolled(source(spark, data), options)
    assert output.messages is not None
    found = {row.key.decode(): row for row in output.messages(output.frame).collect()}
    read = {name: metrics.decode(bytes(row.body), 0) for name, row in found.items()}
    values = {name.removeprefix("t."): metric.values[0] for name, metric in read.items()}
    assert (values["count"], values["sum"], values["sum_sq"], values["mean"]) == (100, 5050, 338350, 50.5)
    assert values["stdev"] == pytest.approx(29.011, abs=0.001)
    assert (values["p50"], values["lower"], values["upper"]) == (50, 1, 100)
    assert 94 <= values["p95"] <= 96
    assert 98 <= values["p99"] <= 100
    # One series, whatever the masks of its samples: they are combined.
    assert {(metric.policies, metric.traffic, metric.time_ns) for metric in read.values()} == {((POLICY,), 7, END_NS)}
    row = found["t.sum"]
    assert (row.headers, row.traffic) == ('{"m3-storage-policy":"10s:2d"}', 7)


def test_metrics_count_for_the_policies_they_name_and_bad_ones_are_letters(spark: SparkSession, data: Data) -> None:
    aggregated = Metric(b"was", "", START_NS, (2.5,), (storage_policy("1s:1h"),), 2)
    elsewhere = timer(b"elsewhere", 1, policies=(storage_policy("1h:1y"),))
    topic = data.topic("t")
    topic.append(
        counter(b"c", 2**62 + 1), timer(b"both", 1.5, 2, policies=(POLICY, MINUTE)), timer(b"any", 3, policies=())
    )
    topic.append(metrics.encode(aggregated), b"hello", elsewhere, counter(b"c\xff", 1))
    output = rolled(source(spark, data), Rollup(format="m3", names="plain", aggregations=SUMS))
    found = {(row.id, row.policy): (row.value, row.samples) for row in output.frame.collect()}
    assert found == {
        ("c", "10s:2d"): (float(2**62 + 1), 1),
        ("c\ufffd", "10s:2d"): (1.0, 1),
        ("both", "10s:2d"): (3.5, 2),
        ("both", "1m:40d"): (3.5, 2),
        ("any", "10s:2d"): (3.0, 1),
        ("any", "1m:40d"): (3.0, 1),
        ("was", "10s:2d"): (2.5, 1),
        ("was", "1m:40d"): (2.5, 1),
    }
    assert output.dead is not None
    dead = {bytes(row.body): row.reason for row in output.dead.collect()}
    assert dead.keys() == {b"hello", elsewhere}
    assert dead[elsewhere] == "none of its storage policies is rolled up here"
    assert dead[b"hello"].startswith("not a metric of M3: ")


def test_metrics_of_a_producer_come_back_as_aggregates_in_a_topic(spark: SparkSession, tmp_path: Path) -> None:
    m3msg = M3MsgConfig(port=0, topic="raw", ack_flush_interval_ns=10**6)
    with Served(tmp_path, flight=FlightConfig(port=0), m3msg=m3msg) as node:
        now_ns = node.do(node.node.clock.now)
        sent = [Metric(b"reqs", "counter", now_ns, (number,), (POLICY,), 1 << number) for number in (1, 2, 3)]
        with Producer(node.ports["m3msg.port"]) as producer:
            producer.send(*map(metrics.encode_unaggregated, sent))
            producer.until_acked(3)
        url = f"grpc://127.0.0.1:{node.ports['flight.port']}"
        raw = spark.read.format("penstock").option("url", url).option("subscribe", "raw")
        frame = raw.option("columns", ",".join(Rollup.COLUMNS)).load()
        output = rolled(frame, Rollup(format="m3", output="m3", policies=("10s:2d",), names="plain"))
        assert output.messages is not None
        writer = output.messages(output.frame).write.format("penstock").mode("append")
        writer.option("url", url).option("topic", "aggregated").save()
        (body,) = bodies(stored(node, "aggregated"))
        end_ns = (now_ns // WINDOW_NS + 1) * WINDOW_NS
        assert metrics.decode(body, 0) == Metric(b"reqs", "", end_ns, (6.0,), (POLICY,), 14, is_aggregated=True)
        ((_, columns),) = stored(node, "aggregated")
        assert (columns["key"], columns["traffic"], columns["event_time"]) == (b"reqs", 14, end_ns)


def test_the_example_of_the_readme_rolls_up_what_a_producer_sends_and_routes_it_to_services(
    spark: SparkSession,
) -> None:
    example = runpy.run_path(str(ROOT / "examples/m3_rollup.py"))
    assert asyncio.run(example["run"](spark, (*ANY_PORTS, NO_HISTORY))) == {
        "long-term": {"checkout": 6.0},
        "everything": {"checkout": 6.0, "search": 30.0, "login": 5.0},
    }


def test_the_vectors_are_samples() -> None:
    found = m3.read(pa.array([AGGREGATED, SAMPLE]), pa.array([TAKEN_US] * 2)).to_pylist()
    assert [(row["id"], row["bits"], row["policies"]) for row in found] == [(b"foo", 5, None), (b"reqs", 1, ["10s:2d"])]
