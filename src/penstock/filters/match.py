"""Header filters: which messages a consumer takes by what their headers say.

Owns the rule of `ext_filter`. Knows nothing of consumers or delivery, and needs nothing of the node, because
Spark executors run it too.
Invariant: a batch gets the verdicts its rows would get one by one. What has no header, or one that is no object, never
matches; `inverse` turns the answer round afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import SMALL, Column
from penstock.errors import PenstockError
from penstock.filters.glob import BadGlob, regex_of
from penstock.filters.header import Members, members_of

#: Values that a pattern has judged, and how long a remembered one may be: together at most a few MB.
REMEMBERED_MAX = 4096
REMEMBERED_BYTES_MAX = 512
#: RE2 takes time in proportion to pattern and value, but Arrow compiles the pattern at every call: these keep a
#: client's pattern from holding up the others.
PATTERN_BYTES_MAX = 256
PATTERN_COUNT_MAX = 256
#: A Unicode property such as \pL takes a millisecond to compile, so these together with their repetitions are few.
PROPERTIES_MAX = 8

EQUAL, REGEX, GLOB, LIST = 1, 2, 3, 4

Verdicts: TypeAlias = npt.NDArray[np.bool_]

_PROPERTY = re.compile(r"\\[pP]")
_COUNTED = re.compile(r"\{(\d+),?(\d*)\}")
_search = pc.get_function("match_substring_regex")


class BadFilter(PenstockError):
    """A header filter that cannot work; the text says what to change."""


class Pair(msgspec.Struct, frozen=True):
    """One test of a list filter, in the wire's names."""

    filter_ext_key: str = ""
    filter_data: str = ""


class ExtFilter(msgspec.Struct, frozen=True):
    """A header filter as IDENTIFY carries it; null and absent are the same."""

    type: int | None = None
    inverse: bool | None = None
    filter_ext_key: str | None = None
    filter_data: str | None = None
    filter_data_list: tuple[Pair, ...] | None = None

    def compiled(self) -> HeaderFilter | None:
        """Return the filter, or None for the empty object that some clients always send; raises BadFilter."""
        pairs = tuple((pair.filter_ext_key, pair.filter_data) for pair in self.filter_data_list or ())
        if not (self.type or self.filter_ext_key or self.filter_data or pairs):
            return None
        return HeaderFilter(
            self.type or 0, self.filter_ext_key or "", self.filter_data or "", pairs, inverse=bool(self.inverse)
        )


class HeaderFilter:
    """Which messages a consumer takes, by their headers: a member equals, matches, or a list of members does."""

    __slots__ = ("_name", "_options", "_remembered", "_test", "inverse")

    def __init__(
        self, kind: int, name: str, data: str = "", pairs: Sequence[tuple[str, str]] = (), *, inverse: bool = False
    ) -> None:
        if not name:
            raise BadFilter("filter_ext_key is empty: name a header, or any or all for a list")
        self.inverse = inverse
        self._name = name
        #: The pattern of a regex or glob; the other kinds are a test in Python.
        self._options: pc.MatchSubstringOptions | None = None
        self._test: Callable[[Members], bool] = self._matches
        self._remembered: dict[str, bool] = {}
        if kind == LIST:
            if not pairs or not all(key and value for key, value in pairs):
                raise BadFilter("filter_data_list needs at least one pair, each with filter_ext_key and filter_data")
            self._test = _list_test(name, tuple(pairs))
        elif not data:
            raise BadFilter("filter_data is empty")
        elif kind == EQUAL:
            self._test = lambda members: members.get(name) == data
        elif kind in (REGEX, GLOB):
            self._options = _pattern(kind, data)
        else:
            raise BadFilter(f"type {kind} is unknown: 1 is equal, 2 regex, 3 glob, 4 list")

    def verdict(self, header: bytes | None) -> bool:
        """Return whether one message is taken. Budget: 1 us, a pattern on a new value 30 us."""
        members = None if header is None else members_of(header)
        if members is None:
            return self.inverse
        return self._test(members) is not self.inverse

    def verdicts(self, headers: Column) -> Verdicts:
        """Return one verdict per row, each distinct header judged once. Budget: 250 us for 1,000 rows of 100."""
        if isinstance(headers, list):
            if len(headers) <= SMALL:
                return np.array([self.verdict(header) for header in headers], np.bool_)  # type: ignore[arg-type]
            headers = pa.array(headers, pa.binary())
        encoded = headers.dictionary_encode()
        distinct = [members_of(header) for header in encoded.dictionary.to_pylist()]
        # The last entry is for rows without a header.
        table = np.zeros(len(distinct) + 1, np.bool_)
        table[:-1] = self._judged(distinct)
        indices = encoded.indices.fill_null(len(distinct)) if encoded.indices.null_count else encoded.indices
        matched: Verdicts = table[np.asarray(indices)]
        return ~matched if self.inverse else matched

    def _judged(self, distinct: Sequence[Members | None]) -> Sequence[bool] | Verdicts:
        if self._options is None:
            return [members is not None and self._test(members) for members in distinct]
        # All in one call, because each call compiles the pattern; null stays null, and then counts as no match.
        values = pa.array([None if m is None else m.get(self._name, "") for m in distinct], pa.string())
        return np.asarray(_search.call([values], self._options).fill_null(False))

    def _matches(self, members: Members) -> bool:
        value = members.get(self._name, "")
        found = self._remembered.get(value)
        if found is None:
            found = bool(_search.call([pa.array([value], pa.string())], self._options)[0].as_py())
            if len(value) <= REMEMBERED_BYTES_MAX:
                if len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[value] = found
        return found


def _list_test(word: str, pairs: Sequence[tuple[str, str]]) -> Callable[[Members], bool]:
    if word == "any":
        return lambda members: any(members.get(name) == value for name, value in pairs)
    if word == "all":
        return lambda members: all(members.get(name) == value for name, value in pairs)
    # Any other word never matches: clients may rely on it, also with `inverse`.
    return lambda members: False


def _pattern(kind: int, data: str) -> pc.MatchSubstringOptions:
    """Return a pattern for RE2, which Go's regexp is too and which never backtracks; raises BadFilter."""
    if len(data.encode()) > PATTERN_BYTES_MAX:
        raise BadFilter(f"filter_data is longer than {PATTERN_BYTES_MAX} bytes")
    if kind == GLOB:
        try:
            data = regex_of(data)
        except BadGlob as error:
            raise BadFilter(f"filter_data is no glob: {error}") from None
    else:
        repeated = sum(int(most or least) for least, most in _COUNTED.findall(data))
        if repeated > PATTERN_COUNT_MAX:
            raise BadFilter(f"filter_data repeats {repeated} times, at most {PATTERN_COUNT_MAX} are allowed")
        if len(_PROPERTY.findall(data)) * max(1, repeated) > PROPERTIES_MAX:
            raise BadFilter(f"filter_data has more than {PROPERTIES_MAX} Unicode properties, repetitions counted")
    options = pc.MatchSubstringOptions(data)
    try:
        _search.call([pa.array([""])], options)
    except pa.ArrowInvalid as error:
        raise BadFilter(f"filter_data is no regular expression: {error}") from None
    return options
