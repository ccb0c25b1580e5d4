"""Filters that Spark hands to the source: which rows pass, and which topics, shards, offsets and times can hold any.

Owns the meaning of Spark's filters on Arrow columns. Knows nothing of where rows come from.
Invariant: a filter that is taken on gives the verdict Spark would give; one that is not understood is handed back.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

#: By what Arrow calls them.
_COMPARED: dict[type[Filter], str] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
_TEXTS: dict[type[Filter], str] = {
    StringStartsWith: "starts_with",
    StringEndsWith: "ends_with",
    StringContains: "match_substring",
}

#: Larger than every offset and time, smaller than any overflow.
FAR = 1 << 62
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class NotUnderstood(Exception):
    """Spark must judge this filter itself."""


@dataclasses.dataclass
class Conditions:
    """The filters that were taken on, all of which a row must pass."""

    schema: pa.Schema
    filters: list[Filter] = dataclasses.field(default_factory=list)

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take on filters; return those that Spark must apply itself."""
        refused = []
        empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)
        for each in filters:
            try:
                self._verdict(each, empty)  # whether it can be said at all
                self.filters.append(each)
            except (NotUnderstood, pa.ArrowException, TypeError, ValueError, OverflowError):
                refused.append(each)
        return refused

    def passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass."""
        if not self.filters:
            return batch
        pc, mask = _compute(), None
        for each in self.filters:
            verdict = self._verdict(each, batch)
            mask = verdict if mask is None else pc.and_kleene(mask, verdict)
        return batch.filter(mask)

    def may_hold(self, topic: str, shard: int) -> bool:
        """Tell whether any row of a shard can pass, by the columns that are the same for all of them."""
        fixed = {"topic": topic, "shard": shard}
        for each in self.filters:
            name = _column(each)
            if name in fixed:
                row = pa.RecordBatch.from_arrays(
                    [pa.array([fixed[name]], self.schema.field(name).type)], schema=pa.schema([self.schema.field(name)])
                )
                if self._verdict(each, row)[0].as_py() is not True:
                    return False
        return True

    def offsets(self) -> tuple[int, int]:
        """Return a range [low, high) outside which no offset passes."""
        return self._bounds("offset", _whole)

    def times(self) -> tuple[int | None, int | None]:
        """Return a range [low, high) in ns outside which no row passes, None where it is open."""
        low, high = self._bounds("timestamp", _microseconds)
        low, high = low * 1000 if low > -FAR else low, high * 1000 if high < FAR else high
        exact = self._bounds("timestamp_ns", _whole)
        low, high = max(low, exact[0]), min(high, exact[1])
        return (low if low > -FAR else None), (high if high < FAR else None)

    def tags(self) -> list[str] | None:
        """Return the tags of which a row must have one, None if any will do."""
        found: list[str] | None = None
        for each in self.filters:
            if _column(each) == "tag" and isinstance(each, EqualTo | In):
                values = [str(value) for value in (each.value if isinstance(each, In) else [each.value])]
                found = values if found is None else [value for value in found if value in values]
        return found

    def _bounds(self, column: str, number: Any) -> tuple[int, int]:
        low, high = -FAR, FAR
        for each in self.filters:
            if _column(each) != column:
                continue
            if isinstance(each, EqualTo | In):
                values = [number(value) for value in (each.value if isinstance(each, In) else [each.value])]
                low, high = max(low, min(values, default=FAR)), min(high, max(values, default=-FAR) + 1)
            elif isinstance(each, GreaterThan | GreaterThanOrEqual):
                low = max(low, number(each.value) + isinstance(each, GreaterThan))
            elif isinstance(each, LessThan | LessThanOrEqual):
                high = min(high, number(each.value) + isinstance(each, LessThanOrEqual))
        return low, high

    def _verdict(self, one: Filter, batch: pa.RecordBatch) -> pa.Array:
        """Return true, false or null for each row, as SQL would."""
        pc = _compute()
        if isinstance(one, Not):
            return pc.invert(self._verdict(one.child, batch))
        name = _column(one)
        if name is None:
            raise NotUnderstood
        type_ = self.schema.field(name).type
        array = batch.column(name)
        if isinstance(one, IsNull):
            return array.is_null()
        if isinstance(one, IsNotNull):
            return array.is_valid()
        if pa.types.is_nested(type_):
            raise NotUnderstood
        if isinstance(one, In):
            values = pa.array(one.value, type_)
            if values.null_count:
                raise NotUnderstood  # x IN (1, NULL) is never false
            return pc.if_else(array.is_valid(), pc.is_in(array, values), pa.scalar(None, pa.bool_()))
        value = pa.scalar(one.value, type_)  # type: ignore[attr-defined]
        if isinstance(one, EqualNullSafe):
            return array.is_null() if not value.is_valid else pc.fill_null(pc.equal(array, value), False)
        if not value.is_valid:
            raise NotUnderstood
        if type(one) in _COMPARED:
            return getattr(pc, _COMPARED[type(one)])(array, value)
        if type(one) in _TEXTS and pa.types.is_string(type_):
            return getattr(pc, _TEXTS[type(one)])(array, one.value)  # type: ignore[attr-defined]
        raise NotUnderstood


def _compute() -> Any:
    """Return Arrow's functions, imported late: most reads have no filters, and it takes a tenth of a second."""
    import pyarrow.compute

    return pyarrow.compute


def _column(one: Filter) -> str | None:
    """Return the column that a filter is about, None if it is about a part of one."""
    if isinstance(one, Not):
        return _column(one.child)
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else None


def _whole(value: Any) -> int:
    return int(value)


def _microseconds(value: Any) -> int:
    moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    micros: int = (moment - _EPOCH) // datetime.timedelta(microseconds=1)
    return micros
