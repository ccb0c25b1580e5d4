"""A range of time in equal steps, and the windows after it in which waiting messages come due.

Invariant: every time of the range falls into exactly one step, and there is always at least one; every waiting message
is in one window or among the later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pyspark.sql import Column


SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US

#: Steps a reader can count in.
WIDTHS_US = (
    *(factor * scale for scale in (1_000, 10_000, 100_000) for factor in (1, 2, 5)),
    *(SECOND_US * count for count in (1, 2, 5, 10, 15, 30)),
    *(MINUTE_US * count for count in (1, 2, 5, 10, 15, 30)),
    *(HOUR_US * count for count in (1, 2, 3, 6, 12)),
    *(DAY_US * count for count in (1, 2, 7, 14, 28, 91, 364, 3640)),
)


class Span(msgspec.Struct, frozen=True):
    """A range of time, and the steps it is divided into."""

    since_us: int
    #: Not included.
    until_us: int
    width_us: int

    @classmethod
    def over(cls, since_us: int, until_us: int, steps: int, least_us: int = 1) -> Span:
        """Return a range in about so many steps, one more at most, none of them shorter than the least."""
        length_us = max(until_us - since_us, 1)
        width_us = next((width for width in WIDTHS_US if width * steps >= length_us and width >= least_us), 0)
        return cls(since_us, since_us + length_us, width_us or -(-length_us // steps))

    @property
    def start_us(self) -> int:
        """Return where the first step begins: at a multiple of the width, so at or before the range does."""
        return self.since_us // self.width_us * self.width_us

    @property
    def steps(self) -> int:
        """Return how many steps there are."""
        return -(-(self.until_us - self.start_us) // self.width_us)

    @property
    def width_s(self) -> float:
        """Return the length of a step in seconds."""
        return self.width_us / SECOND_US

    def step_of(self, time_us: Column) -> Column:
        """Return the number of the step in which a time of the range lies."""
        from pyspark.sql import functions as sql

        return sql.floor((time_us - self.start_us) / sql.lit(self.width_us)).cast("int")


NEAR_US = 6 * HOUR_US
FAR_US = 30 * DAY_US
MINUTES = NEAR_US // MINUTE_US
LATER = MINUTES + (FAR_US - NEAR_US) // HOUR_US
#: The windows are wide enough to show this share of what waits; the rest are the later ones.
SHOWN = 0.98


class Windows(msgspec.Struct, frozen=True):
    """Waiting messages by topic, in windows that begin at the end of the range."""

    start_us: int
    width_us: int
    counts: Mapping[str, tuple[int, ...]]
    later: Mapping[str, int]

    @property
    def total(self) -> int:
        """Return how many messages wait."""
        return sum(map(sum, self.counts.values())) + sum(self.later.values())


def slot_of(ahead_us: Column) -> Column:
    """Return the slot of a message that is due so long after the range; null if it is not waiting."""
    from pyspark.sql import functions as sql

    slot = (
        sql.when(ahead_us < NEAR_US, sql.floor(ahead_us / MINUTE_US))
        .when(ahead_us < FAR_US, sql.floor((ahead_us - NEAR_US) / HOUR_US) + MINUTES)
        .otherwise(LATER)
    )
    return sql.when(ahead_us >= 0, slot).cast("int")


def slots_of(ahead_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the slots of messages that wait, as `slot_of` has them; -1 if one does not."""
    near = ahead_us // MINUTE_US
    far = (ahead_us - NEAR_US) // HOUR_US + MINUTES
    slots = np.where(ahead_us < NEAR_US, near, np.where(ahead_us < FAR_US, far, LATER))
    return np.where(ahead_us >= 0, slots, -1)


def begin_us(slot: int) -> int:
    """Return how long after the range a slot begins."""
    return slot * MINUTE_US if slot <= MINUTES else NEAR_US + (slot - MINUTES) * HOUR_US


def windows(start_us: int, slots: Mapping[str, Mapping[int, int]], count: int) -> Windows:
    """Return so many windows at most, from how many messages each topic has in each slot."""
    sums: dict[int, int] = {}
    for one in slots.values():
        for slot, messages in one.items():
            sums[slot] = sums.get(slot, 0) + messages
    width_us = _width_us(sums, count)
    reach_us = min(count * width_us, FAR_US)
    last = max((begin_us(slot) for slot in sums if begin_us(slot) < reach_us), default=0)
    shown = last // width_us + 1
    counts: dict[str, tuple[int, ...]] = {}
    later: dict[str, int] = {}
    for topic, one in slots.items():
        row = [0] * shown
        for slot, messages in one.items():
            at = begin_us(slot) // width_us
            if slot < LATER and at < shown:
                row[at] += messages
            else:
                later[topic] = later.get(topic, 0) + messages
        counts[topic] = tuple(row)
    return Windows(start_us, width_us, counts, later)


def _width_us(sums: Mapping[int, int], count: int) -> int:
    """Return the least round width with which the windows reach far enough."""
    wanted = SHOWN * sum(sums.values())
    for width_us in WIDTHS_US:
        # Beyond six hours slots are hours, which a narrower window would cut.
        if width_us % MINUTE_US or (width_us % HOUR_US and width_us * count > NEAR_US):
            continue
        if sum(each for slot, each in sums.items() if begin_us(slot) < width_us * count) >= wanted:
            return width_us
        if width_us * count >= FAR_US:
            return width_us
    return WIDTHS_US[-1]
