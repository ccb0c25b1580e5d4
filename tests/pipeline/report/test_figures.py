"""Figures from small frames with known answers, through Spark."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError, Refusal
from penstock.pipeline.jobs.archive import Archive, archived
from penstock.pipeline.jobs.report import Report, frames, report
from penstock.pipeline.jobs.report.figures import Figures, Topic
from penstock.pipeline.jobs.report.options import micros, moment
from penstock.pipeline.jobs.report.report import gather as gathered
from penstock.pipeline.jobs.report.small import small
from penstock.pipeline.jobs.report.spark import SparkQueries
from penstock.pipeline.jobs.report.totals import Hot
from penstock.tally import Counted, Interval
from tests.fakes import START_NS
from tests.pipeline.data import SECOND_NS, Data
from tests.pipeline.report.simulation import SECOND_US, START_US, frame, runs

NOTHING = Report(sample_bytes=0)


def gather(messages: DataFrame, events: DataFrame | None, options: Report) -> Figures:
    return gathered(SparkQueries(messages, events, None, options))


def topic(figures: Figures, name: str) -> Topic:
    return next(each for each in figures.topics if each.name == name)


def message(topic: str, offset: int, at_us: int = 0, body: bytes = b"", **more: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "shard": 0,
        "offset": offset,
        "timestamp": START_US + at_us,
        "source": "nsq",
        "body": body,
        **more,
    }


def test_messages_are_counted_by_everything_they_have(spark: SparkSession) -> None:
    rows = [message("a", at, at * SECOND_US, bytes(at)) for at in range(1, 101)]
    rows += [message("a", at, 50 * SECOND_US, b"12345", source="sqs", shard=1, key=b"\xff\x00") for at in range(20)]
    rows += [
        message("b", at, 0, b"x", key=b"k%d" % (at % 3), tag="red" if at else None, bucket=at % 2) for at in range(7)
    ]
    rows += [message("b", 7, SECOND_US, b"x", due=START_US + 101 * SECOND_US + 90 * SECOND_US)]
    rows += [message("_penstock.own", 0)]
    found = gather(frame(spark, rows), None, NOTHING)
    assert (found.messages, found.body_bytes, found.topics_all, found.events) == (128, 5050 + 100 + 8, 2, False)
    first, second = topic(found, "a"), topic(found, "b")
    assert {source: sum(course.messages) for source, course in first.traffic.items()} == {"nsq": 100, "sqs": 20}
    assert sum(first.traffic["nsq"].body_bytes) == 5050
    step = (START_US + 50 * SECOND_US - found.span.start_us) // found.span.width_us
    assert first.traffic["sqs"].messages[step] == 20
    assert [(shard.number, shard.messages) for shard in first.shards] == [(0, 100), (1, 20)]
    assert first.skew == pytest.approx(100 / 60)
    assert (first.keys.shown, first.keys.members, first.keys.messages) == ((Hot("0xff00", 20),), 1, 20)
    assert (first.sizes.least, first.sizes.greatest) == (1, 100)
    assert first.sizes.percentile(0.5) == pytest.approx(40, rel=0.03)  # 20 more of five bytes
    assert [hot.messages for hot in second.keys.shown] == [3, 2, 2]
    assert (second.tags.shown, second.tags.messages) == ((Hot("red", 6),), 6)
    assert second.buckets.shown == (Hot("0", 4), Hot("1", 3))
    assert found.waiting is not None
    assert (found.waiting.total, found.waiting.counts["b"][1]) == (1, 1)


def test_ways_of_messages_are_put_together_from_sampled_events(spark: SparkSession) -> None:
    at = START_US
    events = [
        {"event": "published", "topic": "t", "source": "nsq", "one_in": 10, "count": 3, "shard": [0, 0, 1],
         "offset": [0, 1, 0], "at_us": [at, at, at]},
        # The first at once; the second again after a release; the third was due a second later.
        {"event": "delivered", "topic": "t", "subscription": "s", "one_in": 10, "count": 4, "shard": [0, 0, 0, 1],
         "offset": [0, 1, 1, 0], "attempts": [1, 1, 2, 1],
         "at_us": [at + 100, at + 200, at + 5000, at + SECOND_US + 300]},
        {"event": "released", "topic": "t", "subscription": "s", "one_in": 10, "count": 1, "shard": [0], "offset": [1],
         "at_us": [at + 900], "attempts": [1]},
        {"event": "acked", "topic": "t", "subscription": "s", "one_in": 10, "count": 2, "shard": [0, 0],
         "offset": [0, 1], "at_us": [at + 1100, at + 7000]},
        # Published before there was a history; ran out, and given up.
        {"event": "delivered", "topic": "t", "subscription": "other", "one_in": 10, "count": 1, "shard": [0],
         "offset": [99], "at_us": [at + 50], "attempts": [12]},
        {"event": "expired", "topic": "t", "subscription": "other", "one_in": 10, "count": 1, "shard": [0],
         "offset": [99], "at_us": [at + 60], "attempts": [12]},
        {"event": "dead", "topic": "t", "subscription": "other", "reason": "attempts", "one_in": 10, "count": 1,
         "shard": [0], "offset": [99], "at_us": [at + 60], "attempts": [12]},
        {"event": "discarded", "topic": "t", "reason": "rate", "one_in": 1, "count": 7, "written_us": at + 5},
        {"event": "discarded", "topic": "gone", "reason": "rate", "one_in": 1, "count": 5, "written_us": at + 5},
        # Outside of the range, of the node's own, or not readable: nothing.
        {"event": "acked", "topic": "t", "subscription": "s", "one_in": 10, "count": 1, "shard": [1], "offset": [0],
         "at_us": [at + 9 * SECOND_US]},
        {"event": "acked", "topic": "_penstock.x", "subscription": "s", "one_in": 1, "count": 1, "shard": [0],
         "offset": [0], "at_us": [at]},
    ]  # fmt: skip
    rows = [*runs(*events), {"timestamp": at, "body": b"{"}, {"timestamp": at, "body": b"\xff"}]
    messages = [message("t", 0), message("t", 1), message("t", 0, shard=1, due=at + SECOND_US), message("quiet", 0)]
    until = datetime.datetime.fromtimestamp((at + 2 * SECOND_US) / SECOND_US, datetime.UTC)
    found = gather(
        frame(spark, messages), frame(spark, rows, Report.EVENT_COLUMNS), Report(sample_bytes=0, until=until)
    )
    assert found.one_in == 10
    first = topic(found, "t")
    one, other = first.subscriptions
    assert (one.name, one.delivered, one.acked, one.released, one.expired, one.dead) == ("s", 40, 20, 10, 0, 0)
    assert (other.name, other.delivered, other.acked, other.expired, other.dead) == ("other", 10, 0, 10, 10)
    assert (one.attempts, other.attempts) == ({1: 20, 2: 10}, {10: 10})
    assert [(each.weight, each.low, each.high) for each in one.latency_us.classes] == [
        (10, 100, 100), (10, 200, 200), (10, 300, 300),
    ]  # fmt: skip
    # The range is that of deliveries: an ack that comes after it still ends a lease.
    assert [(each.weight, each.low) for each in one.lease_us.classes] == [
        (10, 1000),
        (10, 2000),
        (10, 8_999_700 - SECOND_US),
    ]
    assert (one.latency_us.percentile(0.5), one.lease_us.percentile(0.5)) == (200, 2000)
    assert (other.latency_us.total, other.lease_us.total) == (0, 0)
    assert one.latencies is not None
    assert sum(step.total for step in one.latencies) == 30
    assert (first.discards, topic(found, "gone").discards) == ({"rate": 7}, {"rate": 5})
    assert {event: sum(course) for event, course in first.events.items()}["published"] == 30
    assert (topic(found, "quiet").subscriptions, topic(found, "quiet").messages) == ((), 1)


def test_many_topics_and_keys_stay_bounded_and_sum_up(spark: SparkSession) -> None:
    rows = [message(f"t{at:03}", at, at, b"x" * at, key=b"%d" % at, tag=f"<b>{at}") for at in range(300)]
    rows += [message("t007", at, at, key=b"%d" % at, tag=f"tag{at}", bucket=at) for at in range(300)]
    found = gather(frame(spark, rows), None, Report(sample_bytes=0, topics_max=3, top=5))
    assert (len(found.topics), found.topics_all, found.messages) == (3, 300, 600)
    assert found.others is not None
    assert sum(each.messages for each in found.everything) == 600
    assert sum(each.body_bytes for each in found.everything) == sum(range(300))
    largest = found.topics[0]
    assert (largest.name, len(largest.keys.shown), largest.keys.members) == ("t007", 5, 300)
    assert (len(largest.tags.shown), largest.tags.members, largest.tags.messages) == (5, 301, 301)
    assert (len(largest.buckets.shown), largest.buckets.members) == (5, 300)


def test_no_rows_one_row_and_missing_columns_make_a_page(spark: SparkSession) -> None:
    empty = report(frame(spark, []), frame(spark, [], Report.EVENT_COLUMNS))
    assert empty.figures.messages == 0
    assert "Not shown: Topics. There are no messages." in empty.html
    one = report(frame(spark, [message("<script>", 0, body=b"x")]).drop("tag", "due"))
    assert "Not recorded: the messages have no column tag." in one.html
    assert "Not recorded: the messages have no column due." in one.html
    assert "Not recorded: there is no history of deliveries" in one.html
    assert "<script" not in one.html
    bare = report(frame(spark, [message("t", 0, body=b"x")]).select("body"))
    assert (bare.figures.messages, bare.figures.topics[0].name) == (1, "(unknown)")


def test_a_data_directory_is_reported_on_within_times(spark: SparkSession, data: Data) -> None:
    for number in range(2):
        bodies = [b"%d" % number * 40] * 50
        data.topic(f"t{number}").append(*bodies, time_ns=START_NS + number * SECOND_NS)
    event = next(runs({"event": "discarded", "topic": "t1", "reason": "rate", "one_in": 1, "count": 3}))
    data.topic("_penstock.events").append(event["body"], time_ns=START_NS + 30 * SECOND_NS)
    late = Report(from_=datetime.datetime.fromtimestamp(START_NS / SECOND_NS + 0.5, datetime.UTC))
    page = report(*frames(spark, late, path=str(data.path))[:2], late)
    assert [(each.name, each.messages) for each in page.figures.topics] == [("t1", 50)]
    # Without an end the range goes on to the last event, which is after the last message.
    assert page.figures.span.until_us == START_US + 30 * SECOND_US + 1
    assert page.figures.topics[0].discards == {"rate": 3}
    advised = page.figures.topics[0].advice
    assert advised is not None
    assert advised.measures[0].bodies == 50
    with pytest.raises(Refusal, match=r"there is no topic t99; there are _penstock\.events, t0"):
        frames(spark, Report(topics=("t99",)), path=str(data.path))
    with pytest.raises(ConfigError, match="where are the messages"):
        frames(spark, Report())


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_an_archive_is_reported_on_like_topics(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    event = next(runs({"event": "discarded", "topic": "t", "reason": "rate", "one_in": 1, "count": 3}))
    day = 24 * 3600 * SECOND_US
    rows = [message("t", at, at * day, b"x" * at) for at in range(5)]
    rows += [{**message("_penstock.events", 0), **event, "timestamp": START_US + day}]
    options = Archive(table=str(tmp_path / "lake"), format=kind)
    assert options.lake().append(archived(frame(spark, rows).drop("tag"), options).frame, "test", 0) == 6
    second = Report(from_=moment(START_US + day), until=moment(START_US + 3 * day), sample_bytes=0)
    little = small(second, tables=[options.table])
    assert little is not None
    theirs = SparkQueries(*frames(spark, second, tables=[options.table]), second)
    for found in (gathered(theirs), gathered(little)):
        assert (found.messages, found.body_bytes, found.topics[0].discards) == (2, 3, {"rate": 3})
        assert "tag" not in found.columns
    assert small(second, tables=[options.table], rows_max=5) is None


def of_nodes() -> list[tuple[str, bytes]]:
    """Return what two nodes of a cluster wrote to topics of their own, and a topic of somebody else's."""
    told = []
    for node, many in (("n1", 3), ("n2", 4)):
        event = {"event": "discarded", "topic": "t", "reason": f"rate {node}", "one_in": 1, "count": many}
        told += [(f"_penstock.events@{node}", each["body"]) for each in runs(event)]
        counted = [Counted(topic="t", subscription="s", delivered=10, discarded={f"rate {node}": many})]
        of_node = Interval(node=node, started_us=1, from_us=START_US, until_us=START_US + SECOND_US, counts=counted)
        told += [(f"_penstock.counts@{node}", msgspec.json.encode(of_node))]
    return [*told, ("_penstock.eventson", b"{}"), ("t", b"x")]


