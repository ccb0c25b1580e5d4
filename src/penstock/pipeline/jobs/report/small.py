"""Messages, events and counts as Arrow tables in this process, where there is little enough: then nobody needs Spark.

Owns how much that is, and the way from a node or its directory to the tables; `archived.py` has that from an archive.
Invariant: what is read is what the source's frames have, with times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.wire import Read, TopicInfo
from penstock.errors import ConfigError
from penstock.pipeline.jobs.report import own
from penstock.pipeline.jobs.report.options import COUNTS_TOPIC, EVENTS_TOPIC, OWN_PREFIX, Report, check_names
from penstock.pipeline.jobs.report.plain import TYPES, Arrows, PlainQueries
from penstock.pipeline.options import parsed
from penstock.pipeline.store import Piece, opened

if TYPE_CHECKING:
    from penstock.pipeline.store import Store

#: More rows, or more bytes, are Spark's: up to here a process has the memory, and is done before Spark has started.
ROWS_MAX = 1_000_000
BYTES_MAX = 512 << 20

TIMES = ("timestamp", "due")


def small(
    options: Report,
    *,
    path: str = "",
    url: str = "",
    token: str = "",
    tls_roots: str = "",
    tables: Sequence[str] = (),
    rows_max: int = ROWS_MAX,
) -> PlainQueries | None:
    """Return the queries of a report that needs no Spark; None where there is too much to read.

    With `tables`, directories of archives, the messages are theirs; then so are events and counts, unless there is a
    path or url to have them from.
    """
    kept = None
    if tables:
        from penstock.pipeline.jobs.report.archived import archived  # the packages of tables are not everywhere

        kept = archived(tables, rows_max)
        if kept is None:
            return None
    if path or url:
        words = {"path": path, "url": url, "token": token, "tlsRoots": tls_roots}
        live = _live(options, {name: value for name, value in words.items() if value}, kept is None, rows_max)
        if live is None:
            return None
        kept = live if kept is None else Arrows(kept.messages, live.events, live.counts)
    if kept is None:
        raise ConfigError("where are the messages? Name a data directory (path), a node (url) or tables of an archive")
    return PlainQueries(kept, options)


def _live(options: Report, words: Mapping[str, str], messages: bool, rows_max: int) -> Arrows | None:
    """Return what a node or its directory has, messages only if asked for; None if that is too much."""
    store = opened(parsed({**words, "subscribePattern": ".*"}))
    there = store.names()
    names: list[str] = []
    if messages:
        check_names(options, there)
        names = list(options.topics) or [name for name in there if not name.startswith(OWN_PREFIX)]
    events, counts = own.found(store, EVENTS_TOPIC, there), own.found(store, COUNTS_TOPIC, there)
    infos = {name: info for name in names if (info := store.topic(name)) is not None} | events | counts
    reads = {name: list(_reads(store, info, options)) for name, info in infos.items()}
    rows, size = _extent(infos, reads)
    if rows > rows_max or size > BYTES_MAX:
        return None
    found = {name: _table(store, infos[name], each) for name, each in reads.items()}
    parts = [found[name] for name in names if name in found]
    return Arrows(
        _together(parts) or _empty(), *(_together([found[name] for name in each]) for each in (events, counts))
    )


def _together(tables: Sequence[pa.Table]) -> pa.Table | None:
    return pa.concat_tables(tables, promote_options="default") if tables else None


def _reads(store: Store, info: TopicInfo, options: Report) -> Iterator[Read]:
    """Yield what is to be read of each shard; of the node's own topics everything."""
    is_own = info.name not in options.topics and any(
        own.is_of(info.name, kind) for kind in (EVENTS_TOPIC, COUNTS_TOPIC)
    )
    starts, ends = [shard.start for shard in info.shards], [shard.end for shard in info.shards]
    if options.since_us is not None and not is_own:
        starts = store.offsets_at(info, max(options.since_us * 1000, 0))
    if options.until_us is not None and not is_own:
        ends = store.offsets_at(info, max(options.until_us * 1000, 0))
    columns = [name for name in Report.COLUMNS if name not in ("topic", "shard")]
    for shard, start, end in zip(info.shards, starts, ends, strict=False):
        if start < end:
            yield Read(
                topic=info.name, shard=shard.shard, incarnation=info.incarnation, start=start, end=end,
                columns=columns if not is_own else list(Report.EVENT_COLUMNS), skip_lost=True,
            )  # fmt: skip


def _extent(infos: dict[str, TopicInfo], reads: dict[str, list[Read]]) -> tuple[int, int]:
    """Return how many rows and bytes there are to read, about."""
    rows = size = 0
    for name, info in infos.items():
        shards = {shard.shard: shard for shard in info.shards}
        for read in reads[name]:
            shard = shards[read.shard]
            some = min((read.end or 0) - (read.start or 0), shard.rows)
            rows += some
            size += shard.bytes * some // max(shard.rows, 1)
    return rows, size


def _table(store: Store, info: TopicInfo, reads: Sequence[Read]) -> pa.Table:
    found = []
    for read in reads:
        for batch in store.batches(Piece(read, info.path or "")):
            table = pa.Table.from_batches([batch])
            for name in TIMES:
                if name in table.column_names:
                    at = table.column_names.index(name)
                    table = table.set_column(at, name, _micros(table.column(name)))
            table = table.append_column("topic", pa.repeat(pa.scalar(info.name), len(table)))
            found.append(table.append_column("shard", pa.repeat(pa.scalar(read.shard, pa.int32()), len(table))))
    return pa.concat_tables(found, promote_options="default") if found else _empty()


def _micros(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times in nanoseconds as microseconds; they are after 1970, so dividing cuts them towards the past."""
    return pc.divide(pc.cast(column, pa.int64()), 1000)


def _empty() -> pa.Table:
    return pa.table({name: pa.array([], type_) for name, type_ in TYPES.items()})
