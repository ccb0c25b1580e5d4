"""Route: the routing policy in bulk, one row for each service that takes a message.

Owns how the policy's rule becomes a Spark expression, and nothing of the rule itself: masks and fall-backs are those of
`filters.traffic`, which the broker uses too.
Invariant: a service gets exactly the messages that a subscription with the same filter would be given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import ClassVar

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from penstock.client.connection import Access, Connection
from penstock.errors import ConfigError
from penstock.filters.traffic import TrafficFilter, problems, unknown
from penstock.pipeline.jobs.output import Output

DROP = "drop"
#: The beginning of the name under which a query's progress counts rows that came and rows that no service took.
OBSERVED = "route"


class Service(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One receiver: which traffic types it takes, and where its messages go."""

    allowed: tuple[str, ...] = ()
    is_default: bool = False
    topic: str | None = None

    @property
    def rule(self) -> TrafficFilter:
        """The filter that a subscription of the broker would have."""
        return TrafficFilter(self.allowed, self.is_default)


class Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of the job."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("topic", "traffic")

    services: dict[str, Service]
    #: The bit of each traffic type; None = the node's mapping.
    mapping: dict[str, int] | None = None
    #: What becomes of messages that no service takes: dropped, or written to this topic.
    unrouted: str = DROP
    #: Count what came and what no service took, in the query's progress, which costs a part of the routing.
    count: bool = False

    def __post_init__(self) -> None:
        if not self.services:
            raise ConfigError("services is empty: name at least one, with the traffic types that it takes")
        for name, service in self.services.items():
            if not name:
                raise ConfigError("services has a service without a name: give it one")
            if service.topic == "":
                raise ConfigError(f"services.{name}.topic is empty: name it, or leave it out")
        if not self.unrouted:
            raise ConfigError(f'unrouted is empty: say "{DROP}", or the topic for messages that no service takes')

    @property
    def observed(self) -> str:
        """The name of this step's counts in a query's progress."""
        return f"{OBSERVED}:{','.join(self.services)}"


@dataclasses.dataclass(frozen=True)
class ForTopics:
    """Makes messages of routed rows: those of services with a topic, and what no service took."""

    services: tuple[str, ...]

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Return the rows that go to topics."""
        known = sql.col("service").isin(*self.services) if self.services else sql.lit(False)
        return frame.where(sql.isnull("service") | known).drop("service")


def node_mapping(access: Access) -> dict[str, int]:
    """Return the mapping that a node has now."""
    with Connection(access) as connection:
        return connection.routing().traffic_types


def faults(options: Route, mapping: Mapping[str, int]) -> list[str]:
    """Return what is wrong with a mapping, and what that does to which service; none of it stops a query."""
    if not mapping:
        return ["no routing mapping is set: is_default decides for every service"]
    found = problems(mapping)
    for name, service in options.services.items():
        missing = unknown(service.allowed, mapping)
        if missing:
            takes = "everything" if service.is_default else "nothing"
            found.append(f"services.{name} takes {takes}: the mapping does not know {', '.join(missing)}")
    return found


def accepted(traffic: Column, mask: int | None, is_default: bool) -> Column:
    """Return whether a message is taken, where (mask, is_default) is what `TrafficFilter` says. Null counts as 0."""
    if mask is None:
        return sql.lit(is_default)
    bits = sql.coalesce(traffic, sql.lit(0).cast("bigint"))
    # Spark's bigint has a sign, which is bit 63.
    taken = bits.bitwiseAND(sql.lit(mask - (mask >> 63 << 64)).cast("bigint")) != 0
    return taken | (bits == 0) if is_default else taken


def routed(frame: DataFrame, options: Route, mapping: Mapping[str, int]) -> Output:
    """Return one row per (message, service that takes it): `service` is added, `topic` says where the row goes.

    A service without a topic leaves `topic` as it is, and its rows are for tables only. `mapping` counts where the
    options have none. Budget: what the same expression costs when it is written by hand.
    """
    traffic = sql.col("traffic") if "traffic" in frame.columns else sql.lit(None).cast("bigint")
    bits = mapping if options.mapping is None else options.mapping
    verdicts = {
        name: accepted(traffic, service.rule.mask(bits), service.is_default)
        for name, service in options.services.items()
    }
    if options.count:
        nobody = ~reduce(or_, verdicts.values())
        frame = frame.observe(options.observed, sql.count("*").alias("rows"), sql.count_if(nobody).alias("unrouted"))
    takers = sql.filter(
        sql.array(
            *(sql.when(verdict, _taker(name, options.services[name].topic)) for name, verdict in verdicts.items())
        ),
        lambda taker: taker.isNotNull(),
    )
    if options.unrouted != DROP:
        takers = sql.when(sql.size(takers) == 0, sql.array(_taker(None, options.unrouted))).otherwise(takers)
    kept = [sql.col(name) for name in frame.columns if name not in ("topic", "service")]
    was = sql.col("topic") if "topic" in frame.columns else sql.lit(None).cast("string")
    result = frame.withColumn("_taker", sql.explode(takers)).select(
        sql.col("_taker.service").alias("service"), sql.coalesce(sql.col("_taker.topic"), was).alias("topic"), *kept
    )
    written = tuple(name for name, service in options.services.items() if service.topic is not None)
    return Output(result, messages=ForTopics(written))


def _taker(service: str | None, topic: str | None) -> Column:
    names = (("service", service), ("topic", topic))
    return sql.struct(*(sql.lit(value).cast("string").alias(name) for name, value in names))
