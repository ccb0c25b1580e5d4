"""A seat: one receiver in a subscription, and everything it may do.

A connection, a look (a poll that is over with its first rows), a relay. It takes credit, and it acks, extends, releases
and removes; what follows from that (journal, timers, handing out more) it sees to itself. A seat without a name holds
leases that die with it; those of a named one are written down, survive the process and are taken up again under the
name. Knows nothing of sockets, frames or other seats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.columns import OFFSET_BITS, Offsets, id_of
from penstock.delivery.cursor import by_shard
from penstock.delivery.page import LEASED
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.message import Batch

if TYPE_CHECKING:
    from penstock.delivery.states import RowStates
    from penstock.delivery.subscription import Subscription

#: Which rows of a batch of a shard a seat wants.
Keep = Callable[[int, Batch, "slice | Offsets"], "npt.NDArray[np.bool_]"]
Deliver = Callable[[list[Delivery]], None]
#: A message's id and the version of a lease of it.
Receipt: TypeAlias = tuple[int, int]
#: Which receipts, by offsets and versions, are good.
Holds = Callable[["RowStates", Offsets, Offsets], "npt.NDArray[np.bool_]"]

#: Up to so many acks are looked at one by one; from about 20 on an array costs less.
FEW = 16

FULL, STEP = 1, 2

#: No holder has so high a number.
_LOOKS = count(1 << 16)

_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class Lease(NamedTuple):
    """A message on lease, as its named holder may list it."""

    id: int
    version: int
    attempts: int
    #: Monotonic time at which it ends.
    ends_ns: int


class Seat:
    """Credit, and what is out against it."""

    __slots__ = (
        "__weakref__",
        "acked",
        "blocked",
        "closing",
        "consumer",
        "credit",
        "deliver",
        "evict",
        "expired",
        "gone",
        "holder",
        "in_flight",
        "is_free",
        "keep",
        "kept",
        "lane",
        "lease_ns",
        "look_number",
        "name",
        "named",
        "owner",
        "queued",
        "rack",
        "received",
        "released",
        "shard",
        "subscription",
        "tag",
        "unheard",
    )

    def __init__(
        self,
        subscription: Subscription,
        deliver: Deliver,
        lease_ns: int,
        name: str = "",
        *,
        tag: str = "",
        keep: Keep | None = None,
        shard: int | None = None,
        evict: Callable[[], None] | None = None,
        owner: Seat | None = None,
        named: bool = False,
        is_free: bool = False,
        consumer: str = "",
        rack: str = "",
    ) -> None:
        self.subscription = subscription
        self.deliver = deliver
        self.lease_ns = lease_ns
        self.name = name
        #: The name under which buckets are dealt to it, its own and nobody else's if it is empty; and where it stands.
        self.consumer = consumer
        self.rack = rack
        #: The tag it asks for: it gets rows with this tag and no others, and nobody else gets them.
        self.tag = tag
        #: Its own filter, applied to what was chosen for it; what it refuses is finished (ruling 12).
        self.keep = keep
        #: The only shard it reads; None for all.
        self.shard = shard
        #: Called if the subscription or the topic goes away under it.
        self.evict = evict
        #: The named seat that a look is for: it holds what the look finds.
        self.owner = owner
        #: Its leases are its name's: written down, and taken up again by whoever comes under it next.
        self.named = named
        #: A look that passes by what its policy locks, and locks nothing.
        self.is_free = is_free
        #: Nobody receives here, but looks are for it: its name stays.
        self.kept = False
        self.holder: int = -1 if owner is None else owner.holder
        #: Tells looks apart, whose holder is the same.
        self.look_number = next(_LOOKS) if owner is not None else -1
        #: The lane of its tag.
        self.lane = 0
        #: It said that it will go: it finishes what it has, and its tag is no longer its own.
        self.closing = False
        self.credit = 0
        self.in_flight = 0
        #: Why it gets nothing for now: its socket is full, it is in the middle of a step.
        self.blocked = 0
        #: It stands in the subscription's line of those with room.
        self.queued = False
        self.gone = False
        #: Rows on lease that it hears of once that is kept.
        self.unheard = 0
        self.received = 0
        self.acked = 0
        self.released = 0
        self.expired = 0

    @property
    def room(self) -> int:
        """How many rows it may get now."""
        return 0 if self.blocked or self.gone else self.credit - self.in_flight

    @property
    def key_holder(self) -> int:
        """Who keys belong to while rows of them are out here: what one look found, another shall not go on with."""
        return self.holder if self.owner is None else self.look_number

    # --- credit ---------------------------------------------------------------------------------------------------

    def set_credit(self, credit: int) -> None:
        """Say how many rows it may hold."""
        self.credit = credit
        self._go_on()

    def block(self) -> None:
        """Take nothing more: what is sent does not leave."""
        self.blocked |= FULL

    def unblock(self) -> None:
        """Take more again."""
        self.blocked &= ~FULL
        self._go_on()

    def begin(self) -> None:
        """Begin a step of several acts: until `end` it gets nothing, so none of them can mean what it has not seen."""
        self.blocked |= STEP

    def end(self) -> None:
        """End a step, and get what there is."""
        self.blocked &= ~STEP
        self._go_on()

    def set_closing(self) -> None:
        """Get nothing more; its tag is no longer its own, what it has it may still finish."""
        self.credit = 0
        if not self.closing:
            self.closing = True
            self.subscription.unclaim(self)

    def _go_on(self) -> None:
        dealer = self.subscription.dealer
        if not self.queued and self.in_flight < self.credit and not (self.blocked or self.gone):
            self.queued = True
            dealer.line.append(self)
        if dealer.line:
            dealer.pump()

    # --- what it holds --------------------------------------------------------------------------------------------

    def ack(self, ids: list[int] | Offsets, versions: list[int] | None = None) -> list[int]:
        """Finish messages; return the ids it does not have, or not in these versions, which only `few` may have.

        Budget: 20 ns a row from 1,000 on.
        """
        subscription = self.subscription
        cursors = subscription.cursors
        host = subscription.host
        if not host.busy:
            host.touch()
        now_ns = host.monotonic()
        refused: list[int] = []
        if len(ids) > FEW:
            for cursor, offsets in by_shard(subscription.cursors, np.asarray(ids, np.int64), refused):
                refused += _ids(cursor.source.number, cursor.states.ack(offsets, self.holder, now_ns))
        elif len(ids) > 1 and len(cursors) == 1:
            # Whatever else an id says, it is a row of the one shard or of none.
            few = [id_ - 1 for id_ in (ids if isinstance(ids, list) else ids.tolist())]
            refused = [place + 1 for place in cursors[0].states.ack_few(few, self.holder, now_ns, versions)]
        else:
            for id_ in ids if isinstance(ids, list) else ids.tolist():
                shard = (id_ - 1) >> OFFSET_BITS
                if not 0 <= shard < len(cursors) or not cursors[shard].states.ack_one(
                    (id_ - 1) & _OFFSET_MASK, self.holder, now_ns
                ):
                    refused.append(id_)
        done = len(ids) - len(refused)
        self.in_flight -= done
        self.acked += done
        if subscription.on_ack is not None:
            subscription.on_ack(_but(ids, refused) if refused else ids)
        if self.named or host.flush_at_once:
            subscription.flush()
        self._go_on()
        return refused

    def few(self, count: int) -> bool:
        """Tell whether so many messages are finished one by one, in one shard."""
        return 1 < count <= FEW and len(self.subscription.cursors) == 1

    def extend(self, ids: list[int] | Offsets, lease_ns: int, *, renew: bool = False) -> list[int]:
        """Let leases last `lease_ns` from now; return the ids it does not have. `renew` gives them new versions."""
        subscription = self.subscription
        subscription.host.touch()
        now = subscription.host.now()
        refused: list[int] = []
        for cursor, offsets in by_shard(subscription.cursors, np.asarray(ids, np.int64), refused):
            most_ns = subscription.settings.lease_max_ns
            rest = cursor.states.extend(
                offsets, self.holder, lease_ns, most_ns, now, begun_ns=self.lease_ns, renew=renew
            )
            refused += _ids(cursor.source.number, rest)
        if self.named:
            subscription.flush()
        return refused

    def release(self, ids: list[int] | Offsets, delay_ns: int = 0) -> list[int]:
        """Give messages back, to go out again after a delay; return the ids it does not have."""
        subscription = self.subscription
        subscription.host.touch()
        now = subscription.host.now()
        refused: list[int] = []
        due_ns = now.wall_ns + delay_ns if delay_ns > 0 else 0
        for cursor, offsets in by_shard(subscription.cursors, np.asarray(ids, np.int64), refused):
            refused += _ids(cursor.source.number, cursor.states.returns.release(offsets, self.holder, due_ns, now))
        done = len(ids) - len(refused)
        self.in_flight -= done
        self.released += done
        subscription.released += done
        subscription.count_revoked()
        if self.named or subscription.host.flush_at_once:
            subscription.flush()
        if due_ns:
            subscription.host.set_timer()
        self._go_on()
        return refused

    def has(self, id_: int) -> bool | None:
        """Tell whether it has a message on lease; None if nobody has."""
        shard, offset = (id_ - 1) >> OFFSET_BITS, (id_ - 1) & _OFFSET_MASK
        cursors = self.subscription.cursors
        if not 0 <= shard < len(cursors):
            return None
        state, holder = cursors[shard].states.pages.few.state_of(offset)
        return (holder == self.holder) if state == LEASED else None

    def flush(self) -> None:
        """Write down what it acked, at once."""
        self.subscription.flush()

    # --- under a name ---------------------------------------------------------------------------------------------

    def look(
        self,
        limit: int,
        lease_ns: int,
        deliver: Deliver,
        *,
        tag: str = "",
        keep: Keep | None = None,
        is_free: bool = False,
    ) -> Seat:
        """Ask once for rows, which this seat then holds: they are answered for by receipt, also after a restart."""
        if not self.kept:
            raise Refusal("bad_request", "only a holder with a name can hold what nobody waits for")
        seat = Seat(self.subscription, deliver, lease_ns, self.name, tag=tag, keep=keep, owner=self, is_free=is_free)
        seat.evict = partial(deliver, [])  # whoever waits learns that there is nothing to wait for
        self.subscription.join_look(seat)
        seat.set_credit(limit)
        return seat

    def current(self, given: Sequence[Receipt]) -> list[bool]:
        """Tell which receipts hold: it has the message on lease, in this version."""
        if len(given) > FEW:
            return self._those(given, lambda states, *rows: states.named.current(*rows, self.holder))
        pages, holder = [cursor.states.pages.few for cursor in self.subscription.cursors], self.holder
        return [
            0 <= (id_ - 1) >> OFFSET_BITS < len(pages)
            and pages[(id_ - 1) >> OFFSET_BITS].lease_of((id_ - 1) & _OFFSET_MASK, holder)[1] == version
            for id_, version in given
        ]

    def last(self, given: Sequence[Receipt]) -> list[bool]:
        """Tell which receipts are over and still the last: the message came back, and nobody has had it since."""
        return self._those(given, lambda states, *rows: states.named.last(*rows))

    def _those(self, given: Sequence[Receipt], holds: Holds) -> list[bool]:
        both = np.array(given, np.int64).reshape(-1, 2)
        versions = both[:, 1]
        good = np.zeros(len(both), np.bool_)
        places = both[:, 0] - 1
        for cursor in self.subscription.cursors:
            mine = places >> OFFSET_BITS == cursor.source.number
            if mine.any():
                order = np.argsort(places[mine], kind="stable")
                offsets = (places[mine] & _OFFSET_MASK)[order]
                found = np.empty(len(order), np.bool_)
                found[order] = holds(cursor.states, offsets, versions[mine][order])
                good[mine] = found
        return good.tolist()

    def leases(self, limit: int | None = None) -> list[Lease]:
        """Return what it holds, in order of the ids, up to `limit` of it."""
        out: list[Lease] = []
        for cursor in self.subscription.cursors:
            rows = cursor.states.leases.of(self.holder)
            if limit is not None:
                rows = rows[: limit - len(out)]
            _, attempts, ends_ns, _ = cursor.states.pages.details(rows)
            versions = cursor.states.pages.versions(rows)
            columns = zip(
                _ids(cursor.source.number, rows), versions.tolist(), attempts.tolist(), ends_ns.tolist(), strict=True
            )
            out += [Lease(*lease) for lease in columns]
        return out

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self, *, release: bool = False) -> None:
        """Leave; what it held is ready for the others at once, or with a name, unless `release`, stays on lease."""
        if not self.gone:
            subscription = self.subscription
            try:
                if subscription.host.flush_at_once:
                    subscription.flush()
            finally:
                subscription.leave(self, release=release)
                subscription.host.left(subscription)


def _ids(shard: int, offsets: Offsets) -> list[int]:
    return [id_of(shard, offset) for offset in offsets.tolist()]


def _but(ids: list[int] | Offsets, refused: list[int]) -> list[int] | Offsets:
    if isinstance(ids, list):
        return [id_ for id_ in ids if id_ not in refused]
    return ids[~np.isin(ids, refused)]


def nobody(deliveries: list[Delivery]) -> None:
    """Refuse rows where nobody waits for them."""
    raise Refusal("bad_request", "this seat asks for its messages, nothing is sent to it")
