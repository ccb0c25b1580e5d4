"""Plots over the report's range of time, all on the same axis.

Owns how counts in steps become rates with titles. Knows nothing of what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.draw.axes import durations, linear, times
from penstock.pipeline.jobs.report.draw.markup import Markup
from penstock.pipeline.jobs.report.draw.plots import SMALL, WIDE, Series, areas, lines, title
from penstock.pipeline.jobs.report.span import Span

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
