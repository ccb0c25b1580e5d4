"""A report never makes a number look better than it is, and never eats the page it is put into."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import report
from bench.measure import Reading, Sample, reading


def test_a_missing_number_never_counts_as_met() -> None:
    assert report.at_least(20, None).verdict == "MISSING"
    assert report.at_most(1, report.ratio(3.0, None)).verdict == "MISSING"


def test_a_bound_that_is_just_reached_is_met() -> None:
    assert report.at_least(20, 20.0).verdict == "met"
    assert report.at_most(1.25, 1.25).verdict == "met"
    assert report.at_least(20, 19.99).verdict == "MISSED"


def test_the_better_peer_is_the_one_that_is_there() -> None:
    numbers: dict[str, Reading] = {"redis": reading([Sample(300.0, 3.0)])}
    assert report.best_rate(numbers, "redis", "nats") == 300.0
    assert report.best_rate({}, "redis", "nats") is None


def test_medians_are_taken_over_the_rounds() -> None:
    taken = reading([Sample(10.0, 3.0), Sample(30.0, 1.0), Sample(20.0, 2.0)])
    assert (taken.rate, taken.cpu_us, taken.rate_min, taken.rate_max) == (20.0, 2.0, 10.0, 30.0)


def test_a_missing_peer_is_shown_with_its_reason() -> None:
    row = report.table_row("publish", "work", {"penstock": "1 M/s"}, [], {"nsqd": "go could not be installed"})
    assert any("MISSING: go could not be installed" in line for line in report.lines(row))


def test_rewriting_a_page_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.rewrite(page, "new\n")
    report.rewrite(page, "newer\n")
    assert page.read_text() == f"before\n{report.BEGIN}\nnewer\n{report.END}\nafter\n"


def test_a_page_without_markers_is_refused_and_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("mine\n")
    with pytest.raises(ValueError, match="lacks the lines"):
        report.rewrite(page, "new\n")
    assert page.read_text() == "mine\n"
