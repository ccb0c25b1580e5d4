"""A topic's directory on a shared log: whoever takes over finds it as after a power loss."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from penstock.config import ClusterConfig
from penstock.disk import LocalDisk, replace_file
from penstock.errors import CorruptionError
from penstock.intake.stages import Stages
from penstock.intake.staging import name_of
from penstock.log.kafka import files, part
from penstock.log.kafka.disk import SharedDisk
from penstock.log.kafka.store import AwayError, FencedError, Partition, Record
from penstock.log.kafka.threads import RealThreads
from penstock.log.reader import Reader
from penstock.log.shard import open_shard
from penstock.message import Rows
from penstock.settings import TopicSettings
from tests.cluster.fake_store import FakeStore
from tests.cluster.threads import InlineThreads
from tests.fakes import FakeClock
from tests.log.samples import in_files

TOPIC = "c.1f"
SLOT = "c.slot.3"
LOG = f"{TOPIC}.log"
STATE = f"{TOPIC}.state"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records, notes and checkpoints be small, so that there are many."""
    for where, name, value in (
        (files, "RECORD_BYTES", 40),
        (part, "RECORD_BYTES", 40),
        (part, "CHECKPOINT_BYTES", 2000),
        (part, "NOTE_ALONG_BYTES", 100),
        (part, "NOTE_BYTES", 300),
    ):
        monkeypatch.setattr(where, name, value)


def taken(store: FakeStore, root: Path | str, shards: int = 2, *, made: bool = False) -> SharedDisk:
    """Take the topic over."""
    writer = store.writer(SLOT)
    disk = SharedDisk(LocalDisk(), store, writer, str(root), TOPIC, InlineThreads(), shards)
    disk.open_all(made=made)
    return disk


