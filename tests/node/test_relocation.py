"""A registry between its file and another place: nothing is lost, wherever the move breaks off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from penstock.disk import LocalDisk
from penstock.errors import ConfigError, PenstockError
from penstock.node.claim import KEY, MOVING, claim
from penstock.node.relocation import Relocation, carried
from penstock.registry.answer import Answer
from penstock.registry.embedded import EmbeddedRegistry
from penstock.registry.registry import Lease, Proposal, Registry
from tests.registry.parts import TurnClock, put


class Breaking:
    """A registry that takes so many changes, and then is gone."""

    def __init__(self, whole: EmbeddedRegistry, changes: int) -> None:
        self._whole = whole
        self._left = changes
        self.get, self.list = whole.get, whole.list
        self.lease, self.watch = whole.lease, whole.watch
        self.problems, self.figures = whole.problems, whole.figures

    @property
    def revision(self) -> int:
        return self._whole.revision

    def propose(
        self,
        puts: Mapping[str, bytes],
        deletes: Iterable[str] = (),
        guards: Mapping[str, int] | None = None,
        lease: Lease | None = None,
    ) -> Proposal:
        if not self._left:
            return Answer.refused(PenstockError("gone"))
        self._left -= 1
        return self._whole.propose(puts, deletes, guards, lease)


class World:
    """A data directory, and a place elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.disk = LocalDisk()
        self.clock = TurnClock()
        self.data = str(folder / "data")
        self.there = EmbeddedRegistry.open(self.disk, self.clock, str(folder / "elsewhere"))

    def file(self) -> EmbeddedRegistry:
        return EmbeddedRegistry.open(self.disk, self.clock, f"{self.data}/registry")

    def filled(self, count: int) -> dict[str, bytes]:
        registry = self.file()
        for number in range(count):
            put(registry, f"topic/{number}", b"record %d" % number)
        found = carried(registry)
        registry.close()
        return found

    def here(self) -> dict[str, bytes] | None:
        if not Path(self.data, "registry").exists():
            return None
        registry = self.file()
        found = carried(registry)
        registry.close()
        return found

    def to_etcd(self, there: Registry | None = None) -> int:
        return asyncio.run(self._relocation(there).to_etcd(Random(1)))

    def to_file(self, there: Registry | None = None) -> int:
        return asyncio.run(self._relocation(there).to_file())

    def claim(self) -> None:
        asyncio.run(claim(self.there, self.disk, self.data, Random(2), "the place"))

    def _relocation(self, there: Registry | None) -> Relocation:
        return Relocation(self.disk, self.clock, self.data, there or self.there, "the place")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.there.close()


def test_a_registry_moves_there_and_back(world: World) -> None:
    kept = world.filled(300)
    assert world.to_etcd() == 300
    assert carried(world.there) == kept
    assert world.here() is None
    assert Path(world.data, "registry.moved").exists()
    world.claim()
    put(world.there, "topic/later", b"one more")
    assert world.to_file() == 301
    assert world.here() == {**kept, "topic/later": b"one more"}
    assert world.there.list("") == {}


# The mark, three portions, the owner: five changes.
@pytest.mark.parametrize("changes", range(5))
def test_a_move_that_breaks_off_loses_nothing_and_is_asked_for_again(world: World, changes: int) -> None:
    kept = world.filled(300)
    with pytest.raises(PenstockError, match="gone"):
        world.to_etcd(Breaking(world.there, changes))
    assert world.here() == kept
    assert world.there.get(KEY) is None
    if world.there.get(MOVING) is not None:
        with pytest.raises(ConfigError, match="ask `penstock registry move` for it again"):
            world.claim()
    assert world.to_etcd() == 300
    assert carried(world.there) == kept


@pytest.mark.parametrize("changes", range(5))
def test_a_move_back_that_breaks_off_loses_nothing_and_is_asked_for_again(world: World, changes: int) -> None:
    kept = world.filled(300)
    world.to_etcd()
    with pytest.raises(PenstockError, match="gone"):
        world.to_file(Breaking(world.there, changes))
    assert world.here() == kept
    if changes:
        with pytest.raises(ConfigError, match="ask `penstock registry move` for it again"):
            world.claim()
    assert world.to_file() == 300
    assert world.here() == kept
    assert world.there.list("") == {}


def test_what_changed_in_the_file_since_a_move_broke_off_is_what_counts(world: World) -> None:
    world.filled(300)
    with pytest.raises(PenstockError, match="gone"):
        world.to_etcd(Breaking(world.there, 3))
    file = world.file()
    file.propose({"topic/0": b"other"}, ("topic/1",)).now()
    kept = carried(file)
    file.close()
    world.to_etcd()
    assert carried(world.there) == kept


def test_a_move_whose_last_step_is_missing_is_finished(world: World) -> None:
    kept = world.filled(3)
    world.to_etcd()
    Path(world.data, "registry.moved").rename(Path(world.data, "registry"))
    assert world.to_etcd() == 3
    assert (world.here(), carried(world.there)) == (None, kept)


def test_a_place_that_is_somebody_elses_is_left_alone(world: World) -> None:
    world.filled(3)
    put(world.there, "owner", b"somebody")
    with pytest.raises(ConfigError, match="is a node's registry already"):
        world.to_etcd()
    with pytest.raises(ConfigError, match="is not the registry of"):
        world.to_file()
    world.there.propose({"cluster/x": b""}, ("owner",)).now()
    with pytest.raises(ConfigError, match="belongs to a cluster"):
        world.to_etcd()
    world.there.propose({"other": b""}, ("cluster/x",)).now()
    with pytest.raises(ConfigError, match="is not empty"):
        world.to_etcd()
    world.there.propose({MOVING: b"somebody"}, ("other",)).now()
    with pytest.raises(ConfigError, match="is not empty"):
        world.to_etcd()
    assert carried(world.there) == {}


def test_a_registry_that_a_node_used_a_moment_ago_does_not_move(world: World) -> None:
    world.filled(3)
    world.to_etcd()
    lease = world.there.lease(1_000_000_000).now()
    with pytest.raises(ConfigError, match="is in use, or was a moment ago"):
        world.to_file()
    lease.end().now()
    assert world.to_file() == 3


def test_two_registries_that_differ_are_not_made_one(world: World) -> None:
    world.filled(3)
    world.to_etcd()
    world.filled(4)
    with pytest.raises(ConfigError, match="is a node's registry already"):
        world.to_etcd()
    with pytest.raises(ConfigError, match="only one of them can be right"):
        world.to_file()


def test_without_a_registry_nothing_moves(world: World) -> None:
    with pytest.raises(ConfigError, match="there is nothing to move"):
        world.to_etcd()
    with pytest.raises(ConfigError, match="there is nothing to move"):
        world.to_file()
