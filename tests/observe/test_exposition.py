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
    out.histogram("lag_seconds", "Lag.", [0.001, 0.01], [({}, [3, 2, 1], 0.5)])
    assert out.text().splitlines()[2:] == [
        'lag_seconds_bucket{le="0.001"} 3',
        'lag_seconds_bucket{le="0.01"} 5',
        'lag_seconds_bucket{le="+Inf"} 6',
        "lag_seconds_sum 0.5",
        "lag_seconds_count 6",
    ]


def test_histogram_has_its_labels_on_every_line() -> None:
    out = Exposition()
    out.histogram("x_seconds", "Times.", [1], [({"a": 'b"'}, [1, 1], 3.0), ({"a": "c"}, [0, 2], 9.0)])
    assert out.text().splitlines()[2:] == [
        'x_seconds_bucket{a="b\\"",le="1"} 1',
        'x_seconds_bucket{a="b\\"",le="+Inf"} 2',
        'x_seconds_sum{a="b\\""} 3.0',
        'x_seconds_count{a="b\\""} 2',
        'x_seconds_bucket{a="c",le="1"} 0',
        'x_seconds_bucket{a="c",le="+Inf"} 2',
        'x_seconds_sum{a="c"} 9.0',
        'x_seconds_count{a="c"} 2',
    ]


def test_histogram_of_nothing_is_left_out() -> None:
    out = Exposition()
    out.histogram("x_seconds", "Times.", [1], [])
    assert out.text() == "\n"


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
