"""Everything a subscription may refuse, in a running node and row by row, against the documented rules."""

from __future__ import annotations

import random

import mmh3
import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.columns import Column, id_of
from penstock.delivery.rules import rules_of
from penstock.errors import Refusal
from penstock.filters.acceptance import Acceptance, Carried
from penstock.filters.percentage import DRAWS, draws, rate_of, verdicts
from penstock.filters.shards import ShardFilter
from penstock.filters.storage import StorageFilter
from penstock.filters.traffic import TrafficFilter
from penstock.settings import SubscriptionSettings, TrafficSettings
from tests.filters.reference import Row, takes
from tests.filters.rows import batch_of, policy, some_mapping, some_rows, some_settings
from tests.site import Site


def filtered(**settings: object) -> SubscriptionSettings:
    return msgspec.convert(settings, SubscriptionSettings)


@pytest.mark.parametrize("seed", range(40))
def test_batches_are_judged_as_the_documentation_says_row_by_row(seed: int) -> None:
    chance = random.Random(seed)
    mapping, shard, first = some_mapping(chance), chance.randrange(4), chance.randrange(1 << 40)
    count = chance.choice((1, 7, 16, 17, 300))
    rows = some_rows(chance, shard, first, count)
    settings = {f"s{number}": some_settings(chance) for number in range(8)}
    counts: dict[str, dict[str, int]] = {name: {} for name in settings}
    batch = batch_of(rows, first)
    start = chance.randrange(count)
    for name, rules in rules_of(settings, mapping, counts).items():
        expected = [takes(row, settings[name], mapping) for row in rows]
        sifted = rules._replace(shard=shard).sift(batch, start, count, 0)
        assert [offset - first for offset in sifted.ready] == [n for n in range(start, count) if expected[n]]
        assert sum(counts[name].values()) == len(sifted.filtered) == expected[start:].count(False)
        if not all(expected):
            assert rules.concerns(batch)


def test_m3msg_case_36_filters_are_anded_and_without_them_everything_is_taken_again() -> None:
    site = Site()
    site.node.catalog.set_mapping({"production": 0}).now()
    topic = site.node.create_topic("t").now()
    got = site.consume(topic, "s", filtered(traffic={"allowed": ["production"]}, shard_set="0..9"))
    columns: dict[str, Column] = {"traffic": [1, 1, 2, None], "route": [3, 10, 3, 10]}
    site.offer(topic, b"both", b"shard", b"type", b"neither", **columns)
    assert got == [b"both"]
    subscription = topic.subscription("s")
    assert subscription.refused == {"shard-set": 2, "routing": 1}
    assert subscription.counts()["filtered"] == 3
    topic.update_subscription("s", SubscriptionSettings()).now()
    site.offer(topic, b"a", b"b", traffic=[2, None], route=[10, 10])
    assert got == [b"both", b"a", b"b"]


@pytest.mark.parametrize("is_default", [False, True])
def test_m3msg_case_39_a_message_without_traffic_types_goes_by_default(is_default: bool) -> None:
    settings = filtered(traffic={"allowed": ["a"], "is_default": is_default})
    for upstream in (False, True):
        rule = TrafficFilter(("a",), is_default, upstream)
        assert Acceptance(traffic=rule).explain(Carried(), {"a": 0})[0] is is_default
    assert takes(Row(1), settings, {"a": 0}) is is_default


def judged(rule: TrafficFilter, bits: int, mapping: dict[str, int]) -> bool:
    """Ask in words and in bulk, which must agree."""
    said = Acceptance(traffic=rule).explain(Carried(bits), mapping)[0]
    traffic = TrafficSettings(rule.allowed, rule.is_default, rule.upstream_filter)
    rules = rules_of({"s": SubscriptionSettings(traffic=traffic)}, mapping)["s"]
    assert (len(rules.sift(batch_of([Row(1, bits)], 0), 0, 1, 0).ready) == 1) is said
    return said


