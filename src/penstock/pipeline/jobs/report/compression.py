"""Which compression a topic should have: codecs measured on samples of its bodies, and the rule that chooses.

Invariant: it advises only what the setting in question can be, and none where compressing brings little.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.jobs.report.totals import Total


#: A closed segment is compressed in batches of 16 thousand rows, which for most topics is some MiB.
SEGMENT_BYTES = 1 << 20
#: What a Kafka producer under load sends for one partition at a time, about.
MESSAGE_SET_BYTES = 64 << 10
#: So many runs of neighbours at least, so that a topic with large bodies is not judged by one of them.
RUNS_MIN = 16
#: Small samples are compressed again until this much CPU time is spent, and the best round counts.
MEASURE_NS = 5_000_000

#: The form that is measured, the codec and its level: the levels that the log, Kafka and Dory have by default.
MEASURES: tuple[tuple[str, str, int | None], ...] = (
    ("segment", "lz4", None),
    ("segment", "zstd", None),
    ("message_set", "gzip", 6),
    ("message_set", "snappy", None),
    ("message_set", "lz4", None),
    ("message_set", "zstd", 3),
)
BLOCK_BYTES = {"segment": SEGMENT_BYTES, "message_set": MESSAGE_SET_BYTES}
RESULT = (
    "topic string, form string, codec string, bodies bigint, plain bigint, packed bigint, "
    "packing double, unpacking double"
)


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


def sampled(messages: DataFrame, totals: Sequence[Total], sample_bytes: int) -> DataFrame:
    """Return some messages of each topic: runs of neighbours that make up about so many bytes together."""
    from pyspark.sql import functions as sql

    chosen = sql.lit(False)
    offset = sql.coalesce(sql.col("offset"), sql.monotonically_increasing_id())
    for total in totals:
        if not total.body_bytes:
            continue
        run, one_in = stride(total.messages, total.body_bytes, sample_bytes)
        number = sql.floor(offset / run)
        draw = sql.pmod(sql.xxhash64(sql.col("shard"), number), sql.lit(one_in)) == 0
        chosen = chosen | ((sql.col("topic") == total.topic) & draw)
    return messages.where(chosen).select("topic", "shard", offset.alias("offset"), "body")


def stride(messages: int, body_bytes: int, sample_bytes: int) -> tuple[int, int]:
    """Return how many neighbours are a run, and of how many runs one is taken."""
    mean_bytes = max(body_bytes / messages, 1.0)
    run = max(int(MESSAGE_SET_BYTES / mean_bytes), 1)
    one_in = min(body_bytes / sample_bytes, messages / run / RUNS_MIN)
    return run, max(int(one_in), 1)


def measured_table(table: pa.Table, sample_bytes: int) -> pa.Table:
    """Return the measures of one topic's sample, in a worker."""
    topic = table.column("topic")[0].as_py()
    order = [("shard", "ascending"), ("offset", "ascending")]
    bodies = [body for body in table.sort_by(order).column("body").to_pylist() if body]
    rows = [(topic, *msgspec.structs.astuple(each)) for each in measures(bodies, sample_bytes)]
    names = [word.split()[0] for word in RESULT.split(", ")]
    return pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))


def measures(bodies: Sequence[bytes], sample_bytes: int) -> list[Measure]:
    """Return what each codec makes of these bodies, in blocks; what is beyond twice the sample is left out."""
    kept: list[bytes] = []
    size = 0
    for body in bodies:
        if kept and size + len(body) > 2 * sample_bytes:
            break
        kept.append(body)
        size += len(body)
    found = []
    for form, codec, level in MEASURES:
        blocks = list(_blocks(kept, BLOCK_BYTES[form]))
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


#: More than this left of the bodies is not worth anybody's trouble. (Dory sends a set plain above 75 % by default.)
LEFT_MAX = 0.85
#: CPU time that a saved byte may cost, packing and unpacking together: a byte takes 8 ns through a gigabit line, and is
#: sent, copied and kept several times.
SAVED_BYTE_NS = 50

#: What each setting can be: the topic setting `compression`, Kafka's compression.type, and what Dory knows.
CHOICES = {
    "penstock": ("segment", ("lz4", "zstd")),
    "kafka": ("message_set", ("gzip", "snappy", "lz4", "zstd")),
    "dory": ("message_set", ("gzip", "snappy")),
}


class Advice(msgspec.Struct, frozen=True):
    """What a topic should be set to, and why."""

    penstock: str
    kafka: str
    dory: str
    reason: str
    measures: tuple[Measure, ...]


def advice(measures: Sequence[Measure]) -> Advice | None:
    """Return what to set; None where there was nothing to measure."""
    if not measures or not measures[0].plain_bytes:
        return None
    chosen = {}
    for setting, (form, codecs) in CHOICES.items():
        able = [each for each in measures if each.form == form and each.codec in codecs]
        chosen[setting] = best(able)
    words = {setting: "none" if found is None else found.codec for setting, found in chosen.items()}
    return Advice(**words, reason=_reason(chosen["penstock"], chosen["kafka"], measures), measures=tuple(measures))


def best(able: Sequence[Measure]) -> Measure | None:
    """Return the codec to take; None for no compression."""
    worth = [each for each in able if each.left <= LEFT_MAX and _price_ns(each) < SAVED_BYTE_NS]
    return min(worth, key=_price_ns, default=None)


def _price_ns(measure: Measure) -> float:
    """Return what a byte costs in all: CPU time, and what is left of it."""
    return measure.packing_ns + measure.unpacking_ns + measure.left * SAVED_BYTE_NS


def _reason(penstock: Measure | None, kafka: Measure | None, measures: Sequence[Measure]) -> str:
    """Return why, in a sentence; about the segments, because the topic setting is the one at hand."""
    if penstock is None and kafka is None:
        least = min(measures, key=lambda each: each.left)
        return f"Even {least.codec} leaves {least.left:.0%} of the bodies: compressing would only cost CPU time."
    if penstock is None:
        assert kafka is not None
        return f"Only message sets are worth it: {_said(kafka)}."
    other = next((each for each in measures if each.form == penstock.form and each.codec != penstock.codec), None)
    if other is None:
        return f"{_said(penstock)}.".capitalize()
    if other.left <= penstock.left:
        return f"{_said(penstock)}; {other.codec} leaves {other.left:.0%}, too little less for what it costs."
    return f"{_said(penstock)}; {other.codec} leaves {other.left:.0%}, so the CPU time is well spent."


def _said(measure: Measure) -> str:
    return f"{measure.codec} leaves {measure.left:.0%} of the bodies for {measure.packing_ns:.1f} ns a byte"
