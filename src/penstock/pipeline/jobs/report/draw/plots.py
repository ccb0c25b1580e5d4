"""Plots as SVG: areas and lines over time, bars, percentile curves, and their axes.

Knows nothing of topics. Colours are classes, so that the page says them for light and dark. Invariant: every mark that
is drawn has an extent, every axis some length and a tick, also over no values or one, and a plot's values are in the
titles that a browser shows where the pointer is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from penstock.markup import Markup, join, tag
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


#: Places in a plot are rounded to a tenth; this is the least extent a mark may have.
LEAST = 0.5


class Series(NamedTuple):
    """Values that belong together, and the number of their colour; None for the colour of what is left over."""

    name: str
    values: Sequence[float | None]
    colour: int | None


class Size(NamedTuple):
    """The places of a plot: its outer size and what the axes' labels take of it."""

    width: int
    height: int
    left: int = 52
    bottom: int = 34
    top: int = 12
    right: int = 14
    #: How far below the axis its labels stand: on a narrow page they must not touch the lowest one beside it.
    below: int = 20

    @property
    def across(self) -> int:
        """Return the width of the inner plot."""
        return self.width - self.left - self.right

    @property
    def up(self) -> int:
        """Return the height of the inner plot."""
        return self.height - self.top - self.bottom

    def x(self, axis: Axis, value: float) -> float:
        """Return how far right a value is."""
        return self.left + axis.share(value) * self.across

    def y(self, axis: Axis, value: float) -> float:
        """Return how far down a value is."""
        return self.top + (1 - axis.share(value)) * self.up


WIDE = Size(560, 238, bottom=42)
SMALL = Size(280, 130, left=44, bottom=22, top=8, right=8, below=15)


def colour(number: int | None, kind: str = "fill") -> str:
    """Return the class of a colour."""
    return f"{kind}-{'rest' if number is None else number % 8}"


def areas(
    label: str, series: Sequence[Series], x: Axis, y: Axis, steps: Sequence[tuple[float, float, str]], size: Size = WIDE
) -> Markup:
    """Return values on top of each other; `steps` are where each begins and ends, and what its title says."""
    base = [0.0] * len(steps)
    marks = []
    for each in series:
        top = [low + (value or 0) for low, value in zip(base, each.values, strict=True)]
        if any(each.values):
            marks.append(tag("path", class_=f"mark {colour(each.colour)}", d=_band(base, top, x, y, steps, size)))
        base = top
    return _plot(label, marks, _hits(steps, x, size), x, y, size)


def _band(
    base: Sequence[float], top: Sequence[float], x: Axis, y: Axis, steps: Sequence[tuple[float, float, str]], size: Size
) -> str:
    """Return the outline of what lies between two stairs."""
    there = []
    back = []
    for low, high, (begin, end, _) in zip(base, top, steps, strict=True):
        left, right = size.x(x, begin), size.x(x, end)
        over, under = size.y(y, high), size.y(y, low)
        if high > low:
            over = min(over, under - LEAST)
        there += [(left, over), (right, over)]
        back += [(left, under), (right, under)]
    return _path([*there, *reversed(back)]) + "Z"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{left:.1f},{down:.1f}" for left, down in points)


def lines(
    label: str, series: Sequence[Series], places: Sequence[float], x: Axis, y: Axis,
    steps: Sequence[tuple[float, float, str]], size: Size = WIDE,
) -> Markup:  # fmt: skip
    """Return values as lines through places; where a value is None the line is broken."""
    marks = []
    for each in series:
        run: list[tuple[float, float]] = []
        runs = [run]
        for place, value in zip(places, each.values, strict=True):
            if value is None:
                run = []
                runs.append(run)
            else:
                run.append((size.x(x, place), size.y(y, value)))
        for run in runs:
            if len(run) == 1:
                marks.append(
                    tag(
                        "circle",
                        class_=f"mark {colour(each.colour)}",
                        cx=f"{run[0][0]:.1f}",
                        cy=f"{run[0][1]:.1f}",
                        r=2,
                    )
                )
            elif run:
                marks.append(tag("path", class_=f"mark line {colour(each.colour, 'stroke')}", d=_path(run)))
    return _plot(label, marks, _hits(steps, x, size), x, y, size)


