"""What a node knows of pipelines, on a clock in the hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.wire import PIPELINE_STATES, PipelineReport, QueryReport, decoded, encoded
from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.node.pipelines import ERROR_CHARS_MAX, NOBODY, PIPELINES_MAX, QUERIES_MAX, Pipelines
from tests.fakes import FakeClock

DAY_NS = 24 * 3600 * SECOND


def report(name: str = "shop", **more: Any) -> PipelineReport:
    return PipelineReport(**{"name": name, "pid": 7, "host": "h", "state": "running", "started_ms": 1000, **more})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pipelines(clock: FakeClock) -> Pipelines:
    return Pipelines(clock)


def test_a_report_is_lost_after_30_seconds_of_silence_and_back_with_the_next(
    pipelines: Pipelines, clock: FakeClock
) -> None:
    pipelines.report(report())
    clock.advance(30 * SECOND)
    assert pipelines.one("shop").state == "running"
    clock.advance(1)
    assert pipelines.one("shop").state == "lost"
    pipelines.report(report())
    assert pipelines.one("shop").state == "running"


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_what_has_ended_is_not_lost_and_is_forgotten_after_a_day(
    pipelines: Pipelines, clock: FakeClock, state: str
) -> None:
    pipelines.report(report(state=state))
    clock.advance(DAY_NS - 1)
    pipelines.sweep()
    assert pipelines.one("shop").state == state
    clock.advance(1)
    pipelines.sweep()
    assert pipelines.known() == []


def test_another_process_is_a_restart_unless_the_one_before_was_stopped(pipelines: Pipelines) -> None:
    def restarts(**more: Any) -> int:
        pipelines.report(report(**more))
        return pipelines.one("shop").restarts

    assert restarts() == 0
    assert restarts(restarts=2) == 2
    assert restarts(pid=8, started_ms=2000) == 3
    assert restarts(pid=8, started_ms=2000, restarts=1) == 4
    assert restarts(pid=8, started_ms=2000, restarts=1, state="stopped") == 4
    assert restarts(pid=9, started_ms=3000) == 4
    assert restarts(pid=10, started_ms=4000, state="failed") == 5


def test_a_start_that_nobody_survived_is_a_restart_the_next_time(pipelines: Pipelines) -> None:
    def restarts(pid: int, started_ms: int, state: str) -> int:
        pipelines.report(report(pid=pid, started_ms=started_ms, state=state))
        return pipelines.one("shop").restarts

    assert restarts(NOBODY, 1, "starting") == 0
    assert restarts(NOBODY, 2, "starting") == 0
    assert restarts(NOBODY, 2, "failed") == 0
    assert restarts(NOBODY, 3, "starting") == 1
    assert restarts(7, 4, "running") == 1
    assert restarts(7, 4, "failed") == 1
    assert restarts(NOBODY, 5, "starting") == 2
    assert restarts(8, 6, "running") == 2


def test_only_what_does_not_run_is_forgotten(pipelines: Pipelines, clock: FakeClock) -> None:
    pipelines.report(report())
    with pytest.raises(Refusal, match="pipeline shop is running; stop it first"):
        pipelines.forget("shop")
    clock.advance(31 * SECOND)
    pipelines.forget("shop")
    with pytest.raises(Refusal, match="no pipeline 'shop' has reported here"):
        pipelines.forget("shop")


def test_names_are_bounded_and_the_one_silent_longest_makes_room(pipelines: Pipelines, clock: FakeClock) -> None:
    for number in range(PIPELINES_MAX):
        pipelines.report(report(f"p{number}"))
    with pytest.raises(Refusal, match="pipeline more is one too many: 100 report to this node already"):
        pipelines.report(report("more"))
    pipelines.report(report("p5", state="stopped"))
    pipelines.report(report("p3", state="failed"))
    pipelines.report(report("more"))
    names = {known.report.name for known in pipelines.known()}
    assert len(names) == PIPELINES_MAX
    assert "more" in names
    assert "p5" not in names


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"name": ""}, "the name of a pipeline has 1 to 256 bytes"),
        ({"name": "x" * 257}, "the name of a pipeline has 1 to 256 bytes"),
        ({"name": "a\nb"}, "no control characters"),
        ({"name": "\ud800"}, "not Unicode"),
        ({"state": "well"}, "report of pipeline shop: state 'well' is none of starting, running"),
        ({"pid": -1}, "pid is -1, below 0"),
        ({"started_ms": 1 << 62}, "after the year 2262"),
        ({"queries": [QueryReport(name="q"), QueryReport(name="q")]}, "two of its queries have the same name"),
        ({"queries": [QueryReport(name=str(n)) for n in range(QUERIES_MAX + 1)]}, "65 queries are too many"),
        ({"queries": [QueryReport(name="q", lag_rows=-1)]}, "lag_rows of query q is -1, below 0"),
        ({"queries": [QueryReport(name="\x1b[31m")]}, "the name of a query of pipeline shop"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(
    pipelines: Pipelines, more: dict[str, Any], text: str
) -> None:
    pipelines.report(report())
    before = pipelines.known()
    with pytest.raises(Refusal, match=text):
        pipelines.report(report(**more))
    assert pipelines.known() == before


def test_long_errors_are_cut_and_broken_characters_shown(pipelines: Pipelines) -> None:
    pipelines.report(report(error="x" * 100_000, queries=[QueryReport(name="q", error="\ud800" + "y" * 100_000)]))
    found = pipelines.one("shop").report
    assert len(found.error) == ERROR_CHARS_MAX
    assert found.queries[0].error.startswith("\\ud800yyy")


_words = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
_counts = st.integers(0, (1 << 63) - 1)
_queries = st.builds(
    QueryReport, name=_words, state=_words, batch=_counts, rows_total=_counts, rows_per_s=st.floats(0, 1e12)
)


@given(
    st.builds(
        PipelineReport,
        name=_words,
        pid=_counts,
        host=_words,
        state=st.sampled_from(PIPELINE_STATES),
        started_ms=_counts,
        queries=st.lists(_queries, max_size=3),
    )
)
def test_a_report_is_read_as_it_was_written(told: PipelineReport) -> None:
    assert decoded(encoded(told), PipelineReport) == told


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"name":"a"}', "a pipelinereport needs 'pid', 'host', 'state', 'started_ms'"),
        (b'{"quries":[]}', "a pipelinereport has no 'quries'; did you mean 'queries'?"),
        (b'{"queries":[{"nam":"q"}]}', "a queryreport has no 'nam'; did you mean 'name'?"),
        (b'{"queries":[7]}', "a queryreport is a JSON object, not int"),
        (b'{"queries":[{"name":"q","rows_per_s":NaN}]}', "'rows_per_s' of a queryreport is a float, not NaN"),
        (b'{"queries":[{"name":"q","rows_per_s":1e999}]}', "'rows_per_s' of a queryreport is a float, not Infinity"),
        (b'{"queries":[{"name":"q","rows_per_s":true}]}', "'rows_per_s' of a queryreport is a float, not true"),
        (b'{"queries":[{"name":"q","lag_rows":9223372036854775808}]}', "'lag_rows' of a queryreport is a int"),
        (b'{"queries":[{"name":"q","rows_per_s":1%s}]}' % (b"0" * 400), "'rows_per_s' of a queryreport is a float"),
    ],
)
def test_a_report_that_cannot_be_read_says_what_is_wrong(content: bytes, text: str) -> None:
    with pytest.raises(Refusal) as told:
        decoded(content, PipelineReport)
    assert text in str(told.value)


def test_a_whole_number_will_do_where_a_fraction_is_expected() -> None:
    told = dataclasses.replace(report(), queries=[QueryReport(name="q", rows_per_s=3)])
    assert decoded(encoded(told), PipelineReport).queries[0].rows_per_s == 3
