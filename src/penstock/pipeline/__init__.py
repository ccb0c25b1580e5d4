"""Topics as Spark DataFrames. `session()` starts Spark; `format("penstock")` is found by Spark itself."""

from penstock.pipeline.session import session

__all__ = ["session"]
