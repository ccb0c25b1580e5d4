"""What must be right before a node opens its topics: the registry that belongs to what is on disk, or in Kafka."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.clock import Clock
from penstock.config import Config
from penstock.disk import Disk
from penstock.errors import CorruptionError
from penstock.log import label
from penstock.registry.catalog import Catalog
from penstock.registry.counters import SUBSCRIPTION_COUNTER
from penstock.registry.embedded import EmbeddedRegistry
from penstock.registry.records import TopicRecord
from penstock.rescue.directories import Directories, filled


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


def check_age(catalog: Catalog, directories: Directories, config: Config, counted: int) -> None:
    """Refuse a registry from before subscriptions that known topics have: what they need would be dropped."""
    for record in catalog.topics():
        check_subscriptions(config, record, directories.subscriptions(record.number), counted)


def check_subscriptions(config: Config, record: TopicRecord, found: Mapping[int, str], counted: int) -> None:
    """Refuse a topic with subscriptions that come after all that the registry ever counted.

    The next one would get the number of one of them, and with it what it has acknowledged.
    """
    unknown = {number: name for number, name in found.items() if number > counted}
    for name in unknown.values():
        what = f"does not know subscription {name} of topic {record.name}, which is {_place(record)}"
        without = f"{SUBSCRIPTION_COUNTER} to {max(unknown)}, to go on without that subscription"
        raise CorruptionError(_older(config, what, without))


def check_shards(disk: Disk, config: Config, record: TopicRecord, path: str) -> None:
    """Refuse a record from before a topic got more shards: what is in those would be served by nobody."""
    found = label.read(disk, path)
    labelled = found.shards if found is not None and found.incarnation == record.incarnation else 0
    count = max([labelled, *(number + 1 for number in filled(disk, path))])
    if count > record.settings.shards:
        what = f"knows {record.settings.shards} of the {count} shards of topic {record.name} that are {_place(record)}"
        raise CorruptionError(_older(config, what))


def _place(record: TopicRecord) -> str:
    return "on disk" if record.settings.log == "local" else "in Kafka"


def _older(config: Config, what: str, without: str = "") -> str:
    """Return what is told of a registry that is older than the topics; etcd has no second copy on disk."""
    if config.cluster.name or config.registry.kind == "etcd":
        way = f"; or set its key {config.registry.prefix}/{without}" if without else ""
        return (
            f"etcd {what}: an older backup of it was put back. Put back one that does "
            f"(etcdctl snapshot restore), and start the nodes again{way}"
        )
    return (
        f"{config.data_dir}/registry {what}: it was cut short, or an older one was put back. Put the right file "
        f"there, or run `penstock registry rebuild --force --data {config.data_dir}`, which makes one from what "
        "is on disk"
    )
