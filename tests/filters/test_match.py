"""Header filters: each type, what is refused, and batches against single rows."""

from __future__ import annotations

import fnmatch
import json
import time

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.filters import match
from penstock.filters.glob import BadGlob, regex_of
from penstock.filters.match import EQUAL, GLOB, LIST, REGEX, BadFilter, ExtFilter, HeaderFilter
from tests.filters.imports import loaded_by


def of(members: object) -> bytes:
    return json.dumps(members).encode()


def takes(rule: HeaderFilter, header: bytes | None) -> bool:
    """One header through the single-row form and through all batch forms, which must agree."""
    one = rule.verdict(header)
    assert rule.verdict(header) is one
    assert rule.verdicts([header]).tolist() == [one]
    assert rule.verdicts([header] * 20).tolist() == [one] * 20
    assert rule.verdicts(pa.array([header], pa.binary())).tolist() == [one]
    return one


def test_equal_takes_the_very_value_and_no_other_type() -> None:
    rule = HeaderFilter(EQUAL, "k", "5")
    assert takes(rule, of({"k": "5", "x": "y"}))
    for members in ({"k": "55"}, {"k": 5}, {"k": ["5"]}, {"K": "5"}, {}):
        assert not takes(rule, of(members))


def test_regex_is_a_search_anywhere_in_the_value() -> None:
    rule = HeaderFilter(REGEX, "k", "b+c$")
    assert takes(rule, of({"k": "abbc"}))
    assert not takes(rule, of({"k": "abbcd"}))


def test_a_member_that_is_no_string_or_missing_reads_as_empty_for_patterns() -> None:
    for rule in (HeaderFilter(REGEX, "k", "^$"), HeaderFilter(GLOB, "k", "*")):
        assert takes(rule, of({"k": 5}))
        assert takes(rule, of({}))


@pytest.mark.parametrize(
    ("glob", "value", "taken"),
    [
        ("a*c", "abbbc", True),
        ("a*c", "abbbcd", False),
        ("*", "", True),
        ("?", "", False),
        ("?", "ä", True),
        ("a?c", "a\nc", True),
        ("[abc]x", "bx", True),
        ("[a-c]x", "dx", False),
        ("[!a-c]x", "dx", True),
        ("[!a-c]x", "ax", False),
        ("[]]", "]", True),
        ("[a-]", "-", True),
        ("[^a]", "^", True),
        ("{foo,ba[rz]}-*", "baz-1", True),
        ("{foo,ba[rz]}-*", "bat-1", False),
        ("{a,{b,c}d}", "cd", True),
        ("a,b}", "a,b}", True),
        (r"\*", "*", True),
        (r"\*", "x", False),
        ("a.c", "abc", False),
        ("(a|b)+$", "(a|b)+$", True),
        ("a b#&~-", "a b#&~-", True),
        ("A", "a", False),
    ],
)
def test_glob_covers_the_whole_value(glob: str, value: str, taken: bool) -> None:
    assert takes(HeaderFilter(GLOB, "k", glob), of({"k": value})) is taken


@given(
    st.text("ab*?[]-!", max_size=8).filter(lambda glob: "[" not in glob or "]" in glob), st.text("ab[]-!", max_size=5)
)
def test_globs_agree_with_the_standard_library_where_both_have_a_meaning(glob: str, value: str) -> None:
    try:
        rule = HeaderFilter(GLOB, "k", glob or "*")
    except BadFilter:
        return
    assert rule.verdict(of({"k": value})) is fnmatch.fnmatchcase(value, glob or "*")


@pytest.mark.parametrize("glob", ["[", "[a", "[]", "[!", "{a", "{a,{b}", "\\", "a\\", "[b-a]"])
def test_a_broken_glob_is_refused(glob: str) -> None:
    with pytest.raises(BadGlob):
        regex_of(glob)
    with pytest.raises(BadFilter, match="no glob"):
        HeaderFilter(GLOB, "k", glob)


