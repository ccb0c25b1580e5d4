"""Where topics are: in files on this file system, or at a node.

Owns the one interface that planning and reading see. Invariant: both kinds answer alike; a topic that is not there,
rows that are not kept and a topic made anew are a `Refusal` with the same code in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from penstock.client.wire import Hold, Read, TopicInfo
from penstock.pipeline.options import Options


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
