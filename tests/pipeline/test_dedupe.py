"""Deduplication: what counts as the same, for how long, and that batch and stream agree on rows that come in order."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError
from penstock.pipeline.jobs.dedupe import Dedupe, deduped, identity
from penstock.pipeline.jobs.thinning import Thinned
from tests.fakes import START_NS
from tests.pipeline.data import SECOND_NS, Data

SCHEMA = "topic string, shard int, offset bigint, timestamp timestamp, key binary, body binary, message_id binary"
WITHIN_S = 60
#: Of the rows in the stream: how far apart, and how many make a batch.
STEP_S, BATCH_ROWS = 4, 80

Row = dict[str, Any]


def dedupe(**options: Any) -> Dedupe:
    return msgspec.convert(options, Dedupe)


def first_of_each(rows: list[Row], name: str, within_us: int) -> list[int]:
    """The job in plain Python: offsets of the rows that stay."""
    last: dict[bytes, int] = {}
    kept = []
    for row in sorted(rows, key=lambda row: (row["us"], row["offset"])):
        id_, time_us = row[name], row["us"]
        if id_ is not None and id_ in last and time_us - last[id_] < within_us:
            continue
        if id_ is not None:
            last[id_] = time_us
        kept.append(row["offset"])
    return sorted(kept)


def frame_of(spark: SparkSession, rows: list[Row]) -> DataFrame:
    cells = [
        (
            row.get("topic", "t"),
            0,
            row["offset"],
            datetime.fromtimestamp(row["us"] / 1_000_000, UTC),
            row.get("key"),
            row.get("body", b""),
            row.get("message_id"),
        )
        for row in rows
    ]
    return spark.createDataFrame(cells, SCHEMA)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in frame.collect())


def test_batch_keeps_what_the_plain_rule_keeps(spark: SparkSession) -> None:
    chance = random.Random(7)
    rows = []
    for offset in range(3000):
        # Busy ids repeat without a pause for far longer than `within`; rare ones come back after one.
        id_ = chance.choice((None, b"busy", b"busy", b"%d" % chance.randrange(40), b"%d" % chance.randrange(2000)))
        time_us = 1_700_000_000_000_000 + chance.randrange(2000) * 1_000_000
        rows.append({"offset": offset, "us": time_us, "message_id": id_})
    found = deduped(frame_of(spark, rows), dedupe(within=f"{WITHIN_S}s"))
    assert found.dead is None
    assert found.frame.columns == [name.split()[0] for name in SCHEMA.split(", ")]
    expected = first_of_each(rows, "message_id", WITHIN_S * 1_000_000)
    assert len(expected) < 2500
    assert offsets(found.frame) == expected


def test_busy_ids_are_thinned_across_the_batches_that_arrow_brings() -> None:
    ids = [b"a"] * 10 + [b"b"] * 3 + [b"c"] * 7
    times = [*range(0, 100, 10), 0, 5, 40, *range(0, 70, 10)]
    table = pa.table({"_id": pa.array(ids, pa.binary()), "_time": pa.array(times, pa.int64())})
    expected = [(b"a", 0), (b"a", 30), (b"a", 60), (b"a", 90), (b"b", 0), (b"b", 40), (b"c", 0), (b"c", 30), (b"c", 60)]
    for size in (1, 2, 3, 7, 20):
        batches = [pa.RecordBatch.from_pylist([], table.schema), *table.to_batches(size)]
        found = pa.Table.from_batches(Thinned(25)(iter(batches)), table.schema)
        assert list(zip(*found.to_pydict().values(), strict=True)) == expected


def test_parts_of_an_id_do_not_run_into_each_other(spark: SparkSession) -> None:
    pairs = [(b"ab", b"c"), (b"a", b"bc"), (None, b"abc"), (b"", b"abc"), (b"abc", b""), (b"ab", b"c")]
    rows: list[Row] = [
        {"offset": number, "us": 0, "key": key, "body": body} for number, (key, body) in enumerate(pairs)
    ]
    rows.append({"offset": len(rows), "us": 0, "key": b"ab", "body": b"c", "topic": "other"})
    frame = frame_of(spark, rows)
    chosen = {
        "both": dedupe(by="key+body"),
        "across": dedupe(by="key+body", across_topics=True),
        "key": dedupe(by="key"),
        "body": dedupe(by="body"),
        "dedup": dedupe(by="dedup"),  # nobody has that column
    }
    found = frame.select("offset", *(identity(frame, each).alias(name) for name, each in chosen.items()))
    ids = [row.asDict() for row in found.orderBy("offset").collect()]
    assert {len(row[name]) for row in ids for name in chosen} == {32}
    # Of each row, the first one that says the same.
    first = {name: [[each[name] for each in ids].index(row[name]) for row in ids] for name in chosen}
    assert first == {
        "both": [0, 1, 2, 3, 4, 0, 6],
        "across": [0, 1, 2, 3, 4, 0, 0],
        "key": [0, 1, 2, 3, 4, 0, 6],
        "body": [0, 1, 2, 2, 4, 0, 6],
        "dedup": [0, 1, 2, 3, 4, 5, 6],
    }


class Stream:
    """A streaming query over one topic with one checkpoint; each run takes what is there, in small batches."""

    def __init__(self, spark: SparkSession, data: Data, path: Path) -> None:
        self.kept: list[int] = []
        self.batches = 0
        #: Rows of the last run that were older than the watermark.
        self.late = 0
        self._spark = spark
        self._data = data
        self._checkpoint = path

    def run(self, options: Dedupe) -> None:
        given = self._data.options(
            subscribe="t", startingOffsets="earliest", columns="*", maxOffsetsPerTrigger=BATCH_ROWS
        )
        frame = self._spark.readStream.format("penstock").options(**given).load()
        writer = deduped(frame, options).frame.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        dropped = [each["numRowsDroppedByWatermark"] for one in query.recentProgress for each in one["stateOperators"]]
        self.late = sum(dropped)

    def _take(self, frame: DataFrame, _: int) -> None:
        self.kept += [row["offset"] for row in frame.select("offset").collect()]
        self.batches += 1


def test_stream_and_batch_keep_the_same_across_batches_and_a_restart(
    spark: SparkSession, data: Data, tmp_path: Path
) -> None:
    chance = random.Random(3)
    topic, stream = data.topic("t", shards=2), Stream(spark, data, tmp_path / "checkpoint")
    options = dedupe(within=f"{WITHIN_S}s")
    rows: list[Row] = []
    # A stream has forgotten an id after twice `within` and two batches: copies come within `within`, or after that.
    forgotten_s = 2 * WITHIN_S + 2 * BATCH_ROWS * STEP_S
    for _ in range(2):
        for number in range(len(rows), len(rows) + 160):
            second = number * STEP_S
            ages = {row["message_id"]: second - row["second"] for row in rows}  # since the last copy
            near = [id_ for id_, age in ages.items() if age < WITHIN_S]
            far = [id_ for id_, age in ages.items() if age > forgotten_s]
            id_ = chance.choice((None, b"%d" % number, chance.choice(near or [None]), chance.choice(far or [None])))
            first = next((row for row in rows if row["message_id"] == id_), None)
            if id_ is not None and first is not None and WITHIN_S <= second - first["second"] <= forgotten_s:
                id_ = None
            rows.append({"offset": number, "second": second, "us": second * 1_000_000, "message_id": id_})
            topic.append(b"x", time_ns=START_NS + second * SECOND_NS, message_id=[id_])
        stream.run(options)
    expected = first_of_each(rows, "message_id", WITHIN_S * 1_000_000)
    assert stream.batches > 3
    assert len(expected) < len(rows) - 30
    assert sorted(stream.kept) == expected
    whole = spark.read.format("penstock").options(**data.options(subscribe="t", columns="*")).load()
    assert offsets(deduped(whole, options).frame) == expected
    assert stream.late == 0
    # A shard that is far behind the others: what is too old for the watermark is left out, and counted.
    topic.append(b"late", shard=1, time_ns=START_NS, message_id=[b"late"])
    stream.run(options)
    assert (sorted(stream.kept), stream.late) == (expected, 1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"within": "soon"}, "within: .*is not a duration"),
        ({"within": "0"}, "whole microseconds, one at least"),
        ({"within": "1500ns"}, "whole microseconds, one at least"),
        ({"by": "id"}, "Invalid enum value 'id'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Row, told: str) -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError), match=told):
        dedupe(**options)


def test_frame_without_times_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="needs the column timestamp"):
        deduped(spark.sql("SELECT X'00' AS body"), dedupe(by="body"))
