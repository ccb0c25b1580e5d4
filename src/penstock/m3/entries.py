"""What names a message between producer and consumer: a Message's metadata, which is an entry of an Ack as it stands.

One by one, and by columns: above SMALL rows numpy and Arrow, below plain lists.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns import SMALL
from penstock.m3.wire import BYTES, bytes_field, fields, number_field
from penstock.varints import Places, Reader, Writer

#: What one entry of an Ack may weigh: three numbers of ten bytes, their tags, and a head.
ENTRY_BYTES_MAX = 2 + 3 * 11

METADATA = 1 << 3 | BYTES
_SHARD, _ID, _SENT = 1 << 3, 2 << 3, 3 << 3
#: The tags of what an entry says, in order.
TAGS = bytes((_SHARD, _ID, _SENT))

Column: TypeAlias = "list[int] | npt.NDArray[np.uint64]"


class Metadata(NamedTuple):
    """What names a message between a producer and its consumer."""

    shard: int = 0
    id: int = 0
    sent_ns: int = 0


class Metadatas(NamedTuple):
    """What an Ack says of many messages, by columns."""

    shard: Column
    id: Column
    sent_ns: Column

    def __len__(self) -> int:
        return len(self.shard)


def metadata(data: bytes, before: Metadata | None = None) -> Metadata:
    """Return what one Metadata says; a second one of the same message adds to the first, as protobuf has it."""
    said = list(before or (0, 0, 0))
    for field in fields(data):
        if field.number <= 3:
            said[field.number - 1] = field.whole()
    return Metadata(*said)


def metadatas(reader: Reader, at: Places, end: Places) -> Metadatas | None:
    """Return what is said between these places; None if a piece is not written as everybody does."""
    found: list[npt.NDArray[np.uint64]] = []
    for tag in TAGS:
        values, at, good = reader.optional(tag, at, end)
        if not good.all():
            return None
        found.append(values)
    return Metadatas(*found) if (at == end).all() else None


def entry(said: Metadata) -> bytes:
    """Return what an Ack says of one message, and a Message of itself."""
    return bytes_field(1, b"".join(number_field(no, value) for no, value in enumerate(said, 1)))


def write_entries(writer: Writer, said: Metadatas) -> None:
    """Write what is said of each message behind what is there."""
    inner = Writer(len(said))
    for tag, values in zip(TAGS, said, strict=True):
        inner.optional(tag, np.asarray(values, np.uint64))
    writer.constant(bytes((METADATA,)))
    writer.fixed(inner.sizes.astype(np.uint8)[:, None])
    writer.take(inner)


def entries(said: Metadatas) -> list[bytes] | pa.Array:
    """Return what Acks say of many messages, each."""
    if len(said) <= SMALL:
        return [entry(Metadata(int(shard), int(id_), int(sent))) for shard, id_, sent in zip(*said, strict=True)]
    writer = Writer(len(said))
    write_entries(writer, said)
    return writer.column()
