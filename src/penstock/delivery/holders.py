"""Who holds rows of a subscription: a number for everybody, a name for those whose leases outlive them.

A name rests while nobody receives under it and something is on lease; it is forgotten with its last lease. Numbers are
used again. What is on lease to whom, the row states know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.delivery.seat import Seat, nobody
from penstock.errors import Refusal

if TYPE_CHECKING:
    from penstock.delivery.subscription import Subscription

#: Holders are numbered with 16 bits.
HOLDERS_MAX = 0xFFFF

#: A name is written into each journal its holder has rows of.
NAME_BYTES_MAX = 256


class Holders:
    """The holders of one subscription."""

    __slots__ = ("_free", "_subscription", "_top", "named", "names", "seats")

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        #: Those who receive, by number; one seat for each name; the names by number.
        self.seats: dict[int, Seat] = {}
        self.named: dict[str, Seat] = {}
        self.names: dict[int, str] = {}
        self._free: list[int] = []
        self._top = 0

    def of(self, number: int) -> Seat | None:
        """Return the seat of a holder's number."""
        name = self.names.get(number)
        return self.seats.get(number) if name is None else self.named[name]

    def join(self, seat: Seat) -> None:
        """Give a seat a number, or the name it asks for with all that is on lease under it."""
        if not seat.named:
            seat.holder = self._number()
        else:
            last = self.under(seat.name)
            if last.kept or last.holder in self.seats:
                raise Refusal("conflict", f"{self._taken(seat.name)}; close that one first, or take another name")
            seat.holder, seat.in_flight = last.holder, last.in_flight
            self.named[seat.name] = seat
        self.seats[seat.holder] = seat

    def leave(self, seat: Seat, kept: int) -> None:
        """Take back the number of a seat, unless it has a name under which so much is on lease still."""
        del self.seats[seat.holder]
        if seat.named:
            self.rest(self._resting(seat.name, seat.holder, kept))
        else:
            self._free.append(seat.holder)
        seat.holder = -1  # the number is the next one's, and so are its leases

    def rest(self, seat: Seat) -> None:
        """Forget a name under which nobody receives or looks and nothing is on lease."""
        if seat.named and not seat.in_flight and not seat.kept and seat.holder not in self.seats:
            del self.named[seat.name], self.names[seat.holder]
            self._free.append(seat.holder)

    def looking(self, name: str) -> Seat:
        """Return the seat of a name under which nobody receives and looks are made; the name stays."""
        seat = self.under(name)
        if seat.holder in self.seats:
            raise Refusal("conflict", self._taken(name))
        seat.kept = True
        return seat

    def under(self, name: str) -> Seat:
        """Return the seat of a name, which rests if it is new."""
        seat = self.named.get(name)
        if seat is None:
            if not 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX or "\0" in name:
                raise Refusal("bad_request", f"a holder's name has 1 to {NAME_BYTES_MAX} bytes, and no NUL")
            seat = self._resting(name, self._number(), 0)
            self.names[seat.holder] = name
            for cursor in self._subscription.cursors:
                cursor.states.pages.keep_versions()
        return seat

    def _resting(self, name: str, number: int, in_flight: int) -> Seat:
        subscription = self._subscription
        seat = self.named[name] = Seat(subscription, nobody, subscription.settings.lease_ns, name, named=True)
        seat.holder, seat.in_flight = number, in_flight
        return seat

    def _number(self) -> int:
        if self._free:
            return self._free.pop()
        if self._top >= HOLDERS_MAX:
            text = f"subscription {self._subscription.name!r} has {HOLDERS_MAX} consumers, no more fit"
            raise Refusal("conflict", text)
        self._top += 1
        return self._top - 1

    def _taken(self, name: str) -> str:
        return f"somebody receives as {name!r} in subscription {self._subscription.name!r}"
