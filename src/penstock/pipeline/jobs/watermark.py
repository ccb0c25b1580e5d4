"""Watermarks: how the times of rows tell Spark what it may forget, and how steps of one query share one.

A query has one watermark on `timestamp`; the column carries a mark by which operators find it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

#: How Spark marks a column that a watermark closes: what an operator takes for the watermark's delay, in milliseconds.
WATERMARK = "spark.watermarkDelayMs"
#: Our own mark beside it, where the watermark's true delay is another one.
TRUE_DELAY = "penstock.watermarkDelayMs"


def delay_ms(frame: DataFrame) -> int | None:
    """Return how far the watermark of a streaming frame is behind its newest row, None if it has none."""
    marks = [field.metadata for field in frame.schema.fields if WATERMARK in field.metadata]
    return min((int(mark.get(TRUE_DELAY, mark[WATERMARK])) for mark in marks), default=None)
