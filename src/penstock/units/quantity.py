"""Durations and sizes as people write them: "30s", "1h30m", "64MiB", "1GB".

Owns the text forms, for the configuration and the command line. Inside the node a duration is whole nanoseconds and
a size whole bytes, both plain ints.
Invariant: parsing what a format function printed gives the same number back.
"""

from __future__ import annotations

import re
from fractions import Fraction

from penstock.errors import ConfigError

DURATION_UNITS = {
    "d": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
SIZE_UNITS = {
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "KB": 10**3,
    "B": 1,
}
#: Either kind of number must fit the log's int64 columns.
QUANTITY_MAX = (1 << 63) - 1

_SIZES_BY_LOWER = {name.lower(): factor for name, factor in SIZE_UNITS.items()}
_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,20})?"
_DURATION = re.compile(rf"(?:{_NUMBER}[a-zµ]+)+", re.ASCII)
_DURATION_PART = re.compile(rf"({_NUMBER})([a-zµ]+)", re.ASCII)
_SIZE = re.compile(rf"({_NUMBER}) ?([A-Za-z]*)", re.ASCII)


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a text such as "30s", "1.5h" or "1h30m"; "0" needs no unit."""
    stripped = text.strip()
    if stripped == "0":
        return 0
    if not _DURATION.fullmatch(stripped):
        raise ConfigError(f'"{text}" is not a duration; write a number and a unit, like "10ms", "30s", "15m" or "1d"')
    total = Fraction(0)
    for number, unit in _DURATION_PART.findall(stripped):
        factor = DURATION_UNITS.get(unit.replace("µ", "u"))
        if factor is None:
            raise ConfigError(f'"{text}" has the unknown unit "{unit}"; units are {", ".join(DURATION_UNITS)}')
        total += Fraction(number) * factor
    return _whole(total, text, "a nanosecond")


def parse_size(text: str) -> int:
    """Return the bytes of a text such as "64MiB", "1GB" or "4096"."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ConfigError(f'"{text}" is not a size; write a number and a unit, like "512KiB", "64MiB" or "1GB"')
    number, unit = match.groups()
    factor = _SIZES_BY_LOWER.get((unit or "B").lower())
    if factor is None:
        raise ConfigError(f'"{text}" has the unknown unit "{unit}"; units are {", ".join(SIZE_UNITS)}')
    return _whole(Fraction(number) * factor, text, "a byte")


def format_duration(duration_ns: int) -> str:
    """Return the shortest exact text of a duration, like "1h30m"."""
    parts = []
    for unit, factor in DURATION_UNITS.items():
        count, duration_ns = divmod(duration_ns, factor)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0"


def format_size(size_bytes: int) -> str:
    """Return the shortest exact text of a size, like "64MiB"."""
    if size_bytes == 0:
        return "0"
    whole = [(size_bytes // factor, unit) for unit, factor in SIZE_UNITS.items() if size_bytes % factor == 0]
    count, unit = min(whole)
    return f"{count}{unit}"


def _whole(value: Fraction, text: str, least: str) -> int:
    if value.denominator != 1:
        raise ConfigError(f'"{text}" is finer than {least}')
    if value > QUANTITY_MAX:
        raise ConfigError(f'"{text}" is too much; at most {QUANTITY_MAX} fit')
    return int(value)
