"""Storage policies and durations as M3 writes them: `<window>[@<precision>]:<retention>`, "1h30m", "1mon".

The node has durations of its own, without months and years. Invariant: reading what was rendered gives the same value
back.
"""

from __future__ import annotations

import re

import msgspec

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


#: What a precision may be: the units that M3's decoders know, largest first.
PRECISIONS_NS = tuple(UNITS_NS[unit] for unit in ("y", "d", "h", "m", "s", "ms", "us", "ns"))
#: Spark's times are microseconds and its watermarks milliseconds.
WINDOW_STEP_NS = UNITS_NS["ms"]
#: A bound, so that a window of any time ends at a time.
WINDOW_NS_MAX = UNITS_NS["y"]
_EXAMPLE = 'write <window>:<retention> like "10s:2d", or with a precision "10s@1s:2d"'


class StoragePolicy(msgspec.Struct, frozen=True):
    """One storage policy."""

    window_ns: int
    precision_ns: int
    retention_ns: int

    def __str__(self) -> str:
        """Return the policy's text, as M3 has it."""
        fine = "" if self.precision_ns == default_precision_ns(self.window_ns) else f"@{rendered(self.precision_ns)}"
        return f"{rendered(self.window_ns)}{fine}:{rendered(self.retention_ns)}"

    @property
    def window_us(self) -> int:
        """The window as Spark counts."""
        return self.window_ns // 1000


def default_precision_ns(window_ns: int) -> int:
    """Return the largest unit that divides a window."""
    return next(unit for unit in PRECISIONS_NS if window_ns % unit == 0)


def storage_policy(text: str, where: str = "policies") -> StoragePolicy:
    """Return the policy that a text means; ConfigError says `where` it stands and what is wrong with it."""
    where = f'{where}: "{text}"'
    resolution, colon, kept = text.strip().partition(":")
    if not colon or not resolution or not kept:
        raise ConfigError(f"{where} is not a storage policy; {_EXAMPLE}")
    window_text, at, fine = resolution.partition("@")
    window_ns = duration_ns(window_text, where)
    retention_ns = duration_ns(kept, where)
    if not 0 < window_ns <= WINDOW_NS_MAX or window_ns % WINDOW_STEP_NS:
        raise ConfigError(f"{where} has a window of {window_text}; windows are whole milliseconds, from 1ms to 1y")
    if retention_ns == 0:
        raise ConfigError(f"{where} keeps nothing; {_EXAMPLE}")
    precision_ns = duration_ns(fine, where) if at else default_precision_ns(window_ns)
    if precision_ns not in PRECISIONS_NS:
        raise ConfigError(f"{where} has precision {fine}; it is one of 1ns, 1us, 1ms, 1s, 1m, 1h, 1d, 1y")
    return StoragePolicy(window_ns, precision_ns, retention_ns)
