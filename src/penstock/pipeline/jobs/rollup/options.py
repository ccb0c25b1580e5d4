"""The options of the rollup, checked before anything runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import msgspec

from penstock.errors import ConfigError, hint
from penstock.m3.policies import UNITS_NS, StoragePolicy, duration_ns, storage_policy
from penstock.pipeline.jobs.rollup import aggregations as known

FORMATS = ("statsd", "prometheus", "json", "m3")
#: What messages of aggregates are.
OUTPUTS = ("json", "m3")
LATE = ("drop", "dead")
#: How an aggregate's id is made of its series' id.
NAMES = ("m3", "usual", "suffix", "plain")


class Aggregations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which aggregates each type of metric gets; M3's defaults."""

    counter: tuple[str, ...] = known.DEFAULTS["counter"]
    gauge: tuple[str, ...] = known.DEFAULTS["gauge"]
    timer: tuple[str, ...] = known.DEFAULTS["timer"]

    def __post_init__(self) -> None:
        for kind, chosen in self.by_kind().items():
            where = f"aggregations.{kind}"
            if not chosen:
                raise ConfigError(f"{where} is empty; name at least one of {', '.join(known.ALLOWED[kind])}")
            for name in chosen:
                _one_of(where, name, known.ALLOWED[kind])
            if len(set(chosen)) < len(chosen):
                raise ConfigError(f"{where} names an aggregation twice; leave one out")

    def by_kind(self) -> dict[str, tuple[str, ...]]:
        """Return the aggregations of each type of metric."""
        return {"counter": self.counter, "gauge": self.gauge, "timer": self.timer}


class Rollup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of the job."""

    #: What the job needs, and beside it what a dead letter must keep.
    COLUMNS: ClassVar[tuple[str, ...]] = (
        "topic", "shard", "offset", "timestamp", "key", "headers", "body", "event_time", "traffic",
    )  # fmt: skip

    format: str = "statsd"
    output: str = "json"
    policies: tuple[str, ...] = ("10s:2d", "1m:40d")
    aggregations: Aggregations = msgspec.field(default_factory=Aggregations)
    names: str = "m3"
    #: A sample counts if the broker took it at most this long after the end of its window.
    lateness: str = "30s"
    #: What becomes of the others: dropped and counted, or dead letters.
    late: str = "drop"
    #: A sample whose time is further ahead of its arrival is a dead letter.
    future: str = "1m"

    def __post_init__(self) -> None:
        _one_of("format", self.format, FORMATS)
        _one_of("output", self.output, OUTPUTS)
        _one_of("names", self.names, NAMES)
        _one_of("late", self.late, LATE)
        if not self.policies:
            raise ConfigError('policies is empty; name at least one, like "10s:2d"')
        texts = [str(policy) for policy in self.storage_policies()]
        for text in texts:
            if texts.count(text) > 1:
                raise ConfigError(f"policies has {text} twice; leave one out")
        if self.lateness_us() % 1000 or self.future_us() % 1000:
            raise ConfigError("lateness and future are whole milliseconds")

    def storage_policies(self) -> tuple[StoragePolicy, ...]:
        """Return the policies as values."""
        return tuple(storage_policy(text) for text in self.policies)

    def lateness_us(self) -> int:
        """Return the lateness as Spark counts."""
        return duration_ns(self.lateness, "lateness") // UNITS_NS["us"]

    def future_us(self) -> int:
        """Return the tolerance for times ahead as Spark counts."""
        return duration_ns(self.future, "future") // UNITS_NS["us"]


def _one_of(where: str, value: str, allowed: Collection[str]) -> None:
    if value in allowed:
        return
    raise ConfigError(f'{where} does not know "{value}"; {hint(value, allowed)}')