def content(disk: SharedDisk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def put(disk: SharedDisk, path: str, *parts: bytes) -> None:
    """Write and sync a file, and its name."""
    file = disk.open(path, create=True)
    for each in parts:
        file.append([each])
    file.sync()
    file.close()
    disk.sync_directory(os.path.dirname(path))


class Inode:
    """A file as the model has it: what may be found of it, the newest last, each with how much must be."""

    def __init__(self) -> None:
        self.versions = [(0, b"")]

    @property
    def data(self) -> bytes:
        return self.versions[-1][1]

    def append(self, data: bytes) -> None:
        least, before = self.versions[-1]
        self.versions[-1] = (least, before + data)

    def truncate(self, length: int) -> None:
        least, before = self.versions[-1]
        self.versions.append((min(least, length), before[:length]))

    def sync(self) -> None:
        self.versions = [(len(self.data), self.data)]

    def allows(self, found: bytes) -> bool:
        return any(least <= len(found) and data.startswith(found) for least, data in self.versions)


Names = dict[str, Inode]


class Model:
    """What a file system may be after a power loss."""

    def __init__(self) -> None:
        self.now: Names = {}
        self.base: Names = {}
        self.steps: dict[str, list[Names]] = {}

    def change(self, path: str, inode: Inode | None, gone: str | None = None) -> None:
        self.now.pop(gone or "", None)
        self.now.pop(path, None)
        if inode is not None:
            self.now[path] = inode
        place = os.path.dirname(path)
        self.steps.setdefault(place, []).append({p: i for p, i in self.now.items() if os.path.dirname(p) == place})

    def sync_directory(self, place: str) -> None:
        self.base = {p: i for p, i in self.base.items() if os.path.dirname(p) != place}
        self.base |= {p: i for p, i in self.now.items() if os.path.dirname(p) == place}
        self.steps.pop(place, None)

    def allows(self, found: dict[str, bytes]) -> bool:
        for place in {os.path.dirname(path) for path in [*found, *self.base, *self.now]}:
            here = {path: data for path, data in found.items() if os.path.dirname(path) == place}
            base = {path: inode for path, inode in self.base.items() if os.path.dirname(path) == place}
            if not any(
                here.keys() == names.keys() and all(names[path].allows(data) for path, data in here.items())
                for names in [base, *self.steps.get(place, [])]
            ):
                return False
        return True


NAMES = ("0/state", "0/a.0.journal", "0/00000000000000000000.0.arrows", "0/00000000000000000007.1.arrows", "1/manifest")
OTHERS = ("topic.json", "1/00000000000000000003.0.arrows", "1/00000000000000000003.0.index")


@pytest.mark.parametrize("seed", range(40))
def test_whatever_was_done_before_a_take_over_what_was_synced_is_there(seed: int, tmp_path: Path, small: None) -> None:
    random = Random(seed)
    store = FakeStore()
    model, life = Model(), 0
    disk = taken(store, tmp_path / "0")
    disk.make(f"{disk.root}/0")
    disk.make(f"{disk.root}/1")

    def full(name: str) -> str:
        return f"{disk.root}/{name}"

    for _ in range(300):
        name = random.choice(NAMES + OTHERS) + random.choice(("", "", ".new"))
        inode = model.now.get(name)
        act = random.choice(("append", "append", "append", "sync", "rename", "remove", "names", "cut", "read", "crash"))
        if act == "append":
            new = disk.open(full(name), create=True)
            if inode is None:
                inode = Inode()
                model.change(name, inode)
            for _ in range(random.randint(1, 4)):
                data = random.randbytes(random.choice((1, 8, 30, 90)))
                new.append([data[:3], data[3:]])
                inode.append(data)
            new.close()
        elif act == "sync" and inode is not None:
            file = disk.open(full(name))
            file.sync()
            file.close()
            inode.sync()
        elif act == "cut" and inode is not None and random.random() < 0.5:
            length = random.randint(0, len(inode.data))
            file = disk.open(full(name))
            file.truncate(length)
            file.close()
            inode.truncate(length)
        elif act == "read" and inode is not None:
            assert content(disk, full(name)) == inode.data
        elif act == "rename" and inode is not None and name.endswith(".new"):
            disk.rename(full(name), full(name.removesuffix(".new")))
            model.change(name.removesuffix(".new"), inode, name)
        elif act == "remove":
            disk.remove(full(name))
            if inode is not None:
                model.change(name, None)
        elif act == "names":
            place = os.path.dirname(name)
            disk.sync_directory(full(place))
            model.sync_directory(place)
        elif act == "crash" and random.random() < 0.3:
            life += 1
            disk = taken(store, tmp_path / str(life if random.random() < 0.5 else 0), made=True)
            found = {
                f"{place}/{each}".removeprefix("./"): content(disk, full(f"{place}/{each}"))
                for place in (".", "0", "1")
                for each in disk.list(full(place))
                if not os.path.isdir(full(f"{place}/{each}"))
            }
            assert model.allows(found), f"seed {seed}"
            model = Model()
            for path, data in found.items():
                model.now[path] = Inode()
                model.now[path].append(data)
                model.now[path].sync()
            model.base = dict(model.now)
    assert life > 0


def test_a_segment_is_sent_once_in_records_that_end_where_appends_do(tmp_path: Path, small: None) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path)
    disk.make(f"{tmp_path}/0")
    path = f"{tmp_path}/0/00000000000000000000.0.arrows"
    file = disk.open(path, create=True)
    sent = [b"schema", *(bytes([each]) * (each % 7 + 1) for each in range(100)), bytes(500), b"end"]
    for number, each in enumerate(sent):
        file.append([each])
        if number in (30, 31, 32, 90):
            file.sync()
    file.sync()
    file.close()
    values = [record.value for record in store.records(Partition(LOG, 0))]
    assert b"".join(values) == b"".join(sent)
    ends = {len(b"".join(sent[:each])) for each in range(len(sent) + 1)}
    assert {len(b"".join(values[:each])) for each in range(len(values) + 1)} <= ends
    assert values[0] == b"schema"
    assert bytes(500) in values
    assert all(len(value) <= 40 for value in values if value != bytes(500))
    assert len(values) < 20


