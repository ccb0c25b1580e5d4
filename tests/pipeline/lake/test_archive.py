"""The archive job: topics become a table that DuckDB and Polars read where there is neither Penstock nor Spark."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.pipeline.jobs.archive import Archive, archived
from tests.fakes import START_NS
from tests.foreign.drivers import ENVIRONMENT, PYTHON
from tests.pipeline.data import Data
from tests.proofs.environment import PROJECT, clean

DAY_NS = 86_400 * 1_000_000_000


def told(path: str, format: str) -> dict[str, Any]:
    """Return what readers in an environment of their own say."""
    assert (ENVIRONMENT / ".made").exists(), "make test makes the environment of other people's programs"
    ran = subprocess.run(
        [PYTHON, PROJECT / "tests" / "foreign" / "clients" / "lake.py"],
        input=json.dumps({"path": path, "format": format}),
        capture_output=True,
        text=True,
        env=clean(),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_an_archive_holds_what_the_topics_hold_for_readers_without_penstock(
    spark: SparkSession, data: Data, tmp_path: Path, format: str
) -> None:
    odd, plain = data.topic("a/b ключ 100%"), data.topic("orders", shards=2)
    options = Archive(table=str(tmp_path / "lake"), format=format)
    lake = options.lake()
    for batch in range(2):
        odd.append(b"first", b"second", tag=["red", None], time_ns=START_NS + batch * DAY_NS)
        plain.fill(500, time_ns=START_NS + 999)
        plain.fill(300, shard=1, time_ns=START_NS + batch)
        reader = spark.read.format("penstock").options(
            **data.options(subscribePattern=".*", columns=Archive.COLUMNS[0])
        )
        # As a stream would: each batch has what came since.
        fresh = reader.load().where(f"offset >= {batch} * IF(topic = 'orders', IF(shard = 0, 500, 300), 2)")
        assert lake.append(archived(fresh, options).frame, "query", batch) == 802
        lake.compact()
    expected = [
        {
            "topic": "a/b ключ 100%", "rows": 4, "places": 4, "offsets": 6, "bytes": 22, "tags": 2, "days": 2,
            "last": START_NS + DAY_NS,
        },
        {
            "topic": "orders", "rows": 1600, "places": 1600, "offsets": sum(range(1000)) + sum(range(600)),
            "bytes": sum(len(str(number)) for number in [*range(1000), *range(600)]), "tags": 0, "days": 1,
            "last": START_NS + 999,
        },
    ]  # fmt: skip
    answer = told(lake.path, format)
    assert not answer["penstock"]
    assert not answer["spark"]
    assert answer["readers"] == {"by_duckdb": expected, "by_polars": expected}
    # A replay gets every column back as it was.
    names = [name for name in fresh.columns if name != "day"]
    every = reader.load()
    assert lake.read(spark).select(*names).exceptAll(every.select(*names)).count() == 0
    assert lake.facts().rows == every.count()


def test_the_day_is_that_of_utc_whatever_the_session_says(spark: SparkSession) -> None:
    times = ["1969-12-31 23:59:59.999999+00:00", "1970-01-01 00:00:00+00:00", "2026-06-30 23:30:00+00:00"]
    frame = spark.createDataFrame([(time,) for time in times], "text string").selectExpr(
        "CAST(text AS timestamp) AS timestamp"
    )
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        days = archived(frame, Archive(table="t")).frame.selectExpr("CAST(day AS STRING)", "topic").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert [tuple(row) for row in days] == [(time[:10], None) for time in times]


def test_options_that_cannot_be_meant_are_refused() -> None:
    for given, reason in (
        ({"format": "orc"}, "format is orc"),
        ({"compression": "lz"}, "compression is lz"),
        ({"compact_every": -1}, "compact_every is below 0"),
        ({"file_size": "3B"}, "file_size is 3B"),
        ({"file_size": "big"}, "is not a size"),
        ({"keep_merged": "long"}, "is not a duration"),
    ):
        with pytest.raises(ConfigError, match=reason):
            Archive(table="t", **given)
    with pytest.raises(msgspec.ValidationError, match="formt"):
        msgspec.convert({"table": "t", "formt": "delta"}, Archive)
    assert Archive(table="t").keep_hours == 168
