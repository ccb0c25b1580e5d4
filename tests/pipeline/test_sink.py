"""Frames written by a real Spark into a real node: all of a batch or nothing, and each batch of a query once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from penstock.columns import OPTIONAL_COLUMNS
from tests.flight.parts import Flown, many
from tests.proofs.client import Client, pub

EVENT = "TIMESTAMP_MICROS(1700000000123456)"
EVENT_NS = 1_700_000_000_123_456_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Flown]:
    with Flown(tmp_path / "node") as made:
        yield made
        assert made.do(lambda: made.node.bugs) == 0


def url(node: Flown) -> str:
    return f"grpc://127.0.0.1:{node.flight.port}"


def save(frame: DataFrame, node: Flown, **options: object) -> None:
    given = {"url": url(node), "topic": "t", **{name: str(value) for name, value in options.items()}}
    frame.write.format("penstock").options(**given).mode("append").save()


def numbers(spark: SparkSession, start: int, end: int, tasks: int = 2) -> DataFrame:
    return spark.range(start, end, 1, tasks).select(sql.col("id").cast("string").alias("body"))


def text(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


def staged_files(node: Flown) -> list[str]:
    return os.listdir(node.path / "staging")


def stored(node: Flown, *names: str) -> int:
    """Return how many rows some topics have, or all of them; one that is not there has none."""
    topics = node.node.topics
    return node.do(lambda: sum(topic.shards[0].end for name, topic in topics.items() if not names or name in names))


class Copy:
    """A streaming query from topic `in` to topic `out` with one checkpoint; each run ends when it has all."""

    def __init__(self, spark: SparkSession, node: Flown, path: Path) -> None:
        self.checkpoint = path
        self._spark = spark
        self._node = node

    def run(self, change: Callable[[DataFrame], DataFrame] = lambda frame: frame, **options: str) -> StreamingQuery:
        reader = self._spark.readStream.format("penstock").options(url=url(self._node), subscribe="in")
        frame = change(reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="100").load())
        writer = frame.writeStream.format("penstock").options(**{"url": url(self._node), "topic": "out", **options})
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def forget_last_batch(self) -> int:
        """Leave what a driver leaves that dies after the node's commit and before its own."""
        commits = self.checkpoint / "commits"
        last = max(int(name) for name in os.listdir(commits) if name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)
        return last


@pytest.fixture
def copy(spark: SparkSession, node: Flown, tmp_path: Path) -> Copy:
    return Copy(spark, node, tmp_path / "checkpoint")


def test_frame_is_written_whole(spark: SparkSession, node: Flown) -> None:
    save(numbers(spark, 0, 1000), node)
    found = node.read("t")
    assert sorted(found["body"].to_pylist()) == sorted(text(*range(1000)))
    assert set(found["source"].to_pylist()) == {"spark"}
    assert staged_files(node) == []


def test_transaction_is_written_once(spark: SparkSession, node: Flown) -> None:
    for version, first in ((1, 0), (1, 0), (2, 10), (1, 0)):
        save(numbers(spark, first, first + 3), node, txnAppId="job", txnVersion=version)
    for version, first in ((1, 100), (2, 110)):
        with pytest.raises(PySparkException, match=f"batch {version} of query txn/3/job/t was written .* 3 other rows"):
            save(numbers(spark, first, first + 3), node, txnAppId="job", txnVersion=version)
    with pytest.raises(PySparkException, match="batch 0 of query txn/3/job/t is not among the last"):
        save(numbers(spark, 0, 3), node, txnAppId="job", txnVersion=0)
    save(numbers(spark, 110, 113), node, txnAppId="job", txnVersion=2, repeats="any")
    assert sorted(node.bodies("t")) == sorted(text(0, 1, 2, 10, 11, 12))
    save(numbers(spark, 0, 3), node, txnAppId="job", txnVersion=1, topic="other")
    assert len(node.bodies("other")) == 3
    save(numbers(spark, 0, 3), node, txnAppId="another job", txnVersion=1)
    assert len(node.bodies("t")) == 9
    assert staged_files(node) == []


def test_rows_may_name_their_topic(spark: SparkSession, node: Flown) -> None:
    frame = spark.sql("SELECT concat('t', id % 3) AS topic, string(id) AS body FROM range(9)")
    frame.write.format("penstock").option("url", url(node)).mode("append").save()
    assert {name: sorted(node.bodies(name)) for name in ("t0", "t1", "t2")} == {
        "t0": text(0, 3, 6),
        "t1": text(1, 4, 7),
        "t2": text(2, 5, 8),
    }


