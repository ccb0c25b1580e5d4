"""`verify` reads every batch and names what is wrong, in a directory at rest or in use."""

from __future__ import annotations

from pathlib import Path

from penstock.log.reader import Reader
from penstock.log.verify import cat, dump, verify
from tests.fakes import START_NS
from tests.log.samples import opened, rows_of


def filled(path: Path) -> None:
    shard = opened(path)
    for number in range(4):
        shard.append(rows_of(1000, seed=number), START_NS + number)
    shard.roll()
    for number in range(5):
        shard.append(rows_of(3, seed=number), START_NS + number)
    shard.journal("channel")[0].append([(1, 2, 3, 4, 5)])
    shard.tick(START_NS)


def test_good_directory_is_good(tmp_path: Path) -> None:
    filled(tmp_path / "topics/1/0")
    filled(tmp_path / "topics/2/0")
    opened(tmp_path / "topics/3/0", durability="memory")
    opened(tmp_path / "topics/4/0")
    report = verify(str(tmp_path))
    assert report.good
    assert [len(shard.segments) for shard in report.shards] == [2, 2, 0, 0]
    assert report.rows == 2 * 4015
    sealed, growing = report.shards[0].segments
    assert (sealed.sealed, sealed.batches, sealed.rows, sealed.index_good) == (True, 4, 4000, True)
    assert (growing.sealed, growing.batches, growing.rows, growing.tail_bytes) == (False, 5, 15, 0)
    assert [(found.name, found.entries) for found in report.shards[0].journals] == [("channel.0.journal", 1)]


def test_bad_batch_is_named_with_its_reason(tmp_path: Path) -> None:
    filled(tmp_path)
    path = sorted(tmp_path.glob("*.arrows"))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    report = verify(str(tmp_path))
    assert not report.good
    (bad,) = report.shards[0].segments[0].bad
    assert bad.end - bad.first == 1000
    assert "CRC" in bad.reason
    assert report.shards[0].segments[0].rows == 3000


def test_bad_index_is_told_but_loses_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    path = sorted(tmp_path.glob("*.index"))[0]
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    report = verify(str(tmp_path))
    assert report.good
    assert not report.shards[0].segments[0].index_good
    assert report.rows == 4015


def test_half_written_batch_at_the_end_is_a_tail_and_no_damage(tmp_path: Path) -> None:
    filled(tmp_path)
    path = sorted(tmp_path.glob("*.arrows"))[1]
    path.write_bytes(path.read_bytes() + b"\xff\xff\xff\xff\x10")
    report = verify(str(tmp_path))
    assert report.good
    assert report.shards[0].segments[1].tail_bytes == 5


def test_segment_without_its_whole_schema_and_without_rows_is_no_damage(tmp_path: Path) -> None:
    filled(tmp_path)
    schema = sorted(tmp_path.glob("*.arrows"))[1].read_bytes()[:200]
    for size in (0, 5, 200):
        (tmp_path / f"{4015:020d}.0.arrows").write_bytes(schema[:size])
        report = verify(str(tmp_path))
        assert report.good
        assert report.rows == 4015
        assert report.shards[0].segments[-1].tail_bytes == size


def test_segment_that_lost_its_schema_and_has_rows_is_damage(tmp_path: Path) -> None:
    filled(tmp_path)
    path = sorted(tmp_path.glob("*.arrows"))[1]
    path.write_bytes(path.read_bytes()[:5])
    report = verify(str(tmp_path))
    assert not report.good
    assert "schema" in report.shards[0].segments[1].bad[0].reason


def test_missing_file_manifest_or_state_is_a_problem(tmp_path: Path) -> None:
    for name in ("file", "manifest", "state"):
        place = tmp_path / name
        filled(place)
        victim = sorted(place.glob("*.arrows"))[0] if name == "file" else place / name
        victim.write_bytes(b"garbage") if name == "manifest" else victim.unlink()
        (shard,) = verify(str(place)).shards
        assert not shard.good
        assert any(name in problem or "missing" in problem for problem in shard.problems)


def test_dump_and_cat_show_rows_and_bodies(tmp_path: Path) -> None:
    filled(tmp_path)
    rows = list(dump(Reader(str(tmp_path)), 3998, 4003))
    assert [row["offset"] for row in rows] == [3998, 3999, 4000, 4001, 4002]
    assert rows[0]["source"] == "nsq"
    assert list(cat(Reader(str(tmp_path)), 4001, 4003)) == [b"body-1-", b"body-2-body-2-"]
