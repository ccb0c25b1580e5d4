"""M3's metrics, the values of M3Msg's messages: aggregated ones, and those that an aggregator is still to take.

| Message | Fields |
|---|---|
| AggregatedMetric | 1 metric {1 timed_metric; 2 storage_policy; 3 routing_policy} |
| TimedMetric | 1 type; 2 id; 3 time_nanos; 4 value (double); 5 annotation |
| StoragePolicy | 1 resolution {1 window_size; 2 precision}; 2 retention {1 period} |
| RoutingPolicy | 1 traffic_types |
| MetricWithMetadatas | 1 type; 2 counter; 3 batch timer; 4 gauge; 5 forwarded; 6, 7, 8 timed: {1 metric; 2 metadata} |
| Counter, BatchTimer, Gauge | 1 id; 2 value: int64, packed doubles, double; 3 annotation; 4 client_time_nanos |
| ForwardMetadata, TimedMetadata | 1 aggregation_id; 2 storage_policy; 7, 3 routing_policy |
| StagedMetadatas | 1 repeated {1 cutover_nanos; 2 tombstoned; 3 metadata {1 pipelines, repeated}} |
| PipelineMetadata | 1 aggregation_id {1 id}; 2 storage_policies, repeated; 3 pipeline; 6 routing_policy |

The plain form, one metric at a time; by the thousand it is `metric_columns`. Invariant: bytes are a metric or
BadMessage says why not, and what was encoded is read back the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct, error, unpack
from typing import Literal, NamedTuple

from penstock.m3.policies import PRECISIONS_NS, StoragePolicy
from penstock.m3.wire import FIXED64, BadMessage, Field, bytes_field, fields, number_field
from penstock.varints import varint

#: As a metric's own type numbers them; untyped is what upstream's aggregator writes.
KINDS = ("", "counter", "timer", "gauge")
Kind = Literal["", "counter", "timer", "gauge"]

#: The fields of MetricWithMetadatas: samples by kind, and the timed ones.
_SAMPLES: dict[int, Kind] = {2: "counter", 3: "timer", 4: "gauge"}
_FORWARDED, _TIMED, _TIMED_STAGED, _TIMED_POLICY = 5, 6, 7, 8
#: How a metric that is not aggregated is put: a sample of its kind, one that another aggregator forwarded, or one with
#: a time of its own, whose metadata is of one policy, in stages, or nothing but the policy.
Form = Literal["sample", "forwarded", "timed", "timed_staged", "timed_policy"]
_FORMS: dict[Form, int] = {
    "forwarded": _FORWARDED, "timed": _TIMED, "timed_staged": _TIMED_STAGED, "timed_policy": _TIMED_POLICY,
}  # fmt: skip
_DOUBLE = Struct("<d")
#: Policies that are remembered by their bytes: there are few, and one in every metric.
POLICIES_MAX = 1024


class Metric(NamedTuple):
    """One metric, aggregated or not."""

    id: bytes
    kind: Kind = ""
    #: Nanoseconds since 1970; 0 = it says nothing of it.
    time_ns: int = 0
    #: Whole numbers where it is a counter that nobody aggregated.
    values: tuple[float, ...] = ()
    #: What it is, or is to be, aggregated by; none = the usual ones.
    policies: tuple[StoragePolicy, ...] = ()
    #: The 64 bits of its traffic types.
    traffic: int = 0
    annotation: bytes = b""
    #: The aggregations that are asked for, a bit each; 0 = the usual ones.
    aggregations: int = 0
    is_aggregated: bool = False


def decode(data: bytes, now_ns: int) -> Metric:
    """Return the metric of either form; raises BadMessage.

    Which form it is shows in the first byte: an aggregated one begins with a message, the other with a number.
    """
    return unaggregated(data, now_ns) if data[:1] == b"\x08" else aggregated(data)


# --- aggregated -------------------------------------------------------------------------------------------------------


def aggregated(data: bytes) -> Metric:
    """Return an aggregated metric; raises BadMessage, also where its storage policy cannot be one."""
    found: bytes | None = None
    for field in fields(data):
        if field.number == 1:
            found = field.data() if found is None else found + field.data()  # as protobuf joins what comes twice
    if found is None:
        raise BadMessage("there is no metric in it")
    return _with_policy(found)._replace(is_aggregated=True)


def _with_policy(data: bytes) -> Metric:
    metric, policy, routing = _parts(data, 1, 2, 3)
    return _timed(metric)._replace(policies=(policy_of(policy),), traffic=_traffic(routing))


def encode(metric: Metric) -> bytes:
    """Return an aggregated metric as upstream writes it."""
    if len(metric.policies) != 1 or len(metric.values) != 1:
        raise ValueError("an aggregated metric has one policy and one value")
    return bytes_field(1, _with_policy_bytes(metric))


def _with_policy_bytes(metric: Metric) -> bytes:
    return (
        bytes_field(1, _timed_bytes(metric))
        + bytes_field(2, policy_bytes(metric.policies[0]))
        + bytes_field(3, number_field(1, metric.traffic))
    )


def _timed(data: bytes) -> Metric:
    kind, id_, time_ns, value, annotation = 0, b"", 0, 0.0, b""
    for field in fields(data):
        match field.number:
            case 1:
                kind = field.whole()
            case 2:
                id_ = field.data()
            case 3:
                time_ns = field.signed()
            case 4:
                value = field.double()
            case 5:
                annotation = field.data()
    return Metric(id_, _kind(kind), time_ns, (value,), annotation=annotation)


def _timed_bytes(metric: Metric) -> bytes:
    (value,) = metric.values
    out = number_field(1, KINDS.index(metric.kind)) + _some(2, metric.id) + number_field(3, metric.time_ns)
    return out + _double(4, value) + _some(5, metric.annotation)


# --- not aggregated ---------------------------------------------------------------------------------------------------


def unaggregated(data: bytes, now_ns: int) -> Metric:
    """Return a metric that an aggregator is to take, with the metadata in force now; raises BadMessage."""
    kind = 0
    parts: dict[int, bytes] = {}
    for field in fields(data):
        if field.number == 1:
            kind = field.whole()
        elif field.number <= _TIMED_POLICY:
            parts[field.number] = parts.get(field.number, b"") + field.data()
    part = parts.get(kind + 1)
    if kind + 1 not in range(2, _TIMED_POLICY + 1) or part is None:
        raise BadMessage(f"type {kind} has no metric in it")
    if kind + 1 == _TIMED_POLICY:
        return _with_policy(part)
    metric, metadata = _parts(part, 1, 2)
    if kind + 1 in _SAMPLES:
        return _with_stages(_sample(metric, _SAMPLES[kind + 1]), metadata, now_ns)
    if kind + 1 == _TIMED_STAGED:
        return _with_stages(_timed(metric), metadata, now_ns)
    found = _forwarded(metric) if kind + 1 == _FORWARDED else _timed(metric)
    return _with_one(found, metadata, 7 if kind + 1 == _FORWARDED else 3)


def encode_unaggregated(metric: Metric, form: Form = "sample") -> bytes:
    """Return a metric that an aggregator is to take; a sample has one pipeline for all its policies, since ever."""
    if form == "sample":
        numbers = {kind: no for no, kind in _SAMPLES.items()}
        if metric.kind not in numbers:
            raise ValueError("a metric that is not aggregated is a counter, a gauge or a timer")
        no, value = numbers[metric.kind], _sample_bytes(metric)
    else:
        no, value = _FORMS[form], _forwarded_bytes(metric) if form == "forwarded" else _timed_bytes(metric)
        if form != "timed_staged" and len(metric.policies) != 1:
            raise ValueError(f"a metric of the form {form} has one policy")
    if form == "timed_policy":
        return number_field(1, no - 1) + bytes_field(no, _with_policy_bytes(metric))
    if form in ("forwarded", "timed"):
        metadata = bytes_field(1, number_field(1, metric.aggregations))
        metadata += bytes_field(2, policy_bytes(metric.policies[0]))
        metadata += bytes_field(7 if form == "forwarded" else 3, number_field(1, metric.traffic))
    else:
        metadata = _staged_bytes(metric)
    return number_field(1, no - 1) + bytes_field(no, bytes_field(1, value) + bytes_field(2, metadata))


def _staged_bytes(metric: Metric) -> bytes:
    pipeline = bytes_field(1, number_field(1, metric.aggregations))
    pipeline += b"".join(bytes_field(2, policy_bytes(policy)) for policy in metric.policies)
    pipeline += bytes_field(3, b"") + bytes_field(6, number_field(1, metric.traffic))
    return bytes_field(1, bytes_field(3, bytes_field(1, pipeline)))


def _sample(data: bytes, kind: Kind) -> Metric:
    id_, time_ns, annotation = b"", 0, b""
    values: list[float] = []
    for field in fields(data):
        match field.number:
            case 1:
                id_ = field.data()
            case 2:
                values = _values(field, kind, values)
            case 3:
                annotation = field.data()
            case 4:
                time_ns = field.signed()
    if not values and kind != "timer":
        values = [0]
    return Metric(id_, kind, time_ns, tuple(values), annotation=annotation)


def _values(field: Field, kind: Kind, before: list[float]) -> list[float]:
    if kind == "counter":
        return [field.signed()]
    if kind == "gauge":
        return [field.double()]
    return before + _doubles(field)


def _doubles(field: Field) -> list[float]:
    """Return numbers that are packed, or one of them that is not."""
    if field.kind == FIXED64:
        return [field.double()]
    data = field.data()
    try:
        return list(unpack(f"<{len(data) // 8}d", data))
    except error:
        raise BadMessage(f"field {field.number} has {len(data)} bytes, which are no doubles") from None


def _sample_bytes(metric: Metric) -> bytes:
    out = _some(1, metric.id)
    if metric.kind == "counter":
        out += number_field(2, int(metric.values[0]))
    elif metric.kind == "gauge":
        out += _double(2, metric.values[0])
    elif metric.values:
        out += bytes_field(2, b"".join(map(_DOUBLE.pack, metric.values)))
    return out + _some(3, metric.annotation) + number_field(4, metric.time_ns)


def _forwarded(data: bytes) -> Metric:
    kind, id_, time_ns, annotation = 0, b"", 0, b""
    values: list[float] = []
    for field in fields(data):
        match field.number:
            case 1:
                kind = field.whole()
            case 2:
                id_ = field.data()
            case 3:
                time_ns = field.signed()
            case 4:
                values += _doubles(field)
            case 5:
                annotation = field.data()
    return Metric(id_, _kind(kind), time_ns, tuple(values), annotation=annotation)


def _forwarded_bytes(metric: Metric) -> bytes:
    out = number_field(1, KINDS.index(metric.kind)) + _some(2, metric.id) + number_field(3, metric.time_ns)
    return out + _some(4, b"".join(map(_DOUBLE.pack, metric.values))) + _some(5, metric.annotation)


# --- metadata ---------------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What metadata asks for: policies, traffic types and aggregations of all its pipelines."""

    policies: tuple[StoragePolicy, ...] = ()
    traffic: int = 0
    aggregations: int = 0