def test_every_column_arrives(spark: SparkSession, node: Flown) -> None:
    frame = spark.sql(
        f"SELECT X'00FF' AS body, {EVENT} AS due, {EVENT} AS expires, {EVENT} AS event_time, X'6B' AS key, "
        "'red' AS tag, '{\"a\": 1}' AS headers, -1L AS traffic, 7 AS bucket, 8L AS route, 'm' AS message_id, "
        "'d' AS dedup, 9L AS trace, 'g' AS group"
    )
    save(frame, node)
    (row,) = node.read("t").to_pylist()
    assert {name: row[name] for name in ("body", *OPTIONAL_COLUMNS)} == {
        "body": b"\x00\xff", "due": EVENT_NS, "expires": EVENT_NS, "event_time": EVENT_NS, "key": b"k", "tag": "red",
        "headers": b'{"a": 1}', "traffic": -1, "bucket": 7, "route": 8, "message_id": b"m", "dedup": b"d", "trace": 9,
        "group": b"g",
    }  # fmt: skip


def test_rows_without_a_key_keep_their_shard_if_asked(spark: SparkSession, node: Flown) -> None:
    node.act("create-topic", name="t", settings={"shards": 3})
    frame = spark.sql("SELECT string(id) AS body, IF(id < 9, int(id DIV 3), NULL) AS shard FROM range(0, 11, 1, 1)")
    save(frame, node, keepShards="true")
    found = [node.bodies("t", shard=shard) for shard in range(3)]
    assert [[body for body in shard if len(body) == 1 and body != b"9"] for shard in found] == [
        text(0, 1, 2),
        text(3, 4, 5),
        text(6, 7, 8),
    ]
    assert sum(map(len, found)) == 11


def test_headers_may_be_a_map(spark: SparkSession, node: Flown) -> None:
    save(spark.sql("SELECT 'x' AS body, map('a', '1', 'b', NULL) AS headers"), node)
    assert node.read("t")["headers"].to_pylist() == [b'{"a": "1", "b": null}']


def test_data_directory_finds_its_node(spark: SparkSession, node: Flown) -> None:
    said = f'{{"pid": {os.getpid()}, "flight": "{url(node)}"}}'
    (node.path / "node.json").write_text(said)
    numbers(spark, 0, 3).write.format("penstock").options(path=str(node.path), topic="t").mode("append").save()
    assert len(node.bodies("t")) == 3


def test_stream_goes_on_where_it_was(node: Flown, copy: Copy) -> None:
    node.put("in", many(250))
    copy.run()
    assert sorted(node.bodies("out")) == sorted(node.bodies("in"))
    node.put("in", many(10, 250))
    copy.run()
    assert sorted(node.bodies("out")) == sorted(node.bodies("in"))
    assert staged_files(node) == []


def test_batch_that_spark_repeats_adds_nothing_with_whatever_tasks(node: Flown, copy: Copy) -> None:
    node.put("in", many(250))
    copy.run()
    for tasks in (1, 3):
        assert copy.forget_last_batch() == 2
        copy.run(lambda frame: frame.repartition(tasks))  # noqa: B023 - it is called at once
        assert sorted(node.bodies("out")) == sorted(node.bodies("in"))
    assert staged_files(node) == []


def test_copied_checkpoint_writes_to_another_topic_all_that_it_reads(
    spark: SparkSession, node: Flown, copy: Copy, tmp_path: Path
) -> None:
    node.put("in", many(250))
    copy.run()
    other = Copy(spark, node, tmp_path / "copied")
    shutil.copytree(copy.checkpoint, other.checkpoint)
    node.put("in", many(1150, 250))
    copy.run()
    other.run(topic="other")
    assert sorted(node.bodies("out")) == sorted(node.bodies("in"))
    assert sorted(node.bodies("other")) == sorted(node.bodies("in")[250:])


def test_copied_checkpoint_that_writes_other_batches_to_the_same_topic_is_refused(
    spark: SparkSession, node: Flown, copy: Copy, tmp_path: Path
) -> None:
    node.put("in", many(100))
    copy.run()
    other = Copy(spark, node, tmp_path / "copied")
    shutil.copytree(copy.checkpoint, other.checkpoint)
    node.put("in", many(50, 100))
    copy.run()
    node.put("in", many(50, 150))  # its batch 1 is 50 rows longer than the one that is there
    with pytest.raises(PySparkException, match=r"batch 1 of query stream/.* was written to topic out .* with 50 rows"):
        other.run()
    assert len(node.bodies("out")) == 150
    copy.run()
    assert sorted(node.bodies("out")) == sorted(node.bodies("in"))
    assert staged_files(node) == []


