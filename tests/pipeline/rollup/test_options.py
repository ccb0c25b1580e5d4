"""Durations, storage policies and the options of the rollup. No Spark."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.m3.policies import PRECISIONS_NS, duration_ns, rendered, storage_policy
from penstock.pipeline.jobs.rollup import Rollup, StoragePolicy

SECOND = 10**9
DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("text", "window", "precision", "retention"),
    [
        ("10s:2d", 10 * SECOND, SECOND, 2 * DAY),
        ("1m:40d", 60 * SECOND, 60 * SECOND, 40 * DAY),
        ("1h30m:1mon", 5400 * SECOND, 60 * SECOND, 30 * DAY),
        ("10s@1ms:1y", 10 * SECOND, 10**6, 365 * DAY),
        ("1min@1s:1w", 60 * SECOND, SECOND, 7 * DAY),
        ("250ms:12h", 250 * 10**6, 10**6, DAY // 2),
    ],
)
def test_a_policy_is_read_as_m3_reads_it(text: str, window: int, precision: int, retention: int) -> None:
    assert storage_policy(text) == StoragePolicy(window, precision, retention)


@pytest.mark.parametrize(
    ("text", "told"),
    [("10s:2d", "10s:2d"), ("60s:48h", "1m:2d"), ("10s@1s:2d", "10s:2d"), ("10s@1ms:1w", "10s@1ms:7d")],
)
def test_a_policy_is_rendered_in_its_shortest_form(text: str, told: str) -> None:
    assert str(storage_policy(text)) == told


@given(st.integers(1, 10**10).map(lambda ms: ms * 10**6), st.sampled_from(PRECISIONS_NS), st.integers(1, (1 << 63) - 1))
def test_what_was_rendered_is_read_back(window: int, precision: int, retention: int) -> None:
    policy = StoragePolicy(window, precision, retention)
    assert storage_policy(str(policy)) == policy


@given(st.integers(0, (1 << 63) - 1))
def test_a_duration_is_read_back(value: int) -> None:
    assert duration_ns(rendered(value), "here") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10s", "is not a storage policy"),
        (":2d", "is not a storage policy"),
        ("10s:", "is not a storage policy"),
        ("ten:2d", '"ten" is not a duration'),
        ("10s:2", '"2" is not a duration'),
        ("1.5s:2d", '"1.5s" is not a duration'),
        ("0s:2d", "whole milliseconds"),
        ("15us:2d", "whole milliseconds"),
        ("2y:9y", "whole milliseconds, from 1ms to 1y"),
        ("10s:0d", "keeps nothing"),
        ("10s@5s:2d", "precision 5s"),
        ("10s:300y", "too long"),
    ],
)
def test_a_policy_that_is_none_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        storage_policy(text)
    assert str(refused.value).startswith("policies: ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"format": "statd"}, 'format does not know "statd"; did you mean statsd?'),
        ({"policies": []}, "policies is empty"),
        ({"policies": ["1m:2d", "60s:48h"]}, "policies has 1m:2d twice"),
        ({"late": "keep"}, 'late does not know "keep"; there are drop, dead'),
        ({"names": "flat"}, "names does not know"),
        ({"lateness": "soon"}, 'lateness: "soon" is not a duration'),
        ({"lateness": "10us"}, "whole milliseconds"),
        ({"future": "-1m"}, 'future: "-1m" is not a duration'),
        ({"aggregations": {"counter": ["last"]}}, 'aggregations.counter does not know "last"'),
        ({"aggregations": {"gauge": []}}, "aggregations.gauge is empty"),
        ({"aggregations": {"timer": ["last"]}}, "aggregations.timer does not know"),
        ({"aggregations": {"timer": ["p99", "p99"]}}, "aggregations.timer names an aggregation twice"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_with_the_field(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        msgspec.convert(options, Rollup)
    assert says in str(refused.value)


def test_the_defaults_are_m3s() -> None:
    options = msgspec.convert({}, Rollup)
    assert [str(policy) for policy in options.storage_policies()] == ["10s:2d", "1m:40d"]
    assert options.aggregations.counter == ("sum",)
    assert options.aggregations.gauge == ("last",)
    assert len(options.aggregations.timer) == 11
    assert (options.lateness_us(), options.future_us()) == (30_000_000, 60_000_000)