def test_an_earlier_owner_neither_writes_nor_says_that_it_did(tmp_path: Path) -> None:
    store = FakeStore()
    first = taken(store, tmp_path / "a")
    told: list[BaseException] = []
    first.on_failed = told.append
    first.make(f"{first.root}/0")
    put(first, f"{first.root}/0/00000000000000000000.0.arrows", b"kept")
    segment = first.open(f"{first.root}/0/00000000000000000000.0.arrows")
    segment.append([b"late"])
    second = taken(store, tmp_path / "b")
    assert first.boot_id() != second.boot_id()
    before = store.sends
    with pytest.raises(FencedError):
        segment.sync()
    for attempt in (
        segment.sync,
        lambda: first.sync_directory(f"{first.root}/0"),
        lambda: replace_file(first, f"{first.root}/0/state", b"of a repair"),
        lambda: first.make(f"{first.root}/1"),
    ):
        with pytest.raises(OSError, match="nothing is written"):
            attempt()
    segment.close()
    assert (store.sends, len(told), type(told[0])) == (before, 1, FencedError)
    assert content(second, f"{second.root}/0/00000000000000000000.0.arrows") == b"kept"


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_in_doubt_is_settled_by_taking_over_again(kept: bool, tmp_path: Path) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path)
    disk.make(f"{tmp_path}/0")
    put(disk, f"{tmp_path}/0/00000000000000000000.0.arrows", b"kept")
    segment = disk.open(f"{tmp_path}/0/00000000000000000000.0.arrows")
    segment.append([b", in doubt"])
    store.lose_next(kept=kept)
    with pytest.raises(AwayError):
        segment.sync()
    segment.close()
    store.heal()
    assert isinstance(disk.failed, AwayError)
    again = taken(store, tmp_path, made=True)
    found = content(again, f"{tmp_path}/0/00000000000000000000.0.arrows")
    assert found == (b"kept, in doubt" if kept else b"kept")


@pytest.mark.parametrize("records", range(6))
def test_a_file_that_is_replaced_is_the_old_one_or_the_new_one(records: int, tmp_path: Path) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path)
    disk.make(f"{tmp_path}/0")
    replace_file(disk, f"{tmp_path}/0/state", b"old")
    store.tear_next(records)
    with pytest.raises(AwayError):
        replace_file(disk, f"{tmp_path}/0/state", b"new")
    store.heal()
    again = taken(store, tmp_path, made=True)
    assert content(again, f"{tmp_path}/0/state") == (b"old" if records < 3 else b"new")


def test_old_records_go_once_there_are_twice_as_many_as_live_ones(tmp_path: Path, small: None) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path)
    disk.make(f"{tmp_path}/0")
    for number in range(500):
        replace_file(disk, f"{tmp_path}/0/state", b"state %d" % number)
    assert len(store.records(Partition(STATE, 0))) < 60
    for number in range(20):
        put(disk, f"{tmp_path}/0/{number:020}.0.arrows", b"schema", b"x" * 100)
        if number >= 3:
            disk.remove(f"{tmp_path}/0/{number - 3:020}.0.arrows")
    disk.sync_directory(f"{tmp_path}/0")
    kept = {record.headers["name"] for record in store.records(Partition(LOG, 0))}
    assert kept == {b"0/%020d.0.arrows" % number for number in (17, 18, 19)}
    again = taken(store, tmp_path, made=True)
    assert content(again, f"{tmp_path}/0/state") == b"state 499"
    assert again.list(f"{tmp_path}/0") == [*(f"{number:020}.0.arrows" for number in (17, 18, 19)), "state"]


def test_closed_segments_are_read_when_somebody_asks_and_only_then(tmp_path: Path, small: None) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path)
    disk.make(f"{tmp_path}/0")
    wanted = {}
    for number in range(10):
        path = f"{tmp_path}/0/{number:020}.0.arrows"
        wanted[path] = Random(number).randbytes(400)
        put(disk, path, wanted[path][:7], *(wanted[path][at : at + 33] for at in range(7, 400, 33)))
    again = taken(store, tmp_path)
    read: list[Partition] = []
    store.before_read = read.append
    for path, data in wanted.items():
        file = again.open(path)
        assert file.size() == 400
        assert file.read(100, 50) == data[100:150]
        assert file.read(0, 400) == data
        file.close()
    assert 9 <= len(read) <= 40
    read.clear()
    assert [content(again, path) for path in wanted] == list(wanted.values())
    assert not read


