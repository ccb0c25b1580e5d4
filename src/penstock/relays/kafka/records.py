"""Record batches of message sets, compressed as their topics are to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.columns import Buffer
from penstock.kafka.compression import Compression
from penstock.kafka.producer_id import NOBODY, Producer
from penstock.kafka.records import Piece, Sealed, laid_out, sealed
from penstock.relays.kafka.config import KafkaRelayConfig, TopicManner
from penstock.relays.kafka.sequences import Sequences
from penstock.relays.kafka.sets import MessageSet

#: The dialect whose clients cannot tell what is empty from what is absent: it is absent.
DORY = "dory"

#: Told of the topic of a batch, and of what compression came to.
Packed = Callable[[str, Sealed], None]


class Packer:
    """Packs sets, each as its topic asks for."""

    def __init__(self, config: KafkaRelayConfig, packed: Packed | None = None) -> None:
        self._percent = config.compression_percent
        self._compressions: dict[TopicManner, Compression] = {}
        self._packed = packed

    def batch(self, part: MessageSet, sequences: Sequences | None) -> Sequence[Buffer]:
        """Return the record batch of a set, in pieces."""
        groups = part.groups
        pieces = [Piece.of(group.batch, group.rows, group.times_ms) for group in groups]
        records = laid_out(pieces, null_empty=any(group.batch.source == DORY for group in groups))
        producer = NOBODY if sequences is None else Producer(sequences.producer_id, sequences.epoch)
        found = sealed(records, self._compression(groups[0].lane.manner), producer, part.sequence)
        if self._packed is not None:
            self._packed(part.topic, found)
        return found.pieces

    def _compression(self, manner: TopicManner) -> Compression:
        found = self._compressions.get(manner)
        if found is None:
            found = self._compressions[manner] = Compression(
                manner.compression, manner.compression_level, manner.compression_min_bytes, self._percent
            )
        return found
