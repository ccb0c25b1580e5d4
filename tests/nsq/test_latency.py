from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.nsq.http.api import observe
from penstock.dialects.nsq.stats.latency import ERROR, Latency, Percentiles, percentiles
from penstock.dialects.nsq.stats.printout import printout
from tests.nsq.parts import SECOND, Broker

WINDOW_NS = 100 * SECOND
QUANTILES = (0.5, 0.95, 0.99, 1.0)


def of(latency: Latency, now_ns: int = 0) -> dict[float, float]:
    found = percentiles(latency.counts(now_ns), QUANTILES).percentiles
    assert found is not None
    return {one.quantile: one.value for one in found}


@given(st.lists(st.integers(1 << 11, 1 << 50), min_size=1, max_size=300))
def test_percentile_is_within_the_promised_error(values: list[int]) -> None:
    latency = Latency(WINDOW_NS, 0)
    latency.add_all(np.array(values, np.int64), 0)
    for quantile, value in of(latency).items():
        exact = sorted(values)[max(1, math.ceil(quantile * len(values))) - 1]
        assert abs(value - exact) <= exact * ERROR + 1


@given(st.lists(st.integers(-(1 << 40), 1 << 62), max_size=50))
def test_one_by_one_or_all_at_once_is_the_same(values: list[int]) -> None:
    one, many = Latency(WINDOW_NS, 0), Latency(WINDOW_NS, 0)
    for value in values:
        one.add(value, 1, 0)
    many.add_all(np.array(values, np.int64), 0)
    assert one.counts(0).tolist() == many.counts(0).tolist()
    assert int(one.counts(0).sum()) == len(values)


def test_window_slides_in_halves() -> None:
    latency = Latency(WINDOW_NS, 0)
    latency.add(1 << 20, 3, 0)
    latency.add(1 << 30, 1, 60 * SECOND)
    assert int(latency.counts(60 * SECOND).sum()) == 4
    assert int(latency.counts(99 * SECOND).sum()) == 4
    assert int(latency.counts(100 * SECOND).sum()) == 1
    assert int(latency.counts(150 * SECOND).sum()) == 0
    latency.add(1 << 20, 1, 1000 * SECOND)
    assert int(latency.counts(1000 * SECOND).sum()) == 1


def test_nothing_measured_is_zero() -> None:
    assert percentiles(Latency(WINDOW_NS, 0).counts(0), [0.99]) == Percentiles(
        0,
        [type(percentiles(Latency(WINDOW_NS, 0).counts(0), [0.5]).percentiles[0])(0.99, 0.0)],  # type: ignore[index]
    )


# --- measured on a node -----------------------------------------------------------------------------------------------


def value_of(found: Percentiles, quantile: float) -> float:
    assert found.percentiles is not None
    return next(one.value for one in found.percentiles if one.quantile == quantile)


@pytest.mark.parametrize("count", [1, 10, 2000])
def test_time_from_publish_to_fin_is_measured(tmp_path: Path, count: int) -> None:
    broker = Broker(tmp_path, e2e_processing_latency_percentiles=("0.5", "1"))
    observer = observe(broker.node, broker.config, broker.server)
    client = broker.client()
    client.sub("t", "ch", rdy=2500)
    client.mpub("t", [b"x"] * count)
    broker.advance(2)
    ids = [data[10:26] for kind, data in client.frames() if kind == 2]
    client.send(b"".join(b"FIN " + id_ + b"\n" for id_ in ids))
    topic = (observer.topics() or [])[0]
    for found in (topic.e2e_processing_latency, topic.channels[0].e2e_processing_latency):
        assert found.count == count
        assert abs(value_of(found, 0.5) - 2 * SECOND) <= 2 * SECOND * ERROR + 1
    text = printout(observer.stats(), broker.node.started_ns, broker.clock.now())
    assert f"msgs: {count:<8} e2e%: 2.0s, 2.0s\n" in text
    assert broker.node.bugs == 0


def test_many_lone_messages_acked_together_are_sampled_evenly(tmp_path: Path) -> None:
    broker = Broker(tmp_path, e2e_processing_latency_percentiles=("0.5", "1"))
    observer = observe(broker.node, broker.config, broker.server)
    client = broker.client()
    client.sub("t", "ch", rdy=2500)
    for _ in range(1000):
        client.pub("t", b"x")
        broker.advance(0.01)
    ids = [data[10:26] for kind, data in client.frames() if kind == 2]
    client.send(b"".join(b"FIN " + id_ + b"\n" for id_ in ids))
    found = (observer.topics() or [])[0].e2e_processing_latency
    assert 30 <= found.count <= 130
    assert 4.5 * SECOND <= value_of(found, 0.5) <= 5.5 * SECOND
    assert 9.5 * SECOND <= value_of(found, 1.0) <= 10.5 * SECOND


def test_refused_ack_is_not_measured(tmp_path: Path) -> None:
    broker = Broker(tmp_path, e2e_processing_latency_percentiles=("0.5",))
    observer = observe(broker.node, broker.config, broker.server)
    client = broker.client()
    client.sub("t", "ch", rdy=10)
    client.pub("t", b"x")
    id_ = next(data[10:26] for kind, data in client.frames() if kind == 2)
    client.send(b"FIN %b\nFIN %b\n" % (id_, b"0000000000000999"))
    assert (observer.topics() or [])[0].e2e_processing_latency.count == 1
    client.send(b"FIN " + id_ + b"\n")
    assert (observer.topics() or [])[0].e2e_processing_latency.count == 1


def test_without_percentiles_nothing_is_measured(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    before = list(broker.node.watchers)
    observe(broker.node, broker.config, broker.server)
    broker.client().sub("t", "ch")
    assert broker.node.topics["t"].subscriptions["ch"].on_ack is None
    assert broker.node.watchers == before


def test_channels_of_an_earlier_run_are_measured(tmp_path: Path) -> None:
    broker = Broker(tmp_path, e2e_processing_latency_percentiles=("0.5",))
    broker.client().sub("t", "ch")
    broker.kill()
    observe(broker.node, broker.config, broker.server)
    assert broker.node.topics["t"].subscriptions["ch"].on_ack is not None
