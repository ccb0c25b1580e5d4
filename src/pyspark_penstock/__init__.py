"""How Spark finds `format("penstock")` by itself: it looks into modules whose names begin with `pyspark_`."""

from penstock.pipeline.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
