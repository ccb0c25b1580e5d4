"""Durations as M3 writes them: "10s", "1h30m", "2d", "1mon", "1y".

Owns the units. The node has a form of its own, without months and years, and the pipeline may not import it.
Invariant: reading what was rendered gives the same number back.
"""

from __future__ import annotations

import re

from penstock.errors import ConfigError

UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
    "mon": 30 * 86_400_000_000_000,
    "y": 365 * 86_400_000_000_000,
}
#: A duration is an int64 of nanoseconds where M3 and the log keep it.
DURATION_NS_MAX = (1 << 63) - 1

#: The units that a duration is rendered in, largest first; weeks, months and years read better as days.
_RENDERED = ("d", "h", "m", "s", "ms", "us", "ns")
_PART = r"([0-9]{1,19})(ns|us|ms|min|mon|s|m|h|d|w|y)"
_WHOLE = re.compile(rf"(?:{_PART})+", re.ASCII)
_EACH = re.compile(_PART, re.ASCII)


def duration_ns(text: str, where: str) -> int:
    """Return the nanoseconds of a text such as "10s" or "1h30m"; ConfigError names `where` it stands."""
    stripped = text.strip()
    if stripped == "0":
        return 0
    if not _WHOLE.fullmatch(stripped):
        raise ConfigError(
            f'{where}: "{text}" is not a duration; write whole numbers with units, like "10s", "1h30m" or "2d" '
            f"(units are {', '.join(UNITS_NS)})"
        )
    total = sum(int(number) * UNITS_NS[unit] for number, unit in _EACH.findall(stripped))
    if total > DURATION_NS_MAX:
        raise ConfigError(f'{where}: "{text}" is too long; the longest duration is 292 years')
    return total


def rendered(duration_ns: int) -> str:
    """Return the text of a duration, largest units first."""
    parts = []
    for unit in _RENDERED:
        count, duration_ns = divmod(duration_ns, UNITS_NS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0"
