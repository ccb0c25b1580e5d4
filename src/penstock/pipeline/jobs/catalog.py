"""The jobs that may stand as a step in a pipeline, by the name they have there.

Owns what a runner must know of a job: its options, what it reads, and whether it keeps state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.errors import ConfigError, hint
from penstock.pipeline.jobs.dedupe import Dedupe, deduped
from penstock.pipeline.jobs.output import Output
from penstock.pipeline.jobs.rollup import Rollup, rolled
from penstock.pipeline.jobs.route import Route, routed
from penstock.pipeline.jobs.sql import Sql, selected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The node's routing mapping: traffic types and their bits.
Mapped = Mapping[str, int]


class Job(NamedTuple):
    """What a runner knows of a job."""

    options: type[msgspec.Struct]
    apply: Callable[[DataFrame, Any, Mapped], Output]
    #: The message columns it reads; None: it may read any.
    columns: tuple[str, ...] | None
    #: Rows keep all columns they came with.
    passes: bool = False
    #: Its checkpoint fits these options only.
    stateful: bool = False
    #: It asks for the node's routing mapping.
    mapped: bool = False
    #: The same rows come out of a batch that is done again: no lots, no sums of fractions, no mapping that may change.
    settled: bool = False


JOBS: dict[str, Job] = {
    "dedupe": Job(
        Dedupe,
        lambda frame, options, _: deduped(frame, options),
        Dedupe.COLUMNS,
        passes=True,
        stateful=True,
        settled=True,
    ),
    "rollup": Job(Rollup, lambda frame, options, _: rolled(frame, options), Rollup.COLUMNS, stateful=True),
    "route": Job(Route, routed, Route.COLUMNS, passes=True, mapped=True),
    "sql": Job(Sql, lambda frame, options, _: selected(frame, options), Sql.COLUMNS),
}


def job(name: str) -> Job:
    """Return a job; ConfigError offers the nearest name."""
    found = JOBS.get(name)
    if found is None:
        raise ConfigError(f"there is no job {name}; {hint(name, JOBS)}")
    return found
