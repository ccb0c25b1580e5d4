"""Topics as Spark DataFrames. `session()` starts Spark; `register(spark)` is for sessions started otherwise."""

from penstock.pipeline.session import register, session

__all__ = ["register", "session"]
