"""Streaming reads from files: offsets, limits, and a log that grows, is rewritten and shrinks meanwhile. No Spark."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock.errors import Refusal
from penstock.pipeline import planning
from penstock.pipeline.stream import StreamReader
from tests.fakes import START_NS
from tests.pipeline.data import SECOND_NS, Data, gathered, rows, stretches

ALL = ReadAllAvailable()


def at(**topics: tuple[int, ...]) -> dict[str, Any]:
    """Return offsets of topics in incarnations 1, 2, 3 in this order."""
    return {
        name: {"incarnation": number, "offsets": {str(shard): offset for shard, offset in enumerate(offsets)}}
        for number, (name, offsets) in enumerate(topics.items(), 1)
    }


def drained(reader: StreamReader, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Return the offsets of one micro-batch and where it ends."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    found = [row["offset"] for row in gathered(reader, reader.partitions(start, end))]
    return found, end


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LOOK_PAUSE_S", 0.0)


def test_a_query_begins_at_the_end_unless_told(data: Data) -> None:
    data.topic("t", shards=2).fill(5)
    assert data.stream(subscribe="t").initialOffset() == at(t=(5, 0))
    assert data.stream(subscribe="t", startingOffsets="earliest").initialOffset() == at(t=(0, 0))
    assert data.stream(subscribe="t", startingOffsets='{"t":{"0":2,"1":-1}}').initialOffset() == at(t=(2, 0))
    assert data.stream(subscribe="t", startingTimestamp=START_NS // 1_000_000).initialOffset() == at(t=(0, 0))


def test_each_row_comes_once_while_the_log_grows_and_is_sealed_and_rewritten(data: Data) -> None:
    topic = data.topic("t")
    reader = data.stream(subscribe="t", startingOffsets="earliest")
    stood = reader.initialOffset()
    found: list[int] = []
    for turn in range(30):
        topic.fill(17, batch=3)
        if turn % 3 == 2:
            topic.shards[0].roll()
            topic.shards[0].tick(START_NS)
        if turn % 7 == 6:
            topic.clock.advance(3600 * 10**9)
            topic.shards[0].tick(START_NS)
        more, stood = drained(reader, stood)
        found += more
    assert found == list(range(30 * 17))


def test_nothing_new_is_the_same_offset_and_no_task(data: Data) -> None:
    data.topic("t").fill(5)
    reader = data.stream(subscribe="t", startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) == end
    assert json.dumps(reader.latestOffset(end, ALL)) == json.dumps(end)
    assert reader.partitions(end, end) == []


def test_rows_of_a_micro_batch_are_limited_and_shared_by_backlog(data: Data) -> None:
    topic = data.topic("t", shards=2)
    topic.fill(300)
    topic.fill(100, shard=1)
    reader = data.stream(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    stood = reader.initialOffset()
    assert reader.latestOffset(stood, reader.getDefaultReadLimit()) == at(t=(75, 25))
    assert reader.latestOffset(stood, ALL) == at(t=(300, 100))
    sizes = []
    while True:
        more, end = drained(reader, stood)
        if end == stood:
            break
        sizes.append(len(more))
        stood = end
    assert sum(sizes) == 400
    assert max(sizes) <= 100


def test_few_rows_wait_for_more_but_not_for_ever(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 10**9
    monkeypatch.setattr("time.monotonic_ns", lambda: now_ns)
    topic = data.topic("t", shards=2)
    words = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 10, "maxTriggerDelay": "1m"}
    reader = data.stream(subscribe="t", **words)
    stood = reader.initialOffset()
    topic.fill(3)
    found, stood = drained(reader, stood)
    assert found == [0, 1, 2]  # the first ones after a start do not wait
    topic.fill(4)
    topic.fill(5, shard=1)
    assert drained(reader, stood) == ([], stood)
    topic.fill(1, shard=1)
    found, stood = drained(reader, stood)
    assert sorted(found) == [0, 1, 2, 3, 3, 4, 4, 5, 5, 6]
    topic.fill(1)
    assert drained(reader, stood) == ([], stood)
    now_ns += 60 * 10**9
    found, stood = drained(reader, stood)
    assert found == [7]
    topic.fill(1)
    assert drained(reader, stood) == ([], stood)
    reader.prepareForTriggerAvailableNow()
    assert drained(reader, stood)[0] == [8]


def test_a_query_begins_at_a_time_of_its_own_in_each_shard(data: Data) -> None:
    topic = data.topic("t", shards=2)
    for shard in range(2):
        for second in range(5):
            topic.append(b"x", shard=shard, time_ns=START_NS + second * SECOND_NS)
    start_ms = START_NS // 1_000_000
    times = json.dumps({"t": {"0": start_ms + 2000, "1": start_ms + 4000}})
    assert data.stream(subscribe="t", startingOffsetsByTimestamp=times).initialOffset() == at(t=(2, 4))
    both = data.batch(subscribe="t", startingOffsetsByTimestamp=times, endingTimestamp=start_ms + 3000)
    assert [(row["shard"], row["offset"]) for row in rows(both)] == [(0, 2)]
    with pytest.raises(Refusal, match="option startingOffsetsByTimestamp: shard 1 of topic t is missing; say a time"):
        data.stream(subscribe="t", startingOffsetsByTimestamp='{"t":{"0":1}}').initialOffset()


def test_bytes_of_a_micro_batch_are_limited(data: Data) -> None:
    topic = data.topic("t")
    topic.append(*[b"x" * 1000] * 100)
    reader = data.stream(subscribe="t", startingOffsets="earliest", maxBytesPerTrigger=10_000)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(10_000)
    more, _ = drained(reader, reader.initialOffset())
    assert 5 <= len(more) <= 10


def test_a_hole_left_by_a_crash_makes_no_empty_micro_batches(data: Data) -> None:
    topic = data.topic("t")
    topic.fill(10)
    topic.shards[0].roll()
    topic.shards[0].end += 1 << 24
    topic.fill(10)
    reader = data.stream(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=15)
    first, stood = drained(reader, reader.initialOffset())
    second, _ = drained(reader, stood)
    assert (len(first), len(second)) == (15, 5)


def test_available_now_ends_with_what_was_there(data: Data) -> None:
    topic = data.topic("t")
    topic.fill(10)
    reader = data.stream(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=6)
    reader.prepareForTriggerAvailableNow()
    topic.fill(10)
    stood = reader.initialOffset()
    assert drained(reader, stood)[1] == at(t=(6,))
    assert drained(reader, at(t=(6,)))[1] == at(t=(10,))
    assert drained(reader, at(t=(10,)))[1] == at(t=(10,))
    assert drained(reader, at(t=(15,)))[1] == at(t=(15,))


def test_lag_can_be_told(data: Data) -> None:
    topic = data.topic("t")
    topic.fill(10)
    reader = data.stream(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=3)
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert reader.reportLatestOffset() == at(t=(10,))


def test_little_is_one_task_and_a_hint_decides_otherwise(data: Data) -> None:
    data.topic("t", shards=2).fill(1000)
    for options, count in (({}, 1), ({"minPartitions": "3"}, 3)):
        reader = data.stream(subscribe="t", startingOffsets="earliest", **options)
        tasks = reader.partitions(reader.initialOffset(), at(t=(1000, 0)))
        assert len(stretches(tasks)) == count


def test_topics_that_come_later_are_read_from_their_beginning(data: Data) -> None:
    data.topic("a1").fill(3)
    reader = data.stream(subscribePattern="a.*")
    stood = reader.initialOffset()
    data.topic("a2").fill(4)
    more, end = drained(reader, stood)
    assert more == [0, 1, 2, 3]
    assert end == at(a1=(3,), a2=(4,))


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 7}, {"maxBytesPerTrigger": 500}])
def test_shards_that_come_later_are_read_from_their_beginning(data: Data, limit: dict[str, int]) -> None:
    topic = data.topic("t")
    topic.fill(5)
    reader = data.stream(subscribe="t", **limit)  # from the end
    stood = reader.initialOffset()
    assert drained(reader, stood) == ([], at(t=(5,)))
    topic.grow(3)
    topic.fill(20, shard=2)
    topic.fill(2)
    found: list[tuple[int, int]] = []
    while True:
        end = reader.latestOffset(stood, reader.getDefaultReadLimit())
        if end == stood:
            break
        found += [(row["shard"], row["offset"]) for row in gathered(reader, reader.partitions(stood, end))]
        stood = end
    assert sorted(found) == [(0, 5), (0, 6), *((2, offset) for offset in range(20))]
    assert stood == at(t=(7, 0, 20))


def test_micro_batch_from_before_a_growth_is_the_same_when_it_is_done_again_after_it(data: Data) -> None:
    topic = data.topic("t")
    topic.fill(5)
    reader = data.stream(subscribe="t", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    topic.grow(2)
    topic.fill(3, shard=1)
    again = data.stream(subscribe="t", startingOffsets="earliest")
    rows = gathered(again, again.partitions(start, end))
    assert [(row["shard"], row["offset"]) for row in rows] == [(0, offset) for offset in range(5)]


def test_available_now_ends_with_the_shards_that_were_there(data: Data) -> None:
    topic = data.topic("t")
    topic.fill(5)
    reader = data.stream(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=3)
    reader.prepareForTriggerAvailableNow()
    found, stood = drained(reader, reader.initialOffset())
    topic.grow(2)
    topic.fill(4, shard=1)
    more, stood = drained(reader, stood)
    assert (found + more, stood) == (list(range(5)), at(t=(5, 0)))
    assert drained(reader, stood) == ([], stood)


def test_a_pattern_may_match_nothing_yet(data: Data) -> None:
    reader = data.stream(subscribePattern="a.*")
    assert drained(reader, reader.initialOffset()) == ([], {})


def test_topic_made_anew_is_an_error_whatever_the_options(data: Data) -> None:
    topic = data.topic("t")
    topic.fill(5)
    for loss in ("true", "false"):
        reader = data.stream(subscribe="t", startingOffsets="earliest", failOnDataLoss=loss)
        stood = reader.initialOffset()
        topic.delete()
        topic = data.topic("t")
        topic.fill(9)
        with pytest.raises(Refusal, match=r"topic t was deleted and made anew.*new checkpointLocation"):
            reader.latestOffset(stood, ALL)
        with pytest.raises(Refusal, match="topic t was deleted and made anew"):
            reader.partitions(stood, stood)


def test_topic_that_is_gone_is_an_error_or_left_out(data: Data, caplog: pytest.LogCaptureFixture) -> None:
    topic = data.topic("a1")
    topic.fill(5)
    data.topic("a2").fill(5)
    strict = data.stream(subscribePattern="a.*", startingOffsets="earliest")
    lenient = data.stream(subscribePattern="a.*", startingOffsets="earliest", failOnDataLoss="false")
    stood = strict.initialOffset()
    topic.delete()
    with pytest.raises(Refusal, match="topic a1 was deleted; set failOnDataLoss to false"):
        strict.latestOffset(stood, ALL)
    assert list(lenient.latestOffset(stood, ALL)) == ["a2"]
    assert "topic a1 was deleted" in caplog.text


def test_checkpoint_of_another_query_is_an_error(data: Data) -> None:
    data.topic("t").fill(5)
    data.topic("u").fill(5)
    reader = data.stream(subscribe="t")
    with pytest.raises(Refusal, match="offsets of topic u, which is not subscribed to: it belongs to another query"):
        reader.latestOffset(at(t=(1,), u=(2,)), ALL)
    with pytest.raises(Refusal, match="no offsets of this source, so the checkpoint is another's"):
        reader.latestOffset({"logOffset": 5}, ALL)


def test_offset_beyond_the_end_is_an_error(data: Data) -> None:
    data.topic("t").fill(5)
    for loss in ("true", "false"):
        reader = data.stream(subscribe="t", failOnDataLoss=loss)
        with pytest.raises(Refusal, match="offset 9 of shard 0 of topic t is beyond its end, which is 5"):
            reader.latestOffset(at(t=(9,)), ALL)
        with pytest.raises(Refusal, match="beyond its end"):
            reader.partitions(at(t=(1,)), at(t=(9,)))


def test_offset_older_than_retention_is_an_error_or_skipped_and_counted(
    data: Data, caplog: pytest.LogCaptureFixture
) -> None:
    topic = data.topic("t", retention_bytes=2000, retention_hard=True, segment_bytes=1000)
    for number in range(100):
        topic.append(b"%03d" % number * 20)
    strict = data.stream(subscribe="t", startingOffsets="earliest")
    lenient = data.stream(subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
    stood = strict.initialOffset()
    for _ in range(3):
        topic.shards[0].retain(None, START_NS)
        topic.shards[0].tick(START_NS)
    kept = topic.shards[0].start
    with pytest.raises(Refusal, match=f"offset 0 of shard 0 of topic t is not kept any more, the earliest is {kept}"):
        strict.latestOffset(stood, ALL)
    assert drained(lenient, stood)[0] == list(range(kept, 100))
    assert f"skipped {kept} offsets" in caplog.text


def test_a_reader_travels_without_what_only_the_driver_has(data: Data) -> None:
    data.topic("t").fill(5)
    reader = data.stream(subscribe="t", startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    tasks = reader.partitions(reader.initialOffset(), end)
    there = pickle.loads(pickle.dumps(reader))
    assert [row["offset"] for row in gathered(there, tasks)] == [0, 1, 2, 3, 4]
