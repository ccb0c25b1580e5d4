"""What of closed segments a node's own disk keeps: so much, and what was read last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.disk import LocalDisk
from penstock.log.kafka.cache import Cache
from penstock.log.kafka.disk import SharedDisk
from penstock.log.kafka.file import SharedFile
from penstock.log.kafka.store import AwayError, GoneError, Partition
from tests.cluster.fake_store import FakeStore
from tests.cluster.threads import InlineThreads

SIZE = 64 << 10
LOG = Partition("c.1.log", 0)


def content(number: int) -> bytes:
    return bytes([65 + number]) * SIZE


class Node:
    """One topic on a disk that keeps three segments."""

    def __init__(self, folder: Path) -> None:
        self.store, self.cache = FakeStore(), Cache(3 * SIZE)
        self.root = str(folder / "topic")
        writer = self.store.writer("s")
        self.disk = SharedDisk(LocalDisk(), self.store, writer, self.root, "c.1", InlineThreads(), cache=self.cache)
        self.disk.open_all()
        self.disk.make(f"{self.root}/0")

    def path(self, number: int) -> str:
        return f"{self.root}/0/{number:020d}.0.arrows"

    def grow(self, number: int) -> SharedFile:
        file = self.disk.open(self.path(number), create=True)
        file.append([content(number)])
        file.sync()
        return file

    def write(self, number: int) -> None:
        self.grow(number).close()
        self.disk.sync_directory(f"{self.root}/0")

    def read(self, number: int) -> bytes:
        file = self.disk.open(self.path(number))
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def here(self) -> list[int]:
        """Return the segments whose bytes the local disk has."""
        return [number for number in range(20) if self._has_blocks(self.path(number))]

    @staticmethod
    def _has_blocks(path: str) -> bool:
        return os.path.exists(path) and os.stat(path).st_blocks > 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.disk.close()


def test_those_that_nobody_read_for_longest_go_first(node: Node) -> None:
    for number in range(3):
        node.write(number)
    assert node.read(0) == content(0)
    node.write(3)
    node.write(4)
    assert 0 in node.here()
    assert len(node.here()) <= 4, "what came last is counted with the next"
    assert node.cache.bytes <= 4 * SIZE
    assert node.cache.evicted_bytes >= SIZE


def test_what_went_is_read_from_kafka_and_makes_room_for_itself(node: Node) -> None:
    for number in range(10):
        node.write(number)
    for number in (*range(10), *range(10)):
        assert node.read(number) == content(number)
        assert len(node.here()) <= 4
    assert node.cache.fetched_bytes > 10 * SIZE
    assert node.cache.bytes <= 4 * SIZE


def test_a_segment_that_grows_stays(node: Node) -> None:
    files = [node.grow(number) for number in range(10)]
    assert node.here() == list(range(10))
    assert node.cache.bytes == 0, "only what is closed is a cache"
    files[0].append([b"unsent"])
    for file in files[1:]:
        file.close()
    node.write(10)
    assert 0 in node.here()
    assert len(node.here()) <= 5
    files[0].sync()
    assert files[0].read(0, SIZE + 10) == content(0) + b"unsent"
    files[0].close()
    assert node.store.records(LOG)[-1].value == b"unsent"


def test_one_that_is_read_stays_meanwhile(node: Node) -> None:
    for number in range(4):
        node.write(number)
    node.read(0)
    [inode] = [each for each in node.disk.segments() if each.name.endswith(os.path.basename(node.path(0)))]
    inode.readers += 1  # as a thread does that has not got its bytes yet
    for number in range(4, 12):
        node.write(number)
    assert 0 in node.here()


def test_one_that_is_removed_while_it_comes_is_not_made_again(node: Node) -> None:
    for number in range(10):
        node.write(number)
    gone = next(number for number in range(10) if number not in node.here())
    file = node.disk.open(node.path(gone))
    node.store.before_read = lambda _: node.disk.remove(node.path(gone))
    with pytest.raises(FileNotFoundError):
        file.read(0, SIZE)
    file.close()
    assert not os.path.exists(node.path(gone))


def away(partition: Partition) -> None:
    raise GoneError(f"{partition.topic} is not known here")


def test_what_one_broker_does_not_know_is_gone_only_if_kafka_begins_behind_it(node: Node) -> None:
    for number in range(10):
        node.write(number)
    gone = [number for number in range(10) if number not in node.here()][:3]
    node.store.before_read = away
    for _ in range(2):
        with pytest.raises(AwayError, match="not known here"):
            node.read(gone[0])
    node.store.heal()
    assert node.read(gone[0]) == content(gone[0])
    first = next(each for each in node.store.records(LOG) if each.value[:1] == content(gone[2])[:1])
    node.store.cut(LOG, first.offset)
    assert node.read(gone[1]) == bytes(SIZE), "zeros, which the log finds to be damaged"
    assert node.read(gone[2]) == content(gone[2])
    node.store.drop("c.1.log")
    assert node.read(next(number for number in range(10) if number not in node.here())) == bytes(SIZE)