def test_a_list_takes_any_or_all_and_another_word_takes_nothing() -> None:
    pairs = [("a", "1"), ("b", "2")]
    both, first, neither = of({"a": "1", "b": "2"}), of({"a": "1", "b": "x"}), of({"a": 1})
    rules = [HeaderFilter(LIST, word, "", pairs) for word in ("any", "all", "some")]
    assert [[takes(rule, header) for header in (both, first, neither)] for rule in rules] == [
        [True, True, False],
        [True, False, False],
        [False, False, False],
    ]
    assert takes(HeaderFilter(LIST, "some", "", pairs, inverse=True), both)


@pytest.mark.parametrize("header", [None, b"[]", b"{", b"\xff", b""])
def test_without_a_json_header_nothing_matches_and_so_everything_does_inversely(header: bytes | None) -> None:
    for rule in rules_of(inverse=False):
        assert not takes(rule, header)
    for rule in rules_of(inverse=True):
        assert takes(rule, header)


def rules_of(inverse: bool) -> list[HeaderFilter]:
    return [
        HeaderFilter(EQUAL, "k", "v", inverse=inverse),
        HeaderFilter(REGEX, "k", ".*", inverse=inverse),
        HeaderFilter(GLOB, "k", "*", inverse=inverse),
        HeaderFilter(LIST, "any", "", [("k", "v")], inverse=inverse),
    ]


def test_nsq_case_49_every_type_on_sixty_messages_and_inverse_is_the_rest() -> None:
    values = ["filter1"] * 20 + ["filter2"] * 10 + ["other"] * 30
    headers = [of({"key": value, "n": str(n % 3)}) for n, value in enumerate(values)]
    expected = {
        (EQUAL, "key", "filter1", ()): 20,
        (EQUAL, "key", "filter2", ()): 10,
        (GLOB, "key", "filter*", ()): 30,
        (REGEX, "key", "filter[12]", ()): 30,
        (LIST, "any", "", (("key", "filter1"), ("key", "filter2"))): 30,
        (LIST, "all", "", (("key", "other"), ("n", "0"))): 10,
    }
    for (kind, name, data, pairs), count in expected.items():
        assert HeaderFilter(kind, name, data, pairs).verdicts(headers).sum() == count
        assert HeaderFilter(kind, name, data, pairs, inverse=True).verdicts(headers).sum() == 60 - count


class TestRefused:
    @pytest.mark.parametrize("kind", [EQUAL, REGEX, GLOB])
    def test_an_empty_value(self, kind: int) -> None:
        with pytest.raises(BadFilter, match="filter_data is empty"):
            HeaderFilter(kind, "k", "")

    @pytest.mark.parametrize("kind", [EQUAL, REGEX, GLOB, LIST])
    def test_an_empty_name(self, kind: int) -> None:
        with pytest.raises(BadFilter, match="filter_ext_key is empty"):
            HeaderFilter(kind, "", "v", [("a", "b")])

    @pytest.mark.parametrize("pairs", [[], [("", "v")], [("a", "v"), ("b", "")]])
    def test_a_list_without_whole_pairs(self, pairs: list[tuple[str, str]]) -> None:
        with pytest.raises(BadFilter, match="filter_data_list"):
            HeaderFilter(LIST, "any", "", pairs)

    @pytest.mark.parametrize("kind", [-1, 0, 5])
    def test_an_unknown_type(self, kind: int) -> None:
        with pytest.raises(BadFilter, match="is unknown"):
            HeaderFilter(kind, "k", "v")

    @pytest.mark.parametrize("pattern", ["(", "a(?=b)", "[b-a]", "a**", r"\1", "x{1000}{1000}"])
    def test_a_pattern_that_re2_does_not_take(self, pattern: str) -> None:
        with pytest.raises(BadFilter):
            HeaderFilter(REGEX, "k", pattern)

    @pytest.mark.parametrize("pattern", ["a" * 257, "[a-z]{200}[a-z]{57}", r"\pL" * 9, r"\pL{9}", r"(\pL{4}){5}"])
    def test_a_pattern_that_would_cost_the_others_too_much(self, pattern: str) -> None:
        with pytest.raises(BadFilter, match=r"longer than|repeats|Unicode properties"):
            HeaderFilter(REGEX, "k", pattern)


