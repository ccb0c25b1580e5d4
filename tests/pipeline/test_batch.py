"""Batch reads from files: what comes, what is left out, and what is refused. Spark's classes, without a Spark."""

from __future__ import annotations

import datetime
import pickle

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, InputPartition, IsNotNull, LessThan

from penstock.errors import ConfigError, Refusal
from penstock.pipeline.scan import Task
from tests.fakes import START_NS
from tests.pipeline.data import SECOND_NS, Data, bodies, rows, stretches

START_MS = START_NS // 1_000_000


def test_all_rows_of_all_shards_come_in_order(data: Data) -> None:
    topic = data.topic("orders", shards=2)
    topic.append(b"a", b"b", key=[b"k", None])
    topic.append(b"c", shard=1, headers=[b'{"x":"y"}'])
    topic.shards[0].roll()
    topic.append(b"d")
    found = rows(data.batch(subscribe="orders"))
    assert [(row["topic"], row["shard"], row["offset"], row["body"]) for row in found] == [
        ("orders", 0, 0, b"a"), ("orders", 0, 1, b"b"), ("orders", 0, 2, b"d"), ("orders", 1, 0, b"c"),
    ]  # fmt: skip
    assert [row["key"] for row in found] == [b"k", None, None, None]
    assert found[3]["headers"] == '{"x":"y"}'
    assert found[0]["timestamp"] == datetime.datetime.fromtimestamp(START_NS / SECOND_NS, datetime.UTC)


def test_several_topics_by_name_or_pattern(data: Data) -> None:
    for name in ("a1", "a2", "b1"):
        data.topic(name).append(name.encode())
    assert bodies(rows(data.batch(subscribe="b1,a1"))) == [b"b1", b"a1"]
    assert bodies(rows(data.batch(subscribePattern="a."))) == [b"a1", b"a2"]


def test_lone_messages_come_in_large_batches(data: Data) -> None:
    topic = data.topic("t")
    for number in range(300):
        topic.append(b"%d" % number)
    reader = data.batch(subscribe="t")
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert [len(batch) for batch in batches] == [300]
    assert batches[0].column("body").to_pylist() == [b"%d" % number for number in range(300)]


def test_an_empty_topic_has_no_tasks_and_what_spark_sends_then_reads_nothing(data: Data) -> None:
    data.topic("t")
    reader = data.batch(subscribe="t")
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_offsets_say_where_to_begin_and_end(data: Data) -> None:
    topic = data.topic("t", shards=2)
    topic.fill(10)
    topic.fill(10, shard=1)
    found = rows(
        data.batch(subscribe="t", startingOffsets='{"t":{"0":7,"1":-2}}', endingOffsets='{"t":{"0":-1,"1":2}}')
    )
    assert [(row["shard"], row["offset"]) for row in found] == [(0, 7), (0, 8), (0, 9), (1, 0), (1, 1)]


def test_times_say_where_to_begin_and_end(data: Data) -> None:
    topic = data.topic("t")
    for number in range(5):
        topic.append(b"%d" % number, time_ns=START_NS + number * SECOND_NS)
    found = rows(data.batch(subscribe="t", startingTimestamp=START_MS + 1000, endingTimestamp=START_MS + 3000))
    assert bodies(found) == [b"1", b"2"]
    assert rows(data.batch(subscribe="t", startingTimestamp=START_MS + 9000)) == []


def test_filters_pick_shards_offsets_times_and_tags(data: Data) -> None:
    topic = data.topic("t", shards=2)
    for number in range(4):
        topic.append(b"%d" % number, time_ns=START_NS + number * SECOND_NS, tag=[f"tag{number}"])
    topic.append(b"other", shard=1)
    columns = "shard,offset,timestamp,tag,body"
    reader = data.batch(subscribe="t", columns=columns)
    assert bodies(rows(reader, EqualTo(("shard",), 0), IsNotNull(("offset",)), LessThan(("offset",), 2))) == [
        b"0",
        b"1",
    ]
    assert stretches(reader.partitions()) == [[("t", 0, 0, 2)]]
    moment = datetime.datetime.fromtimestamp(START_NS / SECOND_NS + 2, datetime.UTC)
    timed = rows(data.batch(subscribe="t", columns=columns), GreaterThanOrEqual(("timestamp",), moment))
    assert bodies(timed) == [b"2", b"3"]
    assert bodies(rows(data.batch(subscribe="t", columns=columns), In(("tag",), ("tag3", "x")))) == [b"3"]


def test_options_pick_tags_traffic_and_buckets(data: Data) -> None:
    topic = data.topic("t")
    topic.append(
        b"a", b"b", b"c", b"d", tag=["x", "y", None, "x"], traffic=[1, -(1 << 63), None, 6], bucket=[0, 5, 9, 5]
    )
    topic.append(b"none")
    assert bodies(rows(data.batch(subscribe="t", tag="x"))) == [b"a", b"d"]
    assert bodies(rows(data.batch(subscribe="t", tag="x,y"))) == [b"a", b"b", b"d"]
    assert bodies(rows(data.batch(subscribe="t", traffic="0x8000000000000002"))) == [b"b", b"d"]
    assert bodies(rows(data.batch(subscribe="t", buckets="5:9"))) == [b"b", b"d"]
    assert bodies(rows(data.batch(subscribe="t", buckets="5:9", tag="y"))) == [b"b"]


def test_work_is_shared_by_min_partitions(data: Data) -> None:
    data.topic("t").fill(1000)
    reader = data.batch(subscribe="t", minPartitions=4)
    assert stretches(reader.partitions()) == [[("t", 0, n * 250, n * 250 + 250)] for n in range(4)]
    assert len(rows(reader)) == 1000