def test_m3msg_case_40_a_shared_bit_decides_and_an_unknown_name_leaves_it_to_the_default() -> None:
    mapping = {"type1": 0, "type2": 1}
    known = TrafficFilter(("type1",))
    assert [judged(known, bits, mapping) for bits in (1, 2, 3)] == [True, False, True]
    for is_default in (False, True):
        assert judged(TrafficFilter(("type1", "missing"), is_default), 1, mapping) is is_default
        upstream = TrafficFilter(("type1", "missing"), is_default, upstream_filter=True)
        assert judged(upstream, 1, mapping) is True
        assert judged(upstream, 2, mapping) is False


def test_m3msg_case_41_where_nothing_can_be_matched_the_default_decides_but_not_for_an_empty_list() -> None:
    assert judged(TrafficFilter(("a",), is_default=True), 1, {}) is True
    assert judged(TrafficFilter(("a",), is_default=True), 1, {"b": 0}) is True
    assert judged(TrafficFilter((), is_default=True), 1, {"b": 0}) is False
    assert judged(TrafficFilter(("a",), is_default=True, upstream_filter=True), 1, {}) is False
    assert judged(TrafficFilter(("a",), is_default=True, upstream_filter=True), 1, {"b": 0}) is False


def test_m3msg_case_42_the_lowest_and_the_highest_bit_and_all_of_them() -> None:
    mapping = {"low": 0, "high": 63}
    low, high = TrafficFilter(("low",)), TrafficFilter(("high",))
    everything = (1 << 64) - 1
    assert [judged(low, bits, mapping) for bits in (1, 1 << 63, everything)] == [True, False, True]
    assert [judged(high, bits, mapping) for bits in (1, 1 << 63, everything)] == [False, True, True]


def test_m3msg_case_43_a_type_that_moves_takes_its_filter_along_for_what_comes_then() -> None:
    site = Site()
    site.node.catalog.set_mapping({"type1": 0}).now()
    topic = site.node.create_topic("t").now()
    got = site.consume(topic, "s", filtered(traffic={"allowed": ["type1"]}), credit=0)
    site.offer(topic, b"before", traffic=[1])
    site.seat.set_credit(1)
    site.machine.run()
    assert got == [b"before"]
    site.node.catalog.set_mapping({"type1": 2}, force=True).now()
    site.machine.run()
    site.seat.set_credit(100)
    site.offer(topic, b"old", b"new", traffic=[1, 4])
    assert got == [b"before", b"new"]


def test_m3msg_case_46_storage_policies_are_told_apart_by_window_and_retention_alone() -> None:
    rule = StorageFilter(["1s:1m"])
    assert rule.verdict(policy("1s:1m")) is True
    assert rule.verdict(policy("1m:1h")) is False
    assert rule.verdict(policy("1s@1ms:60s")) is True
    assert rule.verdict(policy("1s:1h")) is False


@pytest.mark.parametrize(
    "headers", [None, b"", b"{}", b'{"other":"1m:1h"}', b"[1]", b"\xff", b'{"m3-storage-policy":5}']
)
def test_a_message_that_names_no_storage_policy_passes(headers: bytes | None) -> None:
    assert StorageFilter(["1s:1m"]).verdict(headers) is True


def test_a_storage_policy_that_cannot_be_read_is_none_of_those_that_are_taken() -> None:
    assert StorageFilter(["1s:1m"]).verdict(policy("soon")) is False


def test_headers_are_judged_alike_in_a_list_and_in_arrow_whatever_is_remembered() -> None:
    many = [policy(f"{n}s:{n}h") for n in range(1, 5000)] + [None, b"{}", policy("x" * 600)]
    rule = StorageFilter(["3s:3h", "4999s:4999h"])
    for _ in range(2):
        expected = [rule.verdict(headers) for headers in many]
        assert rule.verdicts(pa.array(many, pa.binary())).tolist() == expected
        assert rule.verdicts(many).tolist() == expected
    assert expected.count(True) == 4


