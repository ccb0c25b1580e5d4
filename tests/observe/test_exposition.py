from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.observe.exposition import Exposition


def test_family_has_help_and_type_before_its_samples() -> None:
    out = Exposition()
    out.family("x_total", "counter", "Things.", [({"a": "b"}, 1), ({"a": "c"}, 2.5)])
    assert out.text() == '# HELP x_total Things.\n# TYPE x_total counter\nx_total{a="b"} 1\nx_total{a="c"} 2.5\n'


def test_family_without_samples_is_left_out() -> None:
    out = Exposition()
    out.family("x", "gauge", "Things.", [])
    assert out.text() == "\n"


def test_histogram_counts_upwards() -> None:
    out = Exposition()
    out.histogram("lag_seconds", "Lag.", [0.001, 0.01], [3, 2, 1], 0.5)
    assert out.text().splitlines()[2:] == [
        'lag_seconds_bucket{le="0.001"} 3',
        'lag_seconds_bucket{le="0.01"} 5',
        'lag_seconds_bucket{le="+Inf"} 6',
        "lag_seconds_sum 0.5",
        "lag_seconds_count 6",
    ]


@given(st.text())
def test_any_label_stays_on_its_line(value: str) -> None:
    out = Exposition()
    out.family("x", "gauge", "Things.", [({"a": value}, 1)])
    lines = out.text().split("\n")
    assert len(lines) == 4
    inside = lines[2][len('x{a="') : -len('"} 1')]
    assert "\n" not in inside
    text = inside.replace("\\\\", "\x00").replace('\\"', '"').replace("\\n", "\n").replace("\x00", "\\")
    if "\x00" not in value:
        assert text == value.encode("utf-8", "replace").decode()