def asked(data: bytes, now_ns: int) -> Asked:
    """Return what the staged metadata asks for that is in force: the last whose time has come; raises BadMessage."""
    found = Asked()
    for field in fields(data):
        if field.number == 1:
            cutover_ns, said = _stage(field.data())
            if cutover_ns <= now_ns:
                found = said
    return found


def _with_stages(metric: Metric, data: bytes, now_ns: int) -> Metric:
    said = asked(data, now_ns)
    return metric._replace(policies=said.policies, traffic=said.traffic, aggregations=said.aggregations)


def _stage(data: bytes) -> tuple[int, Asked]:
    cutover_ns, metadata = 0, b""
    for field in fields(data):
        if field.number == 1:
            cutover_ns = field.signed()
        elif field.number == 3:
            metadata += field.data()
    policies: list[StoragePolicy] = []
    traffic = aggregations = 0
    for field in fields(metadata):
        if field.number == 1:
            some, bits, chosen = _pipeline(field.data())
            policies += [policy for policy in some if policy not in policies]
            traffic, aggregations = traffic | bits, aggregations | chosen
    return cutover_ns, Asked(tuple(policies), traffic, aggregations)


def _pipeline(data: bytes) -> tuple[list[StoragePolicy], int, int]:
    policies, routing, chosen = [], b"", b""
    for field in fields(data):
        match field.number:
            case 1:
                chosen += field.data()
            case 2:
                policies.append(policy_of(field.data()))
            case 6:
                routing += field.data()
    return policies, _traffic(routing), _number(chosen, 1)


