"""An exchange is a consumer: it gets what its credit allows, and what it holds is its own until it says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.wire import Notice
from penstock.columns import COLUMNS
from penstock.dialects.flight import outlet
from tests.flight.parts import Flown, Row, body_batch, ids, many


def bodies(rows: list[Row]) -> list[bytes]:
    return [row["body"] for row in rows]


def counts(flown: Flown, topic: str = "t", subscription: str = "s") -> dict[str, int]:
    return flown.do(lambda: flown.node.topics[topic].subscriptions[subscription].counts())


def test_rows_come_with_their_lease_and_all_columns(flown: Flown) -> None:
    flown.put("t", body_batch(b"a", b"b", tag=pa.array(["x", None])))
    flown.put("t", many(100))
    with flown.subscribe("t", "s") as held:
        held.order(credit=200)
        rows = held.rows(102)
        assert [row["id"] for row in rows] == list(range(1, 103))
        assert [row["offset"] for row in rows] == list(range(102))
        assert {(row["attempts"], row["shard"], row["source"]) for row in rows} == {(1, 0, "flight")}
        assert [row["tag"] for row in rows[:3]] == ["x", None, None]
        assert held.reader.schema == pa.schema(
            [("id", pa.int64()), ("attempts", pa.int32()), ("shard", pa.int32()), *COLUMNS.items()]
        )


def test_chosen_columns_only(flown: Flown) -> None:
    flown.put("t", many(1), many(40, 1))
    with flown.subscribe("t", "s", columns=["body", "due"]) as held:
        held.order(credit=100)
        rows = held.rows(41)
        assert list(rows[0]) == ["id", "attempts", "shard", "body", "due"]
        assert bodies(rows) == [b"body %d" % number for number in range(41)]


def test_credit_bounds_what_is_out(flown: Flown) -> None:
    flown.put("t", many(10))
    with flown.subscribe("t", "s") as held:
        held.order(credit=3)
        first = held.rows(3)
        assert held.ping() == Notice(pong=1)
        held.order(ack=ids(first[:2]))
        assert bodies(held.rows(2)) == [b"body 3", b"body 4"]
        held.order(credit=0)
        held.order(ack=ids(first[2:]))
        assert held.ping(7) == Notice(pong=7)
        held.order(credit=100)
        assert len(held.rows(5)) == 5


def test_acked_rows_are_written_down_before_the_pong(flown: Flown, tmp_path: Path) -> None:
    flown.put("t", many(1000))
    with flown.subscribe("t", "s") as held:
        held.order(credit=1000)
        rows = held.rows(1000)
        held.order(ack=ids(rows[:900]))
        held.ping()
        copy = flown.crash_copy(tmp_path / "copy")
    with Flown(copy) as again, again.subscribe("t", "s") as held:
        held.order(credit=1000)
        assert [row["offset"] for row in held.rows(100)] == list(range(900, 1000))


def test_released_rows_come_again_after_their_delay(flown: Flown) -> None:
    flown.put("t", many(2))
    with flown.subscribe("t", "s") as held:
        held.order(credit=10)
        rows = held.rows(2)
        held.order(release=ids(rows[:1]))
        (again,) = held.rows(1)
        assert (again["body"], again["attempts"]) == (b"body 0", 2)
        held.order(release=ids(rows[1:]), delay_ms=30_000)
        assert held.ping() == Notice(pong=1)
        flown.advance(31)
        (again,) = held.rows(1)
        assert (again["body"], again["attempts"]) == (b"body 1", 2)


def test_delay_beyond_what_the_topic_allows_ends_the_exchange(flown: Flown) -> None:
    flown.act("create-topic", name="t", settings={"max_due_ns": 300_000_000_000})
    flown.put("t", many(1))
    with flown.subscribe("t", "s") as held:
        held.order(credit=10)
        held.order(release=ids(held.rows(1)), delay_ms=600_000)
        with pytest.raises(flight.FlightServerError, match="due_too_far: a message shall wait for 10m"):
            held.ping()


def test_extended_lease_lasts_and_the_others_expire(flown: Flown) -> None:
    flown.put("t", many(2))
    with flown.subscribe("t", "s", lease_ms=10_000) as held:
        held.order(credit=10)
        rows = held.rows(2)
        held.order(extend=ids(rows[:1]), lease_ms=60_000)
        held.ping()
        flown.advance(30)
        (again,) = held.rows(1)
        assert (again["body"], again["attempts"]) == (b"body 1", 2)
        held.order(ack=ids(rows[:1]))
        assert held.ping(2).refused == []
        held.order(extend=ids(rows[:1]))
        assert isinstance(said := held.next(), Notice)
        assert said.refused == ids(rows[:1])


def test_ids_that_are_not_held_are_told_and_nothing_else_happens(flown: Flown) -> None:
    flown.put("t", many(3))
    with flown.subscribe("t", "s") as held, flown.subscribe("t", "s", client=flown.connect()) as other:
        held.order(credit=2)
        rows = held.rows(2)
        other.order(credit=1)
        (foreign,) = other.rows(1)
        held.order(ack=[*ids(rows), [foreign["id"], 1], [10_000, 3], [(1 << 62) + 5, 1]], ping=1)
        said = held.next()
        assert isinstance(said, Notice)
        assert said.refused == [[foreign["id"], 1], [10_000, 3], [(1 << 62) + 5, 1]]
        assert counts(flown)["acked"] == 2
        other.order(ack=ids([foreign]))
        assert other.ping().refused == []


def test_order_with_many_ids_is_carried_out_whole(flown: Flown) -> None:
    flown.put("t", many(40_000))
    with flown.subscribe("t", "s", columns=["offset"]) as held:
        held.order(credit=50_000)
        held.rows(40_000)
        held.order(
            ack=[[1, 19_000], [19_501, 1], [60_000, 30_000]], release=[[20_001, 20_000]], delay_ms=900_000, ping=3
        )
        refused: list[int] = []
        while not held.notices or held.notices[-1].pong != 3:
            said = held.next()
            assert isinstance(said, Notice)
            refused += [id_ for first, count in said.refused for id_ in range(first, first + count)]
        assert refused == list(range(60_000, 90_000))
        assert counts(flown) == {**counts(flown), "acked": 19_001, "held": 20_999}
        assert flown.do(lambda: flown.node.topics["t"].subscriptions["s"].waiting()) == 20_000


def test_what_an_exchange_held_goes_to_the_next_at_once(flown: Flown) -> None:
    flown.put("t", many(5))
    held = flown.subscribe("t", "s", client=flown.connect())
    held.order(credit=5)
    rows = held.rows(5)
    held.order(ack=ids(rows[:2]))
    with flown.subscribe("t", "s") as other:
        other.order(credit=10)
        other.ping()
        held.close()
        again = other.rows(3)
        assert [(row["offset"], row["attempts"]) for row in again] == [(2, 2), (3, 2), (4, 2)]


def test_client_that_vanishes_gives_its_leases_back(flown: Flown) -> None:
    flown.put("t", many(5))
    client = flown.connect()
    held = flown.subscribe("t", "s", client=client)
    held.order(credit=5)
    held.rows(5)
    held.reader.cancel()
    with flown.subscribe("t", "s") as other:
        other.order(credit=10)
        assert len(other.rows(5)) == 5
    flown.until(lambda: not flown.flight.service.exchanges)


def test_two_exchanges_share_a_subscription(flown: Flown) -> None:
    with flown.subscribe("t", "s") as one, flown.subscribe("t", "s", client=flown.connect()) as two:
        one.order(credit=50)
        two.order(credit=50)
        one.ping(), two.ping()
        flown.put("t", many(100))
        first, second = one.rows(50), two.rows(50)
        assert sorted(row["offset"] for row in first + second) == list(range(100))


def test_tag_is_for_the_consumer_that_asks_for_it(flown: Flown) -> None:
    with flown.subscribe("t", "s", tag="blue") as blue, flown.subscribe("t", "s", client=flown.connect()) as rest:
        blue.order(credit=10)
        rest.order(credit=10)
        blue.ping(), rest.ping()
        flown.put("t", body_batch(b"0", b"1", b"2", b"3", tag=pa.array(["blue", None, "red", "blue"])))
        assert bodies(blue.rows(2)) == [b"0", b"3"]
        assert sorted(bodies(rest.rows(2))) == [b"1", b"2"]


@pytest.mark.parametrize("count", [4, 400])
def test_header_filter_finishes_what_it_refuses(flown: Flown, count: int) -> None:
    headers = pa.array([b'{"kind":"%d"}' % (row % 2) for row in range(count)], pa.binary())
    flown.put("t", body_batch(*(b"%d" % row for row in range(count)), headers=headers))
    wanted = {"type": 1, "filter_ext_key": "kind", "filter_data": "1"}
    with flown.subscribe("t", "s", filter=wanted) as held:
        held.order(credit=count)
        rows = held.rows(count // 2)
        assert bodies(rows) == [b"%d" % row for row in range(1, count, 2)]
        held.order(ack=ids(rows))
        held.ping()
    assert counts(flown) == {**counts(flown), "acked": count // 2, "filtered": count // 2, "held": 0}


@pytest.mark.parametrize("percent", [1, 50, 100])
def test_sample_takes_its_share(flown: Flown, percent: int) -> None:
    flown.put("t", many(4000))
    with flown.subscribe("t", "s", sample_percent=percent) as held:
        held.ping()
        held.order(credit=4000)
        got = 0
        while counts(flown)["filtered"] + got < 4000:
            said = held.next()
            assert isinstance(said, pa.RecordBatch)
            got += len(said)
        assert abs(got - 40 * percent) <= 120
        if percent == 100:
            assert got == 4000


def test_one_shard_alone(flown: Flown) -> None:
    flown.act("create-topic", name="t", settings={"shards": 2})
    with flown.subscribe("t", "s", shard=1) as held:
        held.order(credit=10)
        flown.put("t", many(2), shard=0)
        flown.put("t", many(3), shard=1)
        rows = held.rows(3)
        assert {row["shard"] for row in rows} == {1}
        assert rows[0]["id"] == (1 << 48) + 1
        assert held.ping() == Notice(pong=1)


def test_new_subscription_begins_where_it_says(flown: Flown) -> None:
    flown.put("t", many(3))
    with flown.subscribe("t", "first") as first:
        first.order(credit=10)
        assert len(first.rows(3)) == 3
    with flown.subscribe("t", "second") as second:
        second.order(credit=10)
        assert second.ping() == Notice(pong=1)
    with flown.subscribe("t", "third", earliest=True) as third:
        third.order(credit=10)
        assert len(third.rows(3)) == 3


def test_nothing_is_made_where_the_client_says_so(flown: Flown) -> None:
    with pytest.raises(flight.FlightServerError, match="not_found: there is no topic 't'"):
        flown.subscribe("t", "s", create=False).next()
    flown.put("t", many(1))
    with pytest.raises(flight.FlightServerError, match="not_found: topic t has no subscription 's'"):
        flown.subscribe("t", "s", create=False).next()
    assert flown.do(lambda: flown.node.topics["t"].subscriptions) == {}


def test_node_restarts_and_the_subscription_goes_on(tmp_path: Path) -> None:
    with Flown(tmp_path / "data") as flown:
        flown.put("t", many(10))
        held = flown.subscribe("t", "s")
        held.order(credit=6)
        rows = held.rows(6)
        held.order(ack=ids(rows[:4]), credit=2, ping=1)
        held.next()
        flown.run(flown.flight.close())
        said = held.next()
        assert isinstance(said, Notice)
        assert said.end is not None
        assert said.end.startswith("stopping: ")
    with Flown(tmp_path / "data") as flown, flown.subscribe("t", "s") as held:
        held.order(credit=10)
        assert sorted(row["offset"] for row in held.rows(6)) == list(range(4, 10))


def test_exchange_ends_when_its_topic_or_subscription_is_deleted(flown: Flown) -> None:
    flown.put("t", many(1))
    for action in ("subscription", "topic"):
        held = flown.subscribe("t", "s")
        held.ping()
        if action == "topic":
            flown.act("delete-topic", name="t")
        else:
            flown.do(lambda: flown.node.topics["t"].delete_subscription("s").now())
        said = held.next()
        assert isinstance(said, Notice)
        assert said.end == "gone: subscription s of topic t was deleted"
        held.order(ack=[[1, 1]], credit=5)  # too late, and no harm
        held.close()


def test_client_that_does_not_read_gets_no_more_than_fits(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "UNREAD_BYTES_MAX", 200_000)
    flown.act("create-topic", name="t")
    for _ in range(120):
        flown.put("t", body_batch(*(b"x" * 100_000 for _ in range(10))))
    with flown.subscribe("t", "s") as held:
        held.ping()
        held.order(credit=1200)
        consumer: Any = flown.do(lambda: next(iter(flown.node.topics["t"].subscriptions["s"].seats.values())))
        flown.until(lambda: consumer.blocked)
        assert flown.do(lambda: consumer.in_flight) < 1200
        assert len(held.rows(1200)) == 1200


def test_nsq_publishes_and_flight_consumes_and_the_other_way_round(flown: Flown) -> None:
    flown.ask("POST", "/mpub?topic=t", raw=b"one\ntwo", port=flown.ports["nsq.http_port"])
    with flown.subscribe("t", "s") as held:
        held.order(credit=10)
        rows = held.rows(2)
        assert [(row["body"], row["source"]) for row in rows] == [(b"one", "nsq"), (b"two", "nsq")]
        held.order(ack=ids(rows))
        held.ping()
    flown.put("t", many(2))
    import socket
    import struct

    with socket.create_connection(("127.0.0.1", flown.tcp_port), 30) as sock:
        sock.sendall(b"  V2SUB t s\nRDY 10\n")
        got = b""
        while got.count(b"body ") < 2:
            got += sock.recv(4096)
        assert got.startswith(struct.pack(">ii", 6, 0) + b"OK")
        assert b"0000000000000003body 0" in got
        assert b"0000000000000004body 1" in got