def test_a_topic_gets_more_shards_and_goes(tmp_path: Path) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path, shards=1)
    for number in range(3):
        disk.make(f"{tmp_path}/{number}")
        put(disk, f"{tmp_path}/{number}/state", b"%d" % number)
    assert (store.partitions(LOG), store.partitions(STATE)) == (3, 3)
    disk.remove(f"{tmp_path}/1")
    disk.sync_directory(str(tmp_path))
    disk.sync_directory(f"{tmp_path}/1")
    again = taken(store, tmp_path, shards=1)
    assert again.list(str(tmp_path)) == ["0", "2"]
    assert content(again, f"{tmp_path}/2/state") == b"2"
    again.drop()
    assert not store.topics()
    assert not tmp_path.exists()


def spoil_log(store: FakeStore) -> None:
    store.drop(LOG)


def spoil_both(store: FakeStore) -> None:
    store.drop(LOG)
    store.drop(STATE)


def spoil_state_records(store: FakeStore) -> None:
    store.cut(Partition(STATE, 0), store.records(Partition(STATE, 0))[3].offset)


def spoil_all_state(store: FakeStore) -> None:
    store.cut(Partition(STATE, 0), 1 << 60)


def spoil_log_records(store: FakeStore) -> None:
    store.cut(Partition(LOG, 0), 1 << 60)


def spoil_state_anew(store: FakeStore) -> None:
    store.drop(STATE)
    store.make(STATE, 2)


def spoil_a_value(store: FakeStore) -> None:
    place = Partition(STATE, 0)
    chosen = next(each for each in store.records(place) if each.headers["op"] == b"append")
    store.damage(place, chosen.offset, b"other")


def spoil_version(store: FakeStore) -> None:
    store.put(Partition(STATE, 0), Record(b"", {"penstock": b"2", "op": b"fly"}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_log, "c.1f.log is not in Kafka any more"),
        (spoil_both, "is not in Kafka any more: somebody deleted it"),
        (spoil_state_records, "does not begin with a checkpoint"),
        (spoil_all_state, "records of partition 0 of c.1f.state in Kafka were removed"),
        (spoil_log_records, "somebody deleted records"),
        (spoil_state_anew, "which tells what they are, has none"),
        (spoil_a_value, "the CRC of the record at"),
        (spoil_version, "has version 2"),
    ],
)
def test_what_somebody_did_behind_its_back_is_said(
    spoil: Callable[[FakeStore], None], said: str, tmp_path: Path
) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path)
    disk.make(f"{tmp_path}/0")
    put(disk, f"{tmp_path}/0/state", b"state")
    put(disk, f"{tmp_path}/0/00000000000000000000.0.arrows", b"schema", b"rows")
    spoil(store)
    with pytest.raises(CorruptionError, match=said):
        taken(store, tmp_path, made=True)


def test_topics_that_were_made_again_empty_are_no_new_topic(tmp_path: Path) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path)
    put(disk, f"{tmp_path}/0.x", b"state")
    disk.drop()
    for name in (LOG, STATE):
        store.make(name, 2)
    with pytest.raises(CorruptionError, match="are empty in Kafka: somebody deleted them, and they were made again"):
        taken(store, tmp_path, made=True)
    assert taken(store, tmp_path).list(str(tmp_path)) == []  # one that was not made yet is new


def test_records_of_others_are_passed_over_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path)
    disk.make(f"{tmp_path}/0")
    for place in (Partition(STATE, 0), Partition(LOG, 0)):
        store.put(place, Record(b"who am I", {"a": b"b"}))
    put(disk, f"{tmp_path}/0/state", b"state")
    put(disk, f"{tmp_path}/0/00000000000000000000.0.arrows", b"schema", b"rows")
    again = taken(store, tmp_path, made=True)
    assert content(again, f"{tmp_path}/0/state") == b"state"
    assert content(again, f"{tmp_path}/0/00000000000000000000.0.arrows") == b"schemarows"
    assert caplog.text.count("none of Penstock's") == 2


