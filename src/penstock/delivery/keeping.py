"""When what was done in a subscription is kept: what people are told of before, and what they are not.

A topic whose log is on this node's own disk is gone with the node: acks and leases are told at once, and synced now and
then. One whose log is shared may go on elsewhere at any moment, and all that its next owner knows is what was synced.
There an answer waits for the sync, and so do leases under a name: nobody hears of one that a take-over forgets.
Everybody who comes while a sync is under way is in the next one, and all are told in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from penstock.columns import id_of
from penstock.delivery import receipts
from penstock.delivery.cursor import Cursor
from penstock.delivery.instant import Instant
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.message import Done
from penstock.registry.answer import Answer

T = TypeVar("T")


class Host(Protocol):
    """What keeping needs of the topic."""

    def now(self) -> Instant:
        """Return this instant."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call in the next turn."""

    def failed(self, seat: Seat | None, failure: Exception) -> None:
        """Hear that handing rows over failed, and to which seat."""


class AtOnce:
    """Where everything may be told as soon as it is done."""

    __slots__ = ()

    #: Whether anybody has to wait.
    is_late = False

    def wait(self, done: Done) -> None:
        """Call back once everything that was done so far is kept."""
        done(None)

    def kept(self, value: T) -> T | Answer[T]:
        """Return what is to be answered: now, or once everything that was done so far is kept."""
        return value

    def after(self, answer: Answer[T]) -> Answer[T]:
        """Return an answer that comes once everything is kept that was done before it was given."""
        return answer


#: One for all subscriptions of topics that no other node can take over.
AT_ONCE = AtOnce()


class Keeping(AtOnce):
    """Those who wait for one subscription of a shared topic."""

    __slots__ = ("_cursors", "_host", "_is_syncing", "_waiting")

    is_late = True

    def __init__(self, cursors: Sequence[Cursor], host: Host) -> None:
        self._cursors = cursors
        self._host = host
        self._waiting: list[Done] = []
        self._is_syncing = False

    def wait(self, done: Done) -> None:
        """Call back once everything that was done so far is kept, or with the refusal that nobody knows."""
        self._waiting.append(done)
        if not self._is_syncing:
            self._sync()

    def kept(self, value: T) -> T | Answer[T]:
        """Return the answer that comes once everything that was done so far is kept."""
        answer: Answer[T] = Answer()

        def told(error: BaseException | None) -> None:
            if isinstance(error, Exception):
                answer.refuse(error)
            else:
                answer.give(value)

        self.wait(told)
        return answer

    def after(self, answer: Answer[T]) -> Answer[T]:
        """Return an answer that comes once everything is kept that was done before it was given."""

        def later(value: T) -> Answer[T]:
            kept = self.kept(value)
            assert isinstance(kept, Answer)
            return kept

        return answer.then_ask(later)

    def hand(self, seat: Seat, deliveries: list[Delivery], leave: Callable[[Seat], None]) -> None:
        """Hand leased rows to a seat with a name, or to one that asked once, when their leases are kept."""
        seat.unheard += sum(delivery.count for delivery in deliveries)
        if seat.owner is not None:  # it has what it asked for, and hears of it in a moment
            seat.credit = 0
        self.wait(partial(self._handed, seat, deliveries, leave))

    def _handed(
        self, seat: Seat, deliveries: list[Delivery], leave: Callable[[Seat], None], error: BaseException | None
    ) -> None:
        seat.unheard -= sum(delivery.count for delivery in deliveries)
        if seat.gone:
            if seat.owner is not None:  # nobody will ever answer for these; a name keeps what it has
                _give_back(seat.owner, deliveries)
            return
        deliver = seat.deliver
        try:
            if isinstance(error, Exception):
                raise error
            if seat.owner is not None:
                leave(seat)
            deliver(deliveries)
        except Exception as failure:
            _give_back(seat.owner or seat, deliveries)
            self._host.failed(seat, failure)

    def _sync(self) -> None:
        """Write down and sync what was done, for all who wait."""
        group, self._waiting = self._waiting, []
        left = 1
        failure: BaseException | None = None

        def synced(error: BaseException | None) -> None:
            nonlocal left, failure
            left -= 1
            failure = failure or error
            if left == 0:
                self._tell(group, failure)
                self._go_on(failure)

        self._is_syncing = True
        try:
            now = self._host.now()
            for cursor in self._cursors:
                if cursor.dirty:
                    cursor.flush(now)
        except Exception as error:
            synced(error)
            return
        left += len(self._cursors)
        for cursor in self._cursors:
            cursor.states.journal.keep(synced)
        synced(None)

    def _tell(self, group: list[Done], failure: BaseException | None) -> None:
        refusal = None
        if failure is not None:
            text = f"it is not known whether what was asked for is kept ({failure}); look again, or ask again"
            refusal = Refusal("unavailable", text)
        for done in group:
            try:
                done(refusal)
            except Exception as bug:  # one of them must not cost the others their answers
                self._host.failed(None, bug)

    def _go_on(self, failure: BaseException | None) -> None:
        """Begin the next sync; where one failed, others have their turn first: it may fail at once, again and again."""
        self._is_syncing = False
        if self._waiting and failure is None:
            self._sync()
        elif self._waiting:
            self._is_syncing = True
            self._host.call_soon(self._sync)


def _give_back(holder: Seat, deliveries: list[Delivery]) -> None:
    """Let rows go that nobody heard of, unless their leases are over already."""
    given = [
        (id_of(each.shard, offset), version)
        for each in deliveries
        for offset, version in zip(each.offsets(), each.versions or (), strict=False)
    ]
    receipts.release(holder, given, [0] * len(given))
    holder.subscription.holders.rest(holder)
