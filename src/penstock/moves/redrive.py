"""Redrive: dead letters go back to the topic they failed in, each once.

A letter is leased from the subscription `redrive` of the dead-letter topic, published with a dedup key that names it,
and then acked. Where the dead-letter topic is a queue that people receive from, it is leased from the subscription they
receive by instead, and is gone from there when it went back. What is under way is written in the registry first; a node
that died in between finishes exactly the letters it had leased when it starts again, within the window in which their
keys are known. The subscription stays as the memory of which letters went back; one that a redrive made goes again if
none did.
Invariant: a letter is on lease here, or was never published by us, or is acked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.callers import OWN
from penstock.clock import SECOND
from penstock.columns import id_of, place_of
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.errors import Refusal
from penstock.message import Batch
from penstock.moves.letters import LEFT_BEHIND, as_before, holds_letters, told
from penstock.moves.move import Origin, Piece, move
from penstock.peers.far import reached
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
    #: The subscription is of its making; if nothing was moved, it goes again.
    made: bool = False
    #: Whose letters they are.
    subscription: str = NAME


def _is_open(topic: str) -> bool:
    return not topic.startswith(OWN)


def redrive(
    node: Node,
    topic: Topic,
    to: str | None,
    limit: int,
    done: Callable[[Redriven], None],
    is_open: Callable[[str], bool] = _is_open,
    subscription: str = NAME,
    rate: int | None = None,
) -> Answer[None]:
    """Move up to `limit` letters of a dead-letter topic, to one topic or each to its own; `done` hears once.

    Headers, which anybody may have written, name a letter's own topic: it must be one that `is_open` to who asks.
    The answer is that it began, or why it cannot; then nothing was made. `subscription` is one that others receive by,
    too: its letters are moved away from it. No more than `rate` letters are moved in a second.
    """
    if to is not None and not node.is_known(to):
        raise Refusal("not_found", f"there is no topic {to!r}")
    if to == topic.name:
        raise Refusal("bad_request", f"letters of topic {topic.name} cannot be moved to itself")
    found = topic.subscriptions.get(subscription)
    if topic.settings.paused or (found is not None and found.settings.paused):
        raise Refusal("conflict", f"topic {topic.name} or its subscription {subscription} is paused; resume it first")
    if topic.name in node.redrives:
        raise Refusal("conflict", f"a redrive of topic {topic.name} is under way; wait for its end")
    intent = Intent(to, made=found is None and subscription == NAME, subscription=subscription)
    return Redrive(node, topic, intent, limit, done, is_open, rate).start()


def resume(node: Node, topics: Iterable[Topic]) -> None:
    """Finish what was under way in topics when their node died."""
    by_key = {_key(topic): topic for topic in topics}
    for key, entry in node.catalog.registry.list(KEYS).items():
        topic = by_key.get(key)
        if topic is None and node.share is not None:
            continue  # it may be another node's
        intent = node.catalog.reader.read(key, entry, Intent)
        if intent is None:
            continue
        subscription = topic.subscriptions.get(intent.subscription) if topic is not None else None
        if topic is None or subscription is None:
            node.catalog.remove([key])
            continue
        Redrive(node, topic, intent, 0, _unheard).begin(subscription)


class Redrive:
    """One redrive under way."""

    _subscription: Subscription
    _seat: Seat

    def __init__(
        self,
        node: Node,
        topic: Topic,
        intent: Intent,
        limit: int,
        done: Callable[[Redriven], None],
        is_open: Callable[[str], bool] = _is_open,
        rate: int | None = None,
    ) -> None:
        self._node = node
        self._topic = topic
        self._intent = intent
        self._to = intent.to
        self._limit = limit
        self._done = done
        self._is_open = is_open
        self._rate = rate
        #: Where there is a rate, no letter is taken before this time.
        self._next_ns = node.clock.monotonic()
        self._taken = 0
        self._moved: dict[str, int] = {}
        self._kept: list[int] = []
        self._problem: str | None = None
        self._stop = False
        self._has_ended = False
        self._underway = 0
        node.redrives[topic.name] = self

    def start(self) -> Answer[None]:
        """Begin, or leave everything as it was and say why not."""
        topic, made = self._topic, self._intent.made
        checked = _check_letters(topic) if made and self._to is None else Answer.of(None)
        noted = checked.then_ask(lambda _: self._node.catalog.put(_key(topic), msgspec.msgpack.encode(self._intent)))
        found = noted.then_ask(
            lambda _: (
                topic.create_subscription(NAME, earliest=True)
                if made
                else Answer.of(topic.subscription(self._intent.subscription))
            )
        )
        begun = found.then_make(self.begin)

        def told(_: None, error: Exception | None) -> None:
            if error is not None and not self._has_ended:
                self._leave()
                if not (self._node.stopping or topic.is_leaving):
                    self._forget()

        begun.then(told)
        return begun

    def begin(self, subscription: Subscription) -> None:
        """Start with what an earlier life had leased, then go on with new letters."""
        self._subscription = subscription
        self._seat = subscription.holder(NAME)
        held = [place_of(lease.id) for seat in self._seats() for lease in seat.leases()]
        self._again(held)

    def _seats(self) -> list[Seat]:
        """Return who holds letters for a redrive: of a subscription of its own, everybody there is."""
        return list(self._subscription.named.values()) if self._intent.subscription == NAME else [self._seat]

    @property
    def moved(self) -> int:
        """How many letters went back."""
        return sum(self._moved.values())

    def stop(self) -> None:
        """Begin with no more letters; those under way are moved."""
        self._stop = True

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
        limit = min(self._limit - self._taken, self._rate or PART_ROWS_MAX, PART_ROWS_MAX)
        if limit <= 0 or self._stop or self._subscription.depth() == 0:
            self._end()
            return
        if self._next_ns > self._node.clock.monotonic():
            self._node.clock.call_at(self._next_ns, self._next)
            return
        look = self._seat.look(limit, LEASE_NS, self._leased, is_free=True)
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
        count = sum(each.count for each in deliveries)
        self._taken += count
        if self._rate is not None:
            self._next_ns = self._node.clock.monotonic() + count * SECOND // self._rate
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
            there = reached(self._node, target)
            if there is None:
                done(Refusal("unavailable", f"topic {target} is gone"))
            else:
                move(copies, [there], self, finish, done)

    def _by_target(self, shard: int, batch: Batch, rows: list[int]) -> list[tuple[str, Piece]]:
        record = self._topic.record
        groups: dict[str, list[int]] = {}
        for row in rows:
            target, id_ = self._to or told(batch, row).get("topic"), id_of(shard, batch.first + row)
            if not isinstance(target, str):
                self._keep([id_], "some messages are no dead letters; name a topic to move them to")
            elif not self._node.is_known(target):
                self._keep([id_], f"topic {target} does not exist any more")
            elif target == self._topic.name:
                self._keep([id_], "some letters failed in this very topic; name another to move them to")
            elif not self._is_open(target):
                self._keep([id_], f"who asked may not publish to topic {target}")
            else:
                groups.setdefault(target, []).append(row)
        origin = Origin(record.name, record.incarnation, self._intent.subscription)
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
        for seat in self._seats():  # an earlier life may have held them under another name
            ids = seat.ack(ids) if ids else ids

    def _keep(self, ids: list[int], why: str) -> None:
        self._kept += ids
        self._problem = self._problem or why

    # --- the end --------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Tell whether the topic went away, or the node ends: then whoever has it next goes on from here."""
        if not self._topic.deleted:
            return False
        if not self._has_ended:
            self._leave()
            if not (self._node.stopping or self._topic.is_leaving):
                self._node.catalog.remove([_key(self._topic)])
            self._tell(0, f"topic {self._topic.name} went away")
        return True

    def _leave(self) -> None:
        """Be under way no more; if the topic went and came again, another redrive is."""
        self._has_ended = True
        if self._node.redrives.get(self._topic.name) is self:
            del self._node.redrives[self._topic.name]

    def _end(self) -> None:
        if self._kept:
            for seat in self._seats():
                seat.release(self._kept)
        left = self._subscription.depth()
        self._leave()
        self._forget().then(lambda _, __: self._tell(left, self._problem))

    def _forget(self) -> Answer[None]:
        """Remove what was made for this redrive, but not the memory of what it moved."""
        topic, subscription = self._topic, self._topic.subscriptions.get(NAME)
        removed = Answer.of(None)
        if self._intent.made and subscription is not None and not subscription.counts()["acked"]:
            removed = topic.delete_subscription(NAME, undone=True)
        # Only after it: if the node dies in between, the next start finds what is left to do.
        return removed.then_ask(lambda _: self._node.catalog.remove([_key(topic)])).settled()

    def _tell(self, left: int, problem: str | None) -> None:
        self._done(Redriven(self.moved, self._moved, left, problem))


