"""Aggregations: which there are for counters, gauges and timers, and what each is worth by M3's rules.

Owns the sums a window keeps while it is open and the way from them to values. Knows nothing of windows or names.
Invariant: counters are summed as integers of 96 bits, so nothing overflows, and only the value handed out is a double.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as sql

KINDS = ("counter", "gauge", "timer")
#: The types of metrics as they stand in a group's key.
COUNTER, GAUGE, TIMER = range(3)

QUANTILES = {
    "median": 0.5,
    **{f"p{number}": number / 100 for number in (10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 95, 99)},
    "p999": 0.999,
    "p9999": 0.9999,
}
#: The end of an aggregate's name, where it is not the aggregation's own.
SUFFIXES = {"min": "lower", "max": "upper"}

_SUMS = ("min", "max", "mean", "count", "sum", "sum_sq", "stdev")
ALLOWED: dict[str, tuple[str, ...]] = {
    "counter": _SUMS,
    "gauge": ("last", *_SUMS),
    "timer": (*_SUMS, *QUANTILES),
}
DEFAULTS: dict[str, tuple[str, ...]] = {
    "counter": ("sum",),
    "gauge": ("last",),
    "timer": ("sum", "sum_sq", "mean", "min", "max", "count", "stdev", "median", "p50", "p95", "p99"),
}
#: One over the error in rank that Spark promises. M3's is 0.001; half of it leaves room.
ACCURACY = 2000
#: Up to this many values M3 takes quantiles by another rule.
FEW = 3

#: Sums of 64-bit integers are kept in two halves, the lower of which has this many bits.
_HALF_BITS = 32
_HALF = (1 << _HALF_BITS) - 1


_VALUES = {
    "last": "last",
    "min": "min",
    "max": "max",
    "count": "n",
    "sum": "total_sum",
    "sum_sq": "total_sum_sq",
    "mean": "total_sum / n",
    # Rounding can leave less than nothing of values that are all alike.
    "stdev": "CASE WHEN samples < 2 THEN 0D ELSE "
    "sqrt(try_divide(greatest(n * total_sum_sq - total_sum * total_sum, 0D), n * (n - 1))) END",
}


def accumulators(chosen: Mapping[str, tuple[str, ...]]) -> dict[str, Column]:
    """Return what a window keeps of its samples for these aggregations.

    Samples have `kind`, `value`, `whole` (the integer of a counter), `bits` (traffic types) and `order`, which says who
    is last: the least of it.
    """
    found = {"samples": sql.count(sql.lit(1)), "traffic": sql.bit_or("bits")}
    # A NaN is counted and may be last; it is no part of anything else.
    number = sql.when(~sql.isnan("value"), sql.col("value"))
    kinds = {name: [kind for kind in KINDS if name in chosen[kind]] for kind in KINDS for name in chosen[kind]}

    def wanted(*names: str) -> set[str]:
        return {kind for name in names for kind in kinds.get(name, ())}

    def only(column: Column, kinds: set[str]) -> Column:
        return column if kinds == set(KINDS) else sql.when(_is(kinds), column)

    quantiles = wanted(*QUANTILES)
    sums, squares = wanted("sum", "mean", "stdev"), wanted("sum_sq", "stdev")
    if "counter" in sums:
        found |= _halves("whole_sum", sql.col("whole"))
    if "counter" in squares:
        square = sql.try_multiply(sql.col("whole"), sql.col("whole"))
        found |= _halves("whole_sum_sq", square)
        found["large_sum_sq"] = sql.sum(sql.when(square.isNull() & _is({"counter"}), number * number))
    if rest := sums - {"counter"}:
        found["sum"] = sql.sum(only(number, rest))
    if rest := squares - {"counter"}:
        found["sum_sq"] = sql.sum(only(number * number, rest))
    # The least and greatest of a few values are among their quantiles.
    if limits := wanted("min", "max") | quantiles:
        found["min"], found["max"] = sql.min(only(number, limits)), sql.max(only(number, limits))
    if quantiles:
        points = sql.array(*(sql.lit(point) for point in _points(chosen)))
        found["quantiles"] = sql.percentile_approx(only(number, quantiles), points, ACCURACY)
        found["numbers"] = sql.count(only(number, quantiles))
    if wanted("last"):
        found["last"] = sql.min_by("value", sql.when(_is({"gauge"}), sql.col("order")))
    return found


def totals(chosen: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return what values are computed from, as SQL over the accumulators: sums of counters and others become one."""
    found = {"n": "CAST(samples AS DOUBLE)"}
    for total, users in (("sum", ("sum", "mean", "stdev")), ("sum_sq", ("sum_sq", "stdev"))):
        used = {kind for kind in KINDS if set(users) & set(chosen[kind])}
        large = " + coalesce(large_sum_sq, 0D)" if total == "sum_sq" else ""
        counted = f"{_whole(total)}{large}" if "counter" in used else "0D"
        others = f"coalesce({total}, 0D)" if used - {"counter"} else "0D"
        found[f"total_{total}"] = f"CASE WHEN kind = {COUNTER} THEN {counted} ELSE {others} END"
    return found


def value(name: str, chosen: Mapping[str, tuple[str, ...]]) -> str:
    """Return an aggregate as SQL over totals and accumulators."""
    if name in QUANTILES:
        return _quantile(QUANTILES[name], _points(chosen))
    return _VALUES[name]


def _is(kinds: set[str]) -> Column:
    return reduce(or_, (sql.col("kind") == KINDS.index(kind) for kind in sorted(kinds)))


def _points(chosen: Mapping[str, tuple[str, ...]]) -> list[float]:
    """Return the quantiles that are asked for; always with the middle one, which small windows need."""
    return sorted({0.5, *(QUANTILES[name] for name in chosen["timer"] if name in QUANTILES)})


def _quantile(point: float, points: list[float]) -> str:
    """Return one quantile: of one to three values the one at floor(q·n), of more the one of rank ceil(q·n)."""
    middle = f"quantiles[{points.index(0.5)}]"
    cases = []
    for count in range(1, FEW + 1):
        place = min(int(point * count), count - 1)
        few = "min" if place == 0 else "max" if place == count - 1 else middle
        cases.append(f"WHEN {count} THEN {few}")
    # Of nothing but NaN there is none, and no array to look into.
    return f"CASE numbers WHEN 0 THEN NULL {' '.join(cases)} ELSE quantiles[{points.index(point)}] END"


def _halves(name: str, whole: Column) -> dict[str, Column]:
    """Return the sums of the upper and lower halves of integers."""
    return {
        f"{name}_high": sql.sum(sql.shiftright(whole, _HALF_BITS)),
        f"{name}_low": sql.sum(whole.bitwiseAND(sql.lit(_HALF))),
    }


def _whole(name: str) -> str:
    """Return a sum of integers as the nearest double: both parts are exact, so only the addition rounds."""
    high, low = f"coalesce(whole_{name}_high, 0L)", f"coalesce(whole_{name}_low, 0L)"
    carried = f"({high} + shiftright({low}, {_HALF_BITS}))"
    return f"(CAST({carried} AS DOUBLE) * {float(1 << _HALF_BITS)}D + CAST({low} & {_HALF}L AS DOUBLE))"
