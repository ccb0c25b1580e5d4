"""Which node a registry elsewhere belongs to: one data directory and one prefix of keys name each other.

A node takes what its registry does not know for lost, and what it knows for its own. So it must not be shown another
node's registry, or an empty one, whoever mistyped a prefix.
Invariant: the data directory names the registry before the registry names the data directory.
"""

from __future__ import annotations

from random import Random

from penstock.disk import Disk, replace_file
from penstock.errors import ConfigError, Refusal
from penstock.registry.registry import Registry
from penstock.rescue.directories import Directories

#: The key of the registry, and the file in the data directory, that hold the same name.
KEY = "owner"
FILE = "registry.owner"
NAME_BYTES = 16
#: The key that holds the same name while `relocation` moves a registry between its file and etcd.
MOVING = "moving"
#: Keys that only a registry of several nodes has.
CLUSTER = "cluster/"


async def claim(registry: Registry, disk: Disk, data_dir: str, random: Random, where: str) -> None:
    """Make sure that a registry and a data directory belong together; `where` is what people call the registry."""
    if registry.list(CLUSTER):
        raise ConfigError(f"{where} belongs to a cluster: set cluster.name to join it, or choose another prefix")
    if registry.get(MOVING) is not None:
        raise ConfigError(f"a move to or from {where} broke off; ask `penstock registry move` for it again")
    path = f"{data_dir}/{FILE}"
    entry = registry.get(KEY)
    name = named(disk, data_dir)
    if entry is not None and name is None:
        raise ConfigError(
            f"{where} belongs to a node with another data directory than {data_dir}. Choose another registry.prefix "
            f"for this one; if it was restored, put back the {FILE} that it had"
        )
    if entry is not None and entry.value != name:
        raise ConfigError(f"{where} belongs to another node than {data_dir}; check registry.prefix and registry.zone")
    if entry is not None:
        return
    topics = disk.list(Directories(disk, data_dir).topics)
    if topics:
        raise ConfigError(
            f"{where} is empty, and {data_dir} holds {len(topics)} topics. Check registry.prefix, registry.zone and "
            "whether etcd lost its data; what is in a file moves there by `penstock registry move etcd`; or go on "
            "without etcd: `penstock registry rebuild` and registry.kind=embedded"
        )
    name = name or random.randbytes(NAME_BYTES).hex().encode()
    disk.make(data_dir)
    replace_file(disk, path, name)
    try:
        await registry.propose({KEY: name}, (), {KEY: 0})
    except Refusal as refusal:
        entry = registry.get(KEY)
        if refusal.code != "conflict" or entry is None or entry.value != name:
            raise ConfigError(f"{where} cannot be taken for {data_dir}: {refusal}") from None


def check_shared(registry: Registry, where: str) -> None:
    """Refuse a registry that belongs to one node to those who would share it."""
    if registry.get(KEY) is not None or registry.get(MOVING) is not None:
        raise ConfigError(f"{where} belongs to one node alone; choose another registry.prefix for the cluster")


def named(disk: Disk, data_dir: str) -> bytes | None:
    """Return the name by which a data directory and its registry know each other; None if it has none."""
    path = f"{data_dir}/{FILE}"
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return file.read(0, 1024).strip()
    finally:
        file.close()