def bars(label: str, series: Sequence[Series], x: Axis, y: Axis, titles: Sequence[str], size: Size = WIDE) -> Markup:
    """Return bars side by side, one for each value of the series, which stand on top of each other."""
    marks = []
    gap = 0.12 if size.across / max(len(titles), 1) > 6 else 0.0
    base = [0.0] * len(titles)
    for each in series:
        for at, value in enumerate(each.values):
            if not value:
                continue
            left, right = size.x(x, at + gap / 2), size.x(x, at + 1 - gap / 2)
            under, over = size.y(y, base[at]), size.y(y, base[at] + value)
            tall = max(under - over, LEAST)
            marks.append(
                tag(
                    "rect", class_=f"mark {colour(each.colour)}", x=f"{left:.1f}", y=f"{under - tall:.1f}",
                    width=f"{max(right - left, LEAST):.1f}", height=f"{tall:.1f}",
                )
            )  # fmt: skip
            base[at] += value
    return _plot(label, marks, _hits([(at, at + 1, title) for at, title in enumerate(titles)], x, size), x, y, size)


def spark(label: str, values: Sequence[float]) -> Markup:
    """Return a small area without axes, for a cell of a table."""
    size = Size(120, 26, left=0, bottom=1, top=1, right=0)
    axis = Axis(0, max(len(values), 1), ())
    y = Axis(0, max(values, default=0) or 1, ())
    if not any(values):
        return Markup("")
    steps = [(at, at + 1, "") for at in range(len(values))]
    path = tag("path", class_=f"mark {colour(0)}", d=_band([0.0] * len(values), values, axis, y, steps, size))
    return tag(
        "svg", tag("title", label), path, class_="spark", viewBox=f"0 0 {size.width} {size.height}", role="img",
        preserveAspectRatio="none",
    )  # fmt: skip


def _hits(steps: Sequence[tuple[float, float, str]], x: Axis, size: Size) -> list[Markup]:
    """Return what the pointer finds: nothing to be seen, but a title for each step."""
    return [
        tag(
            "rect", tag("title", text), class_="hit", x=f"{size.x(x, begin):.1f}", y=size.top,
            width=f"{max(size.x(x, end) - size.x(x, begin), LEAST):.1f}", height=size.up,
        )
        for begin, end, text in steps
        if text
    ]  # fmt: skip


def _plot(label: str, marks: Sequence[Markup], hits: Sequence[Markup], x: Axis, y: Axis, size: Size) -> Markup:
    """Return a whole plot: grid, marks, axes, and titles on top."""
    grid = [
        tag("line", x1=size.left, x2=size.width - size.right, y1=place, y2=place, class_="grid")
        for place in (f"{size.y(y, tick.value):.1f}" for tick in y.ticks)
    ]
    return tag(
        "svg", join((grid, marks, _labels(x, y, size), hits)), viewBox=f"0 0 {size.width} {size.height}", role="img",
        aria_label=label, class_="plot",
    )  # fmt: skip


#: How wide a letter is, about, and on a narrow page, where letters are larger in comparison.
LETTER, LETTER_ON_PHONES = 6.2, 9.0
#: Labels have at least so much between them.
APART = 6.0


def clear(x: Axis, size: Size, letter: float) -> set[int]:
    """Return which ticks can have a label without touching the one before."""
    found: set[int] = set()
    free_from = -math.inf
    for at, tick in enumerate(x.ticks):
        left, right, _ = ends_of(tick, size.x(x, tick.value), size, letter)
        if left >= free_from:
            found.add(at)
            free_from = right + APART
    return found


def ends_of(tick: Tick, place: float, size: Size, letter: float) -> tuple[float, float, str]:
    """Return where a label begins and ends, and its anchor: the first and last must not leave the picture."""
    wide = letter * max(map(len, tick.label.split("\n")))
    if place - wide / 2 < 0:
        return place, place + wide, "start"
    if place + wide / 2 > size.width:
        return place - wide, place, "end"
    return place - wide / 2, place + wide / 2, "middle"


