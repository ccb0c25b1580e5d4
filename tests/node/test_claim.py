"""A registry elsewhere and a data directory belong together, or the node does not start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from penstock.clock import LoopClock
from penstock.disk import LocalDisk
from penstock.errors import ConfigError
from penstock.node.claim import FILE, KEY, claim
from penstock.registry import EmbeddedRegistry


class Shelf:
    """Registries and data directories in a directory, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def claim(self, registry: str, data: str) -> bytes:
        """Let a node start, and return what the registry says of it."""

        async def main() -> bytes:
            loop = asyncio.get_running_loop()
            disk = LocalDisk(loop)
            opened = EmbeddedRegistry.open(disk, LoopClock(loop), f"{self.folder}/{registry}")
            try:
                await claim(opened, disk, f"{self.folder}/{data}", Random(1), "the registry")
                entry = opened.get(KEY)
                assert entry is not None
                return entry.value
            finally:
                opened.close()
                disk.close()

        return asyncio.run(main())


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_the_first_node_takes_an_empty_registry_and_has_it_from_then_on(shelf: Shelf) -> None:
    owner = shelf.claim("registry", "data")
    assert (shelf.folder / "data" / FILE).read_bytes() == owner
    assert shelf.claim("registry", "data") == owner


def test_a_node_that_died_before_it_had_its_registry_takes_it_later(shelf: Shelf) -> None:
    (shelf.folder / "data").mkdir()
    (shelf.folder / "data" / FILE).write_bytes(b"me")
    assert shelf.claim("registry", "data") == b"me"


def test_another_data_directory_is_refused(shelf: Shelf) -> None:
    shelf.claim("registry", "data")
    with pytest.raises(ConfigError, match=r"belongs to a node with another data directory.*registry\.prefix"):
        shelf.claim("registry", "other")
    (shelf.folder / "other").mkdir()
    (shelf.folder / "other" / FILE).write_bytes(b"somebody")
    with pytest.raises(ConfigError, match="belongs to another node"):
        shelf.claim("registry", "other")


def test_a_damaged_name_of_the_registry_is_refused_and_nothing_is_changed(shelf: Shelf) -> None:
    owner, path = shelf.claim("registry", "data"), shelf.folder / "data" / FILE
    flipped = [bytes([*owner[:at], owner[at] ^ 1 << at % 8, *owner[at + 1 :]]) for at in range(len(owner))]
    for content in (None, *(owner[:at] for at in range(len(owner))), *flipped):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match="belongs to"):
            shelf.claim("registry", "data")
        assert (path.read_bytes() if content is not None else None) == content
    path.write_bytes(owner)
    assert shelf.claim("registry", "data") == owner


def test_an_empty_registry_is_not_taken_for_data_that_has_topics(shelf: Shelf) -> None:
    shelf.claim("registry", "data")
    (shelf.folder / "data/topics/1").mkdir(parents=True)
    assert shelf.claim("registry", "data")
    with pytest.raises(ConfigError, match=r"is empty, and .* holds 1 topics"):
        shelf.claim("mistyped", "data")
    assert shelf.claim("registry", "data")
