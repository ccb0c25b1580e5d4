"""What a step gives: rows for the next step, the same as messages, and the rows it could not use.

Owns that one shape, so that a runner needs to know nothing of any job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Output(NamedTuple):
    """The result of a step."""

    #: What a table gets, and the next step.
    frame: DataFrame
    #: Makes messages of rows that are none; None where the frame has a body already.
    messages: Callable[[DataFrame], DataFrame] | None = None
    #: Rows that cannot be used: messages as they came, and a column `reason`.
    dead: DataFrame | None = None