@pytest.mark.parametrize(
    "pattern", ["(x+x+)+y", "(a|aa)+$", "(.*)(.*)(.*)(.*)(.*)[^x]y", r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}"]
)
def test_no_pattern_backtracks_for_ever(pattern: str) -> None:
    rule = HeaderFilter(REGEX, "k", pattern)
    began = time.thread_time()
    assert not rule.verdict(of({"k": "x" * 60_000}))
    assert time.thread_time() - began < 1


def test_the_filter_of_identify_is_read_as_the_wire_spells_it() -> None:
    pairs = b'[{"filter_ext_key":"a","filter_data":"1"}]'
    wire = b'{"type":4,"inverse":true,"filter_ext_key":"all","filter_data":null,"filter_data_list":%b,"new":1}' % pairs
    rule = msgspec.json.decode(wire, type=ExtFilter).compiled()
    assert rule is not None
    assert rule.inverse
    assert not rule.verdict(of({"a": "1"}))


def test_an_empty_filter_of_identify_is_none_and_a_half_one_is_refused() -> None:
    for wire in (b"{}", b'{"type":0,"inverse":false,"filter_ext_key":"","filter_data":"","filter_data_list":null}'):
        assert msgspec.json.decode(wire, type=ExtFilter).compiled() is None
    with pytest.raises(BadFilter):
        msgspec.json.decode(b'{"type":1,"filter_ext_key":"a"}', type=ExtFilter).compiled()
    with pytest.raises(BadFilter):
        msgspec.json.decode(b'{"filter_ext_key":"a","filter_data":"b"}', type=ExtFilter).compiled()


def test_what_is_remembered_is_bounded_in_number_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "REMEMBERED_MAX", 10)
    rule = HeaderFilter(REGEX, "k", "a")
    for n in range(50):
        rule.verdict(of({"k": str(n)}))
        rule.verdict(of({"k": "x" * 600 + str(n)}))
        assert len(rule._remembered) <= 10
        assert all(len(value) <= 512 for value in rule._remembered)


VALUES = st.sampled_from(["", "a", "ab", "b", "ä", "a\n"]) | st.text(max_size=3) | st.integers() | st.none()
HEADERS = st.one_of(
    st.none(),
    st.binary(max_size=4),
    st.dictionaries(st.sampled_from(["k", "a", "b"]), VALUES, max_size=3).map(of),
)
RULES = st.one_of(
    st.builds(HeaderFilter, st.just(EQUAL), st.just("k"), st.sampled_from(["a", "ä"]), inverse=st.booleans()),
    st.builds(HeaderFilter, st.just(REGEX), st.just("k"), st.sampled_from(["^a", "b$", "^$"]), inverse=st.booleans()),
    st.builds(HeaderFilter, st.just(GLOB), st.just("k"), st.sampled_from(["a*", "?", "{a,b}"]), inverse=st.booleans()),
    st.builds(
        HeaderFilter,
        st.just(LIST),
        st.sampled_from(["any", "all", "none"]),
        st.just(""),
        st.just([("k", "a"), ("a", "b")]),
        inverse=st.booleans(),
    ),
)


@given(RULES, st.lists(HEADERS, max_size=40))
def test_a_batch_gets_the_verdicts_its_rows_get_one_by_one(rule: HeaderFilter, headers: list[bytes | None]) -> None:
    one_by_one = [rule.verdict(header) for header in headers]
    listed, arrow = rule.verdicts(headers), rule.verdicts(pa.array([b"{}", *headers], pa.binary())[1:])
    assert listed.dtype == arrow.dtype == np.bool_
    assert listed.tolist() == arrow.tolist() == one_by_one


def test_the_filter_needs_nothing_of_the_node() -> None:
    assert loaded_by("penstock.filters.match") == [
        "penstock",
        "penstock.columns",
        "penstock.errors",
        "penstock.filters",
        "penstock.filters.glob",
        "penstock.filters.header",
        "penstock.filters.match",
    ]
