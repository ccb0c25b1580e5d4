"""The `partition-locked` policy, as a queue service with partitions has it: a lane is a range of shown ids.

The lane that was used longest ago goes first; one that gave rows is locked for a time, whatever becomes of them; one
that gave none is not. Where all are locked, there is one lane more, up to a limit. What is out stays out in whatever
lane it is then, because rows are leased as everywhere. A look that is free takes from all lanes and locks none.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.columns import OFFSET_BITS, Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.page import Slots
from penstock.delivery.policies.partitions import Partitions
from penstock.delivery.policies.policy import Policy, Stock, Taker
from penstock.message import Batch
from penstock.shown import SPACE, cuts, shown_ids

#: A slot is what is left of a shown id without these bits: 31 fit, and lanes are cut between slots.
_LOW_BITS = 32

#: After all times.
NEVER_NS = (1 << 63) - 1

#: Ids fall into lanes by chance: with twice as many rows as all lanes would give, hardly one gives less than it may.
_STOCK = 2


class PartitionLocked(Policy):
    """Ranges of ids that lock."""

    name = "partition-locked"
    many = True
    in_order = True

    def __init__(self, key: int) -> None:
        """Take the key of the shown ids."""
        self.partitions = Partitions(key)
        self._key = key
        self._now_ns = 0
        #: The lane that gave rows last.
        self._served: int | None = None
        #: Slots, and ends of leases, that a journal told; until it is known how many lanes there are.
        self._recovered: list[tuple[Slots, Offsets]] = []
        self._cut()

    def configure(self, least: int, most: int, visibility_ns: int, age_ns: int, now_ns: int) -> None:
        """Have so many lanes, locked for so long, from now on."""
        self.partitions.configure(least, most, visibility_ns, age_ns, now_ns)
        self._cut()
        if self._recovered:
            # Who locks nothing may have had them for longer than a lock lasts.
            self._keep(now_ns + visibility_ns)
            self._recovered = []

    def is_open(self, now_ns: int) -> bool:
        """Tell whether a look may find something: a lane is free, or one more may be added."""
        return len(self.partitions) < self.partitions.most or bool(self.partitions.free(now_ns).any())

    def passed(self, now_ns: int) -> bool:
        """Note a look that found nothing; False where no lane was free for it, and none could be added."""
        if self.partitions.grow(now_ns):
            self._cut()
        return self.partitions.passed(now_ns)

    def _cut(self) -> None:
        """Deal slots into as many lanes as there are partitions."""
        inner = cuts(0, SPACE, len(self.partitions))[1:-1]
        self._cuts = np.array([-(-cut >> _LOW_BITS) for cut in inner], np.int64)
        self.deal += 1

    # --- the policy -----------------------------------------------------------------------------------------------

    def stock(self, room: int) -> int:
        """Ask for rows in all lanes, so that the one that is due gives what it may."""
        return _STOCK * len(self.partitions) * room

    def slots_of(self, shard: int, batch: Batch | None, offsets: Offsets) -> Slots:
        """Return what stands foremost in the rows' shown ids."""
        ids = (shard << OFFSET_BITS) + offsets + 1
        return (shown_ids(ids, self._key) >> _LOW_BITS).astype(np.int32)

    def lanes_of(self, slots: Slots) -> Slots:
        """Return the partition of each."""
        return np.searchsorted(self._cuts, slots, side="right").astype(np.int32)

    def open_to(self, taker: Taker, stock: Stock, rank: int, now: Instant) -> Iterable[int]:
        """Give lanes that are free, the one used longest ago first; one more if there is none."""
        self._now_ns = now.monotonic_ns
        if taker.is_free:
            return stock.by_age()
        if taker.owner is not None and taker.lane:  # its other shards: one look is one lane
            return (taker.lane - 1,)
        codes = stock.codes()
        if codes and self.partitions.grow(now.monotonic_ns):
            self._cut()
            return ()  # it is asked again, because the lanes are others
        return self.partitions.oldest(now.monotonic_ns, codes)

    def served(self, lane: int, taker: Taker, rows: int, until_ns: int) -> bool:
        """Lock a lane that gave rows, unless they went to somebody who locks nothing."""
        if taker.is_free:
            self._served = None
            return True
        if rows == 0:
            return True
        if taker.owner is not None:
            taker.lane = lane + 1
        self._served = lane
        self.partitions.served(lane, self._now_ns)
        return False

    def unserved(self) -> None:
        """Unlock the lane again."""
        if self._served is not None:
            self.partitions.unlock(self._served)
            self._served = None

    def opens_ns(self, now: Instant) -> int | None:
        """Return when the next lock ends."""
        return self.partitions.opens_ns(now.monotonic_ns)

    def recovered(self, shard: int, offsets: Offsets, ends_ns: Offsets) -> None:
        """Lock lanes whose rows were out when the process before this one ended, until the last of these comes back."""
        self._recovered.append((self.slots_of(shard, None, offsets), ends_ns))
        self._keep()

    def _keep(self, most_ns: int = NEVER_NS) -> None:
        ends_ns = np.zeros(len(self.partitions), np.int64)
        for slots, ends in self._recovered:
            np.maximum.at(ends_ns, self.lanes_of(slots), ends)
        self.partitions.keep(np.minimum(ends_ns, most_ns))
