"""The rollup against a plain-Python one, as a batch and as a stream from a topic."""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.columns import id_of
from penstock.errors import ConfigError
from penstock.pipeline.jobs.dead import dead_letters
from penstock.pipeline.jobs.dedupe import Dedupe, deduped
from penstock.pipeline.jobs.rollup import Rollup, messages, rolled
from penstock.pipeline.jobs.rollup.aggregations import ALLOWED
from tests.fakes import START_NS
from tests.pipeline.data import Data, Topic
from tests.pipeline.rollup.reference import Aggregate, Key, Sample, quantile, rollup

SECOND_US = 1_000_000
SECOND_NS = 1_000_000_000
START_US = START_NS // 1000
POLICIES = {"10s:2d": 10 * SECOND_US, "1m:40d": 60 * SECOND_US}
COLUMNS = ",".join(Rollup.COLUMNS)
EVERYTHING = msgspec.convert({"format": "json", "aggregations": ALLOWED, "late": "dead", "names": "plain"}, Rollup)
#: Both are what a double can lose in a few thousand additions.
RELATIVE = 1e-9
RANK_ERROR = 0.001


class Traffic:
    """Messages of random samples, and what a rollup must make of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.good: list[Sample] = []
        self.reasons: list[str] = []
        self.bodies: list[bytes] = []
        self.arrivals_us: list[int] = []
        self.masks: list[int | None] = []
        arrival_us = START_US
        for offset in range(400):
            arrival_us += self.random.randrange(SECOND_US)
            mask = self.random.choice([None, 0, 1, 2, 1 << 40, -(1 << 63)])
            objects = [self._object(offset, line, arrival_us, mask) for line in range(self.random.randrange(1, 5))]
            self.bodies.append(f"[{','.join(objects)}]".encode())
            self.arrivals_us.append(arrival_us)
            self.masks.append(mask)

    def _object(self, offset: int, line: int, arrival_us: int, mask: int | None) -> str:
        chance = self.random.random()
        if chance < 0.03:
            self.reasons.append("the value is not a number")
            return '{"name":"bad","type":"gauge","value":"x"}'
        if chance < 0.06:
            self.reasons.append("future")
            return json.dumps({"name": "early", "type": "gauge", "value": 1, "time": arrival_us // 1000 + 60_001})
        kind = self.random.choice(["counter", "gauge", "timer"])
        name = f"{kind}{self.random.randrange(4)}"
        # Whole seconds, so that times tie.
        event_us = (arrival_us // SECOND_US - int(self.random.expovariate(1 / 20)) + 5) * SECOND_US
        values = self._values(kind)
        for rank, value in enumerate(values):
            self.good.append(Sample(name, kind, value, event_us, arrival_us, mask, (0, offset, line, rank)))
        said = {"name": name, "type": kind, "value": values if len(values) > 1 else values[0], "time": event_us // 1000}
        return json.dumps(said)

    def _values(self, kind: str) -> list[Any]:
        if kind == "counter":
            return [self.random.choice([self.random.randrange(-50, 1000), self.random.randrange(1 << 55, 1 << 63)])]
        if kind == "gauge":
            return [self.random.choice([math.nan, self.random.gauss(0, 100), self.random.randrange(5)])]
        count = self.random.choice([1, 1, 2, 5, 300])
        return [self.random.choice([math.nan, *[self.random.expovariate(0.01)] * 20]) for _ in range(count)]

    def sent(self, topic: Topic) -> None:
        """Store the messages."""
        for body, arrival_us, mask in zip(self.bodies, self.arrivals_us, self.masks, strict=True):
            topic.append(body, time_ns=arrival_us * 1000, traffic=[mask])


@pytest.fixture
def traffic() -> Traffic:
    return Traffic(7)


def source(spark: SparkSession, data: Data, **options: object) -> DataFrame:
    return spark.read.format("penstock").options(**data.options(columns=COLUMNS, **options)).load()


def streamed(spark: SparkSession, data: Data, options: Rollup, name: str) -> Iterator[Any]:
    """Run queries over all that is there, in several micro-batches; yield rows and reports of both outputs."""
    given = data.options(subscribe="t", columns=COLUMNS, startingOffsets="earliest", maxOffsetsPerTrigger=110)
    output = rolled(spark.readStream.format("penstock").options(**given).load(), options)
    assert output.dead is not None
    for frame in (output.frame, output.dead):
        writer = frame.writeStream.format("memory").queryName(name).outputMode("append")
        query = writer.option("checkpointLocation", str(data.path / f"{name}-{frame is output.dead}"))
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()
        yield spark.table(name).collect(), started.recentProgress
        spark.catalog.dropTempView(name)


def micros(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * SECOND_US) if moment.tzinfo is None else 0


def by_key(rows: list[Any]) -> dict[Key, Any]:
    found = {(row.id, row.type, row.aggregation, row.policy, micros(row.time)): row for row in rows}
    assert len(found) == len(rows)
    return found


def is_right(key: Key, got: Any, want: Aggregate) -> bool:
    """Return whether a value is what it must be: exactly for whole numbers, or as near as is promised."""
    point = quantile(key[2])
    if point is not None and len(want.numbers) > 3:
        low, high = bisect_left(want.numbers, got.value) + 1, bisect_right(want.numbers, got.value)
        rank = math.ceil(point * len(want.numbers))
        slack = RANK_ERROR * len(want.numbers)
        return got.value in want.numbers and low - slack <= rank <= high + slack
    exact = key[2] in ("count", "min", "max", "last") or point is not None or (key[1:3] == ("counter", "sum"))
    return got.value == want.value if exact else math.isclose(got.value, want.value, rel_tol=RELATIVE)


def compare(rows: list[Any], wanted: dict[Key, Aggregate]) -> None:
    found = by_key(rows)
    assert found.keys() == wanted.keys()
    for key, want in wanted.items():
        assert is_right(key, found[key], want), (key, found[key], want.value)
        assert (found[key].samples, found[key].traffic) == (want.samples, want.traffic), key


def test_batch_and_stream_give_what_the_reference_gives(spark: SparkSession, data: Data, traffic: Traffic) -> None:
    topic = data.topic("t")
    traffic.sent(topic)
    wanted, late = rollup(traffic.good, POLICIES, ALLOWED, 30 * SECOND_US)
    assert len(wanted) > 500
    assert len(late) > 50
    output = rolled(source(spark, data, subscribe="t"), EVERYTHING)
    compare(output.frame.collect(), wanted)
    # What arrives later closes the windows, whatever is in it.
    topic.append(b"[]", time_ns=(traffic.arrivals_us[-1] + 200 * SECOND_US) * 1000)
    (rows, progress), (dead, _) = streamed(spark, data, EVERYTHING, "rolled")
    compare(rows, wanted)
    assert len([report for report in progress if report["numInputRows"]]) == 4
    assert all(report["stateOperators"][0]["numRowsDroppedByWatermark"] == 0 for report in progress)
    assert progress[-1]["stateOperators"][0]["numRowsTotal"] == 0
    lines = {(sample.place[:3]) for _, sample in late}
    assert sorted(row.reason for row in dead) == sorted([*traffic.reasons, *["late"] * len(lines)])
    counts = [report["observedMetrics"]["dead.rollup"].asDict() for report in progress]
    assert sum(count["dead"] for count in counts) == len(dead)
    objects = {(policy, sample.place[:3]) for policy, sample in late}
    assert sum(count["late"] or 0 for count in counts) == len(objects)
    assert output.dead is not None
    assert sorted(map(repr, output.dead.collect())) == sorted(map(repr, dead))


def test_a_message_of_many_lines_is_rolled_up_and_its_bad_lines_are_letters(spark: SparkSession, data: Data) -> None:
    body = b"\n".join(b"hits:%d|c\nload:%d|g\ntook:%d|ms" % (number, number, number) for number in range(1, 1001))
    headers = b'{"from":{"a":[1]}, "penstock.dead.reason":"old"}'
    topic = data.topic("t")
    topic.append(body, b"oops\nhits:1|s\nhits:5|c", b"\xff", headers=[None, headers, b"{}"], traffic=[1, 4, None])
    output = rolled(source(spark, data, subscribe="t"), Rollup(policies=("1h:1d",)))
    end_us = (START_US // (3600 * SECOND_US) + 1) * 3600 * SECOND_US
    found = {row.key.decode(): row for row in messages(output.frame).collect()}
    values = {key: json.loads(row.body)["value"] for key, row in found.items()}
    assert values == {
        "stats.counts.hitssum": 500_505.0,
        "stats.gauges.loadlast": 1.0,
        "stats.timers.tooksum": 500_500.0,
        "stats.timers.tooksum_sq": 333_833_500.0,
        "stats.timers.tookmean": 500.5,
        "stats.timers.tooklower": 1.0,
        "stats.timers.tookupper": 1000.0,
        "stats.timers.tookcount": 1000.0,
        "stats.timers.tookstdev": pytest.approx(math.sqrt(1000 * 1001 / 12), rel=RELATIVE),
        "stats.timers.tookmedian": pytest.approx(500, abs=1),
        "stats.timers.tookp50": pytest.approx(500, abs=1),
        "stats.timers.tookp95": pytest.approx(950, abs=1),
        "stats.timers.tookp99": pytest.approx(990, abs=1),
    }
    row = found["stats.counts.hitssum"]
    told = {"id": "stats.counts.hitssum", "type": "counter", "aggregation": "sum", "policy": "1h:1d"}
    assert json.loads(row.body) == {**told, "time_ns": end_us * 1000, "value": 500_505.0}
    named = {"policy": "1h:1d", "m3-storage-policy": "1h:1d"}
    assert (json.loads(row.headers), micros(row.event_time), row.traffic) == (named, end_us, 5)
    assert output.dead is not None
    letters = dead_letters(output.dead)
    assert letters.columns == ["topic", "key", "body", "event_time", "traffic", "headers"]
    dead = {bytes(row.body): json.loads(row.headers) for row in letters.collect()}
    where = {"penstock.dead.topic": "t", "penstock.dead.taken_ns": str(START_NS)}
    second, third = (f"{id_of(0, offset):016x}" for offset in (1, 2))
    assert dead == {
        b"oops": {
            **where,
            "from": {"a": [1]},
            "penstock.dead.id": second,
            "penstock.dead.reason": "not a StatsD line",
            "penstock.dead.line": "0",
        },
        b"hits:1|s": {
            **where,
            "from": {"a": [1]},
            "penstock.dead.id": second,
            "penstock.dead.reason": "a set, which has no aggregate",
            "penstock.dead.line": "1",
        },
        b"\xff": {
            **where,
            "penstock.dead.id": third,
            "penstock.dead.reason": "not UTF-8",
            "penstock.dead.line": "0",
        },
    }


def test_ids_are_named_as_asked_for_and_integers_never_overflow(spark: SparkSession) -> None:
    body = b"n:9223372036854775807|c\nn:9223372036854775807|c\nn:1|c\nt:1|ms\nt:3|ms\nt:2|h"
    moment = datetime.fromtimestamp(START_NS / 1e9, UTC)
    frame = spark.createDataFrame([(moment, body)], "timestamp timestamp, body binary")
    chosen = {"counter": ["sum", "min"], "timer": ["p10", "p40", "p90", "stdev"]}
    found = {}
    for names in ("usual", "suffix"):
        options = msgspec.convert({"names": names, "policies": ["1d:1d"], "aggregations": chosen}, Rollup)
        found[names] = {(row.id, row.aggregation): row.value for row in rolled(frame, options).frame.collect()}
    timers = {("t.p10", "p10"): 1.0, ("t.p40", "p40"): 2.0, ("t.p90", "p90"): 3.0, ("t.stdev", "stdev"): 1.0}
    assert found["usual"] == {("n", "sum"): float(2**64 - 1), ("n", "min"): 1.0, **timers}
    assert found["suffix"] == {("n.sum", "sum"): float(2**64 - 1), ("n.lower", "min"): 1.0, **timers}


def test_windows_behind_a_dedupe_close_by_its_lateness_and_not_by_its_memory(
    spark: SparkSession, data: Data, tmp_path: Path
) -> None:
    topic = data.topic("t")
    for second, id_ in ((1, b"a"), (2, b"b"), (100, b"c"), (110, b"a"), (200, b"d"), (210, b"b"), (300, b"e")):
        body, time_ns = b"n:%d|c" % second, START_NS + second * SECOND_NS
        topic.append(body, time_ns=time_ns, message_id=[id_])
    options = data.options(subscribe="t", columns="*", startingOffsets="earliest", maxOffsetsPerTrigger=2)
    stream = spark.readStream.format("penstock").options(**options).load()
    closed: dict[float, float] = {}

    def take(frame: DataFrame, _: int) -> None:
        closed.update({row.time.timestamp() - START_NS / 1e9: row.value for row in frame.collect()})

    def run(name: str, **more: str) -> dict[float, float]:
        closed.clear()
        once = deduped(stream, msgspec.convert({"within": "10m", **more}, Dedupe)).frame
        rollup = msgspec.convert({"policies": ["10s:1d"], "lateness": "30s"}, Rollup)
        writer = rolled(once, rollup).frame.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True)
        writer.start().awaitTermination()
        return dict(closed)

    assert run("long") == {}
    # The copies of a and b, more than the lateness after them and less than `within`, are known all the same.
    first = START_NS // SECOND_NS % 10
    assert run("short", lateness="30s") == {
        (second + first) // 10 * 10 + 10 - first: value for second, value in ((1, 3.0), (100, 100.0), (200, 200.0))
    }
    with pytest.raises(ConfigError, match="lateness is 30s, but a step before forgets after 20s"):
        run("shorter", lateness="20s")


def test_a_stream_keeps_the_watermark_of_a_step_before_if_it_is_long_enough(spark: SparkSession, data: Data) -> None:
    data.topic("t")
    stream = spark.readStream.format("penstock").options(**data.options(subscribe="t", columns=COLUMNS)).load()
    with pytest.raises(ConfigError, match="lateness is 30s, but a step before forgets after 10s"):
        rolled(stream.withWatermark("timestamp", "10 seconds"), Rollup())
    long = rolled(stream.withWatermark("timestamp", "1 hour"), Rollup())
    assert long.frame.columns == ["id", "type", "aggregation", "policy", "time", "value", "traffic", "samples"]
    with pytest.raises(ConfigError, match="needs the column timestamp"):
        rolled(stream.drop("timestamp"), Rollup())
