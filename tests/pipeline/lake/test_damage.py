"""A file of a table that cannot be read: it stops nothing but those who want its rows, and they are told its name."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import CorruptionError, PenstockError
from penstock.pipeline.lake.table import Table, table
from penstock.pipeline.run.fault import reason
from penstock.pipeline.run.sinks import TableTarget
from tests.pipeline.lake.frames import leftovers, offsets, rows


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def scratched(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)


def removed(path: Path) -> None:
    path.unlink()


DAMAGES = (cut, emptied, scratched)
Damage = Callable[[Path], None]


@pytest.fixture(params=("delta", "parquet"))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return table(str(tmp_path / "lake"), format=request.param)


def filled(spark: SparkSession, lake: Table, batches: int = 4) -> list[Path]:
    """Fill a table with ten rows for each batch, each in a file of its own, and return the files in their order."""
    for batch in range(batches):
        lake.append(rows(spark, batch * 10, batch * 10 + 10).coalesce(1), "query", batch)
    return sorted(Path(lake.path).rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize("damage", DAMAGES)
def test_compaction_leaves_a_damaged_file_out_names_it_and_merges_the_others(
    spark: SparkSession, lake: Table, damage: Damage
) -> None:
    files = filled(spark, lake)
    content = files[2].read_bytes()
    damage(files[2])
    said: list[str] = []
    done = lake.compact(log=said.append)
    assert (done.files_before, done.files_after, done.merged) == (4, 2, 1)
    assert [f"{files[2]} is damaged: " in each for each in done.damaged] == [True]
    assert done.damaged[0] in said
    again = lake.compact(keep_hours=0)
    assert (again.files_before, again.files_after, len(again.damaged)) == (2, 2, 1)
    assert leftovers(lake) == []
    assert lake.append(rows(spark, 40, 50).coalesce(1), "query", 4) == 10
    files[2].write_bytes(content)
    assert offsets(lake.read(spark)) == list(range(50))


def test_a_file_that_is_gone_is_left_out_of_a_delta_table_too(spark: SparkSession, tmp_path: Path) -> None:
    lake = table(str(tmp_path / "lake"))
    files = filled(spark, lake)
    removed(files[0])
    done = lake.compact()
    assert (done.files_before, done.files_after, done.merged) == (4, 2, 1)
    assert [f"{files[0]} is damaged: " in each for each in done.damaged] == [True]


def test_a_table_of_nothing_but_damaged_files_is_left_as_it_is(spark: SparkSession, lake: Table) -> None:
    files = filled(spark, lake, 2)
    for path in files:
        cut(path)
    done = lake.compact()
    # Of the second nobody wants anything: there is no other to merge it with.
    assert (done.files_before, done.files_after, done.merged, len(done.damaged)) == (2, 2, 0, 1)


def test_archive_goes_on_past_a_damaged_file(
    spark: SparkSession, lake: Table, caplog: pytest.LogCaptureFixture
) -> None:
    files = filled(spark, lake, 3)
    cut(files[1])
    target = TableTarget(lake, "query", compact_every=1)
    with caplog.at_level(logging.WARNING):
        target.write(rows(spark, 30, 40).coalesce(1), 3)
        target.write(rows(spark, 40, 50).coalesce(1), 4)
    assert [str(files[1]) in record.getMessage() for record in caplog.records] == [True, True]
    assert lake.facts().files == 2


def test_archive_goes_on_where_its_files_cannot_be_merged(
    spark: SparkSession, lake: Table, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    filled(spark, lake, 2)
    monkeypatch.setattr("penstock.pipeline.lake.merge.merged", full)
    with caplog.at_level(logging.WARNING):
        TableTarget(lake, "query", compact_every=1).write(rows(spark, 20, 30), 2)
    (record,) = caplog.records
    assert f"table {lake.path}: the disk is full" in record.getMessage()
    assert offsets(lake.read(spark)) == list(range(30))


@pytest.mark.parametrize("damage", [*DAMAGES, removed])
def test_whoever_wants_the_rows_of_a_damaged_file_is_told_its_name(
    spark: SparkSession, lake: Table, damage: Damage
) -> None:
    files = filled(spark, lake, 2)
    damage(files[1])
    if lake.format == "parquet" and damage is removed:
        return  # nobody knows that it was there
    with pytest.raises((PySparkException, Py4JError, PenstockError)) as caught:
        lake.read(spark).collect()
    said = reason(caught.value)
    assert str(files[1]) in said
    assert "\n" not in said


def test_facts_of_a_table_count_what_can_be_read(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = table(str(tmp_path / "lake"), format="parquet")
    files = filled(spark, lake, 3)
    cut(files[1])
    with caplog.at_level(logging.WARNING):
        assert lake.facts()[:2] == (20, 3)
    assert str(files[1]) in caplog.text


def test_damaged_log_of_a_delta_table_is_named(spark: SparkSession, tmp_path: Path) -> None:
    lake = table(str(tmp_path / "lake"))
    filled(spark, lake, 2)
    name = f"{1:020d}.json"
    Path(lake.path, "_delta_log", name).write_text('{"add": ')
    with pytest.raises(PenstockError, match=f"_delta_log/{name} is damaged"):
        lake.read(spark)


def test_damaged_files_keep_their_error_across_processes(tmp_path: Path) -> None:
    import pickle

    from penstock.pipeline.lake.faults import Damaged

    error = pickle.loads(pickle.dumps(Damaged(os.fspath(tmp_path / "x"), "why")))
    assert isinstance(error, CorruptionError)
    assert str(error).startswith(f"{tmp_path}/x is damaged: why")
