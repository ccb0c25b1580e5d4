"""A subscription: named delivery state over a topic, shared by its consumers.

Owns who is here and how much they hold; the rows are the cursors' business, one per shard. Times are passed in and
rows leave through `Consumer.deliver`, so it runs the same on a socket and in a test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from penstock.delivery.consumer import SESSION, Consumer
from penstock.delivery.cursor import LOOKS_MAX, Cursor
from penstock.delivery.journal import ACKED, FINISHED, NAMES, REMOVED
from penstock.delivery.moment import Now
from penstock.delivery.policies.policy import Policy
from penstock.delivery.policies.shared import Shared
from penstock.delivery.policies.tagged import Tagged
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.filters.tag import TagTable
from penstock.message import OFFSET_BITS, SMALL, Offsets, id_of, place_of
from penstock.settings import SubscriptionSettings

#: One pump hands out at most this much before other connections get their turn (ruling 25).
PUMP_ROWS_MAX = 16_384

POLICIES: dict[str, type[Shared]] = {"shared": Shared}

_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class Poll:
    """Somebody who asked for rows and waits until there are some."""

    __slots__ = ("done", "lease_ns", "limit")

    def __init__(self, limit: int, lease_ns: int, done: Callable[[list[Delivery]], None]) -> None:
        self.limit = limit
        self.lease_ns = lease_ns
        self.done = done


class Subscription:
    """Consumers on one side, cursors on the other, a policy between."""

    def __init__(self, name: str, number: int, settings: SubscriptionSettings) -> None:
        self.name = name
        self.number = number
        self.settings = settings
        self.cursors: list[Cursor] = []
        self.line: deque[Consumer] = deque()
        #: How many in that line may have gone; on a quiet topic nobody else would take them out.
        self._gone_in_line = 0
        self.polls: deque[Poll] = deque()
        self.consumers: dict[int, Consumer] = {}
        self.released = 0
        self.expired_leases = 0
        #: Told the ids of what consumers finished, where somebody measures that.
        self.on_ack: Callable[[list[int] | Offsets], None] | None = None
        #: Told what is handed out, before it is, where somebody keeps a history.
        self.on_hand: Callable[[list[Delivery]], None] | None = None
        #: Told that handing rows over failed, and to which consumer (None: to a poll).
        self.on_bug: Callable[[Consumer | None, Exception], None] = _raise
        self._policy: Policy = POLICIES[settings.policy]()
        #: How many consumers ask for each tag, by its code.
        self._claims: dict[int, int] = {}
        self._tags = TagTable()
        self._next_shard = 0
        self._holders: list[int] = []
        self._holder_top = 0
        self._session = Consumer(_nobody, settings.lease_ns, "sessions")
        self._session.holder = SESSION

    def add(self, cursor: Cursor) -> None:
        """Take in the cursor of one shard; what it recovered on lease belongs to sessions."""
        self.cursors.append(cursor)
        self._session.in_flight += cursor.leased

    # --- who is here ----------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer) -> None:
        """Let a consumer in; it gets nothing before it has credit."""
        if consumer.shard is not None:
            self._cursor(consumer.shard)
        if self._gone_in_line * 2 > len(self.line):
            self._gone_in_line = 0
            here = [one for one in self.line if not one.gone]
            self.line.clear()
            self.line.extend(here)
        if self._holders:
            consumer.holder = self._holders.pop()
        elif self._holder_top < SESSION:
            consumer.holder = self._holder_top
            self._holder_top += 1
        else:
            raise Refusal("conflict", f"subscription {self.name!r} has {SESSION} consumers, no more fit")
        self.consumers[consumer.holder] = consumer
        if consumer.tag:
            self._claim(consumer)

    def set_closing(self, consumer: Consumer) -> None:
        """Give a consumer nothing more; its tag is no longer its own, what it has it may still finish."""
        consumer.credit = 0
        if not consumer.closing:
            consumer.closing = True
            self._unclaim(consumer)

    def _claim(self, consumer: Consumer) -> None:
        consumer.outlet = self._tags.code(consumer.tag)
        if not self._claims:
            self._policy = Tagged()
            for cursor in self.cursors:
                cursor.sort_by_tag(self._tags)
        self._claims[consumer.outlet] = self._claims.get(consumer.outlet, 0) + 1

    def _unclaim(self, consumer: Consumer) -> None:
        if not consumer.outlet:
            return
        left = self._claims[consumer.outlet] - 1
        if left:
            self._claims[consumer.outlet] = left
            return
        del self._claims[consumer.outlet]
        if not self._claims:
            self._policy = POLICIES[self.settings.policy]()
            for cursor in self.cursors:
                cursor.sort_by_tag(None)

    def leave(self, consumer: Consumer, now: Now) -> None:
        """Let a consumer go; what it held is ready for the others at once."""
        if consumer.gone or consumer.holder < 0:
            return
        consumer.gone = True
        consumer.deliver = _nobody  # it may stand in line for long, and must not keep a connection in memory
        self._gone_in_line += consumer.queued
        for cursor in self.cursors:
            cursor.leave(consumer.holder, now)
        if not consumer.closing:
            self._unclaim(consumer)
        del self.consumers[consumer.holder]
        self._holders.append(consumer.holder)
        consumer.holder = -1  # the number is the next one's, and so are its leases
        self._count_revoked()

    def set_credit(self, consumer: Consumer, credit: int) -> None:
        """Set how many rows a consumer may hold."""
        consumer.credit = credit
        self.queue(consumer)

    def queue(self, consumer: Consumer) -> None:
        """Put a consumer that has room in the line."""
        if not consumer.queued and consumer.room > 0:
            consumer.queued = True
            self.line.append(consumer)

    # --- out ------------------------------------------------------------------------------------------------------

    def pump(self, now: Now) -> bool:
        """Hand out what can be handed out; True if the work was cut off and should go on in the next turn."""
        if self.settings.paused:
            return False
        while self.polls:
            poll = self.polls[0]
            deliveries = self._lease(poll.limit, poll.lease_ns, now)
            if not deliveries:  # for him: there may be rows that others asked for
                break
            self.polls.popleft()
            if self.on_hand is not None:
                self.on_hand(deliveries)
            try:
                poll.done(deliveries)
            except Exception as failure:  # nobody knows their receipts
                self.release(self._session, [id_ for each in deliveries for id_ in _ids_of(each)], 0, now)
                self.on_bug(None, failure)
        return self._policy.deal(self, PUMP_ROWS_MAX, now) >= PUMP_ROWS_MAX

    def take(self, limit: int, consumer: Consumer, now: Now) -> list[Delivery]:
        """Lease up to `limit` rows to a consumer, from all shards in turn, and finish what its own filter refuses."""
        for _ in range(LOOKS_MAX):
            taken = self._take(limit, consumer, now)
            if consumer.keep is None or not taken:
                return taken
            kept = self._kept(consumer, taken)
            if kept:
                return kept
        for cursor in self.cursors:  # it wants next to nothing: others shall have their turn before the search goes on
            cursor.go_on()
        return []

    def _take(self, limit: int, consumer: Consumer, now: Now) -> list[Delivery]:
        cursors = self.cursors
        if len(cursors) == 1:
            return self._take_from(cursors[0], limit, consumer, now)
        if consumer.shard is not None:
            return self._take_from(cursors[consumer.shard], limit, consumer, now)
        out: list[Delivery] = []
        for _ in cursors:
            self._next_shard = (self._next_shard + 1) % len(cursors)
            part = self._take_from(cursors[self._next_shard], limit, consumer, now)
            limit -= sum(delivery.count for delivery in part)
            out += part
            if limit <= 0:
                break
        return out

    def _take_from(self, cursor: Cursor, limit: int, consumer: Consumer, now: Now) -> list[Delivery]:
        if cursor.outlets is None:
            return cursor.take(limit, consumer.holder, consumer.lease_ns, now)
        # Who asks for no tag gets what has none, and what nobody asks for.
        codes = [consumer.outlet] if consumer.outlet else [c for c in cursor.outlets.codes() if c not in self._claims]
        if cursor.rules.ordered and len(codes) > 1:
            codes.sort(key=cursor.outlets.first)
        out: list[Delivery] = []
        for code in codes:
            part = cursor.take_tagged(code, limit, consumer.holder, consumer.lease_ns, now)
            limit -= sum(delivery.count for delivery in part)
            out += part
            if limit <= 0:
                break
        return out

    def _kept(self, consumer: Consumer, taken: list[Delivery]) -> list[Delivery]:
        kept = []
        for delivery in taken:
            mask = consumer.keep(delivery.shard, delivery.batch, delivery.rows)  # type: ignore[misc]
            if not mask.all():
                refused = delivery.picked(~mask)
                self.cursors[delivery.shard].refuse(refused.batch.first + np.asarray(refused.rows), consumer.holder)
                delivery = delivery.picked(mask)
            if delivery.count:
                kept.append(delivery)
        return kept

    def stocked(self, consumer: Consumer) -> bool:
        """Tell whether sorted rows may be there for a consumer, where rows are dealt by tag."""
        code = consumer.outlet
        if not code:
            return True
        for cursor in self.cursors:  # noqa: SIM110 - as in can_give
            if cursor.outlets is not None and cursor.outlets.get(code) is not None:
                return True
        return False

    def hand(self, consumer: Consumer, deliveries: list[Delivery]) -> int:
        """Send leased rows to their consumer and return how many they are."""
        count = 0
        for delivery in deliveries:
            count += delivery.count
        consumer.in_flight += count
        consumer.received += count
        if self.on_hand is not None:
            self.on_hand(deliveries)
        try:
            consumer.deliver(deliveries)
        except Exception as failure:
            self.on_bug(consumer, failure)
        return count

    def sort_ahead(self, now: Now) -> bool:
        """Look up the tags of more rows; False if there are none to look up now."""
        sorted_some = False
        for cursor in self.cursors:  # each of them, so that no shard waits for another
            sorted_some = cursor.sort_ahead(now) or sorted_some
        return sorted_some

    def can_give(self) -> bool:
        """Tell whether somebody has room and something may be there for him."""
        if not (self.line or self.polls):
            return False
        for cursor in self.cursors:  # noqa: SIM110 - any() would cost a generator for every message
            if cursor.more():
                return True
        return False

    def poll(self, limit: int, lease_ns: int, done: Callable[[list[Delivery]], None]) -> Poll:
        """Ask once for rows that no connection will hold: they are acked by receipt, also after a restart."""
        poll = Poll(limit, lease_ns, done)
        self.polls.append(poll)
        return poll

    def give_up(self, poll: Poll) -> None:
        """Take a poll back."""
        if poll in self.polls:
            self.polls.remove(poll)

    def _lease(self, limit: int, lease_ns: int, now: Now) -> list[Delivery]:
        self._session.lease_ns = lease_ns
        deliveries = self.take(limit, self._session, now)
        looks = LOOKS_MAX
        while not deliveries and self._claims and self.sort_ahead(now):
            looks -= 1
            if looks == 0:  # much is parked: others shall have their turn before the search goes on
                for cursor in self.cursors:
                    cursor.go_on()
                break
            deliveries = self.take(limit, self._session, now)
        self._session.in_flight += sum(delivery.count for delivery in deliveries)
        return deliveries

    # --- back -----------------------------------------------------------------------------------------------------

    def ack(self, consumer: Consumer, ids: list[int] | Offsets) -> list[int]:
        """Finish messages; return the ids this consumer does not have. Budget: 20 ns a row from 1,000 on."""
        if len(ids) <= SMALL:
            return self._ack_few(consumer, ids if isinstance(ids, list) else ids.tolist())
        refused: list[int] = []
        done = len(ids)
        for cursor, offsets in self._by_shard(np.asarray(ids, np.int64), refused):
            refused += self._ids(cursor, cursor.ack(offsets, consumer.holder))
        done -= len(refused)
        consumer.in_flight -= done
        consumer.acked += done
        self.queue(consumer)
        if self.on_ack is not None:
            self.on_ack(np.setdiff1d(ids, refused) if refused else ids)
        return refused

    def _ack_few(self, consumer: Consumer, ids: list[int]) -> list[int]:
        refused = []
        holder = consumer.holder
        for id_ in ids:
            shard = (id_ - 1) >> OFFSET_BITS
            if not (0 <= shard < len(self.cursors)) or not self.cursors[shard].ack_one(
                (id_ - 1) & _OFFSET_MASK, holder
            ):
                refused.append(id_)
        done = len(ids) - len(refused)
        consumer.in_flight -= done
        consumer.acked += done
        if not consumer.queued and consumer.room > 0:
            consumer.queued = True
            self.line.append(consumer)
        if self.on_ack is not None:
            self.on_ack([id_ for id_ in ids if id_ not in refused] if refused else ids)
        return refused

    def extend(self, consumer: Consumer, ids: list[int], lease_ns: int, now: Now) -> list[int]:
        """Let leases last `lease_ns` from now; return the ids this consumer does not have."""
        refused: list[int] = []
        for cursor, offsets in self._by_shard(np.asarray(ids, np.int64), refused):
            rest = cursor.extend(offsets, consumer.holder, lease_ns, self.settings.lease_max_ns, now)
            refused += self._ids(cursor, rest)
        return refused

    def release(self, consumer: Consumer, ids: list[int], delay_ns: int, now: Now) -> list[int]:
        """Give messages back, to go out again after a delay; return the ids this consumer does not have."""
        refused: list[int] = []
        due_ns = now.wall_ns + delay_ns if delay_ns > 0 else 0
        for cursor, offsets in self._by_shard(np.asarray(ids, np.int64), refused):
            refused += self._ids(cursor, cursor.release(offsets, consumer.holder, due_ns, now))
        done = len(ids) - len(refused)
        consumer.in_flight -= done
        consumer.released += done
        self.released += done
        self.queue(consumer)
        self._count_revoked()
        return refused

    def by_receipt(self, receipts: list[tuple[int, int]]) -> tuple[Consumer, list[int], list[int]]:
        """Sort (id, attempts) receipts of session leases into (holder, ids that still hold, ids that do not)."""
        good, stale = [], []
        for id_, attempts in receipts:
            shard, offset = place_of(id_)
            cursor = self.cursors[shard] if 0 <= shard < len(self.cursors) else None
            holds = cursor is not None and cursor.has(offset, SESSION)
            if cursor is not None and holds and int(cursor.attempts(np.array([offset]))[0]) == attempts:
                good.append(id_)
            else:
                stale.append(id_)
        return self._session, good, stale

    def has(self, id_: int, consumer: Consumer) -> bool | None:
        """Tell whether a consumer has a message on lease; None if nobody has."""
        shard, offset = place_of(id_)
        return self.cursors[shard].has(offset, consumer.holder) if 0 <= shard < len(self.cursors) else None

    def expire(self, now: Now) -> None:
        """Give back what was held too long."""
        for cursor in self.cursors:
            for holder, count in cursor.expire(now):
                self.expired_leases += count
                consumer = self._session if holder == SESSION else self.consumers.get(holder)
                if consumer is not None:
                    consumer.in_flight -= count
                    consumer.expired += count
                    self.queue(consumer)
        self._count_revoked()

    # --- without a lease ------------------------------------------------------------------------------------------

    def remove(self, ids: list[int]) -> None:
        """Finish messages whatever their state: the owner does not want them delivered any more."""
        refused: list[int] = []
        for cursor, offsets in self._by_shard(np.asarray(ids, np.int64), refused):
            self._lost(cursor.remove(offsets))

    def ack_up_to(self, id_: int) -> None:
        """Finish every message of a shard up to and including this one."""
        shard, offset = place_of(id_)
        self._lost(self._cursor(shard).finish_below(offset + 1, ACKED))

    def drop_below(self, shard: int, offset: int) -> None:
        """Finish every message of a shard below an offset: it is not kept any more."""
        self._lost(self._cursor(shard).finish_below(offset, REMOVED))

    def empty(self) -> None:
        """Finish everything there is; what a paused topic keeps back is not here yet."""
        for cursor in self.cursors:
            end = cursor.source.readable_end
            self._lost(cursor.finish_below(end if cursor.gate is None else min(cursor.gate, end), REMOVED))

    def seek(self, shard: int, offset: int) -> None:
        """Begin anew at an offset of a shard."""
        cursor = self._cursor(shard)
        if not cursor.source.start <= offset <= cursor.source.readable_end:
            raise Refusal(
                "bad_offset",
                f"offset {offset} of shard {shard} is not kept; choose one from {cursor.source.start} "
                f"to {cursor.source.readable_end}",
            )
        cursor.seek(offset)
        for consumer in self._all():
            consumer.in_flight = sum(len(c.leases_of(consumer.holder)) for c in self.cursors)
            self.queue(consumer)

    def _count_revoked(self) -> None:
        """Give credit back for rows that were taken back because an earlier one of their key was."""
        for cursor in self.cursors:
            if cursor.revoked:
                revoked, cursor.revoked = cursor.revoked, {}
                self._lost(
                    {
                        holder: count
                        for holder, count in revoked.items()
                        if holder in self.consumers or holder == SESSION
                    }
                )

    def _lost(self, lost: dict[int, int]) -> None:
        for holder, count in lost.items():
            consumer = self._session if holder == SESSION else self.consumers[holder]
            consumer.in_flight -= count
            self.queue(consumer)

    # --- what others ask ------------------------------------------------------------------------------------------

    def depth(self) -> int:
        """Return the rows that could be handed out now if there were credit."""
        return sum(cursor.depth() for cursor in self.cursors)

    def in_flight(self) -> int:
        """Return the rows out on lease."""
        return sum(cursor.leased for cursor in self.cursors)

    def waiting(self) -> int:
        """Return the rows that wait for their time."""
        return sum(cursor.waiting for cursor in self.cursors)

    def counts(self) -> dict[str, int]:
        """Return rows passed, held and finished by reason: passed is the sum of the others."""
        totals = {NAMES[op]: sum(cursor.counts[op] for cursor in self.cursors) for op in FINISHED}
        passed = sum(cursor.passed for cursor in self.cursors)
        return {"passed": passed, "held": sum(cursor.held for cursor in self.cursors), **totals}

    @property
    def session(self) -> Consumer:
        """The holder of leases that no connection owns."""
        return self._session

    def _all(self) -> Iterator[Consumer]:
        yield self._session
        yield from self.consumers.values()

    def _cursor(self, shard: int) -> Cursor:
        if not 0 <= shard < len(self.cursors):
            raise Refusal("bad_offset", f"there is no shard {shard} in this topic")
        return self.cursors[shard]

    def _by_shard(self, ids: Offsets, refused: list[int]) -> Iterator[tuple[Cursor, Offsets]]:
        """Yield each shard's cursor with ascending, distinct offsets; what cannot be is added to `refused`."""
        places = ids - 1
        if len(places) > 1 and not bool((places[1:] > places[:-1]).all()):
            places, first = np.unique(places, return_index=True)
            if len(places) < len(ids):
                refused += np.delete(ids, first).tolist()
        if len(self.cursors) == 1 and len(places) and places[0] >= 0 and places[-1] <= _OFFSET_MASK:
            yield self.cursors[0], places
            return
        shards = places >> OFFSET_BITS
        for shard in np.unique(shards).tolist():
            part = places[shards == shard]
            if 0 <= shard < len(self.cursors):
                yield self.cursors[shard], part & _OFFSET_MASK
            else:
                refused += (part + 1).tolist()

    def _ids(self, cursor: Cursor, offsets: Offsets) -> list[int]:
        return [id_of(cursor.source.number, offset) for offset in offsets.tolist()]


def _ids_of(delivery: Delivery) -> list[int]:
    return [id_of(delivery.shard, offset) for offset in delivery.offsets()]


def _raise(_: Consumer | None, failure: Exception) -> None:
    raise failure


def _nobody(deliveries: list[Delivery]) -> None:
    raise Refusal("bad_request", "sessions ask for their messages, nothing is sent to them")
