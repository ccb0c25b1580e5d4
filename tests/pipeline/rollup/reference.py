"""The rollup in plain Python, written from M3's rules and not from the job: what the job's results are held against."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
SECTION = re.compile(r"@.*|#.*|T[0-9]+|(c|e|card):.*", re.ASCII | re.DOTALL)
INT64 = range(-(1 << 63), 1 << 63)
LAST_US = 7_258_118_400_000_000


class Sample(NamedTuple):
    """One sample; `value` is an int where it is a counter."""

    id: str
    kind: str
    value: float | int
    event_us: int
    arrival_us: int
    traffic: int | None
    #: Who came first: shard, offset, place in the body.
    place: tuple[int, ...]


class Aggregate(NamedTuple):
    """One value, and for quantiles all numbers of the window."""

    value: float
    samples: int
    traffic: int | None
    numbers: tuple[float, ...] = ()


Key = tuple[str, str, str, str, int]


def statsd(line: str) -> tuple[str, str, float | int, int | None] | None:
    """Return id, kind, value and time in microseconds of a line, or None where it is no sample."""
    head, *fields = line.split("|")
    name, colon, text = head.partition(":")
    if not fields or not fields[0] or not name or not colon:
        return None
    code, *sections = fields
    kind = {"c": "counter", "g": "gauge", "ms": "timer", "h": "timer"}.get(code)
    if kind is None or not NUMBER.fullmatch(text) or not all(SECTION.fullmatch(each) for each in sections):
        return None
    value: float | int = float(text)
    if math.isinf(value) or (kind == "gauge" and text[0] in "+-"):
        return None
    rates = [each[1:] for each in sections if each.startswith("@")]
    rate = 1.0
    if rates:
        if not NUMBER.fullmatch(rates[0]) or not 0 < float(rates[0]) <= 1:
            return None
        rate = float(rates[0])
    times = [int(each[1:]) for each in sections if each.startswith("T")]
    if times and times[0] * 1_000_000 not in INT64:
        return None
    if kind == "counter":
        whole = _integer(text) if rate == 1 else _rounded(value / rate)
        if whole is None:
            return None
        value = whole
    tags = [each[1:] for each in sections if each.startswith("#")]
    return series(name, _tags(tags[0]) if tags else []), kind, value, times[0] * 1_000_000 if times else None


def series(name: str, tags: Iterable[tuple[str, str]]) -> str:
    """Return the id of a series."""
    found = [f"{_escaped(key)}={_escaped(value)}" for key, value in sorted(tags)]
    return f"m3+{_escaped(name)}+{','.join(dict.fromkeys(found))}" if found else name


def rollup(
    samples: Iterable[Sample],
    policies: dict[str, int],
    chosen: dict[str, tuple[str, ...]],
    lateness_us: int,
) -> tuple[dict[Key, Aggregate], list[tuple[str, Sample]]]:
    """Return aggregates by (id, type, aggregation, policy, window end), and who was late for which policy."""
    windows: dict[tuple[str, str, str, int], list[Sample]] = {}
    late = []
    for sample in samples:
        for policy, width_us in policies.items():
            end = (sample.event_us // width_us + 1) * width_us
            if sample.arrival_us > end + lateness_us:
                late.append((policy, sample))
            else:
                windows.setdefault((sample.id, sample.kind, policy, end), []).append(sample)
    found: dict[Key, Aggregate] = {}
    for (series_id, kind, policy, end), inside in windows.items():
        masks = [sample.traffic for sample in inside if sample.traffic is not None]
        traffic = None
        for mask in masks:
            traffic = (traffic or 0) | mask
        window = Window(inside)
        for name in chosen[kind]:
            value = window.aggregate(name)
            numbers = window.numbers if quantile(name) is not None else ()
            if value is not None and not math.isnan(value):
                found[series_id, kind, name, policy, end] = Aggregate(value, len(inside), traffic, numbers)
    return found, late


def quantile(name: str) -> float | None:
    """Return the quantile that an aggregation means."""
    if name == "median":
        return 0.5
    digits = re.fullmatch(r"p([0-9]+)", name)
    return float(f"0.{digits[1]}") if digits else None


class Window:
    """The samples of one series in one window."""

    def __init__(self, inside: list[Sample]) -> None:
        self.inside = inside
        found = sorted(sample.value for sample in inside if not math.isnan(sample.value))
        self.numbers = tuple(float(number) for number in found)
        whole = [number for number in found if isinstance(number, int)]
        self.is_whole = len(whole) == len(found)
        self.total: float = sum(whole) if self.is_whole else math.fsum(found)
        self.squares: float = sum(each * each for each in whole) if self.is_whole else math.fsum(x * x for x in found)

    def aggregate(self, name: str) -> float | None:
        """Return one aggregate; None where there is none."""
        count, numbers, point = len(self.inside), self.numbers, quantile(name)
        if point is not None and numbers:
            n = len(numbers)
            return numbers[min(int(point * n), n - 1) if n <= 3 else math.ceil(point * n) - 1]
        if name == "last":
            return float(min(self.inside, key=lambda sample: (-sample.event_us, sample.place)).value)
        if name in ("min", "max"):
            return numbers[0 if name == "min" else -1] if numbers else None
        if name == "stdev" and count > 1:
            return math.sqrt((count * self.squares - self.total * self.total) / (count * (count - 1)))
        known = {"sum": self.total, "sum_sq": self.squares, "count": count, "mean": self.total / count, "stdev": 0}
        return float(known[name]) if name in known else None


def _integer(text: str) -> int | None:
    if re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII) and int(text) in INT64:
        return int(text)
    return _rounded(float(text)) if float(text).is_integer() else None


def _rounded(value: float) -> int | None:
    if math.isinf(value):
        return None
    return round(value) if round(value) in INT64 else None


def _tags(text: str) -> list[tuple[str, str]]:
    return [(each.partition(":")[0], each.partition(":")[2]) for each in text.split(",") if each]


def _escaped(text: str) -> str:
    return re.sub(r"([\\,=+])", r"\\\1", text)
