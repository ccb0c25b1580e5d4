"""A whole shard, with journals, on a shared log: publishes, crashes and take-overs in any order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.disk import LocalDisk
from penstock.errors import Refusal
from penstock.log.backup import backup
from penstock.log.file_shard import FileShard
from penstock.log.journal import Journal
from penstock.log.kafka import files, part
from penstock.log.kafka.cache import Cache
from penstock.log.kafka.disk import SharedDisk
from penstock.log.kafka.store import FencedError, Partition, Stored
from penstock.log.reader import Reader
from penstock.log.shard import open_shard
from penstock.log.verify import verify
from penstock.message import Rows
from penstock.settings import TopicSettings
from tests.cluster.fake_store import FakeStore
from tests.cluster.threads import DrawnThreads, InlineThreads
from tests.fakes import FakeClock
from tests.log.disks import InlineDisk
from tests.log.samples import in_files

SETTINGS = TopicSettings(durability="fsync", segment_bytes=64 << 10, log="kafka", retention_bytes=200 << 10)


class Owner:
    """One life of a topic with one shard."""

    def __init__(self, store: FakeStore, root: Path, random: Random, clock: FakeClock) -> None:
        self.threads = DrawnThreads(random)
        store.later = self.threads.later if random.random() < 0.7 else None
        cache = Cache(random.choice((1, 100 << 10, 1 << 30)))
        writer = store.writer("c.slot.1")
        self.disk = SharedDisk(LocalDisk(), store, writer, str(root), "c.1", self.threads, cache=cache)
        self.disk.open_all()
        self.disk.make(str(root))
        self.shard: FileShard = in_files(open_shard(self.disk, clock, f"{root}/0", 0, SETTINGS))
        self.journal: Journal
        self.journal, self.entries = self.shard.journal("audit")

    def drop(self) -> None:
        """Forget it, as its process does when the slot is lost."""
        self.disk.close()
        self.journal.ended = True
        self.shard.drop()
        if self.journal._file is not None:
            self.journal._file.close()


def stored(shard: FileShard) -> dict[int, bytes]:
    """Return every row that can be read."""
    found: dict[int, bytes] = {}
    view = shard.view()
    assert view is not None
    for batch in Reader(shard.path, view).batches(columns=("offset", "body")):
        for offset, body in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            assert offset not in found
            found[offset] = body
    return found


@pytest.mark.parametrize("seed", range(25))
def test_no_row_that_was_promised_is_lost_and_no_offset_names_two(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "CHECKPOINT_BYTES", 4000)
    monkeypatch.setattr(part, "NOTE_BYTES", 8000)
    monkeypatch.setattr(part, "NOTE_ALONG_BYTES", 2000)
    monkeypatch.setattr(files, "RECORD_BYTES", 3000)
    monkeypatch.setattr(part, "RECORD_BYTES", 3000)
    random = Random(seed)
    store, clock = FakeStore(), FakeClock()
    lives = 0
    owner = Owner(store, tmp_path / "0", random, clock)
    given: dict[int, bytes] = {}
    promised: set[int] = set()
    dropped_below = 0
    noted: list[tuple[int, int, int, int, int]] = []
    safe = 0
    for step in range(250):
        act = random.choice(("publish", "publish", "publish", "run", "run", "note", "tick", "retain", "lose", "crash"))
        try:
            if act == "publish":
                columns = {"key": [b"k"] * 3} if random.random() < 0.1 else {}
                bodies = [b"%d-%d " % (step, each) * random.choice((1, 20, 300)) for each in range(3)]
                batch = owner.shard.append(Rows.of(bodies, "nsq", columns), clock.now())
                for each, body in enumerate(bodies):
                    assert given.setdefault(batch.first + each, body) == body, f"seed {seed}"
                offsets = set(range(batch.first, batch.first + 3))

                def told(error: BaseException | None, offsets: set[int] = offsets) -> None:
                    if error is None:
                        promised.update(offsets)

                owner.shard.when_durable(told)
            elif act == "note":
                noted.append((1, step, step, 0, 0))
                owner.journal.append(noted[-1:])
                count = len(noted)

                def kept(error: BaseException | None, count: int = count) -> None:
                    nonlocal safe
                    safe = max(safe, count) if error is None else safe

                owner.journal.sync(kept)
                if owner.journal.bytes > 6000:
                    owner.journal.compact(np.array(noted, np.int64))
            elif act == "run":
                owner.threads.run(random.randint(1, 20))
            elif act == "tick":
                clock.advance(random.choice((10**7, 3 * 10**9, 700 * 10**9)))
                owner.shard.tick(clock.now())
            elif act == "retain":
                owner.shard.retain(owner.shard.end, clock.now())
                dropped_below = max(dropped_below, owner.shard.start)
            elif act == "lose" and random.random() < 0.3:
                if random.random() < 0.5:
                    store.tear_next(random.randint(0, 4))
                else:
                    store.lose_next(kept=random.random() < 0.5, sends=random.randint(1, 4))
        except Refusal:
            assert owner.disk.failed is not None, f"seed {seed}"
        if (act == "crash" and random.random() < 0.4) or owner.disk.failed is not None:
            store.heal()
            lives += 1
            old = owner
            owner = Owner(store, tmp_path / str(lives if random.random() < 0.5 else 0), random, clock)
            if old.disk.failed is None:
                old.threads.run_all()  # it has not heard, and tells nobody that something is kept
                assert isinstance(old.disk.failed, FencedError | None)
            old.drop()
            found = stored(owner.shard)
            assert not owner.shard.damaged, f"seed {seed}"
            assert all(given[offset] == body for offset, body in found.items()), f"seed {seed}"
            missing = [offset for offset in promised if offset not in found and offset >= owner.shard.start]
            assert not missing, f"seed {seed}: {missing[:5]}"
            assert owner.shard.start <= max(dropped_below, min(promised, default=0), owner.shard.start)
            entries = [tuple(entry) for entry in owner.entries.tolist()]
            assert entries == noted[: len(entries)], f"seed {seed}"
            assert len(entries) >= safe, f"seed {seed}"
            del noted[len(entries) :]
            safe = len(entries)
    assert lives > 1
    owner.drop()


def test_a_clean_end_is_gone_on_with_as_if_nothing_had_happened(tmp_path: Path) -> None:
    store, clock = FakeStore(), FakeClock()
    ends = []
    for life in range(3):
        disk = SharedDisk(LocalDisk(), store, store.writer("s"), str(tmp_path / str(life)), "c.1", InlineThreads())
        disk.open_all(made=life > 0)
        shard = in_files(open_shard(disk, clock, f"{disk.root}/0", 0, SETTINGS))
        first = shard.append(Rows.of([b"a", b"b"], "nsq"), clock.now()).first
        shard.close()
        disk.close()
        ends.append(first)
    assert ends == [0, 2, 4]


def test_a_take_over_reads_little_of_what_is_there(tmp_path: Path) -> None:
    store, clock = FakeStore(), FakeClock()
    settings = TopicSettings(durability="fsync", log="kafka")
    disk = SharedDisk(LocalDisk(), store, store.writer("s"), str(tmp_path / "a"), "c.1", InlineThreads())
    disk.open_all()
    shard = in_files(open_shard(disk, clock, f"{disk.root}/0", 0, settings))
    bodies = []
    for number in range(60):
        rows = [b"%d-%d " % (number, each) + bytes(1000) for each in range(500)]
        # A producer's sequence is known after a start, too, though no batch of it was looked at.
        shard.append(replace(Rows.of(rows, "nsq"), sequence=b"p 7" if number == 3 else b""), clock.now())
        shard.when_durable(lambda error: None)
        clock.advance(10**7)
        shard.tick(clock.now())
        bodies += rows
    disk.close()
    shard.drop()
    read: list[int] = []
    real = store.read
    place = Partition("c.1.log", 0)

    def counted(partition: Partition, start: int, end: int) -> Iterator[Stored]:
        for each in real(partition, start, end):
            read.append(len(each.value) if partition == place else 0)
            yield each

    store.read = counted  # type: ignore[method-assign]
    disk = SharedDisk(LocalDisk(), store, store.writer("s"), str(tmp_path / "b"), "c.1", InlineThreads())
    disk.open_all(made=True)
    shard = in_files(open_shard(disk, clock, f"{disk.root}/0", 0, settings))
    assert sum(read) < 8 << 20 < sum(map(len, bodies))
    assert not shard.damaged
    assert [batch.sequence for batch in shard.recent(0) if batch.sequence] == [b"p 7"]
    assert list(stored(shard).values()) == bodies
    disk.close()
    shard.drop()


@pytest.mark.parametrize("place", [1, 4])
def test_a_record_that_kafka_damaged_costs_its_own_rows_alone(place: int, tmp_path: Path) -> None:
    store, clock = FakeStore(), FakeClock()
    disk = SharedDisk(LocalDisk(), store, store.writer("s"), str(tmp_path / "a"), "c.1", InlineThreads())
    disk.open_all()
    shard = in_files(open_shard(disk, clock, f"{disk.root}/0", 0, SETTINGS))
    for number in range(5):
        shard.append(Rows.of([b"body %d" % number * 10], "nsq"), clock.now())
        shard.when_durable(lambda error: None)
    disk.close()
    shard.drop()
    record = [each for each in store.records(Partition("c.1.log", 0)) if "rows" in each.headers][place]
    assert (record.headers["first"], record.headers["rows"]) == (b"%d" % place, b"1")
    value = bytearray(record.value)
    value[-30] ^= 1
    store.damage(Partition("c.1.log", 0), record.offset, bytes(value))
    disk = SharedDisk(LocalDisk(), store, store.writer("s"), str(tmp_path / "b"), "c.1", InlineThreads())
    disk.open_all(made=True)
    shard = in_files(open_shard(disk, clock, f"{disk.root}/0", 0, SETTINGS))
    assert sorted(stored(shard)) == [each for each in range(5) if each != place]
    assert [each.first for each in shard.damaged] == [place]
    disk.close()
    shard.drop()


def test_a_backup_and_a_check_pass_over_what_is_a_cache(tmp_path: Path) -> None:
    store, clock = FakeStore(), FakeClock()
    root = tmp_path / "data" / "shared" / "1"
    disk = SharedDisk(LocalDisk(), store, store.writer("s"), str(root), "c.1", InlineThreads())
    disk.open_all()
    shared = in_files(open_shard(disk, clock, f"{root}/0", 0, SETTINGS))
    own = in_files(open_shard(InlineDisk(), clock, f"{tmp_path}/data/topics/1/0", 0, TopicSettings()))
    for shard in (shared, own):
        shard.append(Rows.of([b"a"], "nsq"), clock.now())
        shard.close()
    disk.close()
    made = backup(str(tmp_path / "data"), str(tmp_path / "copy"))
    assert (made.shards, made.rows) == (1, 1)
    assert not any("arrows" in name for _, _, names in os.walk(tmp_path / "copy" / "shared") for name in names)
    assert [report.directory for report in verify(str(tmp_path / "data")).shards] == [f"{tmp_path}/data/topics/1/0"]
