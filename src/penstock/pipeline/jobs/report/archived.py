"""Messages, events and counts of an archive's tables as Arrow tables in this process, where there is little enough.

Invariant: what is read is what Spark's frames of the same tables have, with times in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.jobs.report import own
from penstock.pipeline.jobs.report.options import COUNTS_TOPIC, EVENTS_TOPIC, Report
from penstock.pipeline.jobs.report.plain import TYPES, Arrows
from penstock.pipeline.lake.table import format_of, table

#: Of a table's files, which are compressed.
BYTES_MAX = 128 << 20
MICROSECOND = pa.timestamp("us", "UTC")


def archived(paths: Sequence[str], rows_max: int) -> Arrows | None:
    """Return what tables have; None where that is too much, or of types that only Spark takes."""
    tables = [table(path, format=format_of(path), partition_by=None) for path in paths]
    facts = [each.facts() for each in tables]
    if sum(each.rows for each in facts) > rows_max or sum(each.bytes for each in facts) > BYTES_MAX:
        return None
    found = []
    for each in tables:
        plain = _plain(each.rows())
        if plain is None:
            return None
        found.append(plain)
    whole = pa.concat_tables(found, promote_options="default")
    return Arrows(whole, _own(found, EVENTS_TOPIC), _own(found, COUNTS_TOPIC))


def _plain(rows: pa.Table) -> pa.Table | None:
    columns = {}
    for name in Report.COLUMNS:
        if name not in rows.column_names:
            continue
        column = rows.column(name)
        if column.type == MICROSECOND and TYPES[name] == pa.int64():
            column = pc.cast(column, pa.int64())
        if column.type != TYPES[name]:
            return None
        columns[name] = column
    return pa.table(columns)


def _own(tables: Sequence[pa.Table], kind: str) -> pa.Table | None:
    """Return what tables have of a kind of topics that nodes keep of themselves; None if that is nothing."""
    found = []
    for each in tables:
        if {"topic", *Report.EVENT_COLUMNS} <= set(each.column_names):
            topics = each.column("topic")
            names = [name for name in topics.unique().to_pylist() if name is not None and own.is_of(name, kind)]
            mine = each.filter(pc.is_in(topics, pa.array(names, topics.type)))
            found.append(mine.select(list(Report.EVENT_COLUMNS)))
    return pa.concat_tables(found) if any(map(len, found)) else None
