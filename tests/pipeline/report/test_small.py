"""Without Spark: exact counts where few messages came, the same figures as Spark's, and whole reports in a moment."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.client.wire import TopicInfo
from penstock.config import Config
from penstock.errors import Refusal
from penstock.pipeline.files import Files
from penstock.pipeline.jobs.report import Report, own, page_of, small
from penstock.pipeline.jobs.report.figures import Figures, Subscription, Topic
from penstock.pipeline.jobs.report.plain import TYPES, Arrows, PlainQueries
from penstock.pipeline.jobs.report.problems import problems
from penstock.pipeline.jobs.report.report import gather
from penstock.pipeline.jobs.report.scale import Distribution
from penstock.pipeline.jobs.report.span import Span
from penstock.pipeline.jobs.report.spark import SparkQueries
from penstock.pipeline.jobs.report.tallies import tallied
from penstock.settings import SubscriptionSettings
from penstock.tally import TOPIC as COUNTS
from penstock.tally import Counted, Interval
from tests.fakes import START_NS
from tests.pipeline.data import SECOND_NS, Data
from tests.pipeline.report.simulation import SECOND_US, START_US, Simulation, frame
from tests.site import Site

QUICK = Report(sample_bytes=0)


def interval(*counts: Counted, at_us: int = 0, started_us: int = 1, ended: bool = False) -> dict[str, Any]:
    told = Interval(
        started_us=started_us, from_us=START_US + at_us, until_us=START_US + at_us + SECOND_US, counts=[*counts],
        ended=ended,
    )  # fmt: skip
    return {"timestamp": told.until_us, "body": msgspec.json.encode(told)}


def table(rows: list[dict[str, Any]], columns: tuple[str, ...] = Report.COLUMNS) -> pa.Table:
    return pa.table({name: pa.array([row.get(name) for row in rows], TYPES[name]) for name in columns})


def messages(topic: str, count: int) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "shard": 0, "offset": at, "timestamp": START_US + at, "source": "nsq", "body": b"body"}
        for at in range(count)
    ]


def plain(rows: list[dict[str, Any]], intervals: list[dict[str, Any]], options: Report = QUICK) -> Figures:
    events = table([], Report.EVENT_COLUMNS)
    return gather(PlainQueries(Arrows(table(rows), events, table(intervals, Report.EVENT_COLUMNS)), options))


def copied(site: Site, directory: Path) -> None:
    """Write what a simulated disk holds to a real one."""
    for path, inode in site.machine.platter.files.items():
        target = directory / Path(path).relative_to("data")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes(inode.data))


def topic(figures: Figures, name: str) -> Topic:
    return next(each for each in figures.topics if each.name == name)


# --- exact counts, from a node to the figures -------------------------------------------------------------------------


def test_three_messages_and_a_dead_letter_are_told_as_they_were(tmp_path: Path) -> None:
    site = Site(Config(data_dir="data"))
    made = site.node.create_topic("orders").now()
    site.consume(made, "billing", SubscriptionSettings(max_attempts=2))
    site.publish(made, b"one", b"two", b"three")
    site.seat.ack([1, 3])
    site.seat.release([2], 0)
    site.seat.release([2], 0)
    site.machine.run(3)
    site.node.close()
    copied(site, tmp_path)
    found = small(QUICK, path=str(tmp_path))
    assert found is not None
    page = page_of(found)
    orders = topic(page.figures, "orders")
    (billing,) = orders.subscriptions
    assert (page.figures.counts, billing.exact, orders.messages) == (True, True, 3)
    assert (billing.delivered, billing.again, billing.acked, billing.released, billing.dead) == (4, 1, 2, 2, 1)
    assert topic(page.figures, "orders.dead").messages == 1
    assert "≈" not in page.html.split("</header>")[0]


@pytest.mark.parametrize(("setting", "place"), [("", "orders.dead"), ("failed.all", "failed.all")])
def test_dead_letters_are_looked_for_where_the_subscription_sends_them(
    tmp_path: Path, setting: str, place: str
) -> None:
    site = Site(Config(data_dir="data"))
    made = site.node.create_topic("orders").now()
    site.consume(made, "billing", SubscriptionSettings(max_attempts=1, dead_letter=setting))
    site.publish(made, b"one")
    site.seat.release([1], 0)
    site.machine.run(3)
    site.node.close()
    copied(site, tmp_path)
    found = small(QUICK, path=str(tmp_path))
    assert found is not None
    (problem,) = problems(page_of(found).figures)
    assert (problem.kind, problem.command) == ("Dead letters", f"penstock peek {place}")
    assert f"is in the topic {place}." in problem.what


def test_a_hundred_thousand_deliveries_of_a_hundred_thousand_messages(tmp_path: Path) -> None:
    site = Site(Config(data_dir="data"))
    made = site.node.create_topic("orders").now()
    site.consume(made, "billing", credit=10_000)
    for first in range(0, 100_000, 5000):
        site.publish(made, *([b"body"] * 5000))
        assert site.seat.ack(list(range(first + 1, first + 5001))) == []
        site.machine.run(0.5)
    site.node.close()
    copied(site, tmp_path)
    found = small(QUICK, path=str(tmp_path))
    assert found is not None
    figures = gather(found)
    orders = topic(figures, "orders")
    (billing,) = orders.subscriptions
    assert figures.one_in == 64
    assert (figures.messages, orders.messages, billing.delivered, billing.acked) == (100_000,) * 4
    # The sample gives the shape, and says how large it was.
    assert 1000 < billing.sample < 2500
    assert billing.latency_us.total == billing.sample * 64


def test_a_deleted_topic_counts_on_both_sides(tmp_path: Path) -> None:
    site = Site(Config(data_dir="data"))
    for name in ("stays", "goes"):
        made = site.node.create_topic(name).now()
        site.consume(made, "audit")
        site.publish(made, b"one", b"two")
        site.seat.ack([1, 2])
    site.machine.run(3)
    site.node.delete_topic("goes").now()
    site.machine.run(3)
    site.node.close()
    copied(site, tmp_path)
    found = small(QUICK, path=str(tmp_path))
    assert found is not None
    figures = gather(found)
    goes = topic(figures, "goes")
    assert (goes.messages, goes.stored, goes.body_bytes, goes.subscriptions[0].delivered) == (2, 0, 6, 2)
    assert figures.messages == sum(each.subscriptions[0].delivered for each in figures.topics) == 4


def test_messages_that_retention_dropped_still_count() -> None:
    counts = [interval(Counted(topic="t", published=100, published_bytes=400))]
    figures = plain(messages("t", 10), counts)
    assert (topic(figures, "t").messages, topic(figures, "t").stored, topic(figures, "t").body_bytes) == (100, 10, 400)


def test_messages_that_were_not_counted_any_more_still_count() -> None:
    figures = plain(messages("t", 10), [interval(Counted(topic="t", published=7, published_bytes=28))])
    assert topic(figures, "t").messages == 10


def test_intervals_of_the_range_count_and_no_others() -> None:
    rows = [interval(Counted(topic="t", subscription="s", delivered=1), at_us=at * 10 * SECOND_US) for at in range(6)]
    since = datetime.datetime.fromtimestamp(START_US // SECOND_US + 20, datetime.UTC)
    until = datetime.datetime.fromtimestamp(START_US // SECOND_US + 40, datetime.UTC)
    found = plain([], rows, Report(from_=since, until=until, sample_bytes=0))
    assert topic(found, "t").subscriptions[0].delivered == 2
    assert sum(topic(found, "t").events["delivered"]) == 2


def test_a_node_that_was_killed_is_told() -> None:
    rows = [
        interval(Counted(topic="t", published=1), started_us=1),
        interval(Counted(topic="t", published=1), at_us=30 * SECOND_US, started_us=2, ended=True),
        interval(Counted(topic="t", published=1), at_us=60 * SECOND_US, started_us=3),
    ]
    found = plain(messages("t", 3), rows)
    assert found.killed_us == (START_US + SECOND_US,)


def test_nodes_of_a_cluster_that_take_turns_in_what_they_count_were_not_killed() -> None:
    def told(node: str, at_s: int, started_us: int, *, ended: bool = False) -> bytes:
        from_us = START_US + at_s * SECOND_US
        counts = [Counted(topic="t", published=1)]
        each = Interval(node=node, started_us=started_us, from_us=from_us, until_us=from_us + 1, counts=counts)
        return msgspec.json.encode(msgspec.structs.replace(each, ended=ended))

    span = Span.over(START_US, START_US + 60 * SECOND_US, 10)
    running = [told("n1", 0, 1), told("n2", 1, 2), told("n1", 2, 1), told("n2", 3, 2), told("n1", 4, 1)]
    assert tallied(running, span, QUICK).killed_us == []
    ends = [*running, told("n2", 5, 2, ended=True), told("n2", 6, 5), told("n1", 7, 6)]
    assert tallied(ends, span, QUICK).killed_us == [START_US + 4 * SECOND_US + 1]


class Partly(Files):
    """A cluster one of whose nodes is away."""

    def topic(self, name: str) -> TopicInfo | None:
        if name.endswith("@n2"):
            raise Refusal("elsewhere", f"topic {name} is on the disk of node n2, which is not there")
        return super().topic(name)


def test_a_report_does_not_wait_for_what_a_node_counted_that_is_away(
    data: Data, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("t", f"{COUNTS}@n1", f"{COUNTS}@n2"):
        data.topic(name).append(b"{}")
    store = Partly(str(data.path))
    assert list(own.found(store, COUNTS, store.names())) == [f"{COUNTS}@n1"]
    assert f"the report is made without topic {COUNTS}@n2: " in caplog.text


def test_what_cannot_be_read_counts_nothing() -> None:
    span = Span.over(START_US, START_US + 60 * SECOND_US, 10)
    bodies = [b"{", b"\xff", b"[]", interval(Counted(topic="_penstock.x", published=3))["body"]]
    assert tallied(bodies, span, QUICK).topics() == set()


def test_a_backlog_is_seen_from_its_first_to_its_last() -> None:
    rows = [
        interval(
            Counted(topic="t", published=10), Counted(topic="t", subscription="s", backlog=10 * at), at_us=at * 10**7
        )
        for at in range(1, 6)
    ]
    backlog = topic(plain(messages("t", 1), rows), "t").subscriptions[0].backlog
    assert backlog is not None
    assert (backlog.first, backlog.last, backlog.most) == (10, 50, 50)


def test_many_topics_are_counted_together_and_sum_up() -> None:
    counts = [Counted(topic=f"t{at}", published=at, published_bytes=at) for at in range(1, 31)]
    counts += [Counted(topic=f"t{at}", subscription="s", delivered=at) for at in range(1, 31)]
    figures = plain([], [interval(*counts)], Report(sample_bytes=0, topics_max=3))
    assert (len(figures.topics), figures.topics_all, figures.messages) == (3, 30, sum(range(31)))
    assert sum(each.delivered for one in figures.everything for each in one.subscriptions) == sum(range(31))


# --- the same as Spark ------------------------------------------------------------------------------------------------


def shape(found: Distribution) -> list[tuple[int, int, int]]:
    return [(each.weight, each.low, each.high) for each in found.classes]


def told(each: Subscription) -> dict[str, Any]:
    values = msgspec.structs.asdict(each)
    for name in ("latency_us", "lease_us"):
        values[name] = shape(values[name])
    values["latencies"] = [shape(step) for step in each.latencies or ()]
    return values


@pytest.mark.parametrize("one_in", [1, 8])
def test_arrow_and_spark_tell_the_same(spark: SparkSession, one_in: int) -> None:
    day = Simulation(1500, hours=6, one_in=one_in)
    counts = [interval(Counted(topic="orders", subscription="billing", delivered=7), at_us=at * 10**7) for at in (0, 3)]
    options = Report(sample_bytes=0, top=5, topics_max=4)
    theirs = gather(SparkQueries(*day.frames(spark), frame(spark, counts, Report.EVENT_COLUMNS), options))
    events, own = table(day.events, Report.EVENT_COLUMNS), table(counts, Report.EVENT_COLUMNS)
    ours = gather(PlainQueries(Arrows(table(day.messages), events, own), options))
    for name in ("span", "columns", "events", "counts", "one_in", "topics_all", "messages", "body_bytes", "waiting"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert [each.name for each in ours.everything] == [each.name for each in theirs.everything]
    for one, other in zip(ours.everything, theirs.everything, strict=True):
        assert [told(each) for each in one.subscriptions] == [told(each) for each in other.subscriptions], one.name
        assert shape(one.sizes) == shape(other.sizes), one.name
        for name in (
            "messages",
            "stored",
            "traffic",
            "shards",
            "skew",
            "keys",
            "tags",
            "buckets",
            "discards",
            "events",
        ):
            assert getattr(one, name) == getattr(other, name), (one.name, name)


def test_a_directory_is_read_within_times_and_a_topic_must_be_there(data: Data) -> None:
    for number in range(2):
        data.topic(f"t{number}").append(*[b"%d" % number * 40] * 50, time_ns=START_NS + number * SECOND_NS)
    late = Report(from_=datetime.datetime.fromtimestamp(START_NS / SECOND_NS + 0.5, datetime.UTC))
    found = small(late, path=str(data.path))
    assert found is not None
    figures = gather(found)
    assert [(each.name, each.messages) for each in figures.topics] == [("t1", 50)]
    assert not figures.events
    advised = figures.topics[0].advice
    assert advised is not None
    assert advised.measures[0].bodies == 50
    with pytest.raises(Refusal, match=r"there is no topic t99; there are t0, t1"):
        small(Report(topics=("t99",)), path=str(data.path))


def test_more_than_fits_is_left_to_spark(data: Data) -> None:
    data.topic("t").append(*[b"x"] * 50)
    assert small(QUICK, path=str(data.path), rows_max=49) is None
    assert small(QUICK, path=str(data.path), rows_max=50) is not None


def test_no_spark_is_imported_for_it(data: Data, tmp_path: Path) -> None:
    import subprocess

    data.topic("t").append(b"x")
    code = (
        "import sys; from penstock.pipeline.jobs.report import Report, page_of, small; "
        f"page_of(small(Report(), path={str(data.path)!r})); print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False\n"


def test_the_topic_of_the_counts_is_the_nodes_own() -> None:
    assert COUNTS.startswith("_penstock.")
