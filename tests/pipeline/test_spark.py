"""The source inside a real Spark: found by itself, batch and streaming, errors that a user can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.testing import assertDataFrameEqual

from penstock.pipeline.schema import struct
from tests.fakes import START_NS
from tests.pipeline.data import SECOND_NS, Data


def batch(spark: SparkSession, data: Data, **options: object) -> DataFrame:
    return spark.read.format("penstock").options(**data.options(**options)).load()


def streamed(spark: SparkSession, data: Data, **options: object) -> DataFrame:
    return spark.readStream.format("penstock").options(**data.options(**options)).load()


@pytest.fixture
def run(tmp_path: Path) -> Callable[[DataFrame], StreamingQuery]:
    """Run a query until it has what is there, with one checkpoint for all runs of a test."""

    def runs(frame: DataFrame, name: str = "checkpoint", into: str = "out") -> StreamingQuery:
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / into))
        query = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    return runs


def test_a_topic_is_a_dataframe_with_the_fixed_columns(spark: SparkSession, data: Data) -> None:
    data.topic("orders").append(b"a", b"b", key=[b"k", None], headers=[None, b'{"x":1}'], time_ns=START_NS + 1_500)
    frame = batch(spark, data, subscribe="orders")
    assert frame.schema == struct(None)
    expected = "TIMESTAMP_MICROS(1700000000000001)"
    rows = spark.sql(
        f"SELECT 'orders' AS topic, 0 AS shard, 0L AS offset, {expected} AS timestamp, X'6B' AS key, "
        f"CAST(NULL AS STRING) AS headers, X'61' AS body UNION ALL "
        f"SELECT 'orders', 0, 1L, {expected}, NULL, '{{\"x\":1}}', X'62'"
    )
    assertDataFrameEqual(frame, rows, ignoreNullable=True)


def test_columns_come_as_asked_for_by_option_or_schema(spark: SparkSession, data: Data) -> None:
    data.topic("t").append(b"a", headers=[b'{"x":"y","n":2}'], tag=["red"], due=[START_NS])
    every = batch(spark, data, subscribe="t", columns="*").first()
    assert every is not None
    assert (every["tag"], every["source"], every["timestamp_ns"], every["trace"]) == ("red", "nsq", START_NS, None)
    assert every["due"] == every["timestamp"]
    reader = spark.read.format("penstock").options(**data.options(subscribe="t"))
    row = reader.schema("headers map<string,string>, body binary, timestamp_ns bigint").load().first()
    assert row is not None
    assert row.asDict() == {"headers": {"x": "y", "n": "2"}, "body": bytearray(b"a"), "timestamp_ns": START_NS}


def test_filters_reach_the_source_and_the_answer_is_the_same(spark: SparkSession, data: Data) -> None:
    topic = data.topic("t", shards=2)
    for number in range(20):
        topic.append(
            b"%d" % number, shard=number % 2, time_ns=START_NS + number * SECOND_NS, tag=[f"tag{number % 3}"],
            traffic=[number],
        )  # fmt: skip
    columns = "topic,shard,offset,timestamp,tag,traffic,body"
    frame = batch(spark, data, subscribe="t", columns=columns)
    frame.cache()
    plain = frame.collect()
    frame.unpersist()
    assert len(plain) == 20
    for condition in (
        "shard = 1 AND offset >= 5",
        "topic = 't' AND tag IN ('tag1', 'tag2') AND traffic & 4 = 4",
        "timestamp > TIMESTAMP_SECONDS(1700000010)",
        "timestamp BETWEEN TIMESTAMP_SECONDS(1700000003) AND TIMESTAMP_SECONDS(1700000007)",
        "topic LIKE 'x%'",
        "tag IS NULL OR traffic < 3",
        "body = X'37'",
        "NOT (shard = 0) AND tag <=> 'tag0'",
    ):
        kept = batch(spark, data, subscribe="t", columns=columns).where(condition).collect()
        known = spark.createDataFrame(plain, frame.schema).where(condition).collect()
        assert sorted(kept) == sorted(known), condition
    pushed = batch(spark, data, subscribe="t", columns=columns).where("shard = 1 AND offset >= 5")
    plan = pushed._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan, plan
    assert "Filter (" in batch(spark, data, subscribe="t").where("length(body) > 5")._jdf.queryExecution().toString()


def test_a_session_that_does_not_push_filters_reads_too(spark: SparkSession, data: Data) -> None:
    data.topic("t").fill(10)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert batch(spark, data, subscribe="t").where("offset > 6").count() == 3
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_sql_reads_a_topic(spark: SparkSession, data: Data) -> None:
    data.topic("t").fill(10)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING penstock OPTIONS (path '{data.path}', subscribe 't')")
    assert spark.sql("SELECT count(*) AS n, max(offset) AS o FROM v").collect()[0].asDict() == {"n": 10, "o": 9}


def test_a_stream_goes_on_where_its_checkpoint_ends(
    spark: SparkSession, data: Data, run: Callable[..., StreamingQuery], tmp_path: Path
) -> None:
    topic = data.topic("t", shards=2)
    topic.fill(100)
    topic.fill(30, shard=1)
    frame = streamed(spark, data, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=50)
    query = run(frame)
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [50, 50, 30]
    source = query.recentProgress[0]["sources"][0]
    assert '"0":100' in source["latestOffset"].replace(" ", "")
    topic.shards[0].roll()
    topic.fill(20)
    run(frame)
    run(frame)
    found = spark.read.parquet(str(tmp_path / "out")).select("shard", "offset").collect()
    wanted = [(0, offset) for offset in range(120)] + [(1, offset) for offset in range(30)]
    assert sorted((row["shard"], row["offset"]) for row in found) == wanted


def test_a_stream_reads_while_a_publisher_writes_and_segments_are_sealed(
    spark: SparkSession, data: Data, tmp_path: Path
) -> None:
    topic = data.topic("t")
    topic.fill(100)
    frame = streamed(spark, data, subscribe="t", startingOffsets="earliest", columns="offset,body")
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        for turn in range(10):
            topic.fill(100, batch=7)
            if turn % 2:
                topic.shards[0].roll()
                topic.shards[0].tick(START_NS)
            if turn % 3 == 0:
                query.processAllAvailable()
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row["offset"] for row in rows) == list(range(1100))
    assert all(row["body"] == b"%d" % row["offset"] for row in rows)


def test_a_running_stream_reads_shards_that_come_meanwhile(spark: SparkSession, data: Data, tmp_path: Path) -> None:
    topic = data.topic("t")
    topic.fill(10)
    frame = streamed(spark, data, subscribe="t", columns="shard,offset")  # from the end
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    started = writer.option("checkpointLocation", str(tmp_path / "c"))
    for shards in (2, 4):  # while it runs, and again after it went on from its checkpoint
        query = started.start()
        try:
            query.processAllAvailable()
            topic.grow(shards)
            for shard in range(shards):
                topic.fill(5, shard=shard)
            query.processAllAvailable()
        finally:
            query.stop()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row["shard"], row["offset"]) for row in rows) == [
        *((0, offset) for offset in range(10, 20)),
        *((1, offset) for offset in range(10)),
        *((shard, offset) for shard in (2, 3) for offset in range(5)),
    ]


def test_watermarks_work_on_the_timestamp(
    spark: SparkSession, data: Data, run: Callable[..., StreamingQuery], tmp_path: Path
) -> None:
    topic = data.topic("t")
    for number in range(6):
        topic.append(b"x", time_ns=START_NS + number * 60 * SECOND_NS)
    frame = streamed(spark, data, subscribe="t", startingOffsets="earliest")
    counted = frame.withWatermark("timestamp", "1 minute").groupBy(sql.window("timestamp", "1 minute")).count()
    run(counted)
    topic.append(b"x", time_ns=START_NS + 3600 * SECOND_NS)
    run(counted)
    assert spark.read.parquet(str(tmp_path / "out")).agg(sql.sum("count")).collect()[0][0] == 6


def test_options_filter_a_stream(
    spark: SparkSession, data: Data, run: Callable[..., StreamingQuery], tmp_path: Path
) -> None:
    data.topic("t").append(b"a", b"b", b"c", tag=["x", "y", None], traffic=[1, 2, 3])
    run(streamed(spark, data, subscribe="t", startingOffsets="earliest", tag="x,y", traffic="2"))
    assert [bytes(row["body"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [b"b"]


def test_mistakes_are_told_in_words(spark: SparkSession, data: Data) -> None:
    data.topic("orders").fill(3)
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"subscribe": "order"}, "there is no topic order; did you mean orders?"),
        ({"subscribe": "orders", "startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "orders", "columns": "offset,bodi"}, "did you mean body?"),
        ({"subscribe": "orders", "startingOffsets": '{"orders":{"0":7}}'}, "beyond its end, which is 3"),
    ]
    for options, text in mistakes:
        with pytest.raises(PySparkException) as caught:
            batch(spark, data, **options).collect()
        assert text in str(caught.value)
    with pytest.raises(PySparkException) as caught:
        spark.read.format("penstock").options(**data.options(subscribe="orders")).schema("body string").load().collect()
    assert "column body is binary, not string" in str(caught.value)


def test_topic_made_anew_stops_the_query_with_a_reason(
    spark: SparkSession, data: Data, run: Callable[..., StreamingQuery]
) -> None:
    topic = data.topic("t")
    topic.fill(5)
    frame = streamed(spark, data, subscribe="t", startingOffsets="earliest")
    run(frame)
    topic.delete()
    data.topic("t").fill(50)
    with pytest.raises(PySparkException, match="was deleted and made anew"):
        run(frame)


def test_checkpoint_of_another_topic_stops_the_query_with_a_reason(
    spark: SparkSession, data: Data, run: Callable[..., StreamingQuery]
) -> None:
    data.topic("t").fill(5)
    data.topic("u").fill(5)
    run(streamed(spark, data, subscribe="t", startingOffsets="earliest"))
    with pytest.raises(PySparkException, match="belongs to another query"):
        run(streamed(spark, data, subscribe="u", startingOffsets="earliest"))