def _labels(x: Axis, y: Axis, size: Size) -> list[Markup]:
    floor = size.top + size.up
    found = [tag("line", x1=size.left, x2=size.width - size.right, y1=floor, y2=floor, class_="axis")]
    shown, on_phones = clear(x, size, LETTER), clear(x, size, LETTER_ON_PHONES)
    for at, tick in enumerate(x.ticks):
        place = size.x(x, tick.value)
        found.append(tag("line", x1=f"{place:.1f}", x2=f"{place:.1f}", y1=floor, y2=floor + 4, class_="axis"))
        if at not in shown:
            continue
        anchor = ends_of(tick, place, size, LETTER)[2]
        minor = "" if at in on_phones else " minor"
        for number, text in enumerate(tick.label.split("\n")):
            if number and size.bottom < 30:
                break
            found.append(
                tag(
                    "text",
                    text,
                    x=f"{place:.1f}",
                    y=floor + size.below + 14 * number,
                    text_anchor=anchor,
                    class_=f"x{minor}",
                )
            )
    found += [
        tag(
            "text", tick.label, x=size.left - 7, y=f"{size.y(y, tick.value) + 3.6:.1f}", text_anchor="end", class_="y"
        )
        for tick in y.ticks
    ]  # fmt: skip
    return found


def legend(entries: Sequence[tuple[str, int | None]]) -> Markup:
    """Return names and their colours."""
    chips = [
        tag("span", tag("i", class_=colour(number, "chip")), tag("bdi", name), class_="entry")
        for name, number in entries
    ]
    return tag("div", chips, class_="legend") if len(entries) > 1 else Markup("")


def title(heading: str, values: Sequence[tuple[str, float]], show: Callable[[float], str]) -> str:
    """Return what a step's title says: its heading, and each value that is not zero."""
    return "\n".join([heading, *(f"{name}: {show(value)}" if name else show(value) for name, value in values if value)])


Show = Callable[[float], str]


def added(rows: Iterable[Sequence[int]], span: Span) -> list[int]:
    """Return the sums of several courses in each step."""
    found = [0] * span.steps
    for row in rows:
        found = [one + other for one, other in zip(found, row, strict=True)]
    return found


def rates(label: str, series: Sequence[Series], span: Span, show: Show, *, small: bool = False) -> Markup:
    """Return counts per step as areas of rates per second, on top of each other."""
    per_second = [
        Series(each.name, [(value or 0) / span.width_s for value in each.values], each.colour) for each in series
    ]
    return stacked(label, per_second, span, show, small=small)


def stacked(label: str, series: Sequence[Series], span: Span, show: Show, *, small: bool = False) -> Markup:
    """Return values of each step as areas on top of each other."""
    high = max(
        (sum(value or 0 for value in step) for step in zip(*(each.values for each in series), strict=True)), default=0
    )
    steps = [
        (begin, end, title(_heading(begin, end, span), [(each.name, each.values[at] or 0) for each in series], show))
        for at, (begin, end) in enumerate(_steps(span))
    ]
    x, y = times(span, 4 if small else 8), linear(high, show, 2 if small else 4)
    return areas(label, series, x, y, steps, SMALL if small else WIDE)


def curves(label: str, series: Sequence[Series], span: Span) -> Markup:
    """Return durations in microseconds as lines, on a logarithmic axis; None is where there was none."""
    known = [value for each in series for value in each.values if value is not None]
    y = durations(min(known, default=1), max(known, default=1))
    steps = [
        (
            begin,
            end,
            title(_heading(begin, end, span), [(each.name, each.values[at] or 0) for each in series], units.duration),
        )
        for at, (begin, end) in enumerate(_steps(span))
    ]
    places = [(begin + end) / 2 for begin, end, _ in steps]
    return lines(label, series, places, times(span, 8), y, steps)


def _steps(span: Span) -> list[tuple[int, int]]:
    return [(span.start_us + at * span.width_us, span.start_us + (at + 1) * span.width_us) for at in range(span.steps)]


def _heading(begin_us: int, end_us: int, span: Span) -> str:
    if span.width_us % 86_400_000_000 == 0:
        return units.clock(begin_us, span.width_us)
    return f"{units.clock(begin_us, span.width_us)} – {units.time_of_day(end_us, span.width_us)}"
