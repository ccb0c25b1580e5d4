"""M3's topic, the value in etcd that names the consumer services of a topic and what each of them takes.

| Message | Fields |
|---|---|
| Topic | 1 name; 2 number_of_shards; 3 consumer_services, repeated |
| ConsumerService | 1 service_id; 2 consumption_type; 3 message_ttl_nanos; 4 filters |
| ServiceID | 1 name; 2 environment; 3 zone |
| Filters | 1 storage_policy_filter; 2 percentage_filter; 3 shard_set_filter; 4 routing_policy_filter |
| StoragePolicyFilter, PercentageFilter | 1 storage_policies, repeated; 1 percentage, a double |
| ShardSetFilter, RoutingPolicyFilter | 1 shard_set; 1 allowed_traffic_types, repeated, and 2 is_default |

Invariant: what is read from bytes passes `check`, or BadMessage says why not.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.m3.shardset import BadShardSet, ranges
from penstock.m3.wire import BadMessage, bytes_field, double_field, fields, number_field, text_field

#: Whoever deals shards keeps something for each: with as many as this and three replicas that takes a second or two.
SHARDS_MAX = 65_536

Consumption = Literal["shared", "replicated"]
_CONSUMPTIONS: tuple[Literal["", "shared", "replicated"], ...] = ("", "shared", "replicated")


class ServiceId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a service: the three together are unique."""

    name: str = ""
    environment: str = ""
    zone: str = ""

    def __str__(self) -> str:
        """Return it as people write it."""
        return "/".join(part for part in (self.zone, self.environment, self.name) if part)


class RoutingFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which traffic types a service takes."""

    allowed_traffic_types: tuple[str, ...] = ()
    is_default: bool = False


class Filters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a service takes; None where a test is not asked for."""

    storage_policies: tuple[str, ...] | None = None
    #: As it is written, which upstream's check takes for percent and its filter for a fraction.
    percentage: float | None = None
    shard_set: str | None = None
    routing: RoutingFilter | None = None


class ConsumerService(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One service that gets the messages of a topic."""

    service_id: ServiceId
    consumption: Consumption
    ttl_ns: int = 0
    #: None: the filters that are configured elsewhere; without any test in it: no filter.
    filters: Filters | None = None


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A topic of M3's."""

    name: str
    shards: int
    services: tuple[ConsumerService, ...] = ()


def decode(value: bytes) -> Topic:
    """Return the topic that a value holds; raises BadMessage."""
    name, shards, services = "", 0, list[ConsumerService]()
    for field in fields(value):
        if field.number == 1:
            name = field.text()
        elif field.number == 2:
            shards = field.whole() & 0xFFFFFFFF
        elif field.number == 3:
            services.append(_service(field.data()))
    topic = Topic(name=name, shards=shards, services=tuple(services))
    check(topic)
    return topic


def encode(topic: Topic) -> bytes:
    """Return the value of a topic."""
    services = (bytes_field(3, _service_bytes(service)) for service in topic.services)
    return text_field(1, topic.name) + number_field(2, topic.shards) + b"".join(services)


def check(topic: Topic) -> None:
    """Refuse a topic that no producer could use; raises BadMessage."""
    if not topic.name:
        raise BadMessage("the topic has no name")
    if topic.shards <= 0:
        raise BadMessage(f"topic {topic.name} has no shards")
    if topic.shards > SHARDS_MAX:
        raise BadMessage(f"topic {topic.name} has {topic.shards:,} shards; there may be {SHARDS_MAX:,}")
    seen = set()
    for service in topic.services:
        if service.service_id in seen:
            raise BadMessage(f"topic {topic.name} has service {service.service_id} twice")
        seen.add(service.service_id)
        if service.filters is not None:
            _check_filters(service.filters, f"service {service.service_id} of topic {topic.name}")


def _check_filters(filters: Filters, where: str) -> None:
    if filters.storage_policies is not None and not (filters.storage_policies and all(filters.storage_policies)):
        raise BadMessage(f"{where}: a storage policy filter names policies")
    if filters.percentage is not None and not 0 < filters.percentage < 100:
        raise BadMessage(f"{where}: a percentage of {filters.percentage:g} is not between 0 and 100")
    if filters.shard_set is not None:
        try:
            found = ranges(filters.shard_set)
        except BadShardSet as error:
            raise BadMessage(f"{where}: {error}") from None
        if len(found) > 1:
            raise BadMessage(f'{where}: shard set "{filters.shard_set}" is a list; one range is allowed here')


def _service(data: bytes) -> ConsumerService:
    service_id, kind, ttl_ns, filters = ServiceId(), 0, 0, None
    for field in fields(data):
        if field.number == 1:
            service_id = _service_id(field.data())
        elif field.number == 2:
            kind = field.whole()
        elif field.number == 3:
            ttl_ns = field.signed()
        elif field.number == 4:
            filters = _filters(field.data())
    consumption = _CONSUMPTIONS[kind] if kind < len(_CONSUMPTIONS) else ""
    if not consumption:
        raise BadMessage(f"service {service_id} has consumption type {kind}; it is 1 (shared) or 2 (replicated)")
    return ConsumerService(service_id=service_id, consumption=consumption, ttl_ns=ttl_ns, filters=filters)


def _service_id(data: bytes) -> ServiceId:
    texts = {field.number: field.text() for field in fields(data) if field.number in (1, 2, 3)}
    return ServiceId(texts.get(1, ""), texts.get(2, ""), texts.get(3, ""))


def _filters(data: bytes) -> Filters:
    policies: tuple[str, ...] | None = None
    percentage: float | None = None
    shard_set: str | None = None
    routing: RoutingFilter | None = None
    for field in fields(data):
        inner = list(fields(field.data())) if 1 <= field.number <= 4 else []
        first = [each for each in inner if each.number == 1]
        if field.number == 1:
            policies = tuple(each.text() for each in first)
        elif field.number == 2:
            percentage = first[-1].double() if first else 0.0
        elif field.number == 3:
            shard_set = first[-1].text() if first else ""
        elif field.number == 4:
            is_default = any([each.whole() for each in inner if each.number == 2][-1:])
            routing = RoutingFilter(tuple(each.text() for each in first), is_default)
    return Filters(storage_policies=policies, percentage=percentage, shard_set=shard_set, routing=routing)


def _service_bytes(service: ConsumerService) -> bytes:
    names = service.service_id
    out = bytes_field(1, text_field(1, names.name) + text_field(2, names.environment) + text_field(3, names.zone))
    out += number_field(2, _CONSUMPTIONS.index(service.consumption)) + number_field(3, service.ttl_ns)
    return out if service.filters is None else out + bytes_field(4, _filters_bytes(service.filters))


def _filters_bytes(filters: Filters) -> bytes:
    out = b""
    if filters.storage_policies is not None:
        out += bytes_field(1, _texts(filters.storage_policies))
    if filters.percentage is not None:
        out += bytes_field(2, double_field(1, filters.percentage))
    if filters.shard_set is not None:
        out += bytes_field(3, text_field(1, filters.shard_set))
    if filters.routing is not None:
        routing = filters.routing
        out += bytes_field(4, _texts(routing.allowed_traffic_types) + number_field(2, routing.is_default))
    return out


def _texts(values: tuple[str, ...]) -> bytes:
    return b"".join(bytes_field(1, value.encode()) for value in values)
