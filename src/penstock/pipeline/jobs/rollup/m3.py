"""M3's metrics, in and out: a message is one metric, of which a timer may have several values.

Owns how the payloads of M3Msg become samples, and aggregates such payloads; what the bytes mean is `penstock.m3`'s.
A metric asks for what its metadata said when the broker took it, so whatever is read again gives the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import arrow_udf

from penstock.filters.storage import HEADER as STORAGE_POLICY
from penstock.m3 import metric_columns
from penstock.m3.metrics import KINDS, decode
from penstock.m3.policies import StoragePolicy, storage_policy
from penstock.m3.wire import BadMessage
from penstock.pipeline.jobs.rollup.aggregations import COUNTER, GAUGE, TIMER

_MEMBERS = (
    "id binary, kind int, values array<struct<value: double, whole: bigint>>, time_us bigint, bits bigint, "
    "policies array<string>, reason string"
)
_VALUE = pa.struct([("value", pa.float64()), ("whole", pa.int64())])
_TYPE = pa.struct(
    [
        ("id", pa.binary()),
        ("kind", pa.int32()),
        ("values", pa.list_(_VALUE)),
        ("time_us", pa.int64()),
        ("bits", pa.int64()),
        ("policies", pa.list_(pa.string())),
        ("reason", pa.string()),
    ]
)
#: What has no type is a value at a time.
_CODES = {"": GAUGE, "counter": COUNTER, "timer": TIMER, "gauge": GAUGE}
_CODE = np.array([_CODES[kind] for kind in KINDS], np.int32)
#: A double is a whole number of 64 bits below this.
_WHOLE_MAX = 2.0**63
_COUNTER = "a counter that is not a 64-bit integer"


def parsed(messages: DataFrame) -> DataFrame:
    """Return messages with what their metric says: id, kind, values, time_us, bits, policies, `reason` if it is none.

    `policies` are those that a metric is to be aggregated by; null where it names none, or was aggregated already.
    """
    # The rows that have no time were taken now, as far as anybody knows.
    taken = sql.coalesce(sql.unix_micros("timestamp"), sql.unix_micros("event_time"))
    said: Column = arrow_udf(read, f"struct<{_MEMBERS}>")("body", taken)  # type: ignore[call-overload]
    opened = messages.withColumn("said", said)
    own = sql.col("said")
    return opened.withColumns(
        {
            "line": sql.lit(0),
            "text": sql.lit(None).cast("string"),
            "position": sql.lit(0).cast("bigint"),
            # The bytes of an id are kept, whatever text they are.
            "id": own["id"].cast("string"),
            "kind": own["kind"],
            "values": own["values"],
            "time_us": own["time_us"],
            "bits": sql.coalesce(sql.nullif(own["bits"], sql.lit(0)), "bits", own["bits"]),
            "policies": own["policies"],
            "reason": own["reason"],
        }
    ).drop("said")


def takes(policy: StoragePolicy) -> Column:
    """Return whether a sample is to be aggregated by a policy."""
    policies = sql.col("policies")
    return policies.isNull() | sql.array_contains(policies, str(policy))


def messages(aggregates: DataFrame) -> DataFrame:
    """Return aggregates as messages of M3's: what its aggregator would send."""
    time_ns = sql.unix_micros("time") * 1000
    body: Column = arrow_udf(written, "binary")(  # type: ignore[call-overload]
        sql.col("id").cast("binary"), time_ns, "value", sql.coalesce("traffic", sql.lit(0).cast("bigint")), "policy"
    )
    return aggregates.select(
        sql.col("id").cast("binary").alias("key"),
        body.alias("body"),
        sql.to_json(sql.struct(sql.col("policy").alias(STORAGE_POLICY))).alias("headers"),
        sql.col("time").alias("event_time"),
        "traffic",
    )


def read(bodies: pa.Array, taken_us: pa.Array) -> pa.Array:
    """Return what many bodies say."""
    if len(bodies) and not bodies.null_count and not taken_us.null_count:
        times = np.asarray(taken_us) * 1000
        body = bodies.cast(pa.binary())
        _, edges, data = body.buffers()
        cuts = np.frombuffer(edges, np.int32, len(body) + 1, body.offset * 4)
        whole = data if data is not None else b""
        found = metric_columns.read(cuts, whole, int(times.min()), int(times.max()))
        if found is not None and found.values is not None:
            return _columns(found, found.values)
    pairs = zip(bodies.to_pylist(), taken_us.to_pylist(), strict=True)
    return pa.array([_one(body, (taken or 0) * 1000) for body, taken in pairs], _TYPE)


def written(ids: pa.Array, times_ns: pa.Array, values: pa.Array, traffic: pa.Array, policies: pa.Array) -> pa.Array:
    """Return the bodies of many aggregates."""
    known = policies.dictionary_encode()
    return metric_columns.encode(
        ids.cast(pa.binary()),
        np.array(times_ns, np.int64),
        np.array(values, np.float64),
        np.array(traffic, np.int64),
        [storage_policy(text) for text in known.dictionary.to_pylist()],
        np.array(known.indices, np.int32),
    )


def _columns(found: metric_columns.Metrics, values: np.ndarray[Any, np.dtype[np.float64]]) -> pa.Array:
    codes = _CODE[found.kinds]
    counts = codes == COUNTER
    if found.wholes is not None:
        wholes, wrong = found.wholes, np.zeros(len(values), np.bool_)
    else:
        wrong = counts & ~((np.abs(values) < _WHOLE_MAX) & (values == np.floor(values)))
        wholes = np.where(counts & ~wrong, values, 0).astype(np.int64)
    times = found.times_ns // 1000
    each = pa.StructArray.from_arrays(
        [pa.array(values), pa.array(wholes, mask=~counts | wrong)], fields=[_VALUE.field(0), _VALUE.field(1)]
    )
    texts = pa.array([_policies(each.policies, found.is_aggregated) for each in found.asked], pa.list_(pa.string()))
    columns = [
        found.ids,
        pa.array(codes),
        pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1, dtype=np.int32)), each),
        pa.array(times, mask=found.times_ns == 0),
        pa.array(found.traffic()),
        texts.take(pa.array(found.which)),
        pa.array(np.where(wrong, _COUNTER, ""), pa.string(), mask=~wrong),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_TYPE))


def _one(body: bytes | None, taken_ns: int) -> dict[str, object]:
    try:
        if body is None:
            raise BadMessage("no body")
        metric = decode(body, taken_ns)
    except BadMessage as error:
        reason = str(error) if body is None else f"not a metric of M3: {error}"
        return {"reason": reason}
    code = _CODES[metric.kind]
    wholes = [_whole(value) if code == COUNTER else None for value in metric.values]
    values = [{"value": float(value), "whole": whole} for value, whole in zip(metric.values, wholes, strict=True)]
    return {
        "id": metric.id,
        "kind": code,
        "values": values,
        "time_us": metric.time_ns // 1000 if metric.time_ns else None,
        "bits": metric.traffic - (1 << 64) if metric.traffic >> 63 else metric.traffic,
        "policies": _policies(metric.policies, metric.is_aggregated),
        "reason": _COUNTER if code == COUNTER and None in wholes else None,
    }


def _whole(value: float) -> int | None:
    if isinstance(value, int):
        return value
    return int(value) if abs(value) < _WHOLE_MAX and value == int(value) else None


def _policies(policies: tuple[StoragePolicy, ...], is_aggregated: bool) -> list[str] | None:
    return None if is_aggregated or not policies else [str(policy) for policy in policies]
