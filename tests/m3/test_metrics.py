"""Metrics: the vectors both ways, and by columns what is said one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.m3 import metric_columns, metrics
from penstock.m3.metrics import KINDS, Metric
from penstock.m3.policies import PRECISIONS_NS, StoragePolicy, storage_policy
from penstock.m3.wire import BadMessage, bytes_field, number_field

AGGREGATED = bytes.fromhex(
    "0a 38 0a 18 12 03 66 6f 6f 18 80 c8 d7 d1 88 a0 e7 cb 17 21 00 00 00 00 00 40 45 40 12 18 0a 0c 08 80 c8 af a0 25"
    "10 80 94 eb dc 03 12 08 08 80 80 f8 94 92 a5 27 1a 02 08 05"
)
UNTAGGED = b"\x0a\x36" + AGGREGATED[2:-4] + b"\x1a\x00"
SAMPLE = bytes.fromhex(
    "08 01 12 34 0a 08 0a 04 72 65 71 73 10 03 12 28 0a 26 1a 24 0a 22 0a 00 12 18 0a 0c 08 80 c8 af a0 25 10 80 94 eb"
    "dc 03 12 08 08 80 80 f8 94 92 a5 27 1a 00 32 02 08 01"
)
POLICY = storage_policy("10s:2d")
FOO = Metric(b"foo", "", 1_700_000_010 * 10**9, (42.5,), (POLICY,), 5, is_aggregated=True)
REQS = Metric(b"reqs", "counter", 0, (3,), (POLICY,), 1)
NOW = 1_800_000_000 * 10**9

durations = st.integers(1, 2**63 - 1)
policies = st.builds(StoragePolicy, durations, st.sampled_from(PRECISIONS_NS), durations)
few_policies = st.sampled_from([POLICY, storage_policy("1m:40d"), storage_policy("1s@1ms:1h")])
times = st.one_of(st.just(0), st.integers(-(2**63), 2**63 - 1))
doubles = st.floats()
bits = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1))
ids = st.one_of(st.binary(max_size=10), st.binary(min_size=100, max_size=200))
aggregates = st.builds(
    Metric,
    ids,
    st.sampled_from(KINDS),
    times,
    doubles.map(lambda value: (value,)),
    few_policies.map(lambda policy: (policy,)),
    bits,
    st.sampled_from([b"", b"note"]),
    st.just(0),
    st.just(True),
)


def sample(kind: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Metric]:
    some = st.lists(few_policies, max_size=2, unique=True).map(tuple)
    notes = st.sampled_from([b"", b"note"])
    return st.builds(
        Metric, ids, st.just(kind), times, values, some, bits, notes, st.sampled_from([0, 1590268]), st.just(False)
    )


samples = st.one_of(
    sample("counter", st.integers(-(2**63), 2**63 - 1).map(lambda value: (value,))),
    sample("gauge", doubles.map(lambda value: (value,))),
    sample("timer", st.lists(doubles, max_size=4).map(tuple)),
)


def alike(one: Metric, other: Metric) -> bool:
    """Tell whether two metrics are the same, as far as NaN can be."""
    pairs = zip(one.values, other.values, strict=True)
    same = all(left == right or (math.isnan(left) and math.isnan(right)) for left, right in pairs)
    return same and one._replace(values=()) == other._replace(values=())


def test_the_vectors_are_read_and_written() -> None:
    assert metrics.decode(AGGREGATED, NOW) == FOO
    assert metrics.encode(FOO) == AGGREGATED
    assert metrics.decode(UNTAGGED, NOW) == FOO._replace(traffic=0)
    assert metrics.encode(FOO._replace(traffic=0)) == UNTAGGED
    assert metrics.decode(SAMPLE, NOW) == REQS
    assert metrics.encode_unaggregated(REQS) == SAMPLE


@given(aggregates, policies)
def test_an_aggregated_metric_is_read_back(metric: Metric, policy: StoragePolicy) -> None:
    said = metric._replace(policies=(policy,))
    assert alike(metrics.decode(metrics.encode(said), NOW), said)


@given(samples)
def test_a_metric_that_is_not_aggregated_is_read_back(metric: Metric) -> None:
    assert alike(metrics.decode(metrics.encode_unaggregated(metric), NOW), metric)


def rows_of(found: metric_columns.Metrics) -> list[tuple[object, ...]]:
    """Return what columns say of each row."""
    known = [found.asked[int(which)] for which in found.which]
    traffic = found.traffic().view(np.uint64).tolist()
    assert traffic == [each.traffic for each in known]
    numbers = zip(found.ids.to_pylist(), found.kinds.tolist(), found.times_ns.tolist(), known, strict=True)
    return [(id_, KINDS[kind], time, *each) for id_, kind, time, each in numbers]


def said_of(metric: Metric) -> tuple[object, ...]:
    return metric.id, metric.kind, metric.time_ns, metric.policies, metric.traffic, metric.aggregations


def joined(bodies: list[bytes]) -> tuple[Any, bytes]:
    return np.cumsum([0, *map(len, bodies)]).astype(np.int32), b"".join(bodies)


@given(st.one_of(st.lists(aggregates, min_size=1, max_size=40), st.lists(samples, min_size=1, max_size=40)))
def test_columns_say_what_is_said_one_by_one(rows: list[Metric]) -> None:
    write = metrics.encode if rows[0].is_aggregated else metrics.encode_unaggregated
    found = metric_columns.read(*joined([write(row) for row in rows]), NOW)
    assert found is not None
    assert rows_of(found) == [said_of(row) for row in rows]
    assert found.is_aggregated == rows[0].is_aggregated
    if found.values is not None:
        assert np.array_equal(found.values, [float(row.values[0]) for row in rows], equal_nan=True)
    else:
        assert any(row.kind == "timer" for row in rows)


@given(st.lists(aggregates.filter(lambda row: not row.annotation), max_size=40))
def test_aggregated_metrics_are_written_by_columns_as_one_by_one(rows: list[Metric]) -> None:
    known = sorted({row.policies[0] for row in rows}, key=str) or [POLICY]
    wire = metric_columns.encode(
        pa.array([row.id for row in rows], pa.binary()),
        np.array([row.time_ns for row in rows], np.int64),
        np.array([row.values[0] for row in rows], np.float64),
        np.array([row.traffic for row in rows], np.uint64).view(np.int64),
        known,
        np.array([known.index(row.policies[0]) for row in rows], np.int32),
        np.array([KINDS.index(row.kind) for row in rows], np.uint8),
    )
    assert wire.to_pylist() == [metrics.encode(row) for row in rows]


good = st.one_of(aggregates.map(metrics.encode), samples.map(metrics.encode_unaggregated))
spoilt = st.builds(
    lambda body, at, byte: body[: at % len(body)] + bytes([byte]) + body[at % len(body) + 1 :],
    good,
    st.integers(0, 500),
    st.integers(0, 255),
)
cut = st.builds(lambda body, at: body[: at % len(body)], good, st.integers(0, 500))


@given(
    st.integers(0, 12),
    st.sampled_from(KINDS),
    st.lists(st.tuples(st.integers(2**55, 2**56 - 1), doubles, st.integers(0, 127)), min_size=2, max_size=40),
    st.lists(few_policies, min_size=1, max_size=3),
    st.sampled_from([b"", b"note"]),
    st.tuples(st.integers(0, 5000), st.integers(0, 255)) | st.none(),
)
def test_metrics_that_are_written_alike_say_the_same_one_by_one_also_where_a_byte_is_spoilt(
    length: int,
    kind: metrics.Kind,
    some: list[tuple[int, float, int]],
    known: list[StoragePolicy],
    note: bytes,
    spoilt: tuple[int, int] | None,
) -> None:
    rows = [
        Metric(bytes([65 + at]) * length, kind, time, (value or 1.0,), (known[at % len(known)],), bits, note, 0, True)
        for at, (time, value, bits) in enumerate(some)
    ]
    bodies = [metrics.encode(row) for row in rows]
    if spoilt is not None:
        body = bytearray(bodies[spoilt[0] % len(bodies)])
        body[spoilt[0] % len(body)] = spoilt[1]
        bodies[spoilt[0] % len(bodies)] = bytes(body)
    cuts, body_ = joined(bodies)
    each = metric_columns.each(cuts, body_, NOW)
    found = metric_columns.read(cuts, body_, NOW)
    if spoilt is None:
        assert found is not None
    if found is not None:
        assert rows_of(found) == [said_of(row) for row in each if isinstance(row, Metric)]
        assert len(each) == len(rows_of(found))
        if found.values is not None:
            expected = [row.values[0] for row in each if isinstance(row, Metric)]
            assert np.array_equal(found.values, expected, equal_nan=True)


@given(st.lists(st.one_of(spoilt, cut, good, st.binary(max_size=30)), min_size=1, max_size=12))
def test_of_spoilt_metrics_columns_say_the_same_or_nothing(bodies: list[bytes]) -> None:
    cuts, body = joined(bodies)
    each = metric_columns.each(cuts, body, NOW)
    for one in bodies:
        try:
            metrics.decode(one, NOW)
        except BadMessage:
            pass
    found = metric_columns.read(cuts, body, NOW)
    if found is not None:
        assert rows_of(found) == [said_of(row) for row in each if isinstance(row, Metric)]
        assert len(each) == len(rows_of(found))


def test_of_staged_metadata_the_last_counts_whose_time_has_come() -> None:
    def stage(cutover_ns: int, traffic: int) -> bytes:
        pipeline = bytes_field(1, b"") + bytes_field(6, number_field(1, traffic))
        return bytes_field(1, number_field(1, cutover_ns) + bytes_field(3, bytes_field(1, pipeline)))

    staged = stage(1, 1) + stage(NOW, 2) + stage(NOW + 1, 4)
    assert metrics.asked(staged, NOW).traffic == 2
    assert metrics.asked(staged, 5).traffic == 1
    assert metrics.asked(staged, 0) == metrics.Asked()
    assert metrics.asked(staged, NOW + 1).traffic == 4


def test_timed_and_forwarded_metrics_are_read_with_their_traffic_types() -> None:
    timed = bytes_field(2, b"t") + number_field(3, 7)
    policy = metrics.policy_bytes(POLICY)
    routing = number_field(1, 6)
    cases = {
        5: bytes_field(1, timed) + bytes_field(2, bytes_field(2, policy) + bytes_field(7, routing)),
        6: bytes_field(1, timed) + bytes_field(2, bytes_field(2, policy) + bytes_field(3, routing)),
        8: bytes_field(1, timed) + bytes_field(2, policy) + bytes_field(3, routing),
    }
    for number, content in cases.items():
        found = metrics.decode(number_field(1, number - 1) + bytes_field(number, content), NOW)
        assert (found.id, found.time_ns, found.policies, found.traffic) == (b"t", 7, (POLICY,), 6), number


@given(
    aggregates.map(lambda metric: metric._replace(is_aggregated=False)),
    st.sampled_from([0, 1590268]),
    st.sampled_from(["forwarded", "timed", "timed_staged", "timed_policy"]),
)
def test_timed_and_forwarded_metrics_are_read_back(metric: Metric, aggregations: int, form: metrics.Form) -> None:
    if form != "timed_policy":  # which has no room for them
        metric = metric._replace(aggregations=aggregations)
    written = metrics.encode_unaggregated(metric, form)
    assert alike(metrics.decode(written, NOW), metric)
    assert written[1] == ["sample", "forwarded", "timed", "timed_staged", "timed_policy"].index(form) + 3


@pytest.mark.parametrize("form", ["forwarded", "timed", "timed_policy"])
def test_a_form_that_has_one_policy_takes_no_other_number(form: metrics.Form) -> None:
    with pytest.raises(ValueError, match="one policy"):
        metrics.encode_unaggregated(FOO._replace(policies=()), form)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (StoragePolicy(0, 0, 1), "no resolution"),
        (StoragePolicy(10**9, 10**9, 0), "keeps nothing"),
        (StoragePolicy(10**9, 3, 10**9), "precision of 3 ns"),
    ],
)
def test_a_policy_that_cannot_be_one_makes_no_metric(policy: StoragePolicy, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        metrics.decode(metrics.encode(FOO._replace(policies=(policy,))), NOW)


@pytest.mark.parametrize("data", [b"", b"\x08\x00", b"\x08\x01", b"\x08\x63\x12\x00", b"hello", b"\x10\x01"])
def test_what_is_no_metric_is_told(data: bytes) -> None:
    with pytest.raises(BadMessage):
        metrics.decode(data, NOW)
