"""Which compression a topic should have: codecs measured on samples of its bodies, and the rule that chooses.

Invariant: it advises only what the setting in question can be, and none where compressing brings little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from penstock.codecs import MESSAGE_SET_BYTES, Measure, best, measured, said

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.jobs.report.totals import Total


#: A closed segment is compressed in batches of 16 thousand rows, which for most topics is some MiB.
SEGMENT_BYTES = 1 << 20
#: So many runs of neighbours at least, so that a topic with large bodies is not judged by one of them.
RUNS_MIN = 16
#: The form that is measured, the codec and its level: the levels that the log has by default.
SEGMENT: tuple[tuple[str, str, int | None], ...] = (("segment", "lz4", None), ("segment", "zstd", None))
RESULT = (
    "topic string, form string, codec string, bodies bigint, plain bigint, packed bigint, "
    "packing double, unpacking double"
)


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
    """Return what each codec makes of these bodies, as segments and as message sets."""
    segments = measured(bodies, sample_bytes, SEGMENT, SEGMENT_BYTES)
    return [*segments, *measured(bodies, sample_bytes)]


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


def _reason(penstock: Measure | None, kafka: Measure | None, measures: Sequence[Measure]) -> str:
    """Return why, in a sentence; about the segments, because the topic setting is the one at hand."""
    if penstock is None and kafka is None:
        least = min(measures, key=lambda each: each.left)
        return f"Even {least.codec} leaves {least.left:.0%} of the bodies: compressing would only cost CPU time."
    if penstock is None:
        assert kafka is not None
        return f"Only message sets are worth it: {said(kafka)}."
    other = next((each for each in measures if each.form == penstock.form and each.codec != penstock.codec), None)
    if other is None:
        return f"{said(penstock)}.".capitalize()
    if other.left <= penstock.left:
        return f"{said(penstock)}; {other.codec} leaves {other.left:.0%}, too little less for what it costs."
    return f"{said(penstock)}; {other.codec} leaves {other.left:.0%}, so the CPU time is well spent."
