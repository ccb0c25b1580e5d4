"""A query in SQL as a step: for what no job is there for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from penstock.errors import ConfigError
from penstock.pipeline.jobs.output import Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Sql(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of the step."""

    #: A SELECT whose table is called `{input}`.
    query: str

    COLUMNS: ClassVar[tuple[str, ...] | None] = None

    def __post_init__(self) -> None:
        if "{input}" not in self.query:
            raise ConfigError("query names no input: write SELECT … FROM {input}")


def selected(frame: DataFrame, options: Sql) -> Output:
    """Return what the query gives."""
    return Output(frame.sparkSession.sql(options.query, input=frame))
