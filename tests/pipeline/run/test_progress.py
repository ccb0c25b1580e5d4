"""The numbers of a query, out of what Spark reports."""

from __future__ import annotations

from typing import Any

from penstock.pipeline.run.progress import Progress


def offsets(*ends: int) -> str:
    pairs = ",".join(f'"{shard}":{end}' for shard, end in enumerate(ends))
    return f'{{"t":{{"incarnation":1,"offsets":{{{pairs}}}}}}}'


def report(batch: int, rows: int, **more: Any) -> dict[str, Any]:
    return {"batchId": batch, "numInputRows": rows, "batchDuration": 500, "stateOperators": [], "sources": [], **more}


def test_each_batch_counts_once_however_often_it_is_seen() -> None:
    progress = Progress("q", 1)
    progress.see([report(0, 10), report(1, 20)])
    progress.see([report(0, 10), report(1, 20), report(2, 5)])
    found = progress.report("running")
    assert (found.batch, found.rows_total, found.rows_per_s, found.batch_ms) == (2, 35, 10.0, 500)


def test_a_source_that_is_read_twice_has_its_rows_once() -> None:
    progress = Progress("q", 2)
    progress.see([report(0, 20)])
    assert progress.report("running").rows_total == 10


def test_an_idle_report_keeps_the_last_batch_in_sight() -> None:
    progress = Progress("q", 1)
    progress.see([report(3, 50)])
    progress.see([report(4, 0)])
    found = progress.report("running")
    assert (found.batch, found.rows_per_s) == (3, 100.0)


def test_a_batch_that_spark_looked_for_in_vain_before_counts_once_it_comes() -> None:
    progress = Progress("q", 1)
    progress.see(
        [report(0, 50), report(1, 0), report(1, 0, sources=[{"latestOffset": offsets(9), "endOffset": offsets(2)}])]
    )
    assert progress.report("running").lag_rows == 7  # they wait for company
    progress.see([report(1, 0), report(1, 30)])
    found = progress.report("running")
    assert (found.batch, found.rows_total, found.lag_rows) == (1, 80, 0)


def test_a_batch_without_rows_that_moves_windows_on_is_one() -> None:
    progress = Progress("q", 1)
    progress.see([report(0, 50), report(1, 0, durationMs={"addBatch": 5})])
    assert progress.report("running").batch == 1


def test_the_lag_is_what_all_shards_have_beyond_what_was_read() -> None:
    progress = Progress("q", 1)
    progress.see([report(0, 1, sources=[{"latestOffset": offsets(10, 5), "endOffset": offsets(7, 5)}])])
    assert progress.report("running").lag_rows == 3
    progress.see([report(1, 1, sources=[{"latestOffset": None, "endOffset": offsets(7, 5)}])])
    assert progress.report("running").lag_rows == 0


def test_late_and_unusable_rows_are_added_up() -> None:
    progress = Progress("q", 1)
    for batch in (0, 1):
        state = [{"numRowsDroppedByWatermark": 2}, {}]
        progress.see(
            [
                report(
                    batch, 9, stateOperators=state, observedMetrics={"dead.s": {"dead": 3, "late": 1}, "x": {"dead": 9}}
                )
            ]
        )
    found = progress.report("failed", "why")
    assert (found.late_rows, found.dead_rows, found.state, found.error) == (6, 6, "failed", "why")


def test_a_report_is_news_once() -> None:
    progress, newest = Progress("q", 1), report(1, 5, timestamp="12:00:03")
    assert progress.is_news(newest)
    progress.see([report(0, 5, timestamp="12:00:00"), newest])
    assert not progress.is_news(newest)
    assert progress.is_news(report(2, 0, timestamp="12:00:13"))


def test_before_its_first_batch_a_query_has_nothing() -> None:
    found = Progress("q", 1).report("starting")
    assert (found.batch, found.rows_total, found.lag_rows) == (0, 0, 0)