def _with_one(metric: Metric, data: bytes, routing: int) -> Metric:
    """Add what the metadata of one policy says; its traffic types are in this field."""
    policy, traffic, chosen = _parts(data, 2, routing, 1)
    return metric._replace(policies=(policy_of(policy),), traffic=_traffic(traffic), aggregations=_number(chosen, 1))


@lru_cache(POLICIES_MAX)
def policy_of(data: bytes) -> StoragePolicy:
    """Return a storage policy; raises BadMessage where it cannot be one."""
    resolution, retention = _parts(data, 1, 2)
    window_ns, precision_ns = _signed(resolution, 1), _signed(resolution, 2)
    retention_ns = _signed(retention, 1)
    if window_ns < 0 or not (window_ns or precision_ns):
        raise BadMessage("its storage policy has no resolution")
    if retention_ns <= 0:
        raise BadMessage("its storage policy keeps nothing")
    if precision_ns not in PRECISIONS_NS:
        raise BadMessage(f"its storage policy has a precision of {precision_ns} ns, which is no unit")
    return StoragePolicy(window_ns, precision_ns, retention_ns)


def policy_bytes(policy: StoragePolicy) -> bytes:
    """Return a storage policy's bytes."""
    resolution = number_field(1, policy.window_ns) + number_field(2, policy.precision_ns)
    return bytes_field(1, resolution) + bytes_field(2, number_field(1, policy.retention_ns))


