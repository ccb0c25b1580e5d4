"""Where topics are: in files on this file system, or at a node.

Owns the one interface that planning and reading see. Invariant: both kinds answer alike; a topic that is not there,
rows that are not kept and a topic made anew are a `Refusal` with the same code in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from penstock.client.wire import Hold, Read, TopicInfo
from penstock.errors import Refusal, hint
from penstock.pipeline.options import Options

Topics = dict[str, TopicInfo]


class Piece(NamedTuple):
    """Rows of one shard to be read."""

    read: Read
    #: The topic's directory, where there are files.
    place: str = ""


class Store(Protocol):
    """Topics somewhere."""

    def topic(self, name: str) -> TopicInfo | None:
        """Return a topic, None if there is none of this name."""

    def names(self) -> list[str]:
        """Return the names of all topics that can be read here."""

    def offsets_at(self, topic: TopicInfo, time_ns: int) -> list[int]:
        """Return for each shard the first offset whose row was taken at or after a time, or its end."""

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield rows as the log has them, with the asked columns, filtered by tags, traffic and buckets."""

    def hold(self, hold: Hold) -> str:
        """Ask for rows to be kept; return why that was not possible, empty if it was."""


def opened(options: Options) -> Store:
    """Return the store that the options name: files where there is a path, else a node."""
    # Imported here: an executor that reads over the network has no use for the log's own packages.
    if options.path is not None:
        from penstock.pipeline.files import Files

        return Files(options.path, options.access)
    from penstock.pipeline.remote import Remote

    assert options.access is not None
    return Remote(options.access)


def subscribed(store: Store, options: Options) -> Topics:
    """Return the topics that the options name; `Refusal` for a name that is not there."""
    found = {}
    for name in subscribed_names(store, options):
        info = store.topic(name)
        if info is None and options.pattern is not None:
            continue  # deleted since it was listed
        if info is None:
            near = hint(name, store.names(), "publish to it first, or make it with `penstock topic create`")
            raise Refusal("not_found", f"option subscribe: there is no topic {name}; {near}")
        found[name] = info
    return found


def subscribed_names(store: Store, options: Options) -> list[str]:
    """Return the names that the options mean now."""
    if options.pattern is None:
        return list(options.topics)
    return [name for name in store.names() if re.fullmatch(options.pattern, name)]