def test_tasks_and_readers_travel_to_executors(data: Data) -> None:
    data.topic("t").fill(10)
    reader = data.batch(subscribe="t")
    (task,) = reader.partitions()
    there, sent = pickle.loads(pickle.dumps((reader, task)))
    assert isinstance(sent, Task)
    assert sum(len(batch) for batch in there.read(sent)) == 10


def test_missing_topic_is_named_with_the_nearest(data: Data) -> None:
    data.topic("orders")
    with pytest.raises(Refusal, match="there is no topic order; did you mean orders"):
        data.batch(subscribe="order").partitions()
    with pytest.raises(Refusal, match="no topic matches x"):
        data.batch(subscribePattern="x.*").partitions()


def test_directory_without_topics_is_named(data: Data, tmp_path: object) -> None:
    with pytest.raises(ConfigError, match="option path: /nowhere is no data directory"):
        data.batch(subscribe="t", path="/nowhere").partitions()


def test_memory_topic_has_no_files(data: Data) -> None:
    data.topic("t", durability="memory")
    with pytest.raises(Refusal, match=r"kept in memory.*option url"):
        data.batch(subscribe="t").partitions()


def test_offset_beyond_the_end_is_refused(data: Data) -> None:
    data.topic("t").fill(5)
    with pytest.raises(Refusal, match=r"option startingOffsets: offset 6 of shard 0 of topic t is beyond its end.* 5"):
        data.batch(subscribe="t", startingOffsets='{"t":{"0":6}}').partitions()
    with pytest.raises(Refusal, match="option endingOffsets: offset 9"):
        data.batch(subscribe="t", endingOffsets='{"t":{"0":9}}').partitions()


def test_offsets_must_name_what_is_subscribed_to_and_all_of_it(data: Data) -> None:
    data.topic("t", shards=2).fill(5)
    for offsets, text in (
        ('{"u":{"0":1}}', "names topic u, which is not among"),
        ('{"t":{"0":1}}', "shard 1 of topic t is missing"),
        ('{"t":{"0":1,"1":0,"2":0}}', "topic t has no shard 2"),
    ):
        with pytest.raises(Refusal, match=text):
            data.batch(subscribe="t", startingOffsets=offsets).partitions()


def aged(data: Data) -> int:
    """Make a topic `t` whose oldest rows retention has dropped; return the first offset kept."""
    topic = data.topic("t", retention_bytes=2000, retention_hard=True, segment_bytes=1000)
    for number in range(100):
        topic.append(b"%03d" % number * 20)
    for _ in range(3):
        topic.shards[0].retain(None, START_NS)
        topic.shards[0].tick(START_NS)
    start = topic.shards[0].start
    assert 0 < start < 100
    return start


def test_offset_older_than_retention_is_refused_or_skipped_and_counted(
    data: Data, caplog: pytest.LogCaptureFixture
) -> None:
    start = aged(data)
    options = {"subscribe": "t", "startingOffsets": '{"t":{"0":1}}'}
    with pytest.raises(Refusal, match=rf"offset 1 of shard 0 of topic t is not kept any more, the earliest is {start}"):
        data.batch(**options).partitions()
    found = rows(data.batch(**options, failOnDataLoss="false"))
    assert [row["offset"] for row in found] == list(range(start, 100))
    assert f"skipped {start - 1} offsets, 1 to {start - 1}" in caplog.text


def test_rows_dropped_between_planning_and_reading_are_told(data: Data, caplog: pytest.LogCaptureFixture) -> None:
    topic = data.topic("t", retention_bytes=2000, retention_hard=True, segment_bytes=1000)
    for number in range(100):
        topic.append(b"%03d" % number * 20)
    strict, lenient = data.batch(subscribe="t"), data.batch(subscribe="t", failOnDataLoss="false")
    planned = [(reader, reader.partitions()) for reader in (strict, lenient)]
    for _ in range(3):
        topic.shards[0].retain(None, START_NS)
        topic.shards[0].tick(START_NS)
    with pytest.raises(Refusal, match=r"shard 0 of topic t: offsets 0 to .* are not kept any more"):
        [list(strict.read(task)) for task in planned[0][1]]
    left = [row for task in planned[1][1] for batch in lenient.read(task) for row in batch.to_pylist()]
    assert [row["offset"] for row in left] == list(range(topic.shards[0].start, 100))
    assert "shard 0 of topic t: skipped" in caplog.text


def test_topic_deleted_between_planning_and_reading_is_told(data: Data) -> None:
    topic = data.topic("t")
    topic.fill(10)
    reader = data.batch(subscribe="t")
    tasks = reader.partitions()
    topic.delete()
    with pytest.raises(Refusal, match="topic t was deleted while it was read"):
        [list(reader.read(task)) for task in tasks]


def test_damaged_rows_are_an_error_or_left_out_and_counted(data: Data, caplog: pytest.LogCaptureFixture) -> None:
    topic = data.topic("t")
    topic.fill(3000)
    topic.shards[0].roll()
    (path,) = (topic.directory / "0").glob("*.arrows")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(Refusal, match=f"offsets 1000 to 1999 of shard 0 of topic t are damaged .*, in {path}"):
        rows(data.batch(subscribe="t"))
    assert len(rows(data.batch(subscribe="t", failOnDataLoss="false"))) == 2000
    assert f"skipped 1000 offsets, 1000 to 1999, which are damaged, in {path}" in caplog.text
