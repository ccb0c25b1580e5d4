"""The part of SQL that needs no Spark: comparisons of columns with constants, joined by AND, OR, NOT.

Owns what these words mean on Arrow columns. Invariant: a condition that is understood chooses the rows that Spark
would choose; one that is not is left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import KINDS
from penstock.errors import ConfigError, hint

#: True, false or null for each row, as SQL has it.
Verdict = Callable[[Mapping[str, pa.Array]], pa.Array]

_TOKEN = re.compile(r"\s*(?:(\d+)(?![\w.])|'([^'\\]*)'(?!\s*['\"])|([A-Za-z_]\w*)|(<=|>=|<>|!=|==|[=<>(),-]))")
_COMPARED = {
    "=": "equal",
    "==": "equal",
    "!=": "not_equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_KEYWORDS = ("and", "or", "not", "is", "null", "in", "between", "true", "false")
_WHOLE = {"shard", *(name for name, kind in KINDS.items() if kind in ("number", "bits", "bucket"))}
_TEXT = {"topic", *(name for name, kind in KINDS.items() if kind == "text")}
#: Others can be asked only whether they are there: Spark has them in another type.
_NAMES = ("topic", "shard", *KINDS)
_INT64 = range(-(1 << 63), 1 << 63)


class Condition(NamedTuple):
    """Which rows are meant."""

    #: What is looked at.
    columns: tuple[str, ...] = ()
    #: None: all rows are.
    verdict: Verdict | None = None


class _NotUnderstood(Exception):
    """Spark must judge this."""


def condition(text: str) -> Condition | None:
    """Return a condition, None if only Spark understands it; ConfigError names a column that no message has."""
    if not text.strip():
        return Condition()
    try:
        return _Parser(text).parsed()
    except _NotUnderstood:
        return None


class _Parser:
    """Reads one condition; each method reads one kind of phrase and returns its verdict."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._columns: dict[str, None] = {}
        self._unknown = ""

    def parsed(self) -> Condition:
        verdict = self._either()
        if self._at < len(self._tokens):
            raise _NotUnderstood
        if self._unknown:
            near = hint(self._unknown, _NAMES, f"there are {', '.join(_NAMES)}")
            raise ConfigError(f"where cannot be used: a message has no column {self._unknown}; {near}")
        return Condition(tuple(self._columns), verdict)

    def _either(self) -> Verdict:
        first = self._both()
        while self._take("or"):
            first = _joined("or_kleene", first, self._both())
        return first

    def _both(self) -> Verdict:
        first = self._one()
        while self._take("and"):
            first = _joined("and_kleene", first, self._one())
        return first

    def _one(self) -> Verdict:
        if self._take("not"):
            return _inverted(self._one())
        if self._take("("):
            inside = self._either()
            self._expect(")")
            return inside
        return self._comparison(self._column())

    def _comparison(self, name: str) -> Verdict:
        if self._take("is"):
            missing = not self._take("not")
            self._expect("null")
            return lambda row: row[name].is_null() if missing else row[name].is_valid()
        negated = self._take("not")
        if self._take("in"):
            verdict = _among(name, self._values(name))
        elif self._take("between"):
            low = self._value(name)
            self._expect("and")
            verdict = _joined(
                "and_kleene", _compared(name, "greater_equal", low), _compared(name, "less_equal", self._value(name))
            )
        else:
            word = self._next()[1]
            if negated or word not in _COMPARED:
                raise _NotUnderstood
            verdict = _compared(name, _COMPARED[word], self._value(name))
        return _inverted(verdict) if negated else verdict

    def _column(self) -> str:
        kind, word = self._next()
        name = word.lower()
        if kind != "name" or name in _KEYWORDS:
            raise _NotUnderstood
        if name not in _NAMES:
            self._unknown = self._unknown or word
        self._columns[name] = None
        return name

    def _values(self, name: str) -> list[int | str]:
        self._expect("(")
        found = [self._value(name)]
        while self._take(","):
            found.append(self._value(name))
        self._expect(")")
        return found

    def _value(self, name: str) -> int | str:
        """Return a constant of the type that its column has in Spark."""
        negative = self._take("-")
        kind, word = self._next()
        if kind == "number" and (name in _WHOLE or name not in _NAMES):
            value = -int(word) if negative else int(word)
            if value in _INT64:
                return value
        if kind == "text" and not negative and (name in _TEXT or name not in _NAMES):
            return word
        raise _NotUnderstood

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise _NotUnderstood
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, word: str) -> bool:
        """Take a word or sign if it is the next."""
        if self._at == len(self._tokens):
            return False
        kind, said = self._tokens[self._at]
        if kind not in ("name", "sign") or said.lower() != word:
            return False
        self._at += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise _NotUnderstood


def _tokens(text: str) -> list[tuple[str, str]]:
    found = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastindex is None:
            raise _NotUnderstood
        found.append((("number", "text", "name", "sign")[match.lastindex - 1], match[match.lastindex]))
        at = match.end()
    return found


def _compared(name: str, how: str, value: int | str) -> Verdict:
    compare: Any = getattr(pc, how)
    if isinstance(value, int):
        return lambda row: compare(row[name].cast(pa.int64()), pa.scalar(value, pa.int64()))
    return lambda row: compare(row[name], pa.scalar(value))


def _among(name: str, values: list[int | str]) -> Verdict:
    kind = pa.int64() if isinstance(values[0], int) else pa.string()
    wanted = pa.array(values, kind)

    def verdict(row: Mapping[str, pa.Array]) -> pa.Array:
        column = row[name]
        return pc.if_else(column.is_valid(), pc.is_in(column.cast(kind), wanted), pa.scalar(None, pa.bool_()))

    return verdict


def _joined(how: str, one: Verdict, other: Verdict) -> Verdict:
    join: Any = getattr(pc, how)
    return lambda row: join(one(row), other(row))


def _inverted(one: Verdict) -> Verdict:
    return lambda row: pc.invert(one(row))
