"""Durations and sizes as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import format_duration, format_size, parse_duration, parse_size
from penstock.errors import ConfigError

INT64 = st.integers(0, (1 << 63) - 1)


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("0", 0),
        ("30s", 30_000_000_000),
        ("10ms", 10_000_000),
        ("24h", 86_400_000_000_000),
        ("1d", 86_400_000_000_000),
        ("1.5s", 1_500_000_000),
        ("1h30m", 5_400_000_000_000),
        ("7us", 7_000),
        ("7µs", 7_000),
        (" 5m ", 300_000_000_000),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, duration_ns: int) -> None:
    assert parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("4096", 4096), ("64MiB", 64 << 20), ("1GB", 10**9), ("1.5KiB", 1536), ("2 tib", 2 << 40), ("9B", 9)],
)
def test_a_size_is_a_number_and_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "5", "s", "5 parsecs", "5M", "-1s", "1s2", "1..5s", "0.1ns", "9" * 20 + "d", "٣s"]
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration(text)
    assert f'"{text}"' in str(caught.value)


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1MiBB", "0.3B", "1M", "9" * 20 + "TB", "٣MB", "1MB2"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_size(text)
    assert f'"{text}"' in str(caught.value)


@given(INT64)
def test_a_printed_duration_reads_back_as_itself(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns


@given(INT64)
def test_a_printed_size_reads_back_as_itself(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.text())
def test_any_text_is_a_number_or_a_config_error(text: str) -> None:
    for parse in (parse_duration, parse_size):
        try:
            assert 0 <= parse(text) < 1 << 63
        except ConfigError:
            pass


def test_the_shortest_exact_form_is_printed() -> None:
    assert format_duration(90_000_000_000) == "1m30s"
    assert format_duration(10_000_000) == "10ms"
    assert format_size(64 << 20) == "64MiB"
    assert format_size(10**9) == "1GB"
    assert format_size(1000) == "1KB"
    assert format_size(1537) == "1537B"