def _parts(data: bytes, *numbers: int) -> list[bytes]:
    """Return the content of fields that are messages; what comes twice is one, as protobuf has it."""
    found = dict.fromkeys(numbers, b"")
    for field in fields(data):
        if field.number in found:
            found[field.number] += field.data()
    return list(found.values())


def _last(found: Iterable[Field], number: int) -> Field | None:
    last = None
    for field in found:
        if field.number == number:
            last = field
    return last


def _number(data: bytes, number: int) -> int:
    field = _last(fields(data), number)
    return field.whole() if field is not None else 0


def _signed(data: bytes, number: int) -> int:
    field = _last(fields(data), number)
    return field.signed() if field is not None else 0


def _traffic(data: bytes) -> int:
    return _number(data, 1)


def _kind(number: int) -> Kind:
    """Return the kind of a type; one that there is not says nothing, as an enum of proto3's does."""
    return KINDS[number] if number < len(KINDS) else ""  # type: ignore[return-value]


def _some(number: int, data: bytes) -> bytes:
    return bytes_field(number, data) if data else b""


def _double(number: int, value: float) -> bytes:
    """Return a field with a double; nothing for 0, but something for the 0 that has a sign."""
    data = _DOUBLE.pack(value)
    return varint(number << 3 | FIXED64) + data if data != bytes(8) else b""
