"""The table: which consumer has which buckets, from which window on, and in what order it works.

A value. Whoever has the same members, buckets and table before gets the same one, so nodes need not ask each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.columns import BUCKET_MAX
from penstock.dealing import racks
from penstock.dealing.ranges import NOBODY, Owners, simple
from penstock.errors import Refusal

DealerName: TypeAlias = Literal["simple", "gladiator", "rack"]
DEALERS: tuple[DealerName, ...] = get_args(DealerName)

#: So many buckets there may be, numbered from 0 on.
BUCKETS_MAX = BUCKET_MAX


class Member(NamedTuple):
    """A consumer: the rack it stands in, and its name. They sort by the bytes of both, as UTF-8."""

    rack: str
    name: str


class Work(NamedTuple):
    """The buckets of a consumer, in the order in which it tries them: its own, then those it is a backup for."""

    own: npt.NDArray[np.int64]
    backups: npt.NDArray[np.int64]


class Table(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One deal. Members stand in the dealer's order; owners are their places in it."""

    dealer: DealerName
    members: tuple[Member, ...]
    primary: Owners
    #: Of `rack` alone: for each rack, in order, who there has each bucket, as its owner or as a backup.
    by_rack: tuple[Owners, ...] = ()
    #: One more with each deal, and the first window in which it holds.
    epoch: int = 1
    window: int = 0

    @property
    def buckets(self) -> int:
        """How many buckets were dealt."""
        return len(self.primary)

    def rack_names(self) -> list[str]:
        """Return the racks in order."""
        return sorted({member.rack for member in self.members})

    def number_of(self, name: str) -> int:
        """Return the place of a consumer among the members; NOBODY if it is none of them."""
        return next((number for number, member in enumerate(self.members) if member.name == name), NOBODY)

    def ranks(self, number: int) -> npt.NDArray[np.int64]:
        """Return, for each member, after how many others a consumer helps it out; its own come first."""
        count = len(self.members)
        if self.dealer != "rack":
            return (np.arange(count) - number) % max(count, 1)
        names = self.rack_names()
        places = np.array([names.index(member.rack) for member in self.members], np.int64)
        ranks = (places[number] - places) % len(names)
        return np.where(np.arange(count) == number, 0, 1 + ranks * count + np.arange(count))

    def work(self, name: str) -> Work:
        """Return the work of a consumer, none if it is no member.

        Its own buckets ascend; those of others follow owner by owner and descend, so that it meets them in the middle.
        """
        number = self.number_of(name)
        none = np.empty(0, np.int64)
        if number == NOBODY:
            return Work(none, none)
        own = np.flatnonzero(self.primary == number)
        if self.dealer == "simple":
            return Work(own, none)
        held = self.primary >= 0
        if self.dealer == "rack":
            held = self.by_rack[self.rack_names().index(self.members[number].rack)] == number
        backups = np.flatnonzero(held & (self.primary != number))
        order = np.lexsort((-backups, self.ranks(number)[self.primary[backups]]))
        return Work(own, backups[order])

    def idle(self) -> list[str]:
        """Return the members that own nothing, because there are more of them than buckets."""
        counts = np.bincount(self.primary[self.primary >= 0], minlength=len(self.members))
        return [self.members[number].name for number in np.flatnonzero(counts == 0)]


def deal(
    dealer: DealerName, members: Iterable[Member], buckets: int, previous: Table | None = None, window: int = 0
) -> Table:
    """Deal buckets to members, from a window on; what moves since the previous table is as little as the dealer can.

    Without a previous table `rack` deals ranges as well: that clears what joins and leaves have scattered.
    Budget: 50 ms for 65,535 buckets and 1,000 members.
    """
    if not 1 <= buckets <= BUCKETS_MAX:
        raise Refusal("bad_request", f"there cannot be {buckets} buckets; choose from 1 to {BUCKETS_MAX}")
    if dealer not in DEALERS:
        raise Refusal("bad_request", f"there is no dealer {dealer!r}; choose one of {', '.join(DEALERS)}")
    here = tuple(sorted(set(members), key=None if dealer == "rack" else lambda member: member.name))
    numbers = {member.name: number for number, member in enumerate(here)}
    if len(numbers) < len(here):
        raise Refusal("conflict", "two consumers of one name cannot be dealt to; give each a name of its own")
    epoch = 1 if previous is None else previous.epoch + 1
    by_rack: tuple[Owners, ...] = ()
    if dealer != "rack" or not here:
        primary = simple(len(here), buckets)
    else:
        primary, by_rack = _deal_racks(here, numbers, buckets, previous)
    return Table(dealer=dealer, members=here, primary=primary, by_rack=by_rack, epoch=epoch, window=window)


def follow(previous: Table, members: Iterable[Member], window: int) -> Table:
    """Return the table for a window: the previous one as long as the same members are there, else the next deal."""
    here = set(members)
    if here == set(previous.members):
        return previous
    return deal(previous.dealer, here, previous.buckets, previous, window)


def moves(before: Table, after: Table) -> int:
    """Return how many buckets have another owner than before; those that had none, or have none, did not move."""
    if before.buckets != after.buckets:
        return after.buckets
    old = _renumbered(before, {member.name: number for number, member in enumerate(after.members)}, gone=-2)
    return int(((old[before.primary] != after.primary) & (before.primary >= 0) & (after.primary >= 0)).sum())


def _deal_racks(
    here: tuple[Member, ...], numbers: Mapping[str, int], buckets: int, previous: Table | None
) -> tuple[Owners, tuple[Owners, ...]]:
    sizes: dict[str, int] = {}
    for member in here:
        sizes[member.rack] = sizes.get(member.rack, 0) + 1
    nobody = np.full(buckets, NOBODY, np.int32)
    if previous is None or previous.buckets != buckets:
        return racks.deal(list(sizes.values()), nobody, [nobody] * len(sizes))
    old = _renumbered(previous, numbers, gone=NOBODY)
    tables = dict(zip(previous.rack_names(), previous.by_rack, strict=False))
    backed = [old[tables[rack]] if rack in tables else nobody for rack in sizes]
    return racks.deal(list(sizes.values()), old[previous.primary], backed)


def _renumbered(table: Table, numbers: Mapping[str, int], gone: int) -> Owners:
    """Return the new number of each member of a table; the last one is that of NOBODY."""
    return np.array([*(numbers.get(member.name, gone) for member in table.members), NOBODY], np.int32)
