"""Times and durations as people write them and as they are shown.

A moment is an ISO time, a number of unix milliseconds, or a duration counted from now; shown it is always ISO in UTC
with nanoseconds, because JSON numbers of nanoseconds lose their last digits in many clients.
Invariant: a moment that was shown is read back as the same nanosecond.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from penstock.errors import ConfigError, Refusal
from penstock.units.quantity import parse_duration

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
INT64_MAX = (1 << 63) - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)


def moment(value: str | int | float, now_ns: int, what: str, toward: int = 1) -> int:
    """Return the nanoseconds since 1970 that a value means; `what` names it in errors, -1 counts durations back."""
    if not isinstance(value, str):
        scaled = value * MILLISECOND_NS
        if isinstance(scaled, float) and not math.isfinite(scaled):
            raise _bad(value, what)
        return _checked(round(scaled), what)
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 20:
        return _checked(int(text) * MILLISECOND_NS, what)
    found = _ISO.fullmatch(text)
    if found:
        return _checked(_iso(found, value, what), what)
    try:
        return _checked(now_ns + toward * parse_duration(text), what)
    except ConfigError:
        raise _bad(value, what) from None


def past(value: str | int | float, now_ns: int, what: str) -> int:
    """Return the nanoseconds of a moment where a duration means that long ago."""
    return moment(value, now_ns, what, toward=-1)


def instant(value: str | int | float, what: str) -> int:
    """Return the nanoseconds of a moment that cannot be counted from now."""
    try:
        return moment(value, -INT64_MAX - 1, what)  # so far back that every duration ends before 1970
    except Refusal:
        raise Refusal(
            "bad_column", f"{what} {value!r} is no time: write ISO like 2026-01-31T12:00:00Z, or unix milliseconds"
        ) from None


def duration(text: str, what: str, most_ns: int) -> int:
    """Return the nanoseconds of a duration up to a limit."""
    try:
        length_ns = parse_duration(text)
    except ConfigError as error:
        raise Refusal("bad_request", f"{what}: {error}") from None
    if length_ns > most_ns:
        raise Refusal("bad_request", f"{what} {text!r} is above the limit of {most_ns // SECOND_NS}s")
    return length_ns


def shown(time_ns: int) -> str:
    """Return a time as ISO in UTC, with nanoseconds."""
    seconds, rest_ns = divmod(time_ns, SECOND_NS)
    whole = _EPOCH + timedelta(seconds=seconds)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"


def _iso(found: re.Match[str], value: str, what: str) -> int:
    try:
        whole = datetime.fromisoformat(found[1] + (found[3] or "Z"))
    except ValueError:
        raise _bad(value, what) from None
    seconds = (whole - _EPOCH) // timedelta(seconds=1)
    return seconds * SECOND_NS + int((found[2] or "").ljust(9, "0"))


def _checked(time_ns: int, what: str) -> int:
    if not 0 <= time_ns <= INT64_MAX:
        raise Refusal("bad_column", f"{what} lies outside the years 1970 to 2262")
    return time_ns


def _bad(value: object, what: str) -> Refusal:
    return Refusal(
        "bad_column",
        f"{what} {value!r} is no time: write ISO like 2026-01-31T12:00:00Z, unix milliseconds, or a duration like 30s",
    )