def _check_letters(topic: Topic) -> Answer[None]:
    """Look for a dead letter, from the oldest message on, before anything is made for them."""
    checked: Answer[None] = Answer()
    look_on = topic.node.clock.call_soon

    def look(number: int, offset: int, *, fetched: bool = False) -> None:
        if topic.deleted:
            checked.refuse(Refusal("gone", f"topic {topic.name} went away"))
            return
        if number == len(topic.shards):
            checked.refuse(Refusal("conflict", _no_letters(topic)))
            return
        shard = topic.shards[number]
        batch = shard.read(offset)
        if batch is not None and holds_letters(batch):
            checked.give(None)
        elif batch is not None:
            look_on(partial(look, number, batch.end))
        elif offset < shard.readable_end and not fetched:
            shard.fetch(offset, partial(look, number, offset, fetched=True))
        else:
            look_on(partial(look, number + 1, 0))

    look(0, 0)
    return checked


def _no_letters(topic: Topic) -> str:
    if all(shard.start == shard.readable_end for shard in topic.shards):
        return f"topic {topic.name} is empty; there is nothing to move"
    return f"topic {topic.name} holds no dead letters, only messages of its own; name a topic to move those to"


def _key(topic: Topic) -> str:
    return f"{KEYS}{topic.record.number}"


def _unheard(result: Redriven) -> None:
    return
