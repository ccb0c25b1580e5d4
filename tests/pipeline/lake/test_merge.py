"""Which files are merged, what becomes of their rows, and what names of directories stand for; all without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from penstock.pipeline.lake import merge, rows
from penstock.pipeline.lake.staged import described, partition_of

FILES = st.lists(
    st.builds(merge.File, st.sampled_from("ab"), st.text("xyz", min_size=1, max_size=4), st.integers(0, 120)),
    unique_by=lambda file: file.path,
)


@given(FILES, st.sets(st.text("xyz", min_size=1, max_size=4)))
def test_groups_are_of_one_partition_and_of_a_size(files: list[merge.File], forced: set[str]) -> None:
    known = {file.path: file for file in files}
    groups = list(merge.groups(files, 100, forced))
    paths = [path for group in groups for path in group]
    assert len(set(paths)) == len(paths)
    assert forced & set(known) <= set(paths)
    for group in groups:
        found = [known[path] for path in group]
        assert len({file.partition for file in found}) == 1
        assert len(group) > 1 or group[0] in forced
        assert len(group) == 1 or sum(file.bytes for file in found) <= 100
        assert all(file.bytes < 50 or file.path in forced for file in found)
        assert group == sorted(group)
    # What is left alone in its partition is too large to have company, or has none that fits.
    assert list(merge.groups([file for file in files if file.bytes >= 50], 100)) == []


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
    st.none() | st.text("ab/%=: é", min_size=1),
)
def test_a_directory_stands_for_the_values_it_was_named_after(topic: str, day: str | None) -> None:
    path = f"{merge.directory({'topic': topic, 'day': day})}/file.parquet"
    assert path.count("/") == 2
    assert partition_of(path) == {"topic": topic, "day": day}


def test_a_merge_keeps_rows_in_order_whatever_columns_files_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "BATCH_ROWS", 3)
    monkeypatch.setattr(merge, "GROUP_ROWS", 5)
    schema = StructType().add("topic", StringType()).add("offset", LongType()).add("timestamp", TimestampType())
    times = pa.array(range(1000, 1020), pa.timestamp("ns", "UTC"))
    pq.write_table(pa.table({"offset": pa.array(range(10), pa.int64())}), tmp_path / "a")
    pq.write_table(pa.table({"timestamp": times, "offset": pa.array(range(10, 30), pa.int64())}), tmp_path / "b")
    merge.merged([str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "c"), schema, ["topic"], "zstd")
    found = pq.read_table(tmp_path / "c")
    assert found["offset"].to_pylist() == list(range(30))
    assert found["timestamp"].null_count == 10
    assert found["timestamp"].type == pa.timestamp("us", "UTC")
    assert set(found["timestamp"].drop_null().cast(pa.int64()).to_pylist()) == {1}
    assert found.column_names == ["offset", "timestamp"]
    known = described(str(tmp_path), "c")
    assert (known.rows, known.ranges["offset"], known.nulls) == (30, (0, 29), {"offset": 0, "timestamp": 10})
