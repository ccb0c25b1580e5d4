"""Record batches of message sets, compressed as their topics are to be."""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time_ns

import numpy as np
import pyarrow.compute as pc

from penstock.columns import Buffer, Offsets
from penstock.kafka.compression import Compression
from penstock.kafka.producer_id import NOBODY, Producer
from penstock.kafka.records import Flags, Piece, Records, laid_out, sealed
from penstock.message import Batch
from penstock.relays.kafka.config import KafkaRelayConfig, TopicManner
from penstock.relays.kafka.learning import Codec, Learning
from penstock.relays.kafka.sequences import Sequences
from penstock.relays.kafka.sets import MessageSet

#: The dialect whose clients cannot tell what is empty from what is absent: it is absent.
DORY = "dory"


class Packer:
    """Packs sets, each as its topic asks for."""

    def __init__(self, config: KafkaRelayConfig, learning: Learning) -> None:
        self._percent = config.compression_percent
        self._compressions: dict[tuple[Codec, TopicManner], Compression] = {}
        self._learning = learning

    def batch(self, part: MessageSet, sequences: Sequences | None) -> Sequence[Buffer]:
        """Return the record batch of a set, in pieces."""
        groups = part.groups
        records = laid_out(
            [
                Piece.of(group.batch, group.rows, group.stamps_ms, null_empty(group.batch, group.rows))
                for group in groups
            ]
        )
        producer = NOBODY if sequences is None else Producer(sequences.producer_id, sequences.epoch)
        compression = self._compression(part.topic, groups[0].lane.manner, records)
        start_ns = thread_time_ns()
        found = sealed(records, compression, producer, part.sequence)
        spent_ns = thread_time_ns() - start_ns if compression.codec != "none" else 0
        self._learning.sent(part.topic, found.plain_bytes, found.sent_bytes, spent_ns, found.fault)
        return found.pieces

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
    if isinstance(source, list):
        found = np.array([each == DORY for each in source], np.bool_)[rows]
    else:
        found = np.asarray(pc.equal(source, DORY))[rows]
    return bool(found[0]) if (found == found[0]).all() else found
