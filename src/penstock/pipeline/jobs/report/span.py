"""A range of time in equal steps.

Owns how wide a step is: a round number of seconds, minutes, hours or days. Invariant: every time of the range falls
into exactly one step, and there is always at least one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sql

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
    def over(cls, since_us: int, until_us: int, steps: int) -> Span:
        """Return a range in about so many steps, one more at most."""
        length_us = max(until_us - since_us, 1)
        width_us = next((width for width in WIDTHS_US if width * steps >= length_us), 0)
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
        return sql.floor((time_us - self.start_us) / sql.lit(self.width_us)).cast("int")
