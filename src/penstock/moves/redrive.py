"""Redrive: dead letters go back to the topic they failed in, each once.

A letter is leased from the subscription `redrive` of the dead-letter topic, published with a dedup key that names it,
and then acked. What is under way is written in the registry first; a node that died in between finishes exactly the
letters it had leased when it starts again, within the window in which their keys are known.
Invariant: a letter is on lease here, or was never published by us, or is acked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.clock import SECOND
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.errors import Refusal
from penstock.message import Batch, id_of, place_of
from penstock.moves.letters import LEFT_BEHIND, as_before, told
from penstock.moves.move import Origin, Piece, move
from penstock.registry.answer import Answer
from penstock.settings import HOUR_NS

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

NAME = "redrive"
KEYS = "redrive/"

#: Letters under way at a time.
PART_ROWS_MAX = 1000

#: Letters never come back by time: only the one who leased them may know that they were not published.
LEASE_NS = 10 * 365 * 24 * HOUR_NS

#: Letters that are there and cannot be read in this time are left for the next redrive.
READ_NS_MAX = 5 * SECOND


class Redriven(NamedTuple):
    """What a redrive did."""

    moved: int
    topics: dict[str, int]
    #: Letters that stay in the dead-letter topic.
    left: int
    #: Why some stay, or why it ended early.
    problem: str | None


class Intent(msgspec.Struct, frozen=True):
    """A redrive under way, as the registry keeps it."""

    to: str | None


def redrive(node: Node, topic: Topic, to: str | None, limit: int, done: Callable[[Redriven], None]) -> Answer[None]:
    """Move up to `limit` letters of a dead-letter topic, to one topic or each to its own; `done` hears once.

    The answer is that it began, or why it cannot.
    """
    if to is not None and node.topic(to) is topic:
        raise Refusal("bad_request", f"letters of topic {topic.name} cannot be moved to itself")
    _check_free(node, topic)
    found = topic.subscriptions.get(NAME)

    def begin(subscription: Subscription) -> Answer[None]:
        if subscription.settings.paused or topic.settings.paused:
            raise Refusal("conflict", f"topic {topic.name} or its subscription {NAME} is paused; resume it first")
        put = node.catalog.put(_key(topic), msgspec.msgpack.encode(Intent(to)))
        return put.then_make(lambda _: start(subscription))

    def start(subscription: Subscription) -> None:
        _check_free(node, topic)
        Redrive(node, topic, subscription, to, limit, done).begin()

    made = Answer.of(found) if found is not None else topic.create_subscription(NAME, earliest=True)
    return made.then_ask(begin)


def _check_free(node: Node, topic: Topic) -> None:
    if topic.name in node.redrives:
        raise Refusal("conflict", f"a redrive of topic {topic.name} is under way; wait for its end")


def resume(node: Node) -> None:
    """Finish what was under way when the node died."""
    by_key = {_key(topic): topic for topic in node.topics.values()}
    for key, entry in node.catalog.registry.list(KEYS).items():
        topic = by_key.get(key)
        subscription = topic.subscriptions.get(NAME) if topic is not None else None
        if topic is None or subscription is None:
            node.catalog.remove([key])
            continue
        intent = msgspec.msgpack.decode(entry.value, type=Intent)
        Redrive(node, topic, subscription, intent.to, 0, _unheard).begin()


class Redrive:
    """One redrive under way."""

    def __init__(
        self,
        node: Node,
        topic: Topic,
        subscription: Subscription,
        to: str | None,
        limit: int,
        done: Callable[[Redriven], None],
    ) -> None:
        self._node = node
        self._topic = topic
        self._subscription = subscription
        self._seat = subscription.holder(NAME)
        self._to = to
        self._limit = limit
        self._done = done
        self._taken = 0
        self._moved: dict[str, int] = {}
        self._kept: list[int] = []
        self._problem: str | None = None
        self._stop = False
        self._underway = 0

    def begin(self) -> None:
        """Start with what an earlier life had leased, then go on with new letters."""
        self._node.redrives[self._topic.name] = self
        # Nobody else takes from this subscription, so whatever is held there was leased by a redrive.
        held = [place_of(lease.id) for seat in self._subscription.named.values() for lease in seat.leases()]
        self._again(held)

    # --- letters leased before ------------------------------------------------------------------------------------

    def _again(self, held: list[tuple[int, int]]) -> None:
        if not held:
            self._next()
            return
        shard, offset = held[0]
        source = self._topic.shards[shard]
        if source.read(offset) is None:
            source.fetch(offset, partial(self._fetched, held))
        else:
            self._fetched(held)

    def _fetched(self, held: list[tuple[int, int]]) -> None:
        if self._is_over():
            return
        shard, offset = held[0]
        batch = self._topic.shards[shard].read(offset)
        if batch is None or batch.first > offset:
            self._keep([id_of(shard, offset)], "some letters cannot be read any more")
            self._again(held[1:])
            return
        part = [(s, o) for s, o in held if s == shard and batch.first <= o < batch.end]
        rest = [place for place in held if place not in set(part)]
        self._move([(shard, batch, [o - batch.first for _, o in part])], partial(self._again, rest))

    # --- new letters ----------------------------------------------------------------------------------------------

    def _next(self) -> None:
        if self._is_over():
            return
        limit = min(self._limit - self._taken, PART_ROWS_MAX)
        if limit <= 0 or self._stop or self._subscription.depth() == 0:
            self._end()
            return
        look = self._seat.look(limit, LEASE_NS, self._leased)
        if not look.gone:
            clock = self._node.clock
            clock.call_at(clock.monotonic() + READ_NS_MAX, partial(self._too_late, look))

    def _too_late(self, look: Seat) -> None:
        if not look.gone:
            look.close()
            if not self._is_over():
                self._end()

    def _leased(self, deliveries: list[Delivery]) -> None:
        if self._is_over():
            return
        letters = [
            (each.shard, each.batch, [offset - each.batch.first for offset in each.offsets()]) for each in deliveries
        ]
        self._taken += sum(each.count for each in deliveries)
        # Not inside the pump that found them: publishing may pump as well.
        self._node.clock.call_soon(partial(self._move, letters, self._next))

    # --- the move -------------------------------------------------------------------------------------------------

    def _move(self, letters: Sequence[tuple[int, Batch, list[int]]], after: Callable[[], None]) -> None:
        """Move rows of batches, each to its topic."""
        if self._is_over():
            return
        pieces = [(target, piece) for each in letters for target, piece in self._by_target(*each)]
        self._underway = len(pieces)
        if not pieces:
            self._node.clock.call_soon(after)
        for target, piece in pieces:
            ids = piece.ids()
            copies = piece.copies(as_before(piece), LEFT_BEHIND)
            finish, done = partial(self._finish, ids), partial(self._copied, target, ids, after)
            move(copies, [self._node.topics[target]], self, finish, done)

    def _by_target(self, shard: int, batch: Batch, rows: list[int]) -> list[tuple[str, Piece]]:
        record = self._topic.record
        groups: dict[str, list[int]] = {}
        for row in rows:
            target, id_ = self._to or told(batch, row).get("topic"), id_of(shard, batch.first + row)
            if not isinstance(target, str):
                self._keep([id_], "some messages are no dead letters; name a topic to move them to")
            elif target not in self._node.topics:
                self._keep([id_], f"topic {target} does not exist any more")
            elif target == self._topic.name:
                self._keep([id_], "some letters failed in this very topic; name another to move them to")
            else:
                groups.setdefault(target, []).append(row)
        origin = Origin(record.name, record.incarnation, NAME)
        return [(target, Piece(origin, shard, batch, rows)) for target, rows in groups.items()]

    def _finish(self, ids: list[int]) -> None:
        if not self._topic.deleted:
            self._ack(ids)

    def _copied(self, target: str, ids: list[int], after: Callable[[], None], error: BaseException | None) -> None:
        if self._is_over():
            return
        if error is None:
            self._moved[target] = self._moved.get(target, 0) + len(ids)
        else:
            self._keep(ids, f"topic {target} refused them: {error}")
            self._stop = True
        self._underway -= 1
        if self._underway == 0:
            self._node.clock.call_soon(after)

    def _ack(self, ids: list[int]) -> None:
        for seat in list(self._subscription.named.values()):  # an earlier life may have held them under another name
            ids = seat.ack(ids) if ids else ids

    def _keep(self, ids: list[int], why: str) -> None:
        self._kept += ids
        self._problem = self._problem or why

    # --- the end --------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Tell whether the topic went away, or the node ends: then the next start goes on from here."""
        if not self._topic.deleted:
            return False
        if self._node.redrives.pop(self._topic.name, None) is not None:
            if not self._node.stopping:
                self._node.catalog.remove([_key(self._topic)])
            self._tell(f"topic {self._topic.name} went away")
        return True

    def _end(self) -> None:
        if self._kept:
            for seat in list(self._subscription.named.values()):
                seat.release(self._kept)
        del self._node.redrives[self._topic.name]
        self._node.catalog.remove([_key(self._topic)])
        self._tell(self._problem)

    def _tell(self, problem: str | None) -> None:
        left = 0 if self._topic.deleted else self._subscription.depth()
        self._done(Redriven(sum(self._moved.values()), self._moved, left, problem))


def _key(topic: Topic) -> str:
    return f"{KEYS}{topic.record.number}"


def _unheard(result: Redriven) -> None:
    return
