"""Shards written by every released version stay readable (tests/fixtures/make_segment.py wrote them)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

from penstock.columns import OPTIONAL_COLUMNS
from penstock.log.reader import Reader
from penstock.log.verify import verify
from tests.fakes import START_NS
from tests.log.samples import opened, read_all, rows_of, values

VERSION_1 = Path(__file__).parent.parent / "fixtures" / "segment-v1"


def test_version_1_is_whole() -> None:
    report = verify(str(VERSION_1))
    assert report.good
    assert report.rows == 87
    assert len(report.shards[0].segments) >= 3


def test_version_1_is_read_with_every_column(tmp_path: Path) -> None:
    shutil.copytree(VERSION_1, tmp_path / "shard")
    shard = opened(tmp_path / "shard")
    rows = read_all(shard)
    assert [row[0] for row in rows] == list(range(87))
    assert [row[2] for row in rows[39:44]] == [b"body-%d-" % row * (row % 5) for row in range(5)]
    for number, name in enumerate(OPTIONAL_COLUMNS):
        assert [row[4 + number] for row in rows[44:84]] == values(name, 40)
    assert rows[84][2:4] == (b"once", "flight")
    assert [batch.sequence for batch in shard.recent(START_NS + 102)][:1] == [b"query/1/0"]
    assert shard.journal("channel")[1].tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    assert shard.append(rows_of(1), START_NS).first == 87


def test_version_1_is_read_without_the_lock_and_with_pyarrow_alone() -> None:
    assert sum(len(batch) for batch in Reader(str(VERSION_1)).batches()) == 87
    total = 0
    for path in sorted(VERSION_1.glob("*.arrows")):
        table = pa.ipc.open_stream(path.read_bytes()).read_all()
        table.validate(full=True)
        assert table.schema.metadata[b"penstock.version"] == b"1"
        total += len(table)
    assert total == 87
