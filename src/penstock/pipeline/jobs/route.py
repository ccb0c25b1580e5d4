"""Route: the routing policy in bulk, one row for each service that takes a message.

Owns how filters become Spark expressions, and nothing of their rules: masks, fall-backs, draws and ranges are those of
`filters`, which the broker uses too.
Invariant: a service gets exactly the messages that a subscription with the same filters would be given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import ClassVar

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import MapType

from penstock.client.connection import Access, Connection
from penstock.columns import OFFSET_BITS
from penstock.errors import ConfigError
from penstock.filters.percentage import DRAWS, rate_of
from penstock.filters.shards import ShardFilter
from penstock.filters.storage import StorageFilter
from penstock.filters.traffic import TrafficFilter, problems, unknown
from penstock.m3.shardset import BadShardSet
from penstock.pipeline.jobs.output import Output

DROP = "drop"
#: The beginning of the name under which a query's progress counts rows that came and rows that no service took.
OBSERVED = "route"


class Service(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One receiver: which messages it takes, by the filters of a subscription, and where they go."""

    #: Where neither of these is said, traffic types are not looked at.
    allowed: tuple[str, ...] | UnsetType = UNSET
    is_default: bool | UnsetType = UNSET
    upstream_filter: bool = False
    storage_policies: tuple[str, ...] = ()
    percentage: float = 1.0
    shard_set: str = ""
    topic: str | None = None

    @property
    def rule(self) -> TrafficFilter | None:
        """The filter of traffic types that a subscription of the broker would have."""
        if self.allowed is UNSET and self.is_default is UNSET:
            return None
        return TrafficFilter(self.allowed or (), self.is_default or False, self.upstream_filter)

    def check(self, where: str) -> None:
        """Refuse filters that nothing could be judged by."""
        if not 0 <= self.percentage <= 1:
            raise ConfigError(f"{where}.percentage is {self.percentage:g}: it is a fraction from 0 to 1")
        try:
            StorageFilter(self.storage_policies)
            if self.shard_set:
                ShardFilter(self.shard_set)
        except (ConfigError, BadShardSet) as error:
            raise ConfigError(f"{where}: {error}") from None


class Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of the job."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("topic", "shard", "offset", "headers", "traffic", "route")

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
            service.check(f"services.{name}")
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
        rule = service.rule
        missing = unknown(rule.allowed, mapping) if rule is not None else ()
        if missing and service.upstream_filter:
            found.append(f"services.{name} goes without {', '.join(missing)}: the mapping does not know them")
        elif missing:
            takes = "everything" if service.is_default is True else "nothing"
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


def in_shards(route: Column, shard_set: str) -> Column:
    """Return whether a message is of one of these shards, where it is of any."""
    stretches = (route.between(first, last) for first, last in ShardFilter(shard_set).ranges)
    return sql.isnull(route) | reduce(or_, stretches)


def drawn(shard: Column, offset: Column, fraction: float) -> Column:
    """Return whether a message is in a fraction of all: the draw is Spark's own hash of the id."""
    id_ = sql.shiftleft(shard.cast("bigint"), OFFSET_BITS) + offset + 1
    return sql.hash(id_).bitwiseAND(sql.lit(DRAWS - 1)) < rate_of(fraction)


def of_policies(headers: Column, policies: Sequence[str]) -> Column:
    """Return whether a message is under one of these storage policies, where it is under any.

    Texts are read by the broker's own code, in Python: the one filter here that costs more than an expression.
    """
    rule = StorageFilter(policies)

    def judged(column: pa.Array) -> pa.Array:
        return pa.array(rule.verdicts(column))

    taken: Column = arrow_udf(judged, "boolean")(headers)  # type: ignore[call-overload]
    return taken


def routed(frame: DataFrame, options: Route, mapping: Mapping[str, int]) -> Output:
    """Return one row per (message, service that takes it): `service` is added, `topic` says where the row goes.

    A service without a topic leaves `topic` as it is, and its rows are for tables only. `mapping` counts where the
    options have none. Budget: what the same expression costs when it is written by hand.
    """
    kept = [sql.col(name) for name in frame.columns if name not in ("topic", "service")]
    bits = mapping if options.mapping is None else options.mapping
    verdicts = {}
    for number, (name, service) in enumerate(options.services.items()):
        frame, verdict = _verdict(frame, name, service, bits, f"_of_policies_{number}")
        verdicts[name] = verdict
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
    was = sql.col("topic") if "topic" in frame.columns else sql.lit(None).cast("string")
    result = frame.withColumn("_taker", sql.explode(takers)).select(
        sql.col("_taker.service").alias("service"), sql.coalesce(sql.col("_taker.topic"), was).alias("topic"), *kept
    )
    written = tuple(name for name, service in options.services.items() if service.topic is not None)
    return Output(result, messages=ForTopics(written))


def _verdict(
    frame: DataFrame, name: str, service: Service, mapping: Mapping[str, int], column: str
) -> tuple[DataFrame, Column]:
    """Return whether a service takes a message, and the frame with what that needs; a missing column passes."""
    verdict = sql.lit(True)
    if service.rule is not None:
        traffic = sql.col("traffic") if "traffic" in frame.columns else sql.lit(None).cast("bigint")
        verdict = accepted(traffic, service.rule.mask(mapping), service.rule.is_default)
    if service.shard_set and "route" in frame.columns:
        verdict &= in_shards(sql.col("route"), service.shard_set)
    if service.percentage < 1:
        if not {"shard", "offset"} <= set(frame.columns):
            raise ConfigError(
                f"services.{name}.percentage draws by shard and offset, which the rows of this step do not have: "
                "route before what takes them away"
            )
        verdict &= drawn(sql.col("shard"), sql.col("offset"), service.percentage)
    if service.storage_policies and "headers" in frame.columns:
        # A column of its own: what is counted of a query's progress may not hold Python.
        is_map = isinstance(frame.schema["headers"].dataType, MapType)
        headers = sql.to_json("headers") if is_map else sql.col("headers")
        frame = frame.withColumn(column, of_policies(headers.cast("binary"), service.storage_policies))
        verdict &= sql.col(column)
    return frame, verdict


def _taker(service: str | None, topic: str | None) -> Column:
    names = (("service", service), ("topic", topic))
    return sql.struct(*(sql.lit(value).cast("string").alias(name) for name, value in names))
