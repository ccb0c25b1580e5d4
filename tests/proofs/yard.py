"""A node in this process on a real directory, with time in our hand and syncs that take none; and what it holds.

What it is filled with is one of everything that a data directory can hold, small enough to be damaged byte by byte.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import pyarrow as pa

from penstock.clock import SECOND
from penstock.columns import OFFSET_BITS, Column
from penstock.config import Config, EventsConfig
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.disk import LocalFile
from penstock.errors import Refusal
from penstock.message import Batch, Rows
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.callers.parts import user, users_in
from tests.fakes import FakeClock, FakeDisk
from tests.log.disks import UnsyncedFile

HOUR_NS = 3600 * SECOND
STAGED = pa.schema([("body", pa.binary()), ("key", pa.binary())])
#: (topic, shard, offset).
Place = tuple[str, int, int]


class Row(NamedTuple):
    """Everything that a message is."""

    source: str
    time_ns: int
    body: bytes
    more: tuple[tuple[str, object], ...]


class QuickDisk(FakeDisk):
    """Real files without the waiting for them."""

    def open(self, path: str, *, create: bool = False) -> LocalFile:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return UnsyncedFile(path, os.open(path, flags, 0o600))

    def sync_directory(self, path: str) -> None:
        """Return at once."""


class Truth(NamedTuple):
    """What a directory holds, as its node knew."""

    rows: dict[Place, Row]
    #: By topic and subscription: what is not finished, and of it what is not due yet.
    owed: dict[tuple[str, str], set[Place]]
    later: set[Place]
    #: Where the next offset was to be, by topic and shard.
    ends: dict[tuple[str, int], int]
    #: Bodies of a commit that is under way, and of rows that are staged only.
    pending: Counter[bytes]
    staged: Counter[bytes]
    #: Of topics.
    numbers: dict[str, int]

    def without(self, names: set[str]) -> Truth:
        """Return what is left without some topics."""
        return self._replace(
            rows={place: row for place, row in self.rows.items() if place[0] not in names},
            owed={key: places for key, places in self.owed.items() if key[0] not in names},
            ends={key: end for key, end in self.ends.items() if key[0] not in names},
            numbers={name: number for name, number in self.numbers.items() if name not in names},
        )


class Yard:
    """A node, and somebody who publishes, consumes, stages and commits."""

    def __init__(self, path: Path, now_ns: int | None = None) -> None:
        self.clock = FakeClock() if now_ns is None else FakeClock(now_ns)
        self.disk = QuickDisk(self.clock)
        config = Config(data_dir=str(path), events=EventsConfig(mode="off"))
        self.node = Node(config, self.clock, self.disk, Random(1))

    def run(self, seconds: float = 0.1) -> None:
        """Let time pass."""
        self.clock.advance(int(seconds * SECOND))

    def publish(self, topic: Topic, *bodies: bytes, shard: int | None = None, **columns: Column) -> None:
        """Publish messages that must be taken."""
        told: list[BaseException | None] = []
        topic.publish(Rows.of(bodies, "test", columns or None), self, lambda _, error: told.append(error), shard)
        self.run()
        assert told == [None]

    def consume(self, topic: Topic, name: str, credit: int) -> tuple[Seat, dict[Place, Row]]:
        """Take so many messages of a subscription; return who holds them, and what they are."""
        got: dict[Place, Row] = {}

        def deliver(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                for offset in delivery.offsets():
                    got[topic.name, delivery.shard, offset] = row_of(delivery.batch, offset - delivery.batch.first)

        seat = topic.attach(topic.subscription(name), deliver, lease_ns=HOUR_NS)
        seat.set_credit(credit)
        self.run()
        return seat, got

    def stage(self, query: str, batch: int, attempt: str, *bodies: bytes, topic: str = "copies") -> None:
        """Stage rows for a topic."""
        writer = self.node.staging.writer(query, batch, attempt, topic, STAGED)
        writer.write(pa.record_batch([pa.array(bodies, pa.binary())] * 2, schema=STAGED))
        writer.finish()
        self.node.staging.add(query, batch, attempt, self.clock.now())

    def commit(self, query: str, batch: int, attempt: str) -> tuple[int, bool]:
        """Commit one attempt; raises what was told instead."""
        told: list[tuple[tuple[int, bool] | None, BaseException | None]] = []
        self.node.transactions.commit(query, batch, [attempt], lambda *answer: told.append(answer))
        self.run(0.5)
        if not told:
            raise Refusal("conflict", "nothing was told")
        answer, error = told[0]
        if error is not None:
            raise error
        assert answer is not None
        return answer

    def rows(self) -> dict[Place, Row]:
        """Return every row that a reader gets."""
        found: dict[Place, Row] = {}
        for topic in self.node.topics.values():
            for shard in topic.shards:
                offset = shard.start
                while offset < shard.readable_end:
                    batch = shard.read(offset)
                    if batch is None:
                        shard.fetch(offset, lambda: None)
                        self.run(0)
                        batch = shard.read(offset)
                        if batch is None:  # a hole: the reader goes on behind it
                            offset += 1
                            continue
                    for row in range(max(offset - batch.first, 0), batch.count):
                        found[topic.name, shard.number, batch.first + row] = row_of(batch, row)
                    offset = max(batch.end, offset + 1)
        return found


def row_of(batch: Batch, row: int) -> Row:
    """Return everything that a message is."""
    columns = {name: batch.row_value(name, row) for name in sorted(batch.columns)}
    more = tuple((name, value) for name, value in columns.items() if value is not None)
    return Row(batch.row_source(row), batch.row_time(row), batch.row_body(row), more)


def fill(path: Path) -> tuple[Yard, Truth]:
    """Fill a new data directory with one of everything; its node still runs."""
    users_in(path, [user("bob", ("publish", "orders"), ("consume", "*"), token="a token")])
    yard = Yard(path)
    node = yard.node
    small = 3000
    orders = node.create_topic("orders", TopicSettings(shards=2, segment_bytes=small)).now()
    ledger = node.create_topic(
        "ledger", TopicSettings(durability="fsync", segment_bytes=small, compression="zstd")
    ).now()
    later = node.create_topic("later", TopicSettings(segment_bytes=small)).now()
    node.create_topic("passing", TopicSettings(durability="memory")).now()
    node.create_topic("empty").now()
    node.create_topic("copies", TopicSettings(segment_bytes=small)).now()
    node.catalog.set_mapping({"canary": 3, "batch": 7})
    node.fanouts.create("news").now()
    node.fanouts.add("news", orders).now()
    for topic, names in ((orders, ("audit", "ship")), (ledger, ("books",)), (later, ("alarm",))):
        for name in names:
            topic.create_subscription(name, earliest=True).now()
    orders.create_subscription("strict", SubscriptionSettings(max_attempts=1), earliest=True).now()
    for number in range(12):
        bodies = [b"order %d of %d" % (part, number) for part in range(4)]
        keys: Column = [b"key %d" % part for part in range(4)]
        yard.publish(orders, *bodies, shard=number % 2, key=keys)
        yard.publish(ledger, *(b"entry %d of %d, %s" % (part, number, bytes(60)) for part in range(3)))
        if number % 4 == 0:
            due: Column = [None, yard.clock.now() + HOUR_NS]
            yard.publish(later, b"now %d" % number, b"later %d" % number, due=due, headers=[b'{"a": 1}', None])
        yard.run(1)
    finished = _deliver(yard, orders, ledger)
    node.holds.hold("query", orders.record, [3, 0], 24 * HOUR_NS).now()
    yard.run(3)
    for number in range(3):  # what comes after the last segments were closed
        yard.publish(orders, b"last %d" % number, shard=0)
        yard.publish(ledger, b"last entry %d" % number)
        yard.publish(later, b"last")
    yard.stage("done", 0, "a", b"copied 0", b"copied 1")
    yard.commit("done", 0, "a")
    yard.stage("staged", 0, "a", b"staged 0", b"staged 1")
    yard.run(5)
    ends = {(name, shard.number): shard.end for name, topic in node.topics.items() for shard in topic.shards}
    rows = yard.rows()
    owed = {
        (name, each): {place for place in rows if place[0] == name} - finished.get((name, each), set())
        for name, topic in node.topics.items()
        for each in topic.subscriptions
    }
    waiting = {place for place, row in rows.items() if any(name == "due" for name, _ in row.more)}
    numbers = {name: topic.record.number for name, topic in node.topics.items()}
    pending = (b"pending 0", b"pending 1", b"pending 2")
    yard.stage("under way", 4, "a", *pending)
    node.transactions.commit("under way", 4, ["a"], lambda *_: None)  # no turn of the loop comes to it any more
    return yard, Truth(rows, owed, waiting, ends, Counter(pending), Counter([b"staged 0", b"staged 1"]), numbers)


def _deliver(yard: Yard, orders: Topic, ledger: Topic) -> dict[tuple[str, str], set[Place]]:
    """Finish some, hold some, give some up; return what is finished, by topic and subscription."""
    finished: dict[tuple[str, str], set[Place]] = {}
    seat, got = yard.consume(orders, "audit", 30)
    places = list(got)
    acked = places[::2] + places[1:15:2]
    assert seat.ack([_id(place) for place in acked]) == []
    finished["orders", "audit"] = set(acked)
    seat, got = yard.consume(ledger, "books", 20)
    assert seat.ack([_id(place) for place in got]) == []
    finished["ledger", "books"] = set(got)
    seat, got = yard.consume(orders, "strict", 5)
    given_up = set(got)
    assert seat.release([_id(place) for place in given_up]) == []
    seat.set_credit(1000)
    yard.run(1)
    assert yard.node.topics["orders.dead"].shards[0].end == len(given_up)
    finished["orders", "strict"] = given_up
    return finished


def _id(place: Place) -> int:
    return (place[1] << OFFSET_BITS) + place[2] + 1