def test_a_store_that_takes_no_record_so_large_says_so(tmp_path: Path) -> None:
    store = FakeStore(record_bytes_max=2000)
    disk = taken(store, tmp_path)
    disk.make(f"{tmp_path}/0")
    file = disk.open(f"{tmp_path}/0/00000000000000000000.0.arrows", create=True)
    file.append([bytes(3000)])
    with pytest.raises(OSError, match="a record of 3"):
        file.sync()
    file.close()
    assert disk.failed is not None


def test_one_publish_that_is_larger_than_a_record_may_be_goes_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "PIECE_BYTES", 1 << 20)
    store, clock = FakeStore(record_bytes_max=(1 << 20) + 500), FakeClock()
    settings = TopicSettings(durability="fsync", log="kafka")
    found = []
    for life in range(2):
        disk = taken(store, tmp_path / str(life), 1)
        shard = in_files(open_shard(disk, clock, f"{disk.root}/0", 0, settings))
        if not life:
            told: list[BaseException | None] = []
            for rows in (3, 100_000, 3):
                shard.append(Rows.of([b"%d" % row for row in range(rows)], "nsq"), 1)
                shard.when_durable(told.append)
            assert told == [None] * 3
        view = shard.view()
        assert view is not None
        found.append(
            [body for batch in Reader(shard.path, view).batches(columns=("body",)) for body in batch[0].to_pylist()]
        )
        shard.drop()
    assert found[0] == found[1] == [b"%d" % row for rows in (3, 100_000, 3) for row in range(rows)]
    headers = [each.headers for each in store.records(Partition(LOG, 0))]
    first = [int(each["first"]) for each in headers if "first" in each]
    assert first == [0, 3, 100_003], "what goes on with a batch begins none"
    assert len(headers) > 5


@pytest.mark.parametrize("seed", range(3))
def test_threads_that_sync_at_once_lose_nothing_of_each_other(seed: int, tmp_path: Path, small: None) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path / "a")
    disk.make(f"{disk.root}/0")
    wanted: dict[str, bytes] = {}
    errors: list[BaseException] = []
    store.before_send = lambda *_: time.sleep(0)  # let another thread have its turn

    def write(number: int) -> None:
        random = Random(1000 * seed + number)
        try:
            for life in range(8):
                segment, journal = f"0/{8 * number + life:020}.0.arrows", f"0/{number}.{life}.journal"
                for name in (segment, journal):
                    content = [random.randbytes(random.choice((3, 30, 90))) for _ in range(12)]
                    file = disk.open(f"{disk.root}/{name}", create=True)
                    for each in content:
                        file.append([each])
                        if random.random() < 0.5:
                            file.sync()
                    file.sync()
                    file.close()
                    wanted[name] = b"".join(content)
                replace_file(disk, f"{disk.root}/0/{number}.state", b"%d" % life)
                wanted[f"0/{number}.state"] = b"%d" % life
                if life % 2:
                    disk.remove(f"{disk.root}/{segment}")
                    del wanted[segment]
                disk.sync_directory(f"{disk.root}/0")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    again = taken(store, tmp_path / "b", made=True)
    found = {f"0/{name}": content(again, f"{again.root}/0/{name}") for name in again.list(f"{again.root}/0")}
    assert found == wanted


def test_work_on_shards_has_ended_before_its_error_is_told() -> None:
    loop = asyncio.new_event_loop()
    threads = RealThreads(loop)
    done: list[int] = []
    failed = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            failed.set()
            raise OSError("the first fails")
        assert failed.wait(60)
        done.append(number)
        return number

    with pytest.raises(OSError, match="the first fails"):
        threads.map(work, range(5))
    assert sorted(done) == [1, 2, 3, 4]
    threads.close()
    loop.close()


def test_work_that_comes_after_the_end_is_told_so() -> None:
    loop = asyncio.new_event_loop()
    threads = RealThreads(loop)
    threads.submit("open", lambda: None, lambda _, __: None)
    threads.close()
    heard: list[BaseException | None] = []
    threads.submit("open", lambda: None, lambda _, error: heard.append(error))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert [type(error) for error in heard] == [OSError]


