"""A program publishes, consumes and reads, and goes on when the node comes back."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time_ns

import pyarrow as pa
import pytest

from penstock.client import Client, Outgoing, Properties, Refusal, Subscription, Unreachable
from tests.cli.program import Node
from tests.client.conftest import restarted, url_of

PATIENCE_S = 30.0


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as connected:
        yield connected


def rows_of(client: Client, topic: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pa.Table.from_batches(list(client.read(topic))).to_pylist()
    return rows


def taken(subscription: Subscription, count: int) -> list[bytes]:
    """Take and ack this many messages."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        batch = subscription.take(PATIENCE_S)
        assert batch is not None, f"only {len(bodies)} of {count} came"
        bodies += batch.arrow.column("body").to_pylist()
        batch.ack()
    return bodies


def test_message_goes_through_with_everything_it_carries(client: Client, topic: str) -> None:
    event = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
    receipt = client.publish(
        topic,
        "hellö",
        key="k",
        headers={"a": "b"},
        tag="blue",
        traffic=1 << 63,
        event_time=event,
        dedup=b"d",
        trace=7,
        route=3,
        message_id="m",
        group="g",
        bucket=9,
    )
    assert (receipt.count, list(receipt.ids())) == (1, [1])
    (row,) = rows_of(client, topic)
    assert row["body"] == "hellö".encode()
    assert (row["key"], row["tag"], row["headers"], row["source"]) == (b"k", "blue", b'{"a":"b"}', "sdk")
    assert (row["traffic"], row["trace"], row["route"], row["bucket"]) == (-(1 << 63), 7, 3, 9)
    assert row["event_time"] == 1_767_323_045_000_600_000
    assert (row["dedup"], row["message_id"], row["group"]) == (b"d", b"m", b"g")
    with client.subscribe(topic, "s", earliest=True) as subscription:
        (message,) = next(iter(subscription))
        assert (message.body, message.key, message.tag, message.headers) == ("hellö".encode(), b"k", "blue", {"a": "b"})
        assert (message.id, message.attempts) == (1, 1)
        assert abs(message.timestamp_ns - time_ns()) < 60 * 10**9
        message.ack()


def test_many_messages_keep_their_order_and_may_differ_in_what_they_carry(client: Client, topic: str) -> None:
    some = [b"plain", Outgoing(b"tagged", Properties(tag="own")), b"again"]
    client.publish(topic, some, tag="common")
    assert [(row["body"], row["tag"]) for row in rows_of(client, topic)] == [
        (b"plain", "common"),
        (b"tagged", "own"),
        (b"again", "common"),
    ]
    receipt = client.publish(topic, (b"%d" % n for n in range(25_000)))
    assert receipt.count == 25_000
    assert [row["body"] for row in rows_of(client, topic)[3:]] == [b"%d" % n for n in range(25_000)]


def test_arrow_tables_are_published_as_they_are_and_may_name_their_topics(client: Client, topic: str) -> None:
    table = pa.table({"body": ["a", "b", "c"], "topic": [f"{topic}.1", f"{topic}.2", f"{topic}.1"]})
    receipt = client.publish(None, table)
    assert sorted(receipt.places) == sorted(
        [(f"{topic}.1", 0, 0, 1), (f"{topic}.2", 0, 0, 1), (f"{topic}.1", 0, 1, 1)]
    ) or sorted(receipt.places) == [(f"{topic}.1", 0, 0, 2), (f"{topic}.2", 0, 0, 1)]
    assert [row["body"] for row in rows_of(client, f"{topic}.1")] == [b"a", b"c"]


def test_streams_of_different_columns_follow_each_other(client: Client, topic: str) -> None:
    for number in range(3):
        client.publish(topic, b"%d" % number, tag="t" if number % 2 else None)
    assert [(row["body"], row["tag"]) for row in rows_of(client, topic)] == [(b"0", None), (b"1", "t"), (b"2", None)]


def test_dedup_key_answers_with_the_first_message(client: Client, topic: str) -> None:
    first = client.publish(topic, b"a", dedup="same")
    second = client.publish(topic, b"b", dedup="same")
    assert (second.places, second.repeated) == (first.places, 1)


def test_message_comes_when_it_is_due_and_not_before(client: Client, topic: str) -> None:
    with client.subscribe(topic, "s", create_topic=True) as subscription:
        due_ns = time_ns() + 300_000_000
        client.publish(topic, b"later", due=due_ns)
        client.publish(topic, b"now")
        assert taken(subscription, 1) == [b"now"]
        assert taken(subscription, 1) == [b"later"]
        assert time_ns() >= due_ns
    client.publish(topic, b"soon", due=timedelta(milliseconds=1))
    with pytest.raises(ValueError, match="no time zone"):
        client.publish(topic, b"when?", due=datetime(2026, 1, 1))


