"""Tables of either format: a batch is in once, columns grow, odd names survive, and errors say what to do."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.errors import ConfigError, Refusal
from penstock.pipeline.lake.home import Home
from penstock.pipeline.lake.table import Table, table
from tests.pipeline.lake.frames import by_duckdb, by_polars, leftovers, offsets, rows

FORMATS = ("delta", "parquet")
#: Names that mean something to shells, URLs, Hive, Java or SQL.
NAMES = [
    "plain",
    "a/b",
    "with space",
    "100%",
    "a%2Fb",
    "ключ-é-日本",
    "x=y",
    "q?*[a]{b}",
    "quo\"te's",
    "007",
    "a:b#c&d+e",
]


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return table(str(tmp_path / "lake"), format=request.param)


def test_a_batch_is_added_once_however_often_it_comes(spark: SparkSession, lake: Table) -> None:
    assert pickle.loads(pickle.dumps(lake)) == lake
    assert lake.facts() == (0, 0, 0, -1)
    assert lake.append(rows(spark, 0, 1500), "query", 0) == 1500
    assert lake.append(rows(spark, 0, 1500), "query", 0) == 0
    assert lake.append(rows(spark, 1500, 1600), "another query", 0) == 100
    assert lake.append(rows(spark, 1600, 1700), "query", 1) == 100
    assert lake.append(rows(spark, 0, 1500).coalesce(1), "query", 0) == 0
    assert lake.append(rows(spark, 0, 0), "query", 2) == 0
    found = lake.read(spark)
    assert found.columns == rows(spark, 0, 1).columns
    assert offsets(found) == list(range(1700))
    assert found.where("body != CAST(CAST(offset AS STRING) AS BINARY)").count() == 0
    # `spark.range` makes two tasks, and the first batch has two days.
    assert lake.facts()[:2] == (1700, 7)
    assert leftovers(lake) == []
    wanted = [(1700, sum(range(1700)), 1000)]
    assert (
        by_duckdb(lake, "SELECT count(*), sum(\"offset\"), count(*) FILTER (day = DATE '2026-01-01') FROM t") == wanted
    )
    assert by_polars(lake)["offset"].sum() == sum(range(1700))
    assert sorted(os.listdir(lake.path)) == (["_delta_log"] if lake.format == "delta" else []) + ["topic=orders"]


def test_batch_with_other_rows_than_the_one_of_its_number_is_refused(spark: SparkSession, lake: Table) -> None:
    for batch in range(3):
        lake.append(rows(spark, batch * 10, batch * 10 + 10), "query", batch)
    lake.compact(keep_hours=0)
    for batch, first, end, told in (
        (2, 20, 25, "batch 2 of query was written there with 10 rows, and comes with 5 now"),
        (2, 25, 35, "batch 2 of query was written there with 10 rows, and comes with 10 others now"),
        (1, 11, 21, "batch 1 of query was written there with 10 rows, and comes with 10 others now"),
    ):
        with pytest.raises(Refusal, match=told):
            lake.append(rows(spark, first, end), "query", batch)
    assert lake.append(rows(spark, 25, 35), "query", 2, any_rows=True) == 0
    with pytest.raises(Refusal, match="comes with 10 others now"):
        lake.append(rows(spark, 11, 21), "query", 1, any_rows=True)
    assert lake.append(rows(spark, 40, 50), "query", 5) == 10
    with pytest.raises(Refusal, match=r"batch 4 of query is not among the last ones .* and the last one is 5"):
        lake.append(rows(spark, 30, 40), "query", 4)
    assert offsets(lake.read(spark)) == [*range(30), *range(40, 50)]
    assert leftovers(lake) == []


def test_table_of_an_earlier_version_knows_its_last_batch_by_its_number(spark: SparkSession, lake: Table) -> None:
    for batch in range(2):
        lake.append(rows(spark, batch * 10, batch * 10 + 10), "query", batch)
    os.unlink(os.path.join(Home(lake.path).directory, "query.past"))
    assert lake.append(rows(spark, 10, 20), "query", 1) == 0
    with pytest.raises(Refusal, match="batch 0 of query is not among the last ones"):
        lake.append(rows(spark, 0, 10), "query", 0)
    assert lake.append(rows(spark, 20, 30), "query", 2) == 10
    assert offsets(lake.read(spark)) == list(range(30))


def test_rows_keep_their_order_and_readers_can_skip(spark: SparkSession, tmp_path: Path) -> None:
    lake = table(str(tmp_path / "lake"))
    for batch in range(3):
        lake.append(rows(spark, batch * 1000, batch * 1000 + 1000), "query", batch)
    delta = DeltaTable(lake.path)
    assert len(delta.file_uris(file_pruning_predicate="offset >= 2600")) == 1
    assert len(delta.file_uris(file_pruning_predicate="timestamp < '2026-01-01T00:00:00.400Z'")) == 1
    for uri in delta.file_uris():
        found = polars.read_parquet(uri)["offset"].to_list()
        assert found == sorted(found)
    lake.compact()
    for uri in DeltaTable(lake.path).file_uris():
        found = polars.read_parquet(uri)["offset"].to_list()
        assert found == sorted(found)
        assert len(found) == 1000
    assert offsets(lake.read(spark, version=0)) == []
    assert offsets(lake.read(spark, version=2)) == list(range(2000))
    with pytest.raises(ConfigError, match="has no version 99"):
        lake.read(spark, version=99)


def test_odd_names_are_the_same_for_every_reader(spark: SparkSession, lake: Table) -> None:
    frame = spark.createDataFrame([(name, number) for number, name in enumerate(NAMES)], "topic string, offset long")
    frame = frame.selectExpr("topic", "IF(offset = 1, NULL, DATE '2026-01-31') AS day", "offset", "topic AS again")
    lake.append(frame, "query", 0)
    lake.append(frame, "query", 1)
    lake.compact()
    assert lake.facts().files == len(NAMES)
    wanted = [(name, number == 1, number) for number, name in enumerate(NAMES) for _ in range(2)]
    found = lake.read(spark).where("topic = again").selectExpr("topic", "day IS NULL", "offset").orderBy("offset")
    assert [tuple(row) for row in found.collect()] == wanted
    assert lake.read(spark).where("topic = 'a/b'").count() == 2
    query = 'SELECT topic, day IS NULL, "offset" FROM t WHERE topic = again ORDER BY "offset"'
    assert by_duckdb(lake, query) == wanted
    known = by_polars(lake).filter(polars.col("topic") == polars.col("again")).sort("offset")
    assert list(zip(known["topic"], known["day"].is_null(), known["offset"], strict=True)) == wanted


def test_a_table_may_be_partitioned_by_anything_nameable_or_nothing(
    spark: SparkSession, tmp_path: Path, lake: Table
) -> None:
    for columns in ([], ["shard"], ["day", "topic", "shard"]):
        path = str(tmp_path / "-".join(["by", *columns]))
        table(path, format=lake.format, partition_by=columns).append(rows(spark, 0, 20), "query", 0)
        found = table(path, format=lake.format, partition_by=None)
        assert (found.compact().files_before, found.facts().files) == (2, 1)
        assert found.read(spark).columns == rows(spark, 0, 1).columns
        assert offsets(found.read(spark).where("shard = 0 AND topic = 'orders'")) == list(range(20))
    assert table(lake.path, format=lake.format, partition_by=None) == lake


def test_a_column_added_later_is_kept_and_old_rows_read_as_null(spark: SparkSession, lake: Table) -> None:
    lake.append(rows(spark, 0, 10), "query", 0)
    lake.append(rows(spark, 10, 20, "orders", "'red' AS tag"), "query", 1)
    lake.append(rows(spark, 20, 30), "query", 2)
    for _ in range(2):
        frame = lake.read(spark)
        assert frame.columns[-1] == "tag"
        assert offsets(frame.where("tag IS NULL")) == [*range(10), *range(20, 30)]
        assert by_duckdb(lake, "SELECT count(*), count(tag) FROM t") == [(30, 10)]
        lake.compact()
    assert lake.facts()[:2] == (30, 1)


def test_rows_that_do_not_fit_are_refused_before_anything_is_written(spark: SparkSession, lake: Table) -> None:
    lake.append(rows(spark, 0, 10), "query", 0)
    before = lake.facts()
    frame = rows(spark, 10, 20)
    for other, reason in (
        (
            frame.selectExpr("* EXCEPT (offset)", "CAST(offset AS STRING) AS offset"),
            "offset is bigint in table .* cast",
        ),
        (frame.drop("day"), "partitioned by day, which the rows lack"),
        (frame.selectExpr("* EXCEPT (body)", "body AS Body"), "has column body, and the rows have Body"),
        (frame.selectExpr("*", "NULL AS nothing"), "nothing is void"),
        (frame.selectExpr("*", "1 AS `a b`"), "'a b' has a character"),
        (frame.selectExpr("* EXCEPT (topic)", "timestamp AS topic"), "cannot be partitioned by topic"),
    ):
        for attempt in (lake.check, lambda schema, other=other: lake.append(other, "query", 1)):
            with pytest.raises(ConfigError, match=reason):
                attempt(other.schema)
    lake.check(frame.schema)
    assert lake.facts() == before
    assert lake.append(frame, "query", 1) == 10


def test_a_directory_that_is_something_else_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    schema = rows(spark, 0, 1).schema
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    table(str(tmp_path / "d")).append(rows(spark, 0, 1), "q", 0)
    table(str(tmp_path / "p"), format="parquet").append(rows(spark, 0, 1), "q", 0)
    for given, reason in (
        (table(str(tmp_path / "file")), "is a file"),
        (table(str(tmp_path / "full")), "holds notes.txt"),
        (table(str(tmp_path / "full"), format="parquet"), "holds notes.txt"),
        (table(str(tmp_path / "d"), format="parquet"), "is delta, not parquet"),
        (table(str(tmp_path / "p")), "is gone|is parquet, not delta"),
        (table(str(tmp_path / "d"), partition_by=["topic"]), "partitioned by topic, day, not by topic"),
        (table(str(tmp_path / "p"), format="parquet", partition_by=[]), "partitioned by topic, day, not by nothing"),
    ):
        with pytest.raises(ConfigError, match=reason):
            given.check(schema)
    for path, reason in (
        ("", "is empty"),
        ("s3://b/t", "not on a file system"),
        ("a*", "in its path"),
        ("/", "the root"),
    ):
        with pytest.raises(ConfigError, match=reason):
            table(path)
    with pytest.raises(ConfigError, match="delta or parquet"):
        table("x", format="iceberg")
    with pytest.raises(ConfigError, match="compression is lzo"):
        table("x", compression="lzo")
    with pytest.raises(ConfigError, match="no table at"):
        table(str(tmp_path / "none")).read(spark)


def test_a_table_that_was_deleted_is_not_begun_anew_by_itself(spark: SparkSession, lake: Table) -> None:
    lake.append(rows(spark, 0, 10), "query", 0)
    shutil.move(lake.path, f"{lake.path}.away")
    with pytest.raises(ConfigError, match=r"is gone .* remove .*\.lake\.penstock"):
        lake.append(rows(spark, 10, 20), "query", 1)
    shutil.move(f"{lake.path}.away", lake.path)
    assert lake.append(rows(spark, 10, 20), "query", 1) == 10
    assert offsets(lake.read(spark)) == list(range(20))
    shutil.rmtree(lake.path)
    shutil.rmtree(Home(lake.path).directory)
    assert lake.append(rows(spark, 0, 10), "query", 0) == 10


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system with little room."""
    path = tmp_path / "small"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"cannot mount a file system: {made.stderr.strip()}")
    yield path
    # Spark leaves files open that it could not write to.
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_told_and_the_batch_comes_in_later(spark: SparkSession, small: Path, format: str) -> None:
    lake = table(str(small / "lake"), format=format)
    lake.append(rows(spark, 0, 10), "query", 0)
    for room in (0, 30_000):
        filled = small / "filled"
        left = shutil.disk_usage(small).free
        filled.write_bytes(b"x" * max(0, left - room))
        wide = rows(spark, 10, 2000, "orders", "randstr(100, 1) AS noise")
        with pytest.raises(Refusal, match=rf"table {lake.path}: the disk is full; make room") as caught:
            lake.append(wide, "query", 1)
        assert caught.value.code == "disk_full"
        filled.unlink()
        assert offsets(lake.read(spark)) == list(range(10))
    assert lake.append(wide, "query", 1) == 1990
    assert offsets(lake.read(spark)) == list(range(2000))
    assert leftovers(lake) == []


def test_a_file_system_that_cannot_hold_a_table_is_refused(spark: SparkSession, small: Path) -> None:
    schema = rows(spark, 0, 1).schema
    with pytest.raises(ConfigError, match="where a file system begins"):
        table(str(small)).check(schema)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    with pytest.raises(ConfigError, match=f"cannot be written: {small} is not ours to write"):
        table(str(small / "lakes" / "lake")).check(schema)


def test_a_topic_that_is_no_name_for_a_directory_is_told(spark: SparkSession, lake: Table) -> None:
    with pytest.raises(ConfigError, match="too long for the name of a directory"):
        lake.append(rows(spark, 0, 1, "t" * 300), "query", 0)
