"""A stopped node's registry goes from the file in its data directory to etcd, or back.

Owns what is moved, in which order, and what a move that broke off leaves behind. Knows nothing of what values mean.
Invariant: whichever of the two says that it is the registry (a file of its name, an owner in etcd) holds all of it.
While a mark stands in etcd the file counts, no node takes that prefix, and the same move may be asked for again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from random import Random

from penstock.clock import Clock
from penstock.disk import Disk, replace_file
from penstock.errors import ConfigError
from penstock.node.claim import CLUSTER, FILE, KEY, MOVING, NAME_BYTES, named
from penstock.registry.embedded import EmbeddedRegistry
from penstock.registry.registry import CHANGE_BYTES_MAX, CHANGE_EDITS_MAX, Registry

#: The file of a registry, and its name once it has moved.
REGISTRY = "registry"
MOVED = "registry.moved"
#: Keys that stand for what is alive.
LEASES = "lease/"


class Relocation:
    """One data directory and one prefix in etcd, while no node uses either."""

    def __init__(self, disk: Disk, clock: Clock, data_dir: str, there: Registry, where: str) -> None:
        """Take what etcd holds, and what people call that place."""
        self._disk = disk
        self._clock = clock
        self._data_dir = data_dir
        self._path = f"{data_dir}/{REGISTRY}"
        self._there = there
        self._where = where

    async def to_etcd(self, random: Random) -> int:
        """Move what is in the file to etcd, and return how many entries that are."""
        kept = self._in_file()
        if kept is None:
            raise ConfigError(f"{self._path} is not there: there is nothing to move")
        there = self._there
        name = named(self._disk, self._data_dir)
        owner = there.get(KEY)
        if owner is not None:
            if owner.value != name or carried(there) != kept:
                raise ConfigError(f"{self._where} is a node's registry already; choose another registry.prefix")
        else:
            name = name or random.randbytes(NAME_BYTES).hex().encode()
            await self._copy(kept, name)
        self._disk.rename(self._path, f"{self._data_dir}/{MOVED}")
        self._disk.sync_directory(self._data_dir)
        return len(kept)

    async def to_file(self) -> int:
        """Move what is in etcd to the file, and return how many entries that are."""
        there, name = self._there, named(self._disk, self._data_dir)
        owner, mark = there.get(KEY), there.get(MOVING)
        found = self._in_file()
        if name is None or name not in (entry.value for entry in (owner, mark) if entry is not None):
            raise ConfigError(f"{self._where} is not the registry of {self._data_dir}: there is nothing to move")
        if there.list(LEASES):
            raise ConfigError(f"{self._where} is in use, or was a moment ago; stop the node, and try again in a minute")
        if owner is not None:
            kept = carried(there)
            if found is not None and found != kept:
                raise ConfigError(
                    f"{self._path} and {self._where} differ, and only one of them can be right: put the file elsewhere"
                )
            if found is None:
                self._write(kept)
            await there.propose({MOVING: name}, (KEY,), {KEY: owner.revision})
        elif found is None:
            raise ConfigError(f"{self._path} is gone, and a move of it to {self._where} is not done; put the file back")
        else:
            kept = found
        for some in _portions(carried(there)):
            await there.propose({}, some)
        await there.propose({}, (MOVING,))
        return len(kept)

    async def _copy(self, kept: dict[str, bytes], name: bytes) -> None:
        there, mark = self._there, self._there.get(MOVING)
        if there.list(CLUSTER):
            raise ConfigError(f"{self._where} belongs to a cluster; choose another registry.prefix")
        if mark.value != name if mark is not None else there.list(""):
            raise ConfigError(f"{self._where} is not empty; choose another registry.prefix")
        replace_file(self._disk, f"{self._data_dir}/{FILE}", name)
        marked = await there.propose({MOVING: name}, (), {MOVING: mark.revision if mark is not None else 0})
        before = carried(there)
        for some in _portions({key: value for key, value in before.items() if key not in kept}):
            await there.propose({}, some)
        for some in _portions(kept):
            await there.propose(some)
        await there.propose({KEY: name}, (MOVING,), {KEY: 0, MOVING: marked})

    def _in_file(self) -> dict[str, bytes] | None:
        if not self._disk.exists(self._path):
            return None
        registry = EmbeddedRegistry.open(self._disk, self._clock, self._path)
        try:
            return carried(registry)
        finally:
            registry.close()

    def _write(self, kept: dict[str, bytes]) -> None:
        """Make the file under another name, and give it its own once all of it is there."""
        coming = f"{self._path}.coming"
        self._disk.remove(coming)
        registry = EmbeddedRegistry.open(self._disk, self._clock, coming)
        try:
            for some in _portions(kept):
                registry.propose(some).now()
        finally:
            registry.close()
        self._disk.rename(coming, self._path)
        self._disk.sync_directory(os.path.dirname(self._path))


def carried(registry: Registry) -> dict[str, bytes]:
    """Return what a registry holds for good: neither who owns it nor what goes with a lease."""
    entries = registry.list("").items()
    return {key: entry.value for key, entry in entries if key not in (KEY, MOVING) and not key.startswith(LEASES)}


def _portions(entries: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yield entries in portions that one change takes; each of them is one by itself at most."""
    portion: dict[str, bytes] = {}
    size = 0
    for key, value in entries.items():
        more = len(key.encode()) + len(value)
        if portion and (len(portion) == CHANGE_EDITS_MAX or size + more > CHANGE_BYTES_MAX):
            yield portion
            portion, size = {}, 0
        portion[key] = value
        size += more
    if portion:
        yield portion
