"""Numbers, sizes and times as people read them, with their units.

Owns how much of a number is shown: three figures, mostly. Sizes are decimal (1 kB is 1000 bytes), times are UTC.
"""

from __future__ import annotations

from penstock.pipeline.jobs.report.options import moment
from penstock.pipeline.jobs.report.span import DAY_US, HOUR_US, MINUTE_US, SECOND_US

THIN = "\u202f"
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def figures(value: float) -> str:
    """Return a number with three figures, without needless zeros."""
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
    if abs(value) < 0.01:
        return f"{value:.1g}" if abs(value) >= 1e-4 else f"{value:.0e}"
    return text.rstrip("0").rstrip(".")


def short(value: float) -> str:
    """Return a number with a prefix for thousands, as 12.3k."""
    size = abs(value)
    for prefix in _PREFIXES:
        if size < 999.5 or prefix == _PREFIXES[-1]:
            return figures(value / 1000 ** _PREFIXES.index(prefix)) + prefix
        size /= 1000
    raise AssertionError("unreachable")


def count(value: float) -> str:
    """Return how many: in full up to a million."""
    return f"{value:,.0f}" if value < 1_000_000 else _spaced(short(value))


def size(value: float) -> str:
    """Return a size in bytes."""
    return f"{figures(value)}{THIN}B" if value < 999.5 else _spaced(short(value)) + "B"


def _spaced(text: str) -> str:
    return text[:-1] + THIN + text[-1] if text[-1].isalpha() else text


def per_second(value: float) -> str:
    """Return a rate of messages."""
    return f"{_spaced(short(value))}/s"


def bytes_per_second(value: float) -> str:
    """Return a rate of bytes."""
    return f"{size(value)}/s"


def share(value: float) -> str:
    """Return a share of a whole, in percent."""
    percent = value * 100
    if 0 < percent < 0.1:
        return f"<{THIN}0.1{THIN}%"
    if 99.9 < percent < 100:
        return f">{THIN}99.9{THIN}%"
    return f"{percent:.1f}".removesuffix(".0") + f"{THIN}%"


def duration(time_us: float) -> str:
    """Return how long, from microseconds on."""
    for unit_us, name in ((DAY_US, "d"), (HOUR_US, "h"), (MINUTE_US, "min"), (SECOND_US, "s"), (1000, "ms")):
        # Two minutes rather than 120 s, but 90 s rather than 1.5 min.
        least = 2 * unit_us if name in ("d", "h", "min") else unit_us
        if time_us >= least * 0.9995:
            return f"{figures(time_us / unit_us)}{THIN}{name}"
    return f"{figures(time_us)}{THIN}µs"


def width(time_us: int) -> str:
    """Return the length of a step of time, which is a round number."""
    units = ((DAY_US, "day"), (HOUR_US, "hour"), (MINUTE_US, "minute"), (SECOND_US, "second"), (1000, "millisecond"))
    for unit_us, name in units:
        if time_us % unit_us == 0:
            return plural(time_us // unit_us, name)
    return duration(time_us)


def instant(time_us: int) -> str:
    """Return a time to the second."""
    return moment(time_us).strftime("%Y-%m-%d %H:%M:%S")


def clock(time_us: int, step_us: int) -> str:
    """Return a time as precisely as steps of this length need, with the day."""
    if step_us % DAY_US == 0:
        return moment(time_us).strftime("%d %b %Y")
    return moment(time_us).strftime("%d %b ") + time_of_day(time_us, step_us)


def time_of_day(time_us: int, step_us: int) -> str:
    """Return a time of the day as precisely as steps of this length need."""
    at = moment(time_us)
    if step_us % MINUTE_US == 0:
        return at.strftime("%H:%M")
    if step_us % SECOND_US == 0:
        return at.strftime("%H:%M:%S")
    return at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03}"


def plural(many: int, one: str, more: str = "") -> str:
    """Return a number and its noun."""
    return f"{count(many)} {one if many == 1 else more or one + 's'}"
