"""Record batches of message sets, compressed as their topics are to be.

Invariant: what compressing needs stands still once a set is laid out, so that it may be done beside the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time_ns
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import Buffer, Offsets
from penstock.kafka.compression import Compression
from penstock.kafka.producer_id import NOBODY, Producer
from penstock.kafka.records import Flags, Piece, Records, Sealed, laid_out, sealed
from penstock.message import Batch
from penstock.relays.kafka.config import KafkaRelayConfig, TopicManner
from penstock.relays.kafka.learning import Codec, Learning
from penstock.relays.kafka.sequences import Sequences
from penstock.relays.kafka.sets import MessageSet

#: The dialect whose clients cannot tell what is empty from what is absent: it is absent.
DORY = "dory"


class Packed(NamedTuple):
    """The record batch of a set, and the CPU time that it took."""

    batch: Sealed
    spent_ns: int


class Packing(NamedTuple):
    """A set that is laid out, and what is to become of it."""

    topic: str
    partition: int
    records: Records
    compression: Compression
    producer: Producer
    sequence: int

    @property
    def bytes_to_compress(self) -> int:
        """How much work is left."""
        return len(self.records.data) if self.compression.codec != "none" else 0

    def packed(self) -> Packed:
        """Return the record batch; in any thread."""
        start_ns = thread_time_ns()
        batch = sealed(self.records, self.compression, self.producer, self.sequence)
        return Packed(batch, thread_time_ns() - start_ns if self.compression.codec != "none" else 0)


class Packer:
    """Packs sets, each as its topic asks for."""

    def __init__(self, config: KafkaRelayConfig, learning: Learning) -> None:
        self._percent = config.compression_percent
        self._compressions: dict[tuple[Codec, TopicManner], Compression] = {}
        self._learning = learning

    def begin(self, part: MessageSet, sequences: Sequences | None) -> Packing:
        """Lay a set out."""
        groups = part.groups
        records = laid_out(
            [
                Piece.of(group.batch, group.rows, group.stamps_ms, null_empty(group.batch, group.rows))
                for group in groups
            ]
        )
        producer = NOBODY if sequences is None else Producer(sequences.producer_id, sequences.epoch)
        compression = self._compression(part.topic, groups[0].lane.manner, records)
        return Packing(part.topic, part.partition, records, compression, producer, part.sequence)

    def end(self, packing: Packing, packed: Packed) -> Sequence[Buffer]:
        """Count what became of a set, and return its record batch in pieces."""
        batch = packed.batch
        self._learning.sent(packing.topic, batch.plain_bytes, batch.sent_bytes, packed.spent_ns, batch.fault)
        return batch.pieces

    def _compression(self, topic: str, manner: TopicManner, records: Records) -> Compression:
        codec, level = manner.compression, manner.compression_level
        if codec == "auto":
            codec, level = self._learning.codec(topic), None
            self._learning.see(topic, records.data)
        found = self._compressions.get((codec, manner))
        if found is None:
            found = Compression(codec, level, manner.compression_min_bytes, self._percent)
            self._compressions[codec, manner] = found
        return found


def null_empty(batch: Batch, rows: slice | Offsets) -> bool | Flags:
    """Return whether what is empty in these rows is absent: one for all where they agree, else one each."""
    source = batch.source
    if isinstance(source, str):
        return source == DORY
    # Of the rows that are meant only: a sealed batch goes out by its partitions, with a call for each.
    if isinstance(source, list):
        some = source[rows] if isinstance(rows, slice) else [source[row] for row in rows.tolist()]
        found = np.array([each == DORY for each in some], np.bool_)
    else:
        found = np.asarray(pc.equal(source[rows] if isinstance(rows, slice) else source.take(pa.array(rows)), DORY))
    return bool(found[0]) if (found == found[0]).all() else found
