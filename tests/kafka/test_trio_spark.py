"""Spark, for real, reads from three real nodes and writes to them; the one that has both topics dies: each row once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from penstock.client import Client
from penstock.pipeline import session
from tests.cluster.trio import PATIENCE_S, Trio, wait_for
from tests.kafka.test_trio import bodies

ROOT = Path(__file__).parents[2]
ROWS = 600
BATCH_ROWS = 100


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])  # workers see nothing of pytest's path
    options = {"spark.sql.warehouse.dir": str(tmp_path / "warehouse"), "spark.sql.shuffle.partitions": "1"}
    made = session("trio", master="local[2]", quick=True, options=options)
    yield made
    made.stop()
    os.environ.clear()
    os.environ.update(before)


def test_a_stream_goes_on_when_the_node_that_has_its_topics_is_killed(
    trio: Trio, spark: SparkSession, name: Callable[[str], str], tmp_path: Path
) -> None:
    source, target = name("in"), name("out")
    first = trio.members[0]
    with Client(first.url, patience=PATIENCE_S) as client:
        for topic in (source, target):
            client.create_topic(topic, shards=2)
        published = [b"%d" % number for number in range(ROWS)]
        keys = [b"%d" % (number % 7) for number in range(ROWS)]
        client.publish(source, pa.record_batch({"body": published, "key": keys}))
    assert trio.owner(source) is trio.owner(target) is first
    given = {"url": trio.url, "subscribe": source, "startingOffsets": "earliest"}
    reader = spark.readStream.format("penstock").options(**given, maxOffsetsPerTrigger=str(BATCH_ROWS))
    frame = reader.load().select("key", sql.concat(sql.lit("seen "), sql.col("body").cast("string")).alias("body"))
    writer = frame.writeStream.format("penstock").options(url=trio.url, topic=target)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    try:
        wait_for(lambda: len(query.recentProgress) > 0 or not query.isActive, "the first batch")
        assert query.isActive, query.exception()
        first.kill()
        assert query.awaitTermination(int(PATIENCE_S)), "the stream ended"
        assert len(query.recentProgress) >= ROWS // BATCH_ROWS
    finally:
        query.stop()
    with trio.client(patience=PATIENCE_S) as client:
        assert bodies(client, target) == sorted(b"seen " + body for body in published)
    assert trio.owner(target) is not first
