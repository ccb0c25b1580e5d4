"""The routing policy as etcd has it: which bit each traffic type is, told by a watch, whatever comes.

Owns what each thing that can happen to the key means. Knows no connection: whoever follows etcd tells it. The mapping
that it last took is remembered in the catalog, so a node whose etcd is away starts with that.
Invariant: nothing that is found under the key can do more than leave the mapping as it was.

| What happens | What follows |
|---|---|
| a value | the whole mapping is replaced; entries beyond bit 63 are left out, a bit given twice counts for both names |
| an empty value | the mapping is empty: `is_default` decides everywhere |
| bytes that are no policy | the mapping stays |
| the key is deleted, or was never there | the mapping stays |
| etcd is away | the mapping stays |
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol

from penstock.filters.traffic import BIT_MAX, problems
from penstock.m3 import routing
from penstock.m3.wire import BadMessage
from penstock.registry.records import RoutingMapping, mapping_clashes
from penstock.registry.registry import Entry

#: What is counted of a policy.
Happening = Literal["put", "empty", "unreadable", "deleted", "absent", "away", "bad_bit", "shared_bit"]
HAPPENINGS: tuple[Happening, ...] = (
    "put", "empty", "unreadable", "deleted", "absent", "away", "bad_bit", "shared_bit",
)  # fmt: skip


class Write(Protocol):
    """Puts another policy, over the revision that was seen; moving a bit only with `force`. Raises Refusal."""

    def __call__(
        self, traffic_types: Mapping[str, int], *, force: bool = False, seen: int | None = None
    ) -> Awaitable[None]:
        """Put it, and come back when it is in force."""


#: How much of what is wrong is logged; the rest is counted.
TOLD_MAX = 10

_log = logging.getLogger("penstock.routing")


class Policy:
    """What is known of the keys that hold the policy."""

    def __init__(
        self, zone: str, keys: Sequence[str], mapping: RoutingMapping, on_mapping: Callable[[Mapping[str, int]], None]
    ) -> None:
        self.zone = zone
        #: The keys in etcd; the first is the one to write. Of several, what was put last counts.
        self.keys = tuple(keys)
        #: The revision of the value in force; 0 before there was one.
        self.revision = 0
        self.key = ""
        self.is_current = False
        #: What is wrong with it, in words; empty if nothing is.
        self.problems: list[str] = []
        #: Puts another policy, where somebody is connected.
        self.write: Write | None = None
        self.counts: Counter[Happening] = Counter(dict.fromkeys(HAPPENINGS, 0))
        self._there: dict[str, Entry] = {}
        self._mapping = mapping.traffic_types
        self._on_mapping = on_mapping

    @property
    def in_force(self) -> Mapping[str, int]:
        """The mapping that counts, also while no key holds it."""
        return self._mapping

    def put(self, key: str, value: bytes, revision: int) -> None:
        """Hear of a value under one of the keys."""
        self._there[key] = Entry(value, revision)
        self._take_latest()

    def _take_latest(self) -> None:
        """Take what was put last under any key, unless it is in force already."""
        key, (value, revision) = max(self._there.items(), key=lambda item: item[1].revision)
        if (key, revision) == (self.key, self.revision):
            return
        self.revision, self.key = revision, key
        try:
            found = routing.decode(value)
        except BadMessage as error:
            self._trouble("unreadable", [f"{key}, revision {revision}, is no routing policy: {error}"])
            return
        self.counts["put" if found else "empty"] += 1
        mapping = self._checked(found, f"{key}, revision {revision}")
        moved = mapping_clashes(RoutingMapping(traffic_types=dict(self._mapping)), mapping)
        if moved:
            _log.warning("%s: %s; producers and consumers must agree", key, "; ".join(moved[:TOLD_MAX]))
        _log.info("routing policy %s, revision %d: %d traffic types", key, revision, len(mapping))
        self._mapping = mapping
        self._on_mapping(mapping)

    def deleted(self, key: str, revision: int) -> None:
        """Hear that one of the keys was deleted: what it said stays in force until something else is put."""
        self._there.pop(key, None)
        self._trouble("deleted", [f"{key} was deleted in revision {revision}: the last routing mapping stays"])

    def current(self, entries: Mapping[str, Entry]) -> None:
        """Hear what stands under the keys now that etcd answers."""
        self.is_current = True
        self._there = {key: entry for key, entry in entries.items() if key in self.keys}
        if self._there:
            self._take_latest()
        elif not self.counts["absent"]:
            keys = " nor ".join(self.keys)
            self._trouble("absent", [f"there is no {keys} in etcd: the routing mapping stays as it was"])

    def away(self, why: str) -> None:
        """Hear that etcd does not answer."""
        if self.is_current or not self.counts["away"]:
            self.counts["away"] += 1
            _log.warning("routing policy: zone %s is away (%s); the last routing mapping stays", self.zone, why)
        self.is_current = False

    def _checked(self, found: Mapping[str, int], where: str) -> dict[str, int]:
        """Return the entries that can be used, and say what is wrong with the others."""
        self.problems = problems(found)
        good = {name: bit for name, bit in found.items() if bit <= BIT_MAX}
        self.counts["bad_bit"] += len(found) - len(good)
        self.counts["shared_bit"] += sum(count > 1 for count in Counter(good.values()).values())
        for problem in self.problems[:TOLD_MAX]:
            _log.warning("%s: %s", where, problem)
        return good

    def _trouble(self, happening: Happening, problems: list[str]) -> None:
        self.counts[happening] += 1
        self.problems = problems
        _log.warning("%s", problems[0])
