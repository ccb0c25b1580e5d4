"""Axes: from values to places on a plot, and where the ticks are.

Owns the choice of ticks. Knows nothing of marks. Invariant: an axis always has some length, also over no values or one
value, and at least one tick.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.options import moment
from penstock.pipeline.jobs.report.span import DAY_US, HOUR_US, MINUTE_US, SECOND_US, WIDTHS_US, Span

#: Round times, about ten times the one before.
DURATIONS_US = (
    *(10**at for at in range(7)), 10 * SECOND_US, 2 * MINUTE_US, 20 * MINUTE_US, 3 * HOUR_US, 30 * HOUR_US,
    12 * DAY_US, 120 * DAY_US, 1200 * DAY_US, 12000 * DAY_US,
)  # fmt: skip


class Tick(NamedTuple):
    """A value that is marked."""

    value: float
    label: str


class Axis(NamedTuple):
    """A range of values on a range of places."""

    low: float
    high: float
    ticks: tuple[Tick, ...]
    #: What is even on the plot: the value itself, or its logarithm.
    even: Callable[[float], float] = float

    def share(self, value: float) -> float:
        """Return where a value is, 0 at the low end and 1 at the high one."""
        low, high = self.even(self.low), self.even(self.high)
        return min(max((self.even(value) - low) / (high - low), 0.0), 1.0)


def linear(high: float, show: Callable[[float], str], ticks: int = 4, *, whole: bool = False) -> Axis:
    """Return an axis from zero to a round number that is not below `high`."""
    step = _round_up((high or 1) / ticks)
    if whole:
        step = max(step, 1)
    many = max(math.ceil(high / step - 1e-9), 1)
    return Axis(0, many * step, tuple(Tick(at * step, show(at * step)) for at in range(many + 1)))


def _round_up(value: float) -> float:
    """Return 1, 2, 2.5 or 5 times a power of ten, not below the value."""
    scale = 10.0 ** math.floor(math.log10(value))
    return next((factor * scale for factor in (1, 2, 2.5, 5) if factor * scale >= value * 0.999999), 10 * scale)


def durations(low_us: float, high_us: float, most: int = 6) -> Axis:
    """Return a logarithmic axis of round times around these."""
    first = max((at for at, tick in enumerate(DURATIONS_US) if tick <= low_us), default=0)
    last = min((at for at, tick in enumerate(DURATIONS_US) if tick >= high_us), default=len(DURATIONS_US) - 1)
    first = min(first, len(DURATIONS_US) - 2)
    found = DURATIONS_US[first : max(last, first + 1) + 1]
    every = max(1, math.ceil((len(found) - 1) / most))
    ticks = tuple(Tick(each, units.duration(each)) for each in found[::every])
    return Axis(found[0], found[-1], ticks, lambda value: math.log10(max(value, 1)))


def times(span: Span, most: int) -> Axis:
    """Return an axis over the steps of a range of time."""
    start, end = span.start_us, span.start_us + span.steps * span.width_us
    step_us = next((each for each in WIDTHS_US if (end - start) / each <= most), WIDTHS_US[-1])
    first = -(-start // step_us) * step_us
    found = list(range(first, end, step_us)) or [start]
    return Axis(start, end, tuple(Tick(at, _time_label(at, step_us, at == found[0])) for at in found))


def _time_label(time_us: int, step_us: int, first: bool) -> str:
    """Return the time of the day, and the date where it changes."""
    at = moment(time_us)
    if step_us >= 28 * DAY_US:
        return at.strftime("%b %Y")
    if step_us >= DAY_US or time_us % DAY_US == 0:
        return at.strftime("%-d %b")
    return units.time_of_day(time_us, step_us) + (at.strftime("\n%-d %b") if first else "")


def nines(most: float) -> Axis:
    """Return an axis of percentiles on which each further nine has the same length."""
    ticks = [Tick(0.0, "min"), Tick(0.5, "50")]
    ticks += [Tick(1 - 10.0**-at, f"{100 - 100 * 10.0**-at:g}") for at in range(1, 6) if 1 - 10.0**-at <= most + 1e-12]
    return Axis(0, most, tuple(ticks), lambda value: -math.log10(max(1 - value, 1e-9)))


def bands(labels: list[str], most: int = 8) -> Axis:
    """Return an axis of things side by side, each one wide; as many are labelled as there is room for."""
    every = max(1, math.ceil(len(labels) / most))
    ticks = tuple(Tick(at + 0.5, label) for at, label in enumerate(labels) if at % every == 0)
    return Axis(0, max(len(labels), 1), ticks)


def edges(labels: list[str], most: int = 7) -> Axis:
    """Return an axis of things side by side, with the labels where they meet; one label more than things."""
    every = max(1, math.ceil(len(labels) / most))
    ticks = tuple(Tick(at, label) for at, label in enumerate(labels) if at % every == 0)
    return Axis(0, max(len(labels) - 1, 1), ticks)
