"""Delta tables beside other people's writers, and tables that those have changed."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.pipeline.lake.table import Table, table
from tests.pipeline.lake.frames import leftovers, offsets, rows

#: A column of the log that may be null, and one that may not.
STRICT = tuple(f'tag\\",\\"type\\":\\"string\\",\\"nullable\\":{may},' for may in ("true", "false"))


@pytest.fixture
def lake(tmp_path: Path) -> Table:
    return table(str(tmp_path / "my lake"))


def theirs(first: int, end: int, **more: pa.Array) -> pa.Table:
    """Return rows as somebody else writes them, on a day of their own."""
    count = end - first
    return pa.table(
        {
            "topic": pa.array(["ключ/a"] * count),
            "day": pa.array([20_000] * count, pa.int32()).cast(pa.date32()),
            "offset": pa.array(range(first, end), pa.int64()),
            **more,
        }
    )


def test_another_writer_appends_and_adds_columns_meanwhile(spark: SparkSession, lake: Table) -> None:
    lake.append(rows(spark, 0, 10), "query", 0)
    write_deltalake(lake.path, theirs(10, 20), mode="append", schema_mode="merge")
    write_deltalake(lake.path, theirs(20, 30, extra=pa.array([1.5] * 10)), mode="append", schema_mode="merge")
    assert lake.append(rows(spark, 30, 40), "query", 1) == 10
    # delta-rs names the directories of such a topic as Spark would not read them.
    with pytest.raises(ConfigError, match="compact the table"):
        lake.read(spark)
    lake.compact()
    found = lake.read(spark)
    assert offsets(found) == list(range(40))
    assert found.where("topic = 'ключ/a'").count() == 20
    assert offsets(found.where("extra = 1.5")) == list(range(20, 30))


def test_commits_of_others_at_the_same_time_are_all_kept(spark: SparkSession, lake: Table) -> None:
    lake.append(rows(spark, 0, 10), "query", 0)
    ended = threading.Event()
    written: list[int] = []

    def other() -> None:
        while not ended.is_set():
            first = 1000 + 10 * len(written)
            plain = theirs(first, first + 10).set_column(0, "topic", pa.array(["plain"] * 10))
            write_deltalake(lake.path, plain, mode="append", schema_mode="merge")
            written.append(first)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        for batch in range(1, 4):
            assert lake.append(rows(spark, batch * 10, batch * 10 + 10), "query", batch) == 10
            lake.compact()
    finally:
        ended.set()
        thread.join()
    assert written
    wanted = [*range(40), *(first + number for first in written for number in range(10))]
    assert offsets(lake.read(spark)) == wanted


def test_a_table_made_anew_or_changed_by_others_is_an_error_that_can_be_mended(
    spark: SparkSession, lake: Table, tmp_path: Path
) -> None:
    lake.append(rows(spark, 0, 10, "orders", "'red' AS tag"), "query", 0)
    schema = DeltaTable(lake.path).schema()

    def nothing() -> None:
        pass

    def another() -> None:
        DeltaTable.create(lake.path, schema, partition_by=["topic", "day"])

    def retyped() -> None:
        shutil.copytree(tmp_path / "kept", lake.path)
        data = theirs(0, 1).set_column(2, "offset", pa.array(["text"]))
        write_deltalake(lake.path, data, mode="overwrite", schema_mode="overwrite", partition_by=["topic", "day"])

    def repartitioned() -> None:
        shutil.copytree(tmp_path / "kept", lake.path)
        write_deltalake(lake.path, theirs(0, 1), mode="overwrite", schema_mode="overwrite", partition_by=["topic"])

    def vectors() -> None:
        shutil.copytree(tmp_path / "kept", lake.path)
        DeltaTable(lake.path).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)

    def constrained() -> None:
        shutil.copytree(tmp_path / "kept", lake.path)
        DeltaTable(lake.path).alter.add_constraint({"early": "offset < 1000"})

    def strict() -> None:
        shutil.copytree(tmp_path / "kept", lake.path)
        log = Path(lake.path, "_delta_log", f"{0:020d}.json")
        log.write_text(log.read_text().replace(STRICT[0], STRICT[1]))

    def mapped() -> None:
        shutil.copytree(tmp_path / "kept", lake.path)
        log = Path(lake.path, "_delta_log", f"{0:020d}.json")
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
            if "protocol" in action:
                action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        log.write_text("".join(json.dumps(action) + "\n" for action in actions))

    def broken() -> None:
        shutil.copytree(tmp_path / "kept", lake.path)
        Path(lake.path, "_delta_log", f"{0:020d}.json").write_text("no log")

    shutil.copytree(lake.path, tmp_path / "kept")
    for change, reason in (
        (nothing, "is gone since"),
        (another, "made anew by somebody else .* bring the old one back"),
        (retyped, "offset is string in table .* cast it, or write to another table"),
        (repartitioned, "partitioned by topic, not by topic, day"),
        (vectors, "uses deletionVectors of Delta"),
        (constrained, "conditions that it checks"),
        (strict, "column tag of table .* may not be null"),
        (mapped, "uses columnMapping of Delta|cannot be opened as Delta"),
        (broken, "cannot be opened as Delta"),
    ):
        shutil.rmtree(lake.path)
        change()
        with pytest.raises(ConfigError, match=reason) as caught:
            lake.append(rows(spark, 10, 20), "query", 1)
        assert lake.path in str(caught.value)
        with pytest.raises(ConfigError, match=reason):
            lake.check(rows(spark, 10, 20).schema)
        shutil.rmtree(lake.path, ignore_errors=True)
        shutil.copytree(tmp_path / "kept", lake.path)
    assert lake.append(rows(spark, 10, 20), "query", 1) == 10
    assert offsets(lake.read(spark)) == list(range(20))


def test_old_files_go_after_their_time_and_checkpoints_come(spark: SparkSession, lake: Table) -> None:
    lake.append(rows(spark, 0, 10), "query", 0)
    DeltaTable(lake.path).alter.set_table_properties({"delta.checkpointInterval": "3"})
    for batch in range(1, 5):
        lake.append(rows(spark, batch * 10, batch * 10 + 10), "query", batch)
    assert list(Path(lake.path, "_delta_log").glob("*.checkpoint.parquet"))
    done = lake.compact()
    assert (done.files_before, done.files_after, done.merged, done.removed) == (10, 1, 1, 0)
    assert len(list(Path(lake.path).rglob("topic=*/*/*.parquet"))) == 11
    version = lake.facts().version
    again = lake.compact(keep_hours=0)
    assert (again.files_before, again.files_after, again.merged, again.removed) == (1, 1, 0, 10)
    # The vacuum says in the log that it began and ended; one that finds nothing does not.
    assert lake.facts().version == version + 2
    lake.compact(keep_hours=0)
    assert lake.facts().version == version + 2
    assert offsets(lake.read(spark)) == list(range(50))
    assert lake.append(rows(spark, 40, 50), "query", 4) == 0
    assert leftovers(lake) == []