def test_all_slots_of_a_node_are_fenced_at_once() -> None:
    loop = asyncio.new_event_loop()
    threads = RealThreads(loop)
    slots = ClusterConfig().slots
    met = threading.Barrier(slots)
    left = list(range(slots))

    def done(_: int | None, error: BaseException | None) -> None:
        assert error is None  # nobody waited for the others in vain
        left.pop()
        if not left:
            loop.stop()

    for _ in range(slots):
        threads.submit("fence", lambda: met.wait(60), done)
    loop.call_later(90, loop.stop)
    loop.run_forever()
    assert not left
    threads.close()
    loop.close()


def test_a_topic_whose_maker_died_between_the_two_in_kafka_is_made(tmp_path: Path) -> None:
    store = FakeStore()
    store.make(LOG, 2)
    disk = taken(store, tmp_path / "a")
    disk.make(f"{tmp_path}/a/0")
    put(disk, f"{tmp_path}/a/0/state", b"kept")
    assert content(taken(store, tmp_path / "b", made=True), f"{tmp_path}/b/0/state") == b"kept"


def test_a_segment_that_is_removed_while_it_is_sent_is_forgotten(tmp_path: Path) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path, 1)
    disk.make(f"{tmp_path}/0")
    path = f"{tmp_path}/0/{0:020d}.0.arrows"
    file = disk.open(path, create=True)
    file.append([b"x" * 100])

    def removed(_: str, partition: Partition, __: object) -> None:
        if partition.topic == LOG:
            store.heal()
            disk.remove(path)
            disk.sync_directory(f"{tmp_path}/0")

    store.after_send = removed
    file.sync()
    file.close()
    put(disk, f"{tmp_path}/0/{1:020d}.0.arrows", b"y")
    disk.remove(f"{tmp_path}/0/{1:020d}.0.arrows")
    disk.sync_directory(f"{tmp_path}/0")
    start, end = store.bounds(Partition(LOG, 0))
    assert start == end, "nothing needs what they held"


def test_few_bytes_go_without_a_thread_and_are_told_of_once_they_are_kept(tmp_path: Path) -> None:
    store = FakeStore()
    under_way: list[Callable[[], None]] = []
    store.later = under_way.append
    disk = taken(store, tmp_path, 1)
    disk.make(f"{tmp_path}/0")
    path = f"{tmp_path}/0/{0:020d}.0.arrows"
    file = disk.open(path, create=True)
    told: list[BaseException | None] = []
    file.append([b"schema"])
    assert not file.sync_soon(told.append), "the schema is a record of its own"
    file.sync()
    disk.sync_directory(f"{tmp_path}/0")
    for number in range(3):
        file.append([b"rows", bytearray(b" %d" % number)])
        assert file.sync_soon(told.append)
        file.append([b", more"])
        assert not file.sync_soon(told.append), "one goes after the other"
        assert len(told) == number
        under_way.pop()()
        assert told == [None] * (number + 1)
        file.sync()
    assert not file.sync_soon(told.append), "there is nothing new"
    file.append([bytes(part.SOON_BYTES + 1)])
    assert not file.sync_soon(told.append), "that is more than a few"
    file.close()
    sent = [each.value for each in store.records(Partition(LOG, 0))]
    assert sent == [b"schema", b"rows 0", b", more", b"rows 1", b", more", b"rows 2", b", more"]
    assert content(taken(store, tmp_path, 1), path) == b"".join(sent)


def test_whoever_waits_without_a_thread_hears_that_it_was_shut_out(tmp_path: Path) -> None:
    store = FakeStore()
    under_way: list[Callable[[], None]] = []
    store.later = under_way.append
    disk = taken(store, tmp_path, 1)
    failed: list[BaseException] = []
    disk.on_failed = failed.append
    disk.make(f"{tmp_path}/0")
    file = disk.open(f"{tmp_path}/0/{0:020d}.0.arrows", create=True)
    file.append([b"schema"])
    file.sync()
    file.append([b"rows"])
    told: list[BaseException | None] = []
    assert file.sync_soon(told.append)
    store.fence(SLOT)
    under_way.pop()()
    assert [type(each) for each in told] == [type(each) for each in failed] == [FencedError]
    file.append([b"more"])
    assert not file.sync_soon(told.append)
    with pytest.raises(OSError, match="nothing is written"):
        file.sync()
    file.close()