def test_released_message_comes_again_and_extended_one_does_not(client: Client, topic: str) -> None:
    client.publish(topic, [b"a", b"b"])
    with client.subscribe(topic, "s", credit=2, lease=1.0, earliest=True) as subscription:
        first, second = next(iter(subscription))
        first.extend(60)
        second.release(0.05)
        (again,) = next(iter(subscription))
        assert (again.body, again.attempts) == (b"b", 2)
        again.ack()
        first.ack()
    with client.subscribe(topic, "s") as subscription:
        assert subscription.take(0.2) is None


def test_lease_that_ends_brings_the_message_back(client: Client, topic: str) -> None:
    client.publish(topic, b"a")
    with client.subscribe(topic, "s", lease=0.1, earliest=True) as subscription:
        assert [m.attempts for m in subscription.take(PATIENCE_S) or ()] == [1]
        assert [m.attempts for m in subscription.take(PATIENCE_S) or ()] == [2]


def test_consumer_with_a_desired_tag_gets_its_messages_and_no_others(client: Client, topic: str) -> None:
    with (
        client.subscribe(topic, "s", desired_tag="blue", create_topic=True) as blue,
        client.subscribe(topic, "s") as rest,
    ):
        client.publish(topic, [Outgoing(b"1", Properties(tag="blue")), b"2", Outgoing(b"3", Properties(tag="red"))])
        assert taken(blue, 1) == [b"1"]
        assert sorted(taken(rest, 2)) == [b"2", b"3"]


def test_header_filter_refuses_for_the_subscription(client: Client, topic: str) -> None:
    wanted = {"type": 1, "filter_ext_key": "color", "filter_data": "blue"}
    with client.subscribe(topic, "s", header_filter=wanted, create_topic=True) as subscription:
        for color in ("red", "blue"):
            client.publish(topic, color, headers={"color": color})
        assert taken(subscription, 1) == [b"blue"]


