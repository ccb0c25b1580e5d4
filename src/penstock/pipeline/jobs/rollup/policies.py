"""Storage policies: how wide a window is, how fine its times are, and how long its values are kept.

Owns M3's text form, `<window>[@<precision>]:<retention>`. Invariant: reading what was rendered gives the same policy
back, and a precision that is the default is not rendered.
"""

from __future__ import annotations

import msgspec

from penstock.errors import ConfigError
from penstock.pipeline.jobs.rollup.durations import UNITS_NS, duration_ns, rendered

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


def storage_policy(text: str) -> StoragePolicy:
    """Return the policy that a text means; ConfigError says what is wrong with it."""
    where = f'policies: "{text}"'
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