def test_m3msg_case_46_a_shard_set_has_both_its_ends() -> None:
    rule = ShardFilter("0..511")
    assert (rule.verdict(0), rule.verdict(511), rule.verdict(512)) == (True, True, False)
    assert rule.verdicts(pa.array([0, 511, 512, None, -1], pa.int64())).tolist() == [True, True, False, True, False]


def test_a_list_of_shards_is_judged_alike_one_by_one() -> None:
    rule = ShardFilter("3..5,9,100..200")
    shards = [*range(210), None]
    assert rule.verdicts(pa.array(shards, pa.int64())).tolist() == [rule.verdict(shard) for shard in shards]


def test_a_percentage_takes_its_part_and_a_larger_one_all_that_a_smaller_one_takes() -> None:
    ids = np.arange(1, 200_001)
    quarter, half = verdicts(ids, 0.25), verdicts(ids, 0.5)
    assert abs(quarter.mean() - 0.25) < 0.01
    assert abs(half.mean() - 0.5) < 0.01
    assert not (quarter & ~half).any()
    assert verdicts(ids, 0).sum() == 0
    assert verdicts(ids, 1).all()
    assert (rate_of(-1), rate_of(2), rate_of(0.5)) == (0, DRAWS, DRAWS // 2)


def test_a_draw_is_a_hash_of_the_id_that_others_have_too() -> None:
    ids = np.array([0, 1, 2**31, 2**32 + 7, id_of(5, 12345), (1 << 63) - 2])
    others = [mmh3.hash(int(id_).to_bytes(8, "little"), 42) & 0xFFFFFF for id_ in ids]
    assert draws(ids).tolist() == others


def test_a_percentage_is_drawn_once_for_every_row_whatever_restarts() -> None:
    site = Site()
    topic = site.node.create_topic("t").now()
    bodies = [b"%d" % number for number in range(1000)]
    got = site.consume(topic, "half", filtered(percentage=0.5), credit=10_000)
    site.publish(topic, *bodies)
    assert 400 < len(got) < 600
    site.start()
    again = site.consume(site.node.topic("t"), "half", credit=10_000)
    assert again == got  # nobody finished them


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"percentage": 50}, "fraction from 0 to 1"),
        ({"percentage": -0.5}, "fraction from 0 to 1"),
        ({"percentage": float("nan")}, "fraction from 0 to 1"),
        ({"storage_policies": ["10s"]}, "not a storage policy"),
        ({"shard_set": "5..1"}, "is no range"),
    ],
)
def test_filters_nothing_can_be_judged_by_are_refused(settings: dict[str, object], told: str) -> None:
    site = Site()
    topic = site.node.create_topic("t").now()
    with pytest.raises(Refusal, match=told):
        topic.subscribe("s", filtered(**settings)).now()


@pytest.mark.parametrize(
    ("acceptance", "carried", "taken", "why"),
    [
        (Acceptance(), Carried(5), True, "no filter"),
        (Acceptance(shard_set="0..3"), Carried(shard=4), False, "shard 4 is not in 0..3"),
        (Acceptance(storage_policies=("10s:2d",)), Carried(storage_policy="1m:40d"), False, "none of 10s:2d"),
        (Acceptance(percentage=0.0), Carried(), False, "percentage is 0"),
        (Acceptance(percentage=0.25), Carried(), True, "0.25 of 1"),
        (Acceptance(traffic=TrafficFilter(("a", "b"))), Carried(3), True, "carries a, b"),
        (Acceptance(traffic=TrafficFilter(("zz",), upstream_filter=True)), Carried(3), False, "no allowed"),
    ],
)
def test_why_a_message_is_taken_or_not_is_told(acceptance: Acceptance, carried: Carried, taken: bool, why: str) -> None:
    said, words = acceptance.explain(carried, {"a": 0, "b": 1})
    assert said is taken
    assert why in words
