"""The seam for dispatch policies: what rows are dealt by, which lane they stand in, and who may take from which.

A row has a slot, which never changes while the policy is in force and is kept with its state; a lane is one or more
slots, as they are dealt now. So a new deal sorts ready rows anew without reading them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from penstock.columns import Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.page import Slots
from penstock.message import Batch

#: More than anybody could ask for.
NO_LIMIT = 1 << 62


class Taker(Protocol):
    """A seat, as a policy sees it."""

    holder: int
    #: A number of the policy's own: for `tagged` the lane of the tag it asks for.
    lane: int
    name: str
    #: The name under which buckets are dealt to it, and the rack it stands in.
    consumer: str
    rack: str
    #: It passes by what the policy locks, and locks nothing.
    is_free: bool

    @property
    def owner(self) -> Taker | None:
        """Whom it takes for, if it asks but once."""

    @property
    def key_holder(self) -> int:
        """Who keys belong to while rows of them are out here: the holder, or a look that is for it."""


class Stock(Protocol):
    """The ready rows of one shard, as a policy sees them."""

    def codes(self) -> list[int]:
        """Return the lanes that have rows."""

    def by_age(self) -> list[int]:
        """Return the lanes that have rows, the one with the oldest row first."""


class Policy:
    """Who gets which row: arrays in, arrays out. Slots and lanes are numbers of the policy's own, from 0 on.

    These are the answers of one that deals nothing: one lane, open to everybody.
    """

    name = "shared"
    #: Rows stand in several lanes; with one lane, none of the methods is called.
    many = False
    #: Grows whenever `lanes_of` would answer otherwise than before: what stands in lanes is then sorted anew.
    deal = 0
    #: Rows are handed out so long before they are due; their leases begin when they are.
    lead_ns = 0
    #: A lane gives its rows in order, also those that were out before; else both take turns.
    in_order = False
    #: Lanes give their rows by when these were due, also those that were out before, and so does a seat get them. Of
    #: what a seat may take at first, the lanes count as one.
    by_due = False
    #: Where both wait in a lane, what was never out goes first.
    new_first = False
    #: How many times around everybody is asked: first for what is its own, then for what others left.
    ranks = 1

    def take_over(self, before: Policy) -> None:
        """Hear which policy was in force until now, under other settings."""

    def ahead_rows(self, wall_ns: int) -> int:
        """Return how many more rows may go out now that are not due yet."""
        return NO_LIMIT

    def went_ahead(self, due_ns: Offsets, wall_ns: int) -> None:
        """Hear when rows are due that went out."""

    def came_back(self, due_ns: Offsets, wall_ns: int) -> None:
        """Hear of rows that went out at this time, and did not after all."""

    def joined(self, taker: Taker) -> None:
        """Hear that a seat came."""

    def left(self, taker: Taker) -> None:
        """Hear that a seat went."""

    def stock(self, room: int) -> int:
        """Return how many rows shall stand in lanes before a seat that may get so many is asked."""
        return 0

    def slots_of(self, shard: int, batch: Batch, offsets: Offsets) -> Slots | None:
        """Return the slot of each of these rows of a shard's batch; None puts all into slot 0."""
        return None

    def lanes_of(self, slots: Slots) -> Slots:
        """Return the lane of each of these slots."""
        return slots

    def look(self, now: Instant) -> None:
        """Hear what time it is, before everybody is asked."""

    def may_take(self, taker: Taker, lanes: Collection[int], rank: int) -> bool:
        """Tell whether a seat may take from one of some lanes, this time around; asked where it goes by due times."""
        return True

    def open_to(self, taker: Taker, stock: Stock, rank: int, now: Instant) -> Iterable[int]:
        """Return the lanes of a shard a seat may take from this time around, in the order in which they are tried."""
        return stock.codes()

    def served(self, lane: int, taker: Taker, rows: int, until_ns: int) -> bool:
        """Hear how many rows a lane gave to a seat, leased until then; tell whether the next one may be tried."""
        return True

    def unserved(self) -> None:
        """Hear that the rows of the last `served` went back: they could not be written down."""

    def recovered(self, shard: int, offsets: Offsets, ends_ns: Offsets) -> None:
        """Hear which rows of a shard were out when the process before this one ended, and until when they still are."""

    def opens_ns(self, now: Instant) -> int | None:
        """Return the next monotonic time, after now, at which a lane opens; None if time opens none."""
        return None
