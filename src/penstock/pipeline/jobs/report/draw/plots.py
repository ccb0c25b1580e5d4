"""Plots as SVG: areas and lines over time, bars, percentile curves.

Owns how marks look. Knows nothing of topics. Colours are classes, so that the page says them for light and dark.
Invariant: every mark that is drawn has an extent, every plot has labelled axes, and its values are in the titles that a
browser shows where the pointer is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.pipeline.jobs.report.draw.axes import Axis
from penstock.pipeline.jobs.report.draw.markup import Markup, join, tag

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


WIDE = Size(560, 230)
SMALL = Size(280, 130, left=44, bottom=22, top=8, right=8)


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


def _labels(x: Axis, y: Axis, size: Size) -> list[Markup]:
    floor = size.top + size.up
    found = [tag("line", x1=size.left, x2=size.width - size.right, y1=floor, y2=floor, class_="axis")]
    for at, tick in enumerate(x.ticks):
        place = size.x(x, tick.value)
        found.append(tag("line", x1=f"{place:.1f}", x2=f"{place:.1f}", y1=floor, y2=floor + 4, class_="axis"))
        lines_ = tick.label.split("\n")
        # The first and last labels must not leave the picture.
        wide = 6.2 * max(map(len, lines_)) / 2
        anchor = "start" if place - wide < 0 else "end" if place + wide > size.width else "middle"
        minor = " minor" if at % 2 else ""
        for number, text in enumerate(lines_):
            if number and size.bottom < 30:
                break
            found.append(
                tag("text", text, x=f"{place:.1f}", y=floor + 15 + 12 * number, text_anchor=anchor, class_=f"x{minor}")
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
