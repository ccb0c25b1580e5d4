from __future__ import annotations

import pytest

from penstock.cli.failure import Failure
from penstock.cli.printer import count, moment, size
from penstock.cli.values import pairs, traffic


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        (None, None),
        ([], None),
        (["production"], ["production"]),
        (["production", "test"], ["production", "test"]),
        (["5"], 5),
        (["0x1F"], 31),
        (["0b101"], 5),
        (["010"], 10),
        ([str((1 << 64) - 1)], (1 << 64) - 1),
    ],
)
def test_traffic_is_names_or_all_bits_as_one_number(texts: list[str] | None, value: object) -> None:
    assert traffic(texts) == value


@pytest.mark.parametrize("texts", [["1", "2"], ["production", "2"], [str(1 << 64)]])
def test_traffic_that_is_neither_is_refused(texts: list[str]) -> None:
    with pytest.raises(Failure):
        traffic(texts)


def test_a_pair_is_cut_at_its_first_equals_sign() -> None:
    assert pairs("--header", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    assert pairs("--header", None) == {}
    with pytest.raises(Failure, match="--header NAME=VALUE"):
        pairs("--header", ["=b"])


def test_times_sizes_and_counts_are_readable() -> None:
    assert moment("2026-01-31T12:00:00.123456789Z") == "2026-01-31 12:00:00.123Z"
    assert [size(value) for value in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]
    assert (count(1, "row"), count(1234, "row")) == ("1 row", "1,234 rows")
