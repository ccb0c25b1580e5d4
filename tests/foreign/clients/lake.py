"""Reads an archive with DuckDB and with Polars; runs where Penstock and Spark are not installed.

Standard input is one JSON object: the table's `path` and `format`. Standard output is another one: whether Penstock can
be imported, and what either reader says: rows, sums, and rows of each topic.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import duckdb
import polars
from deltalake import DeltaTable

QUERY = """
SELECT topic, count(*) AS rows, count(DISTINCT (shard, "offset")) AS places, CAST(sum("offset") AS BIGINT) AS offsets,
       CAST(sum(octet_length(body)) AS BIGINT) AS bytes, count(tag) AS tags,
       CAST(count(DISTINCT day) AS BIGINT) AS days, max(timestamp_ns) AS last
FROM archive GROUP BY topic ORDER BY topic
"""


def by_duckdb(path: str, format: str) -> list[dict[str, Any]]:
    """Return what DuckDB finds, through the files that deltalake lists, or through the directories."""
    with duckdb.connect() as connection:
        if format == "delta":
            connection.register("archive", DeltaTable(path).to_pyarrow_dataset())
        else:
            connection.execute(
                f"CREATE VIEW archive AS FROM read_parquet('{path}/*/*/*.parquet', hive_partitioning=true, "
                f"hive_types={{topic: VARCHAR, day: DATE}}, union_by_name=true)"
            )
        found = connection.execute(QUERY)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def by_polars(path: str, format: str) -> list[dict[str, Any]]:
    """Return what Polars finds."""
    if format == "delta":
        frame = polars.scan_delta(path)
    else:
        schema = {"topic": polars.String, "day": polars.Date}
        frame = polars.scan_parquet(path, hive_partitioning=True, hive_schema=schema, missing_columns="insert")
    found = frame.group_by("topic").agg(
        polars.len().alias("rows"),
        polars.struct("shard", "offset").n_unique().alias("places"),
        polars.col("offset").sum().alias("offsets"),
        polars.col("body").bin.size().sum().cast(polars.Int64).alias("bytes"),
        polars.col("tag").count().alias("tags"),
        polars.col("day").n_unique().alias("days"),
        polars.col("timestamp_ns").max().alias("last"),
    )
    return found.sort("topic").collect().to_dicts()


def main() -> None:
    """Read the table twice."""
    asked = json.load(sys.stdin)
    json.dump(
        {
            "penstock": importlib.util.find_spec("penstock") is not None,
            "spark": importlib.util.find_spec("pyspark") is not None,
            "readers": {reader.__name__: reader(asked["path"], asked["format"]) for reader in (by_duckdb, by_polars)},
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