@pytest.mark.parametrize("place", ["directory", "archive"])
def test_each_node_of_a_cluster_has_a_history_and_counts_of_its_own(
    spark: SparkSession, data: Data, tmp_path: Path, place: str
) -> None:
    where: dict[str, Any]
    if place == "directory":
        for name, body in of_nodes():
            data.topic(name).append(body)
        where = {"path": str(data.path)}
    else:
        rows = [{**message(name, 0), "body": body} for name, body in of_nodes()]
        options = Archive(table=str(tmp_path / "lake"), format="parquet")
        options.lake().append(archived(frame(spark, rows), options).frame, "test", 0)
        where = {"tables": [options.table]}
    little = small(Report(), **where)
    assert little is not None
    for queries in (little, SparkQueries(*frames(spark, Report(), **where), Report())):
        assert queries.has_events
        found = gathered(queries)
        assert found.topics[0].discards == {"rate n2": 4, "rate n1": 3}
        assert found.topics[0].subscriptions[0].delivered == 20


def test_options_that_cannot_be_meant_are_refused() -> None:
    day = datetime.datetime(2026, 1, 2)
    with pytest.raises(ConfigError, match="top is 0: set it to 1 at least"):
        Report(top=0)
    with pytest.raises(ConfigError, match=r"from is .* not before until"):
        Report(from_=day, until=day)
    assert Report(from_=day).since_us == micros(day.replace(tzinfo=datetime.UTC)) == 1_767_312_000_000_000
    assert moment(micros(datetime.datetime.max) + 3600 * SECOND_US).year == 9999  # an hour after the range is looked at
