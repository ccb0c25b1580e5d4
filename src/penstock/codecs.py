"""What codecs make of a topic's bodies, measured on samples, and the rule that chooses one.

The report of the pipeline advises by it, and a relay that learns goes by it: both come to the same.
Invariant: nothing is chosen where compressing brings little.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

#: What a Kafka producer under load sends for one partition at a time, about.
MESSAGE_SET_BYTES = 64 << 10
#: Small samples are compressed again until this much CPU time is spent, and the best round counts.
MEASURE_NS = 5_000_000

#: The form that is measured, the codec and its level: what a Kafka producer has by default.
MESSAGE_SET: tuple[tuple[str, str, int | None], ...] = (
    ("message_set", "gzip", 6),
    ("message_set", "snappy", None),
    ("message_set", "lz4", None),
    ("message_set", "zstd", 3),
)

#: More than this left of the bodies is not worth anybody's trouble. (Dory sends a set plain above 75 % by default.)
LEFT_MAX = 0.85
#: CPU time that a saved byte may cost, packing and unpacking together: a byte takes 8 ns through a gigabit line, and is
#: sent, copied and kept several times.
SAVED_BYTE_NS = 50


class Measure(msgspec.Struct, frozen=True):
    """What one codec made of a topic's sample."""

    form: str
    codec: str
    bodies: int
    plain_bytes: int
    packed_bytes: int
    #: CPU time for a byte of the bodies.
    packing_ns: float
    unpacking_ns: float

    @property
    def left(self) -> float:
        """Return how much of the bodies is left, 1 for all."""
        return self.packed_bytes / self.plain_bytes if self.plain_bytes else 1.0


def measured(
    bodies: Sequence[bytes],
    sample_bytes: int,
    forms: Sequence[tuple[str, str, int | None]] = MESSAGE_SET,
    block_bytes: int = MESSAGE_SET_BYTES,
) -> list[Measure]:
    """Return what each codec makes of these bodies, in blocks; what is beyond twice the sample is left out."""
    kept: list[bytes] = []
    size = 0
    for body in bodies:
        if kept and size + len(body) > 2 * sample_bytes:
            break
        kept.append(body)
        size += len(body)
    found = []
    for form, codec, level in forms:
        blocks = list(_blocks(kept, block_bytes))
        name = "lz4_frame" if codec == "lz4" else codec
        packed, packing_ns, unpacking_ns = _timed(pa.Codec(name, compression_level=level), blocks)
        found.append(
            Measure(form, codec, len(kept), size, packed, packing_ns / max(size, 1), unpacking_ns / max(size, 1))
        )
    return found


def _blocks(bodies: Sequence[bytes], block_bytes: int) -> Iterator[bytes]:
    """Yield bodies put together, each block at least so large, but for the last."""
    block: list[bytes] = []
    size = 0
    for body in bodies:
        block.append(body)
        size += len(body)
        if size >= block_bytes:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


def _timed(codec: pa.Codec, blocks: Sequence[bytes]) -> tuple[int, float, float]:
    """Return what blocks come to, and the CPU time of a round of packing and unpacking them, at its best."""
    best = [float("inf"), float("inf")]
    spent = packed_bytes = 0
    while True:
        start = time.thread_time_ns()
        packed = [codec.compress(block, asbytes=True) for block in blocks]
        between = time.thread_time_ns()
        for block, small in zip(blocks, packed, strict=True):
            codec.decompress(small, decompressed_size=len(block))
        end = time.thread_time_ns()
        packed_bytes = sum(map(len, packed))
        best = [min(best[0], between - start), min(best[1], end - between)]
        spent += end - start
        if spent >= MEASURE_NS or not blocks:
            return packed_bytes, best[0], best[1]


def best(able: Sequence[Measure]) -> Measure | None:
    """Return the codec to take; None for no compression."""
    worth = [each for each in able if each.left <= LEFT_MAX and _price_ns(each) < SAVED_BYTE_NS]
    return min(worth, key=_price_ns, default=None)


def _price_ns(measure: Measure) -> float:
    """Return what a byte costs in all: CPU time, and what is left of it."""
    return measure.packing_ns + measure.unpacking_ns + measure.left * SAVED_BYTE_NS


def said(measure: Measure) -> str:
    """Return what a codec does, in words."""
    return f"{measure.codec} leaves {measure.left:.0%} of the bodies for {measure.packing_ns:.1f} ns a byte"
