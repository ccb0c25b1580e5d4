"""The embedded registry: revisions, restarts, torn and damaged files, failing disks, watching."""

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SECOND
from penstock.disk import LocalDisk
from penstock.errors import ConfigError, CorruptionError, PenstockError, Refusal
from penstock.registry.embedded import COMPACT_BYTES_MIN, HISTORY_CHANGES_MAX, EmbeddedRegistry
from penstock.registry.frames import HEADER, MARK_BYTES
from penstock.registry.registry import Entry, Event
from tests.registry.parts import FaultyDisk, TurnClock, change, delete, put
from tests.simulation.disk import Died
from tests.simulation.machine import Machine


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "data" / "registry")


@pytest.fixture
def clock() -> TurnClock:
    return TurnClock()


def opened(path: str, clock: TurnClock | None = None, disk: LocalDisk | None = None) -> EmbeddedRegistry:
    return EmbeddedRegistry.open(disk or LocalDisk(), clock or TurnClock(), path)


def state(registry: EmbeddedRegistry) -> dict[str, bytes]:
    return {key: entry.value for key, entry in registry.list("").items()}


@contextmanager
def refusal(code: str) -> Iterator[None]:
    with pytest.raises(Refusal) as caught:
        yield
    assert caught.value.code == code


def test_what_was_put_is_there_after_a_restart(path: str) -> None:
    registry = opened(path)
    assert put(registry, "a", b"1") == 1
    assert put(registry, "b", b"2") == 2
    assert put(registry, "a", b"3") == 3
    assert delete(registry, "b") == 4
    # No close: a killed process closes nothing.
    again = opened(path)
    assert state(again) == {"a": b"3"}
    assert again.get("a") == (b"3", 3)
    assert again.get("b") is None
    assert again.revision == 4
    assert put(again, "c", b"4") == 5


def test_a_change_is_synced_before_it_returns(path: str) -> None:
    disk = FaultyDisk()
    registry = opened(path, disk=disk)
    disk.done.clear()
    put(registry, "a", b"1")
    assert disk.done == ["append", "sync", "append"]  # the last one marks it as synced
    delete(registry, "a")
    assert disk.done == ["append", "sync", "append"] * 2