def test_due_time_may_be_written_as_on_the_command_line(client: Client, topic: str) -> None:
    before_ns = time_ns()
    own = datetime.now(UTC) + timedelta(days=30)
    client.publish(topic, [b"a", Outgoing(b"b", Properties(due=own.isoformat()))], due="2s", expires="1h")
    first, second = rows_of(client, topic)
    assert before_ns + 2 * 10**9 <= first["due"] <= time_ns() + 2 * 10**9  # type: ignore[operator]
    assert second["due"] == (own - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def test_topic_that_is_not_there_is_refused_like_on_the_command_line(client: Client, topic: str) -> None:
    client.create_topic(f"{topic}.orders")
    with pytest.raises(Refusal, match=f"{topic}.order") as refused:
        client.subscribe(f"{topic}.order", "s")
    assert refused.value.code == "not_found"
    assert f"{topic}.order" not in [each.name for each in client.topics()]
    client.subscribe(f"{topic}.order", "s", create_topic=True).close()
    assert f"{topic}.order" in [each.name for each in client.topics()]


def test_first_subscription_begins_with_what_was_kept_for_it_and_later_ones_at_the_end(
    client: Client, topic: str
) -> None:
    client.publish(topic, b"before")
    with client.subscribe(topic, "first") as first, client.subscribe(topic, "second") as second:
        assert taken(first, 1) == [b"before"]
        client.publish(topic, b"after")
        assert taken(second, 1) == [b"after"]


def test_single_messages_are_iterated_and_acked_one_by_one(client: Client, topic: str) -> None:
    client.publish(topic, [b"a", b"b"])
    with client.subscribe(topic, "s", lease="30s") as subscription:
        messages = subscription.messages()
        next(messages).ack()
        second = next(messages)
        second.release()
        again = next(messages)
        assert (again.body, again.attempts) == (b"b", 2)
        again.ack()


def test_nothing_is_sent_if_one_row_is_wrong(client: Client, topic: str) -> None:
    some = [b"%d" % n for n in range(15_000)]
    with pytest.raises(TypeError, match="the body of row 15000 is an int, 3"):
        client.publish(topic, [*some, 3])
    assert topic not in [each.name for each in client.topics()]


def test_credit_bounds_what_is_out(client: Client, topic: str) -> None:
    client.publish(topic, [b"%d" % n for n in range(10)])
    with client.subscribe(topic, "s", credit=3, earliest=True) as subscription:
        first = subscription.take(PATIENCE_S)
        assert first is not None
        assert len(first) == 3
        assert subscription.take(0.2) is None
        first.ack()
        assert len(subscription.take(PATIENCE_S) or ()) == 3


def test_batches_are_frames(client: Client, topic: str) -> None:
    client.publish(topic, [b"a", b"b"], tag="t")
    with client.subscribe(topic, "s", columns=["offset", "body"], earliest=True) as subscription:
        batch = subscription.take(PATIENCE_S)
        assert batch is not None
        assert batch.to_polars().select("offset", "body").rows() == [(0, b"a"), (1, b"b")]
        assert batch.to_pandas()["body"].tolist() == [b"a", b"b"]
        batch.ack([0])
        batch.release(rows=[1])
        assert [m.body for m in subscription.take(PATIENCE_S) or ()] == [b"b"]


def test_read_takes_ranges_and_columns(client: Client, topic: str) -> None:
    client.publish(topic, [b"%d" % n for n in range(10)])
    table = pa.Table.from_batches(list(client.read(topic, start=3, end=5, columns=["offset", "body"])))
    assert table.to_pylist() == [{"offset": 3, "body": b"3"}, {"offset": 4, "body": b"4"}]


def test_seek_goes_back(client: Client, topic: str) -> None:
    client.publish(topic, [b"a", b"b"])
    with client.subscribe(topic, "s", earliest=True) as subscription:
        assert taken(subscription, 2) == [b"a", b"b"]
        client.seek(topic, "s", offset=1)
        assert taken(subscription, 1) == [b"b"]


def test_refusals_say_what_is_wrong(client: Client, topic: str) -> None:
    with pytest.raises(Refusal, match="over the limit of 1048576") as refused:
        client.publish(topic, bytes(2 << 20))
    assert refused.value.code == "message_too_big"
    client.publish(topic, b"the stream is made anew after it")
    with pytest.raises(Refusal, match="did you mean 'body'") as refused:
        client.publish(topic, pa.record_batch({"bodi": ["a"], "body": ["b"]}))
    assert refused.value.code == "bad_column"
    with pytest.raises(Refusal) as refused:
        client.topic("no such topic")
    assert refused.value.code == "not_found"
    with pytest.raises(Refusal, match="none"):
        client.subscribe(topic, "none", create=False)


def test_topics_are_made_described_and_dropped(client: Client, topic: str) -> None:
    made = client.create_topic(topic, shards=2)
    assert (made.name, [shard.shard for shard in made.shards]) == (topic, [0, 1])
    assert topic in [each.name for each in client.topics()]
    subscription = client.subscribe(topic, "s")
    client.delete_topic(topic)
    with pytest.raises(Refusal, match="deleted") as gone:
        subscription.take(PATIENCE_S)
    assert gone.value.code == "gone"


def test_address_that_makes_no_sense_is_named() -> None:
    with pytest.raises(Exception, match="'http://x' is no address of a node"):
        Client("http://x")


def test_node_that_is_not_there_is_waited_for_and_then_reported() -> None:
    with Client("grpc://127.0.0.1:1", patience=0.2) as client, pytest.raises(Unreachable, match="no node answers at"):
        client.publish("t", b"a")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_program_goes_on_when_the_node_dies_and_comes_back(tmp_path: Path, how: signal.Signals) -> None:
    """Everything that was published is consumed, nothing is stored twice, nothing acked is shown twice."""
    total = 900
    first = Node(tmp_path)
    port = first.port("flight.port")
    with Client(url_of(first), patience=PATIENCE_S) as client:
        client.create_topic("t", durability="fsync")
        published: list[bytes] = []
        dies = threading.Event()

        def publish() -> None:
            for number in range(total):
                client.publish("t", b"%d" % number)
                published.append(b"%d" % number)
                if number == total // 3:
                    dies.set()

        publisher = threading.Thread(target=publish)
        got: list[bytes] = []
        with client.subscribe("t", "s", credit=50, earliest=True) as subscription:
            publisher.start()
            assert dies.wait(PATIENCE_S)
            first.end(how)
            first.__exit__(None, None, None)
            with restarted(tmp_path, port):
                while len(set(got)) < total:
                    batch = subscription.take(PATIENCE_S)
                    assert batch is not None, f"{len(set(got))} of {total} came"
                    got += batch.arrow.column("body").to_pylist()
                    batch.ack()
                publisher.join()
                stored = Counter(row["body"] for row in rows_of(client, "t"))
                subscription.close()
    assert stored == Counter(b"%d" % number for number in range(total))
    assert Counter(got) == stored


def test_due_time_beyond_the_limit_is_refused(client: Client, topic: str) -> None:
    with pytest.raises(Refusal) as refusal:
        client.publish(topic, b"x", due=timedelta(days=366))
    assert refusal.value.code == "due_too_far"