@pytest.mark.parametrize("seed", range(5))
def test_what_waits_beyond_what_memory_keeps_is_read_from_the_disk(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "FRESH_BYTES", 100)
    monkeypatch.setattr(part, "RECORD_BYTES", 60)
    random = Random(seed)
    store = FakeStore()
    store.later = lambda send: send()
    disk = taken(store, tmp_path, 1)
    disk.make(f"{tmp_path}/0")
    path = f"{tmp_path}/0/{0:020d}.0.arrows"
    file = disk.open(path, create=True)
    told: list[BaseException | None] = []
    wanted = b""
    for _ in range(300):
        data = random.randbytes(random.choice((1, 20, 50)))
        cut = random.randrange(len(data) + 1)
        file.append([data[:cut], memoryview(data)[cut:]])
        wanted += data
        if random.random() < 0.3 and not file.sync_soon(told.append):
            file.sync()
        if random.random() < 0.02:
            file.truncate(len(wanted) // 2)
            wanted = wanted[: len(wanted) // 2]
    file.sync()
    file.close()
    disk.sync_directory(f"{tmp_path}/0")
    assert not any(told)
    assert content(disk, path) == wanted
    assert content(taken(store, tmp_path, 1), path) == wanted


def away(partition: Partition) -> None:
    raise AwayError("the store did not answer in time")


def test_what_is_staged_that_is_not_shown_is_looked_for_again(tmp_path: Path) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path / "one")
    rows = pa.record_batch({"body": pa.array([bytes(8 << 20)], pa.binary())})
    stages = Stages(LocalDisk(), str(tmp_path / "own"), 0)
    stages.open("t", disk, disk.root, 0)
    writer = stages.writer("q", 0, "a", "t", rows.schema)
    writer.write(rows)
    writer.finish()
    again = taken(store, tmp_path / "two", made=True)
    store.before_read = away
    with pytest.raises(AwayError):
        Stages.look_through(again, again.root)


def test_what_is_staged_is_in_the_log_and_no_weight_of_the_state(tmp_path: Path) -> None:
    store = FakeStore()
    disk = taken(store, tmp_path / "one")
    rows = pa.record_batch({"body": pa.array([bytes(8 << 20)], pa.binary())})
    stages = Stages(LocalDisk(), str(tmp_path / "own"), 0)
    stages.open("t", disk, disk.root, 0)
    for attempt in ("a", "b"):
        writer = stages.writer("q", 0, attempt, "t", rows.schema)
        for _ in range(4):
            writer.write(rows)
        writer.finish()
        stages.add("q", 0, attempt, 0)
    unfinished = stages.writer("q", 0, "c", "t", rows.schema)
    unfinished.write(rows)
    assert sum(len(record.value) for record in store.records(Partition(STATE, 0))) < 1 << 16
    last = [record for record in store.records(Partition(LOG, 0)) if b"staging" in record.headers["name"]]
    assert not any("rows" in record.headers for record in last)
    again = taken(store, tmp_path / "two", made=True)
    found = Stages(LocalDisk(), str(tmp_path / "own"), 0)
    Stages.look_through(again, again.root)
    store.before_read = away
    found.open("t", again, again.root, 0)
    names = [name_of("q", 0, attempt) for attempt in ("a", "b", "c")]
    assert [found.has(name) for name in names] == [True, True, False]
    assert found.topic(names[:2]) == "t"
    with pytest.raises(AwayError):
        list(found.batches(names[0]))
    store.heal()
    found.check(names[:2])
    assert [batch.num_rows for batch in found.batches(names[0])] == [1] * 4
    found.remove(names[:2])
    again.sync_directory(f"{again.root}/staging")
    assert store.records(Partition(LOG, 0)) == []
