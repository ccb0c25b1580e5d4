from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock.clock import SECOND
from penstock.discards import OTHER_TOPICS, RECENT_MAX, TOPICS_MAX, Discards, Thrown
from tests.fakes import START_NS, FakeClock
from tests.served import Served


def started(interval_s: int = 600, sample_bytes: int = 256) -> tuple[Discards, FakeClock]:
    clock = FakeClock()
    return Discards(clock, interval_s * SECOND, sample_bytes), clock


def test_a_report_tells_what_was_no_message_by_its_reason() -> None:
    discards, _ = started()
    discards.add_raw("malformed", [b"", b"abc"])
    discards.add_raw("unclean_tcp", [b"half"])
    discards.add_raw("unclean_unix", [b"other"])
    discards.add_raw("unsupported_api_key", [b"key"], 300)
    discards.add_raw("unsupported_version", [b"v1", b"v1"], 1)
    discards.add_raw("unsupported_version", [b"v-1"], -1)
    report, finished = discards.reports()
    assert finished is None
    assert (report.number, report.start_s) == (0, START_NS // SECOND)
    assert {reason: count for reason, count in report.counts.items() if count} == {
        "malformed": 2,
        "unclean_tcp": 1,
        "unclean_unix": 1,
        "unsupported_api_key": 1,
        "unsupported_version": 3,
    }
    assert list(report.malformed) == [b"abc", b""]
    assert list(report.unclean_tcp) == [b"half"]
    assert list(report.unclean_unix) == [b"other"]
    assert report.versions == {1: 2, -1: 1}
    assert report.discarded == {}
    assert discards.total() == 8


def test_recent_samples_are_distinct_cut_and_the_latest_first() -> None:
    discards, _ = started(sample_bytes=4)
    discards.add_raw("malformed", [b"first...", b"second..."])
    discards.add_raw("malformed", [b"firs, too"])
    assert list(discards.reports()[0].malformed) == [b"firs", b"seco"]
    discards.add_raw("malformed", [str(number).encode() for number in range(100)])
    kept = list(discards.reports()[0].malformed)
    assert kept == [str(number).encode() for number in range(99, 99 - RECENT_MAX, -1)]


def test_a_topic_has_its_count_and_the_range_of_its_producers_times() -> None:
    discards, _ = started()
    discards.add("error_ack", "orders", [50, 20, 30])
    discards.add("attempt_limit", "orders", np.array([70, 10]))
    discards.add("error_ack", "nothing", [])
    lost = discards.reports()[0].discarded
    assert list(lost) == ["orders"]
    assert (lost["orders"].count, lost["orders"].min_ms, lost["orders"].max_ms) == (5, 10, 70)
    assert discards.totals == {("error_ack", "orders"): 3, ("attempt_limit", "orders"): 2}


def test_rate_limited_and_too_long_messages_count_in_their_topic_and_bad_topics_do_not() -> None:
    discards, _ = started(sample_bytes=8)
    discards.add("rate_limit", "t", [1] * 7)
    discards.add("too_long", "t", [5], bodies=[b"0123456789"])
    discards.add("bad_topic", "nosuch", [1, 2])
    report, _ = discards.reports()
    assert report.rate_limited == {"t": 7}
    assert report.discarded["t"].count == 8
    assert list(report.too_long) == [b"t 012345"]
    assert list(report.bad_topics) == [b"nosuch"]
    assert report.counts["bad_topic"] == 2
    assert "nosuch" not in report.discarded


def test_possible_duplicates_are_no_discards() -> None:
    discards, _ = started()
    discards.add_duplicates("t", [3, 1])
    report, _ = discards.reports()
    assert (report.duplicates["t"].count, report.duplicates["t"].min_ms, report.duplicates["t"].max_ms) == (2, 1, 3)
    assert discards.duplicates == {"t": 2}
    assert discards.total() == 0


def test_a_finished_report_holds_the_interval_before() -> None:
    discards, clock = started(interval_s=3)
    discards.add("error_ack", "t", [1])
    clock.advance(3 * SECOND)
    report, finished = discards.reports()
    assert finished is not None
    assert (finished.number, finished.discarded["t"].count) == (0, 1)
    assert (report.number, report.start_s, report.discarded) == (1, START_NS // SECOND + 3, {})


def test_intervals_that_nobody_saw_leave_an_empty_report_and_the_totals_stay() -> None:
    discards, clock = started(interval_s=3)
    discards.add("error_ack", "t", [1])
    clock.advance(7 * SECOND)
    report, finished = discards.reports()
    assert finished is not None
    assert (finished.number, finished.start_s, finished.discarded) == (1, START_NS // SECOND + 3, {})
    assert report.number == 2
    assert discards.total("error_ack") == 1


def test_memory_is_bounded_whatever_topics_are_called() -> None:
    discards, _ = started()
    for number in range(TOPICS_MAX + 500):
        discards.add("rate_limit", f"topic-{number}", [number])
        discards.add_duplicates(f"topic-{number}", [number])
    report, _ = discards.reports()
    for table in (report.discarded, report.rate_limited, report.duplicates, discards.totals, discards.duplicates):
        assert len(table) == TOPICS_MAX + 1
    assert discards.totals["rate_limit", OTHER_TOPICS] == 500
    assert report.discarded[OTHER_TOPICS].max_ms == TOPICS_MAX + 499
    assert discards.total() == TOPICS_MAX + 500


def test_listeners_hear_of_whole_batches() -> None:
    discards, _ = started()
    heard: list[Thrown] = []
    before = discards.is_heard
    discards.listeners.append(heard.append)
    assert (before, discards.is_heard) == (False, True)
    discards.add_raw("unsupported_version", [b"x"], 7)
    discards.add("error_ack", "t", [1, 2], [b"k", None], [b"a", b"b"])
    discards.add_duplicates("t", [3], [None], [b"c"])
    now_ms = START_NS // 1_000_000
    assert heard == [
        Thrown("discard", "unsupported_version", now_ms, 7, "", [now_ms], [None], [b"x"]),
        Thrown("discard", "error_ack", now_ms, None, "t", [1, 2], [b"k", None], [b"a", b"b"]),
        Thrown("duplicate", None, now_ms, None, "t", [3], [None], [b"c"]),
    ]


def test_metrics_and_the_api_tell_what_was_thrown_away(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        discards = served.node.discards
        served.do(lambda: discards.add("error_ack", "bad\udcff", [5, 7]))
        served.do(lambda: discards.add_raw("malformed", [b"\xff"]))
        served.do(lambda: discards.add_duplicates("t", [9]))
        text = served.get("/metrics").content.decode()
        assert 'penstock_discarded_messages_total{reason="error_ack",topic="bad\ufffd"} 2' in text
        assert 'penstock_discarded_messages_total{reason="malformed",topic=""} 1' in text
        assert 'penstock_possible_duplicates_total{topic="t"} 1' in text
        page = served.get("discards").json
        assert page["interval_s"] == 600
        assert page["finished"] is None
        assert page["unfinished"]["counts"] == {"malformed": 1, "error_ack": 2}
        assert page["unfinished"]["malformed"] == ["/w=="]
        assert page["unfinished"]["discarded"] == [
            {"topic": "bad\ufffd", "count": 2, "min_timestamp_ms": 5, "max_timestamp_ms": 7}
        ]
