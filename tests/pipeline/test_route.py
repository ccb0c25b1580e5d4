"""Routing in Spark: the broker's verdicts on the same rows, fanned out in one pass."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from penstock.client.connection import Access
from penstock.delivery.rules import rules_of
from penstock.errors import ConfigError
from penstock.filters.traffic import Rules, TrafficFilter
from penstock.pipeline.jobs.route import Route, accepted, faults, node_mapping, routed
from penstock.settings import SubscriptionSettings
from tests.filters.reference import takes
from tests.filters.rows import batch_of, some_rows, some_settings
from tests.filters.rows import signed as stored
from tests.flight.parts import Flown

MAPPING = {"production": 0, "staging": 1, "debug": 63}
TOP = -(1 << 63)
NAMES = [f"type{number}" for number in range(8)]


def route(**options: Any) -> Route:
    return msgspec.convert(options, Route)


def reference(bits: int, allowed: tuple[str, ...], is_default: bool, mapping: dict[str, int]) -> bool:
    """The policy as its numbered rules say it."""
    if bits == 0 or not mapping:
        return is_default
    mask = 0
    for name in allowed:
        if name not in mapping:
            return is_default
        mask |= 1 << mapping[name]
    return (bits & mask) != 0


def any_bits(chance: random.Random) -> int:
    return chance.choice((0, 1 << chance.randrange(64), chance.getrandbits(64), chance.getrandbits(8)))


def signed(bits: int) -> int:
    return bits - (bits >> 63 << 64)


def test_broker_spark_and_the_rules_agree_on_random_masks_and_mappings(spark: SparkSession) -> None:
    chance = random.Random(42)
    rules, verdicts, columns = [], [], []
    masks = [0, 1 << 63, (1 << 64) - 1, *(any_bits(chance) for _ in range(197))]
    for _ in range(60):
        mapping = {name: chance.randrange(64) for name in chance.sample(NAMES, chance.choice((0, 3, 6, 8)))}
        rule = TrafficFilter(tuple(chance.sample(NAMES, chance.randrange(4))), chance.random() < 0.5)
        rules.append((rule, mapping))
        verdicts.append([Rules([rule], mapping).verdict(bits)[0] for bits in masks])
        columns.append(accepted(sql.col("traffic"), rule.mask(mapping), rule.is_default))
    # A null is what most messages have: it must be judged as 0 is.
    rows = [(number, signed(bits)) for number, bits in enumerate(masks)] + [(len(masks), None)]
    frame = spark.createDataFrame(rows, "row int, traffic bigint")
    found = frame.select("row", sql.array(*columns)).orderBy("row").collect()
    for number, (rule, mapping) in enumerate(rules):
        expected = [reference(bits, rule.allowed, rule.is_default, mapping) for bits in masks]
        assert verdicts[number] == expected
        assert [row[1][number] for row in found] == [*expected, expected[0]], f"{rule} {mapping}"


def service_of(settings: SubscriptionSettings, topic: str) -> dict[str, Any]:
    """A service with the filters of a subscription."""
    traffic = msgspec.to_builtins(settings.traffic) if settings.traffic is not None else {}
    others = {name: getattr(settings, name) for name in ("storage_policies", "percentage", "shard_set")}
    return {**traffic, **others, "topic": topic}


def test_broker_spark_and_the_documentation_agree_on_every_combination_of_filters(spark: SparkSession) -> None:
    chance = random.Random(7)
    rows = [row for shard in (0, 3) for row in some_rows(chance, shard, 5_000, 300)]
    places = [(id_ - 1) >> 48 for id_ in (row.id for row in rows)]
    data = [
        (place, (row.id - 1) & ((1 << 48) - 1), stored(row.traffic), row.headers and row.headers.decode(), row.route)
        for place, row in zip(places, rows, strict=True)
    ]
    frame = spark.createDataFrame(data, "shard int, offset bigint, traffic bigint, headers string, route bigint")
    mapping = {"type0": 0, "type1": 5, "type2": 63, "type3": 17}
    settings = {f"s{number}": some_settings(chance) for number in range(24)}
    options = route(services={name: service_of(one, name) for name, one in settings.items()})
    found: dict[str, set[tuple[int, int]]] = {name: set() for name in settings}
    for row in routed(frame, options, mapping).frame.select("service", "shard", "offset").collect():
        found[row[0]].add((row[1], row[2]))
    for name, rules in rules_of(settings, mapping).items():
        expected = [takes(row, settings[name], mapping) for row in rows]
        assert found[name] == {data[n][:2] for n, taken in enumerate(expected) if taken}, settings[name]
        for shard, start in ((0, 0), (3, 300)):
            batch = batch_of(rows[start : start + 300], 5_000)
            ready = rules._replace(shard=shard).sift(batch, 0, 300, 0).ready - 5_000
            assert ready.tolist() == [n for n in range(300) if expected[start + n]], settings[name]


def fanned(frame: DataFrame, options: Route, mapping: dict[str, int]) -> set[tuple[str | None, str | None, int]]:
    rows = routed(frame, options, mapping).frame.select("service", "topic", "offset").collect()
    found = {(row[0], row[1], row[2]) for row in rows}
    assert len(found) == len(rows)
    return found


def test_each_service_gets_what_its_filter_takes_and_the_rest_is_counted(spark: SparkSession) -> None:
    services = {
        "live": {"allowed": ["production"], "topic": "out-live"},
        "any": {"allowed": ["staging", "debug"], "is_default": True, "topic": "out-any"},
        "cold": {"allowed": ["debug"]},
    }
    rows = [(1, None), (2, 0), (3, 1), (4, 3), (5, TOP), (6, 4)]
    frame = spark.createDataFrame(rows, "offset bigint, traffic bigint").selectExpr(
        "'in' AS topic", "offset", "traffic", "X'6B' AS key", "X'00' AS body"
    )
    expected = {
        ("any", "out-any", 1), ("any", "out-any", 2), ("live", "out-live", 3), ("live", "out-live", 4),
        ("any", "out-any", 4), ("any", "out-any", 5), ("cold", "in", 5),
    }  # fmt: skip
    assert fanned(frame, route(services=services), MAPPING) == expected
    kept = route(services=services, unrouted="nobody")
    assert fanned(frame, kept, MAPPING) == expected | {(None, "nobody", 6)}

    output = routed(frame, kept, MAPPING)
    assert output.frame.columns == ["service", "topic", "offset", "traffic", "key", "body"]
    assert output.dead is None
    assert output.messages is not None
    messages = output.messages(output.frame)
    assert "service" not in messages.columns
    assert sorted((row.topic, row.offset) for row in messages.collect()) == sorted(
        (topic, offset) for service, topic, offset in expected | {(None, "nobody", 6)} if service != "cold"
    )


def test_many_services_each_get_their_own(spark: SparkSession) -> None:
    count = 13
    mapping = {f"type{number}": number for number in range(count)}
    services = {name: {"allowed": [name], "topic": f"out-{name}"} for name in mapping}
    frame = spark.range(1, 1 << count, 37).selectExpr("id AS offset", "id AS traffic")
    expected = {
        (f"type{bit}", f"out-type{bit}", row)
        for row in range(1, 1 << count, 37)
        for bit in range(count)
        if row >> bit & 1
    }
    assert fanned(frame, route(services=services), mapping) == expected


def test_stream_is_routed_with_the_nodes_mapping_and_counts_what_nobody_took(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Flown(tmp_path / "node") as node:
        node.do(lambda: node.node.catalog.set_mapping(MAPPING).now())
        url = f"grpc://127.0.0.1:{node.flight.port}"
        node.publish("in", "a", "b", traffic=1)
        node.publish("in", "c", traffic=2)
        node.publish("in", "d")
        options = route(services={"live": {"allowed": ["production"], "topic": "live"}}, count=True)
        reader = spark.readStream.format("penstock").options(url=url, subscribe="in", startingOffsets="earliest")
        output = routed(reader.option("columns", "*").load(), options, node_mapping(Access(url)))
        assert output.messages is not None
        writer = output.messages(output.frame).writeStream.format("penstock").option("url", url)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination()
        assert node.bodies("live") == [b"a", b"b"]
        assert query.lastProgress is not None
        assert query.lastProgress["observedMetrics"][options.observed].asDict() == {"rows": 4, "unrouted": 2}


def test_options_own_mapping_wins(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, 1), (2, 32)], "offset bigint, traffic bigint")
    services = {"s": {"allowed": ["production"], "topic": "out"}}
    assert fanned(frame, route(services=services, mapping={"production": 5}), MAPPING) == {("s", "out", 2)}


def test_frame_without_traffic_goes_by_default(spark: SparkSession) -> None:
    services = {"yes": {"is_default": True, "topic": "a"}, "no": {"allowed": ["production"], "topic": "b"}}
    assert fanned(spark.range(1).selectExpr("id AS offset"), route(services=services), MAPPING) == {("yes", "a", 0)}


def test_faults_of_a_mapping_are_told_in_the_brokers_words() -> None:
    options = route(services={"a": {"allowed": ["x", "moon"], "is_default": True}, "b": {"allowed": ["sun"]}})
    assert faults(options, {"x": 64, "y": 3, "z": 3}) == [
        'traffic type "x" has bit 64: choose one from 0 to 63',
        'bit 3 is given to "y" and "z": give each traffic type its own',
        "services.a takes everything: the mapping does not know x, moon",
        "services.b takes nothing: the mapping does not know sun",
    ]
    assert faults(options, {}) == ["no routing mapping is set: is_default decides for every service"]
    assert faults(options, {"x": 1, "moon": 2, "sun": 63}) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"services": {}}, "services is empty"),
        ({"services": {"": {}}}, "a service without a name"),
        ({"services": {"a": {"topic": ""}}}, "services.a.topic is empty"),
        ({"services": {"a": {}}, "unrouted": ""}, "unrouted is empty"),
        ({"services": {"a": {"percentage": 50}}}, "services.a.percentage is 50"),
        ({"services": {"a": {"shard_set": "x"}}}, 'services.a: "x" is no shard set'),
        ({"services": {"a": {"storage_policies": ["x"]}}}, "services.a: storage_policies"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError), match=told):
        route(**options)


def test_a_percentage_of_rows_without_a_place_is_refused(spark: SparkSession) -> None:
    services = {"some": {"percentage": 0.5, "topic": "a"}}
    with pytest.raises(ConfigError, match=r"services\.some\.percentage draws by shard and offset"):
        routed(spark.range(1).selectExpr("id AS traffic"), route(services=services), {})
