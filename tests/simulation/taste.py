"""What one consumer asks for when it identifies and subscribes, and which messages it then wants.

Its judgement on headers is written apart from the node's filters, so that each checks the other; the draw of sampling
is the node's own, because nobody else can know it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import NamedTuple

from penstock.filters.sample import keep_one
from tests.simulation.extras import MEMBERS, WANTED_TAGS

EQUAL, REGEX, GLOB, LIST = 1, 2, 3, 4


class HeaderTest(NamedTuple):
    """A filter on headers."""

    kind: int
    name: str
    data: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    inverse: bool = False

    def takes(self, header: bytes | None, members: dict[str, str]) -> bool:
        """Judge one message."""
        return (header is not None and self._matches(members)) is not self.inverse

    def _matches(self, members: dict[str, str]) -> bool:
        value = members.get(self.name, "")
        if self.kind == EQUAL:
            return value == self.data
        if self.kind == REGEX:
            return re.search(self.data, value) is not None
        if self.kind == GLOB:
            return fnmatchcase(value, self.data)
        found = [members.get(name) == data for name, data in self.pairs]
        return any(found) if self.name == "any" else all(found)

    def fields(self) -> dict[str, object]:
        """Return what IDENTIFY says of it."""
        pairs = [{"filter_ext_key": name, "filter_data": data} for name, data in self.pairs]
        return {
            "type": self.kind,
            "inverse": self.inverse,
            "filter_ext_key": self.name,
            "filter_data": self.data,
            "filter_data_list": pairs,
        }


@dataclass(frozen=True, slots=True)
class Taste:
    """What a consumer asks for."""

    #: It reads extended frames.
    extend: bool = False
    tag: str = ""
    test: HeaderTest | None = None
    #: One in a hundred and so many more get through; 0 = all.
    rate: int = 0
    #: It subscribes with SUB_ORDERED.
    ordered: bool = False
    #: The only shard it reads.
    shard: int | None = None

    @property
    def picky(self) -> bool:
        """Whether it refuses messages that were chosen for it, which finishes them."""
        return self.test is not None or self.rate > 0

    def without_headers(self) -> Taste:
        """Return what is left of it on a topic that has no headers."""
        return Taste(self.extend, "", None, self.rate, self.ordered, self.shard)

    def wants(self, id_: int, header: bytes | None, members: dict[str, str]) -> bool:
        """Judge a message that was chosen for it."""
        if self.rate and not keep_one(id_, self.rate):
            return False
        return self.test is None or self.test.takes(header, members)

    def fields(self) -> dict[str, object]:
        """Return what IDENTIFY says of it."""
        said: dict[str, object] = {"extend_support": self.extend}
        if self.tag:
            said["desired_tag"] = self.tag
        if self.test is not None:
            said["ext_filter"] = self.test.fields()
        if self.rate:
            said["sample_rate"] = self.rate
        return said


def some_taste(random: Random) -> Taste:
    """Return the taste of a consumer."""
    ordered = random.random() < 0.1
    return Taste(
        extend=random.random() < 0.6,
        tag=random.choice(WANTED_TAGS) if random.random() < 0.4 else "",
        test=_some_test(random) if random.random() < 0.12 else None,
        rate=random.choice((30, 90)) if random.random() < 0.08 and not ordered else 0,
        ordered=ordered,
        shard=0 if random.random() < (0.5 if ordered else 0.1) else None,
    )


def _some_test(random: Random) -> HeaderTest:
    kind, inverse = random.choice((EQUAL, REGEX, GLOB, LIST)), random.random() < 0.4
    if kind == EQUAL:
        return HeaderTest(kind, "shape", random.choice(MEMBERS["shape"]), inverse=inverse)
    if kind == REGEX:
        return HeaderTest(kind, "shape", random.choice(("^.o", "a", "(round|flat)$")), inverse=inverse)
    if kind == GLOB:
        return HeaderTest(kind, "shape", random.choice(("r*", "?[lq]*", "flat")), inverse=inverse)
    pairs = (("shape", random.choice(MEMBERS["shape"])), ("size", random.choice(MEMBERS["size"])))
    return HeaderTest(kind, random.choice(("any", "all")), "", pairs, inverse)
