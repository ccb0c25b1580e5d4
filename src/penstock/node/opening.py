"""What must be right before a node opens its topics: the registry that belongs to what is on disk."""

from __future__ import annotations

from penstock.clock import Clock
from penstock.disk import Disk
from penstock.errors import CorruptionError
from penstock.registry.catalog import Catalog
from penstock.registry.embedded import EmbeddedRegistry
from penstock.rescue.directories import Directories


def open_registry(disk: Disk, clock: Clock, data_dir: str, directories: Directories) -> EmbeddedRegistry:
    """Open what the node remembers; without it topics on disk would be strangers."""
    path, there = f"{data_dir}/registry", disk.list(directories.topics)
    found = "missing"
    if not there or disk.exists(path):
        registry = EmbeddedRegistry.open(disk, clock, path)
        if not there or registry.revision:
            return registry
        registry.close()
        found = "empty"
    raise CorruptionError(
        f"{path} is {found}, and {directories.topics} holds {len(there)} topics. Put the right file there, or "
        f"run `penstock registry rebuild --data {data_dir}`, which makes one from what is on disk"
    )


def check_age(catalog: Catalog, directories: Directories, data_dir: str, counted: int) -> None:
    """Refuse a registry from before subscriptions that known topics have: what they need would be dropped."""
    for record in catalog.topics():
        for number, name in directories.subscriptions(record.number).items():
            if number > counted:
                raise CorruptionError(
                    f"{data_dir}/registry does not know subscription {name} of topic {record.name}, "
                    "which is on disk: it was cut short, or an older one was put back. Put the right file there, "
                    f"or run `penstock registry rebuild --force --data {data_dir}`, which makes one "
                    "from what is on disk"
                )
