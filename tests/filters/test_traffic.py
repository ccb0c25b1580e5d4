"""The routing policy's rule: its numbered logic, the documented examples, and batches against single rows."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.filters import traffic
from penstock.filters.traffic import Rules, TrafficFilter, problems, unknown, verdict, verdicts

MAPPING = {"production": 0, "staging": 1, "experimental": 2, "canary": 3, "debug": 4}


def takes(rule: TrafficFilter, bits: int, mapping: dict[str, int]) -> bool:
    """One message through the single-row form and through both batch forms, which must agree."""
    mask = rule.mask(mapping)
    column = np.array([bits], np.uint64).view(np.int64)
    one = verdict(bits, mask, rule.is_default)
    assert verdicts(column, mask, rule.is_default).tolist() == [one]
    assert Rules([rule], mapping).verdicts(column).tolist() == [[one]]
    assert Rules([rule], mapping).verdict(bits) == (one,)
    return one


@pytest.mark.parametrize("is_default", [False, True])
class TestNumberedRules:
    def test_rule_1_a_message_without_traffic_types_goes_by_default(self, is_default: bool) -> None:
        assert takes(TrafficFilter(("production",), is_default), 0, MAPPING) is is_default

    def test_rule_2_without_a_mapping_every_message_goes_by_default(self, is_default: bool) -> None:
        assert takes(TrafficFilter(("production",), is_default), 1, {}) is is_default
        assert takes(TrafficFilter((), is_default), 1, {}) is is_default

    def test_rule_3_one_unknown_name_makes_every_message_go_by_default(self, is_default: bool) -> None:
        rule = TrafficFilter(("production", "moon"), is_default)
        assert takes(rule, 1, MAPPING) is is_default
        assert takes(rule, 2, MAPPING) is is_default

    def test_rule_4_any_shared_bit_is_taken(self, is_default: bool) -> None:
        rule = TrafficFilter(("staging", "experimental"), is_default)
        assert [takes(rule, bits, MAPPING) for bits in (2, 4, 6, 7, 2 | 1 << 60)] == [True] * 5

    def test_rule_4_no_shared_bit_is_refused_whatever_the_default(self, is_default: bool) -> None:
        rule = TrafficFilter(("staging", "experimental"), is_default)
        assert [takes(rule, bits, MAPPING) for bits in (1, 8, 9, 1 << 63)] == [False] * 4

    def test_empty_list_takes_only_untyped_messages_and_those_by_default(self, is_default: bool) -> None:
        rule = TrafficFilter((), is_default)
        assert takes(rule, 0, MAPPING) is is_default
        assert takes(rule, 1, MAPPING) is False


def test_documented_example_of_production_and_staging() -> None:
    mapping = {"production": 0, "staging": 1}
    rules = Rules([TrafficFilter(("production",)), TrafficFilter(("staging",), is_default=True)], mapping)
    routed = rules.verdicts(np.array([1, 2, 0, 3]))
    assert routed.tolist() == [[True, False, False, True], [False, True, True, True]]


def test_documented_example_of_tenants_with_debug() -> None:
    mapping = {"tenant_a": 0, "tenant_b": 1, "tenant_c": 2, "debug": 10}
    tenant_a, tenant_b, debug = (
        TrafficFilter(("tenant_a", "debug")),
        TrafficFilter(("tenant_b",)),
        TrafficFilter(("debug",)),
    )
    routed = Rules([tenant_a, tenant_b, debug], mapping).verdicts(np.array([1, 2, 4, 1024, 1026, 0]))
    assert routed.tolist() == [
        [True, False, False, True, True, False],
        [False, True, False, False, True, False],
        [False, False, False, True, True, False],
    ]


def test_bit_63_is_the_sign_of_the_stored_column() -> None:
    mapping = {"top": 63}
    mask = TrafficFilter(("top",)).mask(mapping)
    stored = np.array([-(1 << 63), -1, 0, 1], np.int64)
    assert verdicts(stored, mask, False).tolist() == [True, True, False, False]
    assert [verdict(bits, mask, False) for bits in stored.tolist()] == [True, True, False, False]
    assert Rules([TrafficFilter(("top",))], mapping).verdicts(stored).tolist() == [[True, True, False, False]]


@pytest.mark.parametrize("bit", [-1, 64, 1 << 40])
def test_bit_that_cannot_exist_counts_as_missing_and_never_crashes(bit: int) -> None:
    rule = TrafficFilter(("production", "odd"), is_default=True)
    assert rule.mask({"production": 0, "odd": bit}) is None


def test_changed_mapping_changes_the_mask() -> None:
    rule = TrafficFilter(("production",))
    assert rule.mask({"production": 0}) == 1
    assert rule.mask({"production": 5}) == 32


def test_good_mapping_has_no_problems() -> None:
    assert problems(MAPPING) == []
    assert problems({}) == []
    assert problems({"first": 0, "last": 63}) == []


def test_problems_name_the_type_and_the_way_out() -> None:
    assert problems({"odd": 64}) == ['traffic type "odd" has bit 64: choose one from 0 to 63']
    assert problems({"a": -1}) == ['traffic type "a" has bit -1: choose one from 0 to 63']
    assert problems({"a": 3, "b": 4, "c": 3}) == ['bit 3 is given to "a" and "c": give each traffic type its own']


def test_unknown_names_are_listed_in_order() -> None:
    assert unknown(("z", "production", "a"), MAPPING) == ("z", "a")
    assert unknown((), MAPPING) == ()


def test_remembered_verdicts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "REMEMBERED_MAX", 4)
    rules = Rules([TrafficFilter(("production",))], MAPPING)
    assert [rules.verdict(bits) for bits in range(20)] == [(bool(bits & 1),) for bits in range(20)]
    assert len(rules._remembered) <= 4


def test_no_filters_and_no_rows_are_fine() -> None:
    assert Rules([], MAPPING).verdicts(np.array([1, 2])).shape == (0, 2)
    assert Rules([TrafficFilter(())], MAPPING).verdicts(np.array([], np.int64)).shape == (1, 0)
    assert verdicts(np.array([], np.int64), 1, True).tolist() == []


def test_module_needs_numpy_and_msgspec_only() -> None:
    script = (
        "import sys, penstock.filters.traffic\n"
        "print(sorted(m for m in sys.modules if m.startswith(('penstock', 'pyarrow'))))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert out.stdout.strip() == "['penstock', 'penstock.filters', 'penstock.filters.traffic']"


def reference(bits: int, allowed: tuple[str, ...], is_default: bool, mapping: dict[str, int]) -> bool:
    if bits == 0:
        return is_default
    if not mapping:
        return is_default
    mask = 0
    for name in allowed:
        if name not in mapping:
            return is_default
        mask |= 1 << mapping[name]
    return (bits & mask) != 0


names = st.sampled_from(["a", "b", "c", "d", "e", "f"])
mappings = st.dictionaries(names, st.integers(0, 63))
filters = st.builds(TrafficFilter, st.lists(names, max_size=4).map(tuple), st.booleans())
bitmasks = st.one_of(st.just(0), st.integers(0, 63).map(lambda bit: 1 << bit), st.integers(0, (1 << 64) - 1))
columns = st.one_of(
    st.lists(bitmasks, max_size=50),
    st.tuples(bitmasks, st.integers(1, 50)).map(lambda pair: [pair[0]] * pair[1]),
)


@given(columns, st.lists(filters, max_size=6), mappings, st.integers(1, 7))
def test_batches_rules_and_single_rows_agree_with_the_reference(
    column: list[int], rules: list[TrafficFilter], mapping: dict[str, int], chunk: int
) -> None:
    expected = [[reference(bits, r.allowed, r.is_default, mapping) for bits in column] for r in rules]
    stored: npt.NDArray[np.int64] = np.array(column, np.uint64).view(np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traffic, "CHUNK_ROWS", chunk)
        assert Rules(rules, mapping).verdicts(stored).tolist() == expected
    for rule, row in zip(rules, expected, strict=True):
        mask = rule.mask(mapping)
        assert verdicts(stored, mask, rule.is_default).tolist() == row
        assert [verdict(bits, mask, rule.is_default) for bits in stored.tolist()] == row