def test_batch_with_a_row_that_cannot_be_taken_is_not_written_at_all(node: Flown, copy: Copy) -> None:
    node.put("in", many(90))
    broken = sql.when(sql.col("offset") == 70, None).otherwise(sql.col("body"))
    shown = r"task \d: row \d+ has no body: it is null \(its key is null, its body null\)"
    with pytest.raises(PySparkException, match=shown):
        copy.run(lambda frame: frame.repartition(3).withColumn("body", broken))
    assert "out" not in node.node.topics
    copy.run()
    assert sorted(node.bodies("out")) == sorted(node.bodies("in"))
    assert staged_files(node) == []


def test_foreach_batch_writes_once_under_a_transaction(spark: SparkSession, node: Flown, tmp_path: Path) -> None:
    node.put("in", many(150))
    seen = []

    def write(frame: DataFrame, batch: int) -> None:
        for _ in range(2):  # as a retry would
            save(frame, node, topic="out", txnAppId="copy", txnVersion=batch)
        seen.append(batch)

    reader = spark.readStream.format("penstock").options(url=url(node), subscribe="in", startingOffsets="earliest")
    writer = reader.option("maxOffsetsPerTrigger", "100").load().writeStream.foreachBatch(write)
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert seen == [0, 1]
    assert sorted(node.bodies("out")) == sorted(node.bodies("in"))


def test_from_nsq_through_spark_to_nsq(spark: SparkSession, node: Flown, copy: Copy) -> None:
    publisher, consumer = Client(node.tcp_port), Client(node.tcp_port)
    try:
        for word in (b"penstock", b"spark"):
            publisher.command(pub("in", word))
        consumer.subscribe("out", "c", 10)
        copy.run(lambda frame: frame.withColumn("body", sql.upper(sql.col("body").cast("string"))))
        assert sorted(consumer.message().body for _ in range(2)) == [b"PENSTOCK", b"SPARK"]
        publisher.command(pub("in", b"again"))
        copy.run(lambda frame: frame.withColumn("body", sql.upper(sql.col("body").cast("string"))))
        assert consumer.message().body == b"AGAIN"
    finally:
        publisher.close()
        consumer.close()


@pytest.mark.parametrize(
    ("query", "options", "mode", "told"),
    [
        ("SELECT 'x' AS body", {}, "overwrite", 'use mode("append")'),
        ("SELECT 'x' AS value", {}, "append", "a message has no column value"),
        ("SELECT 1.5D AS body", {}, "append", "column body is double; it must be binary or string: cast it"),
        ("SELECT 'x' AS body", {"topik": "t"}, "append", "there is no option topik; did you mean topic?"),
        ("SELECT 'x' AS body", {"keepShards": "true"}, "append", "keepShards needs a column shard of type int"),
        ("SELECT 'x' AS body", {"topic": "a\tb"}, "append", "a\\tb"),
        ("SELECT 'x' AS body, 'no json' AS headers", {}, "append", "row 0: headers are no JSON object"),
        ("SELECT 'x' AS body, 70000 AS bucket", {}, "append", "bucket 70000 is outside 0 to 65535"),
    ],
)
def test_mistake_is_told_and_writes_nothing(
    spark: SparkSession, node: Flown, query: str, options: dict[str, str], mode: str, told: str
) -> None:
    writer = spark.sql(query).write.format("penstock").options(**{"url": url(node), "topic": "t", **options})
    with pytest.raises(PySparkException) as error:
        writer.mode(mode).save()
    assert told in str(error.value)
    assert staged_files(node) == []
    assert stored(node) == 0


def test_stream_takes_no_transaction(node: Flown, copy: Copy) -> None:
    node.put("in", many(1))
    with pytest.raises(PySparkException, match="a stream writes each of its batches once anyway"):
        copy.run(txnAppId="a", txnVersion="1")


def test_update_mode_is_refused(spark: SparkSession, node: Flown, tmp_path: Path) -> None:
    node.put("in", many(3))
    reader = spark.readStream.format("penstock").options(url=url(node), subscribe="in", startingOffsets="earliest")
    counts = reader.load().groupBy("key").count().selectExpr("CAST(count AS STRING) AS body")
    writer = counts.writeStream.format("penstock").options(url=url(node), topic="out").outputMode("update")
    with pytest.raises(PySparkException, match="penstock does not support Update mode"):
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert "out" not in node.node.topics
