"""Frames of messages to put into tables, and ways to look at tables with other people's readers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import polars
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.lake.home import Home
from penstock.pipeline.lake.table import Table


def rows(spark: SparkSession, first: int, end: int, topic: str = "orders", *more: str) -> DataFrame:
    """Return a frame of messages whose bodies say their offsets; a day has 1000 of them."""
    return spark.range(first, end, numPartitions=2).selectExpr(
        f"'{topic}' AS topic", "DATE '2026-01-01' + CAST(id DIV 1000 AS INT) AS day", "0 AS shard", "id AS offset",
        "TIMESTAMP_MILLIS(1767225600000 + id) AS timestamp", "CAST(CAST(id AS STRING) AS BINARY) AS body", *more,
    )  # fmt: skip


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in frame.select("offset").collect())


def leftovers(lake: Table) -> list[str]:
    """Return what is staged beside a table, or in it without belonging to it."""
    home = Home(lake.path)
    left = [name for _, _, names in os.walk(home.staging) for name in names]
    if lake.format == "delta":
        known = {os.path.basename(uri) for uri in DeltaTable(lake.path).file_uris()}
        left += [path.name for path in Path(lake.path).glob("topic=*/*/*.parquet") if path.name not in known]
    return left


def by_duckdb(lake: Table, query: str) -> list[tuple[Any, ...]]:
    """Return what DuckDB finds; `t` is the table."""
    with duckdb.connect() as connection:
        if lake.format == "delta":
            connection.register("t", DeltaTable(lake.path).to_pyarrow_dataset())
        else:
            connection.execute(
                f"CREATE VIEW t AS FROM read_parquet('{lake.path}/**/*.parquet', hive_partitioning=true, "
                f"hive_types={{topic: VARCHAR}}, union_by_name=true)"
            )
        return connection.execute(query).fetchall()


def by_polars(lake: Table) -> polars.DataFrame:
    if lake.format == "delta":
        return polars.scan_delta(lake.path).collect()
    schema = {"topic": polars.String, "day": polars.Date}
    return polars.scan_parquet(lake.path, hive_partitioning=True, hive_schema=schema).collect()
