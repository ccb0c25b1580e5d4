from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.yaml import read
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing\n\n", None),
        ("---\na: 1\nb: two # a comment\nc: 'x # y'\nd: \"q: r\"\n", {"a": 1, "b": "two", "c": "x # y", "d": "q: r"}),
        ("a:\n  b:\n    c: true\n  d: null\ne: ~\nf:\n", {"a": {"b": {"c": True}, "d": None}, "e": None, "f": None}),
        ("a:\n- 1\n- 2\nb:\n  - x\n  -   y\n", {"a": [1, 2], "b": ["x", "y"]}),
        ("- a: 1\n  b:\n    - 2\n- c: 3\n-\n  d: 4\n", [{"a": 1, "b": [2]}, {"c": 3}, {"d": 4}]),
        ("- - 1\n  - 2\n- []\n- {}\n- [a, 1, 'b']\n", [[1, 2], [], {}, ["a", 1, "b"]]),
        ("a: 0.25\nb: -3\nc: 1.5e3\nd: 5s\ne: /_kv\nf: 0..511\ng: it's\n",
         {"a": 0.25, "b": -3, "c": 1500.0, "d": "5s", "e": "/_kv", "f": "0..511", "g": "it's"}),
        ("url: http://x:1\n'quoted key': 'it''s'\n", {"url": "http://x:1", "quoted key": "it's"}),
        ("plain", "plain"),
    ],
)  # fmt: skip
def test_what_configuration_files_are_written_in_is_read(text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: &x 1", "line 1: &x 1 is YAML that is not read here"),
        ("a: 1\nb: *x", "line 2"),
        ("a: |\n  text", "line 1"),
        ("a: {b: 1}", "line 1"),
        ("\ta: 1", "line 1: indent with spaces"),
        ("a: 1\na: 2", "line 2: a is there twice"),
        ("a: 1\n   b: 2", "line 2: its indentation fits nothing"),
        ("a: 1\nb", "line 2 is not understood"),
        ("a:\n    b: 1\n  c: 2", "line 3: its indentation fits nothing"),
        ("a: 'open", "line 1"),
        ("\n".join(" " * 2 * depth + "a:" for depth in range(60)), "nested too deep"),
    ],
)
def test_what_is_not_read_is_named_by_its_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert told in str(refused.value)


@given(st.text(st.sampled_from("ab:- \n'\"#[]{},.0&"), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read(text)
    except ConfigError as error:
        assert "line" in str(error)
