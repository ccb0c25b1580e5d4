"""Where each partition is: kept with the rows, as the producer sequence of their batch, and noted now and then.

A sequence names its source (group, cluster and the topic's id there) and, for each partition with rows in the batch,
the offset after the last of them. So a position is in the log exactly if its rows are, whatever dies when. The log
knows sequences for the topic's window only; a note in the registry, made once the rows are synced, tells of the time
before.
Invariant: positions of a source only grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from struct import iter_unpack, pack

import msgspec

#: What the registry's keys begin with.
KEYS = "feed/kafka/"
#: One batch has rows of no more partitions than this: sequences stay short.
PARTITIONS_MAX = 64
_MARK = b"kafka "
_PLACE = ">IQ"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Positions as the registry keeps them; all rows before them are on disk."""

    group: str
    #: Kafka's topic.
    topic: str
    #: The node's, and what tells it from a deleted one of that name.
    into: str
    incarnation: int
    #: Partition -> offset of the next record.
    positions: dict[int, int]


def source_of(group: str, cluster: str, topic: str, topic_id: str) -> bytes:
    """Return what tells the positions of a group in a topic from all others."""
    # Brokers before 2.8 give topics no ids.
    parts = (group, cluster, topic_id or f"name {topic}")
    return blake2b(b"\0".join(part.encode() for part in parts), digest_size=16).digest()


def key_of(source: bytes) -> str:
    """Return where the registry keeps the note of a source."""
    return KEYS + source.hex()


def prefix_of(source: bytes) -> bytes:
    """Return what all sequences of a source begin with."""
    return _MARK + source


def sequence_of(source: bytes, positions: Mapping[int, int]) -> bytes:
    """Return the sequence of rows behind which these positions are; there are few lengths of it."""
    places = sorted(positions.items())
    # The log has a template for each length: fill up to a power of two.
    places += places[-1:] * ((1 << (len(places) - 1).bit_length()) - len(places))
    return prefix_of(source) + b"".join([pack(_PLACE, partition, offset) for partition, offset in places])


def latest(source: bytes, sequences: Iterable[bytes]) -> dict[int, int]:
    """Return the furthest position of each partition that sequences of a source name."""
    found: dict[int, int] = {}
    start = len(prefix_of(source))
    for sequence in sequences:
        for partition, offset in iter_unpack(_PLACE, sequence[start:]):
            found[partition] = max(offset, found.get(partition, 0))
    return found
