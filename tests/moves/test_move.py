"""The one way of messages to other topics: copied, synced, finished, and each once whatever comes in between."""

from __future__ import annotations

from functools import partial

from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.message import Batch, Rows
from penstock.moves.move import Origin, Piece, move
from penstock.node.topic import Topic
from penstock.settings import SubscriptionSettings
from tests.site import Site

HOLDER = "fanout/copies"


class Mover:
    """Takes messages under a name and copies them to topics, as a fan-out does."""

    def __init__(self, site: Site, *targets: str) -> None:
        self.site = site
        self.topic = site.node.topic("source")
        self.targets = [site.node.topic(name) for name in targets]
        self.told: list[BaseException | None] = []
        self.pieces: list[Piece] = []
        subscription = self.topic.subscription("fanout")
        self.seat: Seat = self.topic.attach(subscription, self._leased, holder=HOLDER)
        self.seat.set_credit(100)

    def _leased(self, deliveries: list[Delivery]) -> None:
        origin = Origin(self.topic.name, self.topic.record.incarnation, "fanout")
        for each in deliveries:
            rows = [offset - each.batch.first for offset in each.offsets()]
            self.pieces.append(Piece(origin, each.shard, each.batch, rows))

    def take_up(self) -> None:
        """Find again what an earlier life had on lease."""
        for lease in self.seat.leases():
            offset = lease.id - 1
            batch = read(self.site, self.topic, 0, offset)
            origin = Origin(self.topic.name, self.topic.record.incarnation, "fanout")
            self.pieces.append(Piece(origin, 0, batch, [offset - batch.first]))

    def move(self) -> None:
        pieces, self.pieces = self.pieces, []
        for piece in pieces:
            copies = piece.copies([None] * len(piece.rows))
            move(copies, self.targets, self, partial(self._finish, piece.ids()), self.told.append)

    def _finish(self, ids: list[int]) -> None:
        assert self.seat.ack(ids) == []


def set_up() -> Site:
    site = Site()
    for name in ("source", "a", "b"):
        site.node.create_topic(name).now()
    site.node.topic("source").create_subscription("fanout", SubscriptionSettings()).now()
    return site


def read(site: Site, topic: Topic, shard: int, offset: int) -> Batch:
    topic.shards[shard].fetch(offset, lambda: None)
    site.machine.run()
    batch = topic.shards[shard].read(offset)
    assert batch is not None
    return batch


def bodies(site: Site, name: str) -> list[bytes]:
    found = []
    topic = site.node.topic(name)
    for shard in topic.shards:
        offset = shard.start
        while offset < shard.end:
            batch = read(site, topic, shard.number, offset)
            found += [batch.row_body(row) for row in range(batch.count)]
            offset = batch.end
    return found


def test_message_is_finished_once_every_copy_is_synced() -> None:
    site = set_up()
    mover = Mover(site, "a", "b")
    site.publish(site.node.topic("source"), b"one", b"two")
    mover.move()
    assert mover.told == []
    site.machine.run()
    assert mover.told == [None]
    assert bodies(site, "a") == bodies(site, "b") == [b"one", b"two"]
    assert mover.topic.subscription("fanout").counts()["acked"] == 2
    site.lose_power()
    for shard in (*site.node.topic("a").shards, *site.node.topic("b").shards):
        assert shard.rows_between(shard.start, shard.end) == 2


def test_target_that_refuses_keeps_the_message_here_and_a_second_try_copies_only_what_is_missing() -> None:
    site = set_up()
    mover = Mover(site, "a", "b")
    site.publish(site.node.topic("source"), b"one")
    again = list(mover.pieces)
    mover.targets[1].intake.closed = "gone"
    mover.move()
    site.machine.run()
    assert [str(error) for error in mover.told] == ["topic b takes nothing: it is gone"]
    assert (bodies(site, "a"), mover.seat.in_flight) == ([b"one"], 1)
    mover.targets[1].intake.closed = None
    mover.pieces = again
    mover.move()
    site.machine.run()
    assert mover.told[1:] == [None]
    assert bodies(site, "a") == bodies(site, "b") == [b"one"]
    assert mover.seat.in_flight == 0


def test_move_that_a_crash_cut_off_is_taken_up_again_and_copies_nothing_twice() -> None:
    site = set_up()
    mover = Mover(site, "a", "b")
    site.publish(site.node.topic("source"), b"one", b"two")
    mover._finish = lambda ids: None  # type: ignore[method-assign] # killed between the copy and the end
    mover.move()
    site.machine.run()
    site.start()
    mover = Mover(site, "a", "b")
    assert (mover.pieces, mover.seat.in_flight) == ([], 2)
    mover.take_up()
    mover.move()
    site.machine.run()
    assert mover.told == [None, None]
    assert bodies(site, "a") == bodies(site, "b") == [b"one", b"two"]
    assert mover.topic.subscription("fanout").counts()["acked"] == 2


def test_copies_have_all_columns_but_those_left_behind() -> None:
    rows = Rows.of([b"x", b"y"], "test", {"key": [b"k", None], "due": [5, 6], "dedup": [b"d", b"e"]})
    site = set_up()
    batch = site.node.topic("source").shards[0].append(rows, 1)
    piece = Piece(Origin("source", 3, "fanout"), 0, batch, [1])
    assert set(piece.copies([None]).columns) == {"key", "due", "dedup"}
    copies = piece.copies([b"{}"], ("due",))
    assert set(copies.columns) == {"key", "dedup", "headers"}
    assert copies.columns["dedup"] == [piece.origin.key(0, batch.first + 1)]
    assert piece.origin.key(0, 1) != Origin("source", 4, "fanout").key(0, 1)  # a topic of the same name, made anew
