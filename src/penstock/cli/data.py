"""A data directory seen from outside: its topics by name and where their shards are, beside a running node or not.

Reads the registry and lists directories; takes no lock and writes nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from random import Random
from typing import Annotated, NamedTuple

import typer

from penstock.cli.failure import USAGE, Failure
from penstock.clock import Timer

REGISTRY = "registry"

Directory = Annotated[
    str | None,
    typer.Option("--data", help="Data directory.", metavar="DIR", show_default="as the configuration here says"),
]


class Place(NamedTuple):
    """One shard on disk."""

    topic: str
    shard: int
    directory: str


def data_directory(given: str | None) -> str:
    """Return the data directory that is meant, which must be there."""
    from penstock.cli.table import load

    path = given or load().config.data_dir
    if not os.path.isdir(path):
        raise Failure(f"there is no data directory {path}. Name the one the node was started with.", USAGE)
    return path


def topics(data: str) -> dict[str, int]:
    """Return the number of every topic that the registry knows, by name; of one in etcd what the labels tell."""
    from penstock.log import label
    from penstock.log.reader import ReadOnlyDisk
    from penstock.node.claim import FILE as OWNER
    from penstock.registry.catalog import Catalog
    from penstock.registry.embedded import EmbeddedRegistry

    path = os.path.join(data, REGISTRY)
    if not os.path.exists(path) and os.path.exists(os.path.join(data, OWNER)):
        folder, disk = os.path.join(data, label.TOPICS), ReadOnlyDisk()
        labels = [label.read(disk, os.path.join(folder, name)) for name in disk.list(folder)]
        return {each.name: each.number for each in labels if each is not None}
    if not os.path.exists(path):
        raise Failure(f"{data} is no data directory of a node: it has no registry.", USAGE)
    registry = EmbeddedRegistry.open(ReadOnlyDisk(), StoppedClock(), path, read_only=True)
    try:
        return {record.name: record.number for record in Catalog(registry, StoppedClock(), Random()).topics()}
    finally:
        registry.close()


def places(directory: str, topic: str | None = None) -> list[Place]:
    """Return the shards of one topic, or of all, in order; below a part of the log its path stands for the name."""
    from penstock.log.verify import shards_below

    if not os.path.exists(os.path.join(directory, REGISTRY)) and topic is None:
        found = [Place(os.path.dirname(place), _number(place), place) for place in shards_below(directory)]
        if not found:
            raise Failure(f"{directory} holds no log. Name a data directory, or a directory inside one.", USAGE)
        return found
    known = topics(directory)
    if topic is not None and topic not in known:
        some = ", ".join(sorted(known)[:10]) or "none"
        raise Failure(f"there is no topic {topic!r} in {directory}; there are: {some}")
    return sorted(
        Place(name, _number(place), place)
        for name, number in known.items()
        if topic in (None, name)
        for place in shards_below(os.path.join(directory, "topics", str(number)))
    )


def _number(place: str) -> int:
    name = os.path.basename(os.path.abspath(place))
    return int(name) if name.isdigit() else 0


class StoppedClock:
    """The registry's clock calls back watchers, and looking has none."""

    now = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic_ns)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Refuse: nobody turns it."""
        raise NotImplementedError

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> Timer:
        """Refuse: nobody turns it."""
        raise NotImplementedError