def test_a_killed_process_keeps_every_change_it_reported(path: str) -> None:
    program = (
        "import sys; from penstock.disk import LocalDisk; from penstock.registry import EmbeddedRegistry\n"
        "from tests.registry.parts import TurnClock, put\n"
        "registry = EmbeddedRegistry.open(LocalDisk(), TurnClock(), sys.argv[1])\n"
        "for number in range(10**9):\n"
        "    put(registry, f'key-{number % 50}', str(number).encode() * 40); print(number, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        reported = -1
        for line in child.stdout:
            reported = int(line)
            if reported == 700:
                child.kill()
    assert reported >= 700
    registry = opened(path)
    assert registry.revision >= reported + 1
    last = registry.get(f"key-{reported % 50}")
    assert last is not None
    assert int(last.value[: len(last.value) // 40]) >= reported


def test_list_returns_a_prefix_in_order(path: str) -> None:
    registry = opened(path)
    for key in ("t/b", "t/a", "s/a", "t", "tt"):
        put(registry, key, key.encode())
    assert list(registry.list("t/")) == ["t/a", "t/b"]
    assert list(registry.list("")) == ["s/a", "t", "t/a", "t/b", "tt"]


def test_a_put_expecting_another_revision_is_a_conflict(path: str) -> None:
    registry = opened(path)
    first = put(registry, "a", b"1", if_revision=0)
    with refusal("conflict"):
        put(registry, "a", b"2", if_revision=0)
    second = put(registry, "a", b"2", if_revision=first)
    with refusal("conflict"):
        put(registry, "a", b"3", if_revision=first)
    with refusal("conflict"):
        delete(registry, "a", if_revision=first)
    with refusal("conflict"):
        put(registry, "missing", b"3", if_revision=second)
    assert state(registry) == {"a": b"2"}
    delete(registry, "a", if_revision=second)
    with refusal("conflict"):
        delete(registry, "a", if_revision=second)
    assert put(registry, "a", b"4", if_revision=0) == 4


def test_deleting_what_is_not_there_changes_nothing(path: str) -> None:
    registry = opened(path)
    put(registry, "a", b"1")
    assert delete(registry, "b") == 1
    assert registry.revision == 1


@pytest.mark.parametrize("key", ["", "x" * 2049, "\ud800"])
def test_a_key_that_cannot_be_kept_is_refused(path: str, key: str) -> None:
    registry = opened(path)
    with refusal("bad_request"):
        put(registry, key, b"")
    with refusal("bad_request"):
        delete(registry, key)


def test_a_value_beyond_the_limit_is_refused_and_one_at_the_limit_is_kept(path: str) -> None:
    registry = opened(path)
    with refusal("bad_request"):
        put(registry, "k" * 2048, b"x" * ((1 << 20) + 1))
    put(registry, "k" * 2048, b"x" * (1 << 20))
    assert state(opened(path)) == {"k" * 2048: b"x" * (1 << 20)}


# Torn and damaged files


def three_changes(path: str) -> tuple[bytes, list[int]]:
    """Return a file of three changes, and where its header and each change end; a mark follows each change."""
    registry = opened(path)
    ends = [os.path.getsize(path)]
    for each in (("a", b"first"), ("b", b"second \x00\xff"), ("a", b"third" * 9)):
        put(registry, *each)
        ends.append(os.path.getsize(path) - MARK_BYTES)
    registry.close()
    return Path(path).read_bytes(), ends


STATES = [{}, {"a": b"first"}, {"a": b"first", "b": b"second \x00\xff"}, {"a": b"third" * 9, "b": b"second \x00\xff"}]


def test_a_tail_torn_at_any_byte_is_cut_and_the_rest_stands(path: str) -> None:
    data, ends = three_changes(path)
    for length in range(len(HEADER), len(data) + 1):
        Path(path).write_bytes(data[:length])
        whole = max(index for index, end in enumerate(ends) if end <= length)
        registry = opened(path)
        assert state(registry) == STATES[whole]
        assert registry.revision == whole
        marked = whole > 0 and length >= ends[whole] + MARK_BYTES
        assert registry.cut_bytes == length - ends[whole] - MARK_BYTES * marked
        # What comes next is not written behind the torn bytes.
        put(registry, "next", b"value")
        registry.close()
        again = opened(path)
        assert state(again) == {**STATES[whole], "next": b"value"}
        assert again.cut_bytes == 0
        again.close()


@pytest.mark.parametrize("tail", [b"\x00" * 500, b"\xff" * 500, bytes(range(256)) * 2])
def test_blocks_that_were_never_written_are_cut(path: str, tail: bytes) -> None:
    data, _ = three_changes(path)
    Path(path).write_bytes(data + tail)
    registry = opened(path)
    assert state(registry) == STATES[3]
    assert registry.cut_bytes == len(tail)
    assert os.path.getsize(path) == len(data)


@given(st.data())
def test_a_flipped_bit_is_never_served(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = str(tmp_path_factory.mktemp("flip") / "registry")
    good, ends = three_changes(path)
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    Path(path).write_bytes(bad)
    byte = bit // 8
    if any(end <= byte < end + MARK_BYTES for end in ends[1:]):  # a mark says nothing but that a change is good
        assert state(opened(path)) == STATES[3]
        return
    with pytest.raises(CorruptionError) as caught:
        opened(path)
    assert path in str(caught.value)
    assert Path(path).read_bytes() == bytes(bad)


def test_a_synced_change_that_went_bad_is_damage_although_it_is_the_last(path: str) -> None:
    data, ends = three_changes(path)
    bad = bytearray(data)
    bad[ends[3] - 1] ^= 1
    Path(path).write_bytes(bad)
    with pytest.raises(CorruptionError, match=r"2 changes before it are good.*`penstock registry rebuild`"):
        opened(path)
    assert Path(path).read_bytes() == bytes(bad)


def test_a_change_that_was_written_whole_and_never_marked_is_kept_and_marked(path: str) -> None:
    data, ends = three_changes(path)
    Path(path).write_bytes(data[: ends[3]])
    registry = opened(path)
    assert (state(registry), registry.cut_bytes) == (STATES[3], 0)
    assert Path(path).read_bytes() == data


def test_a_mark_that_the_power_took_is_no_damage(path: str) -> None:
    # A mark is synced with the change after it; sectors are written in any order.
    data, ends = three_changes(path)
    Path(path).write_bytes(data[: ends[2]] + bytes(MARK_BYTES) + data[ends[2] + MARK_BYTES : ends[3]])
    registry = opened(path)
    assert (state(registry), registry.cut_bytes) == (STATES[3], 0)
    assert put(registry, "next", b"") == 4
    assert opened(path).revision == 4


@pytest.mark.parametrize("lost", ["synced", "unsynced"])
def test_power_may_take_what_was_not_answered_and_never_more(lost: str) -> None:
    for seed in range(200):
        machine = Machine(seed)
        registry = EmbeddedRegistry.open(machine.disk, machine.clock, "data/registry")
        answered = machine.platter.random.randint(0, 6)
        for number in range(answered):
            put(registry, f"key-{number}", b"x" * machine.platter.random.randint(0, 600))
        if lost == "unsynced":
            machine.platter.fuse = machine.platter.random.randint(1, 2)  # inside the append, or inside the sync
            with pytest.raises(Died):
                put(registry, "late", b"y" * machine.platter.random.randint(0, 600))
        machine.lose_power()
        again = EmbeddedRegistry.open(machine.disk, machine.clock, "data/registry")
        assert {key for key in state(again) if key != "late"} == {f"key-{n}" for n in range(answered)}, f"seed {seed}"


def test_several_keys_change_in_one_step_or_not_at_all(path: str, clock: TurnClock) -> None:
    disk = FaultyDisk()
    registry = opened(path, clock, disk)
    seen: list[Event] = []
    registry.watch("", 0, seen.extend)
    assert change(registry, {"a": b"1", "b": b"2"}) == 1
    assert change(registry, {"c": b"3"}, ["a", "never"], {"a": 1, "c": 0}) == 2
    with refusal("conflict"):
        change(registry, {"d": b"4"}, ["b"], {"b": 1, "c": 1})
    disk.fail["sync"] = [errno.ENOSPC]
    with refusal("disk_full"):
        change(registry, {"d": b"4"}, ["b"])
    clock.turn()
    assert seen == [("a", b"1", 1), ("b", b"2", 1), ("c", b"3", 2), ("a", None, 2)]
    for each in (registry, opened(path)):
        assert state(each) == {"b": b"2", "c": b"3"}
        assert each.revision == 2


@given(st.data())
def test_changes_of_several_keys_torn_anywhere_are_whole_or_absent(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = str(tmp_path_factory.mktemp("torn") / "registry")
    registry = opened(path)
    change(registry, {"a": b"1", "b": b"1"})
    change(registry, {"a": b"2", "c": b"2"}, ["b"])
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: data.draw(st.integers(len(HEADER), len(content)))])
    assert state(opened(path)) in ({}, {"a": b"1", "b": b"1"}, {"a": b"2", "c": b"2"})


def test_a_change_of_too_many_keys_is_refused(path: str) -> None:
    registry = opened(path)
    with refusal("bad_request"):
        change(registry, {f"key-{number}": b"" for number in range(129)})
    with refusal("bad_request"):
        change(registry, {f"key-{number}": bytes(1 << 20) for number in range(2)})
    assert change(registry, {f"key-{number}": b"" for number in range(128)}) == 1


# Files of the first format


def old_file(*changes: tuple[int, str, bytes | None]) -> bytes:
    """Return a file as version 1 wrote it: one key per frame, no marks."""
    content = b"penstock registry 1\n"
    for each in changes:
        payload = msgspec.msgpack.encode(each)
        checksum = crc32c(payload, len(content) ^ len(payload))
        content += struct.pack("<II", len(payload), checksum) + payload
    return content


OLD = ((1, "a", b"1"), (2, "b", b"2"), (3, "b", None), (4, "c", b"4"))


def test_a_file_of_the_first_format_is_read_and_replaced(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_bytes(old_file(*OLD))
    reader = EmbeddedRegistry.open(LocalDisk(), TurnClock(), path, read_only=True)
    assert (state(reader), reader.revision) == ({"a": b"1", "c": b"4"}, 4)
    assert Path(path).read_bytes() == old_file(*OLD)
    registry = opened(path)
    assert (state(registry), registry.revision) == ({"a": b"1", "c": b"4"}, 4)
    assert Path(path).read_bytes().startswith(HEADER)
    assert put(registry, "d", b"5") == 5
    assert state(opened(path)) == {"a": b"1", "c": b"4", "d": b"5"}


def test_a_torn_end_of_the_first_format_is_cut_and_a_bad_middle_is_damage(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    content = old_file(*OLD)
    Path(path).write_bytes(content[:-1])
    assert state(EmbeddedRegistry.open(LocalDisk(), TurnClock(), path, read_only=True)) == {"a": b"1"}
    bad = bytearray(content)
    bad[len(HEADER) + 10] ^= 1
    Path(path).write_bytes(bad)
    with pytest.raises(CorruptionError, match="damaged at byte 20"):
        opened(path)


def test_a_full_disk_leaves_the_first_format_in_place_and_takes_no_change(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_bytes(old_file(*OLD))
    disk = FaultyDisk()
    disk.fail["append"] = [errno.ENOSPC, errno.ENOSPC]
    registry = opened(path, disk=disk)
    with refusal("disk_full"):
        put(registry, "d", b"5")
    assert Path(path).read_bytes() == old_file(*OLD)
    assert put(registry, "d", b"5") == 5
    assert state(opened(path)) == {"a": b"1", "c": b"4", "d": b"5"}


@given(st.binary(max_size=300))
def test_any_bytes_as_a_file_open_or_are_called_damaged(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("garbage") / "registry"
    for data in (content, HEADER + content):
        path.write_bytes(data)
        try:
            registry = opened(str(path))
        except CorruptionError as error:
            assert str(path) in str(error)
            assert path.read_bytes() == data
        else:
            assert state(registry) == {}
            registry.close()


def test_damage_in_the_middle_names_the_file_the_place_and_the_way_out(path: str) -> None:
    data, ends = three_changes(path)
    bad = bytearray(data)
    bad[ends[1] + MARK_BYTES + 12] ^= 0x40
    Path(path).write_bytes(bad)
    with pytest.raises(CorruptionError) as caught:
        opened(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: damaged at byte {ends[1] + MARK_BYTES}; 1 changes before it are good")
    assert f"from byte {ends[2]} on" in message
    assert "`penstock registry rebuild`" in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cut off after 0 bytes"),
        (HEADER[:5], "cut off after 5 bytes"),
        (b"<html>", "not a registry; it starts with b'<html>'"),
        (b"penstock registry 27\nxyz", 'a registry of format "27", this program knows "2"'),
    ],
)
def test_a_file_that_is_no_registry_is_refused_and_left_alone(path: str, content: bytes, said: str) -> None:
    opened(path).close()
    Path(path).write_bytes(content)
    with pytest.raises(CorruptionError) as caught:
        opened(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert Path(path).read_bytes() == content


def test_a_place_that_cannot_hold_a_registry_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be opened .*check data_dir"):
        opened(str(tmp_path / "file" / "registry"))
    (tmp_path / "registry").mkdir()
    with pytest.raises(ConfigError, match="cannot be opened"):
        opened(str(tmp_path / "registry"))


# Reading beside a writer


def test_a_reader_beside_the_writer_changes_nothing(path: str) -> None:
    data, _ = three_changes(path)
    Path(path).write_bytes(data + b"torn")
    reader = EmbeddedRegistry.open(LocalDisk(), TurnClock(), path, read_only=True)
    assert state(reader) == STATES[3]
    with refusal("forbidden"):
        put(reader, "a", b"")
    with refusal("forbidden"):
        delete(reader, "a")
    assert Path(path).read_bytes() == data + b"torn"
    with pytest.raises(ConfigError):
        EmbeddedRegistry.open(LocalDisk(), TurnClock(), path + "-none", read_only=True)


# Failing disks


@pytest.mark.parametrize("where", ["append", "sync"])
def test_a_full_disk_refuses_the_change_and_recovers(path: str, where: str) -> None:
    disk = FaultyDisk()
    registry = opened(path, disk=disk)
    put(registry, "a", b"1")
    disk.fail[where] = [errno.ENOSPC]
    with refusal("disk_full"):
        put(registry, "a", b"2")
    assert state(registry) == {"a": b"1"}
    assert state(opened(path)) == {"a": b"1"}
    assert put(registry, "a", b"3") == 2
    assert state(opened(path)) == {"a": b"3"}


def test_a_failing_disk_is_reported_and_the_change_is_not_there(path: str) -> None:
    disk = FaultyDisk()
    registry = opened(path, disk=disk)
    disk.fail["sync"] = [errno.EIO]
    with pytest.raises(PenstockError, match=r"cannot be written .* nothing was changed"):
        put(registry, "a", b"1")
    assert state(registry) == {}
    assert state(opened(path)) == {}


def test_after_a_change_that_can_be_neither_written_nor_cut_nothing_is_taken(path: str) -> None:
    disk = FaultyDisk()
    registry = opened(path, disk=disk)
    disk.fail = {"sync": [errno.EIO], "truncate": [errno.EIO]}
    with pytest.raises(PenstockError):
        put(registry, "a", b"1")
    with pytest.raises(PenstockError, match="until the node is restarted"):
        put(registry, "a", b"1")
    assert registry.get("a") is None


@pytest.mark.parametrize("cuts", [1, 100])
def test_what_follows_a_mark_that_was_torn_and_not_cut_is_kept_or_refused(
    path: str, monkeypatch: pytest.MonkeyPatch, cuts: int
) -> None:
    registry = opened(path)
    put(registry, "a", b"1")
    write, cut, refused = os.write, os.ftruncate, [errno.EIO] * cuts

    def half(fd: int, data: bytes) -> int:
        if len(data) == MARK_BYTES:
            write(fd, data[:5])
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(fd, data)

    def refuse(fd: int, length: int) -> None:
        if refused:
            raise OSError(refused.pop(), "the cut failed")
        cut(fd, length)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", refuse)
        put(registry, "b", b"2")
    if cuts == 1:
        put(registry, "c", b"3")
    else:
        with pytest.raises(PenstockError, match="until the node is restarted"):
            put(registry, "c", b"3")
    registry.close()
    found = {"a": b"1", "b": b"2", "c": b"3"} if cuts == 1 else {"a": b"1", "b": b"2"}
    assert state(opened(path)) == found


# Compaction


def grown(registry: EmbeddedRegistry, writes: int, size: int = 1000) -> None:
    for number in range(writes):
        put(registry, f"key-{number % 5}", bytes([number % 256]) * size)


def test_the_file_stays_near_what_is_alive(path: str) -> None:
    registry = opened(path)
    grown(registry, 2000)
    assert os.path.getsize(path) <= COMPACT_BYTES_MIN + 1100
    before = state(registry), registry.revision
    again = opened(path)
    assert (state(again), again.revision) == before
    assert again.list("") == registry.list("")


def test_a_large_registry_is_compacted_at_twice_its_live_size(path: str) -> None:
    registry = opened(path)
    for number in range(200):
        put(registry, f"kept-{number}", b"x" * 1000)
    live = os.path.getsize(path)
    grown(registry, 1000)
    assert os.path.getsize(path) <= 2 * (live + 6000) + 1100
    assert state(opened(path)) == state(registry)


def test_compaction_keeps_the_revision_when_the_last_changes_were_deletes(path: str) -> None:
    registry = opened(path)
    put(registry, "kept", b"1")
    for _ in range(70):
        put(registry, "a", b"x" * 1000)
        delete(registry, "a")
    assert os.path.getsize(path) < 70_000
    assert opened(path).revision == registry.revision == 141


@pytest.mark.parametrize("where", ["append", "sync", "rename"])
def test_a_failed_compaction_leaves_the_old_file_in_use(path: str, where: str) -> None:
    disk = FaultyDisk()
    registry = opened(path, disk=disk)
    grown(registry, 60)
    # The first append and sync are the change's own, the next append its mark, then come those of the new file.
    disk.fail[where] = {"append": [0, 0, errno.ENOSPC], "sync": [0, errno.ENOSPC], "rename": [errno.ENOSPC]}[where]
    put(registry, "large", b"x" * COMPACT_BYTES_MIN)
    assert not disk.fail[where]
    assert state(opened(path)) == state(registry)
    delete(registry, "large")
    grown(registry, 200)
    assert os.path.getsize(path) <= COMPACT_BYTES_MIN + 1100
    assert state(opened(path)) == state(registry)


def test_a_compaction_whose_rename_may_be_undone_takes_no_more_changes(path: str) -> None:
    disk = FaultyDisk()
    registry = opened(path, disk=disk)
    disk.fail["sync_directory"] = [errno.EIO]
    with pytest.raises(PenstockError, match="directory could not be synced"):
        grown(registry, 100)
    assert state(opened(path)) == state(registry)


def test_what_a_crash_left_of_a_compaction_is_removed(path: str) -> None:
    registry = opened(path)
    put(registry, "a", b"1")
    Path(path + ".new").write_bytes(HEADER + b"half")
    assert state(opened(path)) == {"a": b"1"}
    assert not os.path.exists(path + ".new")


# Watching


def test_a_watcher_sees_changes_of_its_prefix_in_order_in_a_later_turn(path: str, clock: TurnClock) -> None:
    registry = opened(path, clock)
    seen: list[Event] = []
    registry.watch("t/", 0, seen.extend)
    put(registry, "t/a", b"1")
    put(registry, "s/a", b"2")
    delete(registry, "t/a")
    assert seen == []
    clock.turn()
    assert seen == [("t/a", b"1", 1), ("t/a", None, 3)]
    put(registry, "t/b", b"4")
    clock.turn()
    assert seen[2:] == [("t/b", b"4", 4)]


def test_a_watcher_resumes_from_a_revision_also_across_a_restart(path: str, clock: TurnClock) -> None:
    registry = opened(path, clock)
    for number in range(10):
        put(registry, "a", str(number).encode())
    for resumed in (registry, opened(path, clock)):
        seen: list[Event] = []
        resumed.watch("", 7, seen.extend)
        clock.turn()
        assert seen == [("a", b"7", 8), ("a", b"8", 9), ("a", b"9", 10)]


def test_past_and_new_changes_reach_a_watcher_once_and_in_order(path: str, clock: TurnClock) -> None:
    registry = opened(path, clock)
    put(registry, "a", b"1")
    seen: list[Event] = []
    registry.watch("", 0, seen.extend)
    put(registry, "a", b"2")
    clock.turn()
    clock.turn()
    assert [event.revision for event in seen] == [1, 2]


def test_a_cancelled_watcher_hears_nothing_more(path: str, clock: TurnClock) -> None:
    registry = opened(path, clock)
    seen: list[Event] = []
    cancel = registry.watch("", 0, seen.extend)
    put(registry, "a", b"1")
    cancel()
    cancel()
    put(registry, "a", b"2")
    clock.turn()
    assert seen == []


def test_a_watcher_may_change_the_registry(path: str, clock: TurnClock) -> None:
    registry = opened(path, clock)
    seen: list[Event] = []

    def answer(events: Sequence[Event]) -> None:
        for _ in events:
            put(registry, "b", b"")

    registry.watch("a", 0, answer)
    registry.watch("b", 0, seen.extend)
    put(registry, "a", b"1")
    clock.turn()
    clock.turn()
    assert seen == [("b", b"", 2)]


def test_a_revision_that_is_no_longer_known_is_gone(path: str, clock: TurnClock) -> None:
    registry = opened(path, clock)
    for _ in range(HISTORY_CHANGES_MAX + 5):
        put(registry, "a", b"1")
    with refusal("gone"):
        registry.watch("", 4, lambda events: None)
    seen: list[Event] = []
    registry.watch("", 5, seen.extend)
    clock.turn()
    assert [event.revision for event in seen] == list(range(6, HISTORY_CHANGES_MAX + 6))


def test_changes_compacted_away_are_gone_after_a_restart(path: str, clock: TurnClock) -> None:
    registry = opened(path, clock)
    grown(registry, 100)
    registry.watch("", 50, lambda events: None)
    again = opened(path, clock)
    with refusal("gone"):
        again.watch("", 50, lambda events: None)
    again.watch("", again.revision, lambda events: None)


def test_a_revision_of_the_future_is_gone(path: str, clock: TurnClock) -> None:
    with refusal("gone"):
        opened(path, clock).watch("", 1, lambda events: None)


def test_a_closed_registry_tells_nobody(path: str, clock: TurnClock) -> None:
    registry = opened(path, clock)
    seen: list[Event] = []
    registry.watch("", 0, seen.extend)
    put(registry, "a", b"1")
    registry.close()
    clock.turn()
    assert seen == []


def test_what_hangs_on_a_lease_is_never_in_the_file(tmp_path: Path) -> None:
    clock, disk = TurnClock(), FaultyDisk()
    registry = EmbeddedRegistry.open(disk, clock, str(tmp_path / "registry"))
    put(registry, "kept", b"1")
    lease = registry.lease(10 * SECOND).now()
    seen: list[Event] = []
    registry.watch("", registry.revision, seen.extend)
    done, size = len(disk.done), (tmp_path / "registry").stat().st_size
    for number in range(100):
        registry.propose({f"c/{number}": b"x"}, (), {f"c/{number}": 0}, lease).now()
    registry.propose({}, ["c/7"], {"c/7": (registry.get("c/7") or Entry(b"", 0)).revision}).now()
    assert disk.done[done:] == [], "nothing was written or synced"
    assert (tmp_path / "registry").stat().st_size == size
    clock.turn()
    assert len(seen) == 101
    assert len(registry.list("c/")) == 99
    put(registry, "c/8", b"stays")
    clock.advance(11 * SECOND)
    assert list(registry.list("c/")) == ["c/8"]
    put(registry, "kept", b"2")
    revision = registry.revision
    registry.close()
    again = EmbeddedRegistry.open(LocalDisk(), clock, str(tmp_path / "registry"))
    assert {key: entry.value for key, entry in again.list("").items()} == {"c/8": b"stays", "kept": b"2"}
    assert again.revision == revision
    again.close()


def test_a_compacted_file_leaves_out_what_hangs_on_a_lease(tmp_path: Path) -> None:
    clock = TurnClock()
    registry = EmbeddedRegistry.open(LocalDisk(), clock, str(tmp_path / "registry"))
    lease = registry.lease(10 * SECOND).now()
    registry.propose({"passing": b"x"}, (), {}, lease).now()
    for number in range(40):
        put(registry, "large", b"%d" % number * 4096)
    assert (tmp_path / "registry").stat().st_size < 2 * COMPACT_BYTES_MIN
    assert registry.get("passing") is not None
    assert b"passing" not in (tmp_path / "registry").read_bytes()
    registry.close()
