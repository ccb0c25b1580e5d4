"""What one subscription takes: its filters, all of which a message must pass.

Owns the order of the filters, which is upstream's, and the words for why a message is taken or not. One definition for
the broker's subscriptions and relays, and for Spark's services.
Invariant: no filter takes everything; a message that several would refuse is refused by the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.columns import Column
from penstock.filters import percentage as draw
from penstock.filters.shards import ShardFilter
from penstock.filters.storage import StorageFilter
from penstock.filters.traffic import TrafficFilter, unknown, verdict
from penstock.settings import SubscriptionSettings

SHARD_SET, STORAGE_POLICY, PERCENTAGE, ROUTING = "shard-set", "storage-policy", "percentage", "routing"

#: (optional columns, the id of the first row, how many rows there are) -> a verdict per row, not to be written to.
Judge = Callable[[Mapping[str, Column], int, int], npt.NDArray[np.bool_]]


class Part(NamedTuple):
    """One filter, ready to judge."""

    kind: str
    judge: Judge
    #: The column it reads, without which a row passes; empty where it looks at the id.
    reads: str


class Carried(NamedTuple):
    """What a message carries that filters look at."""

    traffic: int = 0
    storage_policy: str | None = None
    shard: int | None = None


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of one subscription; one that is not asked for takes everything."""

    shard_set: str = ""
    storage_policies: tuple[str, ...] = ()
    #: As a fraction: 0.25 is a quarter.
    percentage: float = 1.0
    traffic: TrafficFilter | None = None

    @classmethod
    def of(cls, settings: SubscriptionSettings) -> Acceptance:
        """Return what a subscription with these settings takes."""
        traffic = settings.traffic
        return cls(
            shard_set=settings.shard_set,
            storage_policies=settings.storage_policies,
            percentage=settings.percentage,
            traffic=None if traffic is None else TrafficFilter(*msgspec.structs.astuple(traffic)),
        )

    def parts(self) -> list[Part]:
        """Return the filters that are asked for, but for `traffic`, which comes last and needs the mapping."""
        found = []
        if self.shard_set:
            found.append(Part(SHARD_SET, _present("route", ShardFilter(self.shard_set).verdicts), "route"))
        if self.storage_policies:
            judge = _present("headers", StorageFilter(self.storage_policies).verdicts)
            found.append(Part(STORAGE_POLICY, judge, "headers"))
        if self.percentage < 1:
            found.append(Part(PERCENTAGE, self._drawn, ""))
        return found

    def _drawn(self, columns: Mapping[str, Column], first: int, count: int) -> npt.NDArray[np.bool_]:
        return draw.verdicts(np.arange(first, first + count), self.percentage)

    def explain(self, carried: Carried, mapping: Mapping[str, int]) -> tuple[bool, str]:
        """Return whether a message is taken that carries this, and why; a percentage is told, not drawn."""
        if self.shard_set and not ShardFilter(self.shard_set).verdict(carried.shard):
            return False, f"shard {carried.shard} is not in {self.shard_set}"
        storage = carried.storage_policy
        if self.storage_policies and storage is not None and not StorageFilter(self.storage_policies).takes(storage):
            return False, f"storage policy {storage} is none of {', '.join(self.storage_policies)}"
        if self.percentage <= 0:
            return False, "its percentage is 0"
        taken, why = True, "it has no filter that refuses this"
        if self.traffic is not None:
            taken, why = explain_traffic(self.traffic, carried.traffic, mapping)
        if taken and self.percentage < 1:
            why += f"; of such messages it takes {self.percentage:.6g} of 1"
        return taken, why


def explain_traffic(rule: TrafficFilter, bits: int, mapping: Mapping[str, int]) -> tuple[bool, str]:
    """Return whether the routing policy takes a message with these bits, and why."""
    missing = unknown(rule.allowed, mapping)
    if not bits:
        why = "the message carries no traffic type: is_default decides"
    elif not mapping and not rule.upstream_filter:
        why = "no routing mapping is set: is_default decides"
    elif missing and not rule.upstream_filter:
        why = f"the mapping does not know {', '.join(missing)}: is_default decides"
    else:
        shared = [name for name in rule.allowed if name not in missing and bits >> mapping[name] & 1]
        why = f"the message carries {', '.join(shared)}" if shared else "the message carries no allowed traffic type"
    return verdict(bits, rule.mask(mapping), rule.is_default), why


def _present(name: str, judge: Callable[[Column], npt.NDArray[np.bool_]]) -> Judge:
    """Return a filter that takes rows without its column."""

    def judged(columns: Mapping[str, Column], first: int, count: int) -> npt.NDArray[np.bool_]:
        column = columns.get(name)
        return np.ones(count, np.bool_) if column is None else judge(column)

    return judged
