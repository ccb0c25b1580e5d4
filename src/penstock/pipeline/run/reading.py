"""How a source of a pipeline is read: its keys as options of `format("penstock")`.

Owns that translation, and which columns a query needs. Knows nothing of Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from penstock.errors import ConfigError, Refusal
from penstock.pipeline.jobs.catalog import Job
from penstock.pipeline.options import parsed
from penstock.pipeline.plan.document import Place, Source
from penstock.pipeline.store import Store, opened
from penstock.units.quantity import parse_duration
from penstock.units.times import past

EVERY = "*"


def source_options(source: Source, place: Place, columns: str, hold: str) -> dict[str, str]:
    """Return the options of a streaming read; `hold` names who needs the rows."""
    options = {
        **place.options(),
        "columns": ",".join(source.columns) or columns,
        "maxOffsetsPerTrigger": str(source.max_rows),
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
        "holdName": hold,
        "holdSeconds": str(parse_duration(source.hold) // 1_000_000_000),
    }
    if source.pattern:
        options["subscribePattern"] = source.pattern
    else:
        options["subscribe"] = json.dumps(list(source.names))
    chosen = {
        "maxBytesPerTrigger": source.max_bytes,
        "minPartitions": source.tasks,
        "tag": source.tag,
        "traffic": source.traffic,
        "buckets": source.buckets,
    }
    options |= {name: str(value) for name, value in chosen.items() if value}
    if source.min_rows:
        options |= {"minOffsetsPerTrigger": str(source.min_rows), "maxTriggerDelay": source.max_wait}
    return options | _start(source, options)


def columns_of(jobs: Sequence[Job]) -> str:
    """Return the columns that a query asks of its source, given its steps."""
    wanted: dict[str, None] = {}
    for job in jobs:
        if job.columns is None:
            return EVERY
        wanted |= dict.fromkeys(job.columns)
        if not job.passes:
            return ",".join(wanted)
    return EVERY  # a sink gets whatever there is


def _start(source: Source, options: dict[str, str]) -> dict[str, str]:
    """Return where a first start begins."""
    said = source.from_
    if said in ("earliest", "latest"):
        return {"startingOffsets": str(said)}
    if isinstance(said, str):
        try:
            time_ns = past(said, time.time_ns(), "from")
        except Refusal:
            raise ConfigError(
                f"from is {said!r}: earliest, latest, a time like 2026-01-31T12:00:00Z, a duration back from now like "
                "2h, or an offset"
            ) from None
        return {"startingTimestamp": str(time_ns // 1_000_000)}
    if isinstance(said, int):
        return {"startingOffsets": json.dumps(_everywhere(source, said, options))}
    if all(isinstance(value, dict) for value in said.values()):
        return {"startingOffsets": json.dumps(said)}
    if len(source.names) != 1:
        raise ConfigError("from holds offsets by shard: with several topics write them by topic and shard")
    return {"startingOffsets": json.dumps({source.names[0]: said})}


def _everywhere(source: Source, offset: int, options: dict[str, str]) -> dict[str, dict[str, int]]:
    """Return one offset for all shards of all topics."""
    if source.pattern:
        raise ConfigError("from is an offset, and the source is a pattern: name its topics, or begin at a time")
    store = store_of(options)
    found = {}
    for name in source.names:
        info = store.topic(name)
        if info is None:
            raise ConfigError(f"there is no topic {name}")
        found[name] = {str(shard.shard): offset for shard in info.shards}
    return found


def store_of(options: dict[str, str]) -> Store:
    """Return the topics that some options mean."""
    return opened(parsed(options))
