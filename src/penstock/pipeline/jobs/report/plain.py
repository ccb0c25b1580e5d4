"""The report's questions, answered by Arrow and numpy in this process: for as much as fits into its memory.

Invariant: the same figures as Spark's answers, but for which runs of a large topic's bodies are compressed.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codecs import Measure
from penstock.pipeline.jobs.report.compression import measures, stride
from penstock.pipeline.jobs.report.options import OWN_PREFIX, Report
from penstock.pipeline.jobs.report.scale import PER_DOUBLING, PLAIN, classes_of
from penstock.pipeline.jobs.report.span import HOUR_US, SECOND_US, Span, slots_of
from penstock.pipeline.jobs.report.totals import (
    ATTEMPTS_MAX,
    BEFORE_US,
    COARSE,
    ROWS_MAX,
    SETS,
    SHOWN_BYTES,
    STATIONS,
    Hot,
    Total,
    Totals,
    readable,
)

Row = dict[str, Any]
Longs = npt.NDArray[np.int64]

TYPES = {
    "topic": pa.string(), "shard": pa.int32(), "offset": pa.int64(), "timestamp": pa.int64(), "source": pa.string(),
    "key": pa.binary(), "tag": pa.string(), "bucket": pa.int32(), "due": pa.int64(), "body": pa.binary(),
}  # fmt: skip
#: Runs are drawn by the upper bits of their number times this, 2 ** 64 divided by the golden ratio.
_SPREAD = 0x9E3779B97F4A7C15


class Run(msgspec.Struct):
    """Events of one kind, as the node wrote them."""

    event: str
    topic: str
    subscription: str | None = None
    reason: str | None = None
    one_in: int = 1
    count: int = 0
    shard: list[int] = []
    offset: list[int] = []
    at_us: list[int] | None = None
    attempts: list[int] = []


class Arrows(NamedTuple):
    """What a report is made of; times are microseconds since 1970. None where there is none."""

    messages: pa.Table
    events: pa.Table | None = None
    counts: pa.Table | None = None


class PlainQueries:
    """The answers from such tables."""

    def __init__(self, found: Arrows, options: Report) -> None:
        self.options = options
        self.columns = frozenset(found.messages.column_names)
        self.has_events = found.events is not None
        self.has_counts = found.counts is not None
        self._messages = _wanted(found.messages, options)
        self._events = found.events
        self._counts = found.counts
        self._parsed: tuple[Span, list[tuple[int, Run]]] | None = None

    # --- messages -------------------------------------------------------------------------------------------------

    def totals(self) -> Totals:
        """Return the sums of all topics."""
        table = self._messages
        if not len(table):
            return Totals((), 0, 0, 0, None, None)
        table = table.append_column("size", pc.cast(pc.binary_length(table.column("body")), pa.int64()))
        by_topic = table.group_by("topic").aggregate(
            [([], "count_all"), ("size", "sum"), ("timestamp", "min"), ("timestamp", "max"), ("due", "count"),
             ("key", "count")]
        )  # fmt: skip
        rows = sorted(by_topic.to_pylist(), key=lambda row: (-row["count_all"], row["topic"]))
        shown = tuple(self._total(row) for row in rows[: self.options.topics_max])
        firsts = [row["timestamp_min"] for row in rows if row["timestamp_min"] is not None]
        lasts = [row["timestamp_max"] for row in rows if row["timestamp_max"] is not None]
        messages, size = sum(row["count_all"] for row in rows), sum(row["size_sum"] or 0 for row in rows)
        return Totals(shown, len(rows), messages, size, min(firsts, default=None), max(lasts, default=None))

    def _total(self, row: Row) -> Total:
        keys: list[tuple[int, bytes]] = []
        members = 0
        if row["key_count"]:
            mine = self._messages.filter(pc.equal(self._messages.column("topic"), row["topic"]))
            found = pc.value_counts(mine.column("key").drop_null().combine_chunks())
            members = len(found)
            counts = np.asarray(found.field("counts"))
            top = min(self.options.top, members)
            least = np.partition(counts, members - top)[members - top]
            kept = found.filter(pa.array(counts >= least))
            pairs = zip(kept.field("counts").to_pylist(), kept.field("values").to_pylist(), strict=True)
            keys = sorted(pairs, reverse=True)[:top]
        return Total(
            topic=row["topic"],
            messages=row["count_all"],
            body_bytes=row["size_sum"] or 0,
            first_us=row["timestamp_min"],
            last_us=row["timestamp_max"],
            timed=row["due_count"],
            keyed=row["key_count"],
            keys=members,
            hot_keys=tuple(Hot(readable(key[:SHOWN_BYTES], len(key)), many) for many, key in keys),
        )

    def breakdown(self, span: Span, shown: Sequence[str]) -> Iterator[Row]:
        """Return what is counted within topics."""
        table = self._narrow(span, shown)
        for kind, (column, names) in SETS.items():
            if column not in self.columns:
                continue
            sums = [([], "count_all"), ("size", "sum"), ("size", "min"), ("size", "max")]
            found = table.group_by(["topic", *names]).aggregate(sums).to_pylist()
            # No tag, bucket or due time is not one of them; a source that is not known is.
            found = [row for row in found if row[names[-1]] is not None]
            top = self.options.top if kind in ("tags", "buckets") else ROWS_MAX
            for rows in _by(found, "topic").values():
                rows.sort(key=lambda row: (-row["count_all"], *((row[name] is not None, row[name]) for name in names)))
                together = sum(row["count_all"] for row in rows)
                for row in rows[:top]:
                    yield {
                        "kind": kind, "topic": row["topic"], **{name: row[name] for name in names},
                        "tag": row["tag"][:SHOWN_BYTES] if kind == "tags" else None, "messages": row["count_all"],
                        "body_bytes": row["size_sum"] or 0, "least": row["size_min"], "greatest": row["size_max"],
                        "members": len(rows), "together": together,
                    }  # fmt: skip

    def _narrow(self, span: Span, shown: Sequence[str]) -> pa.Table:
        """Return what is counted and nothing else, as small values."""
        table = self._messages
        size = pc.cast(pc.binary_length(table.column("body")), pa.int64())
        step = _mapped(table.column("timestamp"), lambda times: (times - span.start_us) // span.width_us)
        topic = table.column("topic")
        is_shown = pc.is_in(topic, value_set=pa.array(list(shown), pa.string()))
        slot = _mapped(table.column("due"), lambda times: slots_of(times - span.until_us))
        return pa.table(
            {
                "topic": pc.if_else(is_shown, topic, pa.scalar(None, pa.string())),
                "source": table.column("source"),
                "step": step,
                "shard": table.column("shard"),
                "size": size,
                "size_class": _mapped(size, classes_of),
                "tag": table.column("tag"),
                "bucket": table.column("bucket"),
                "slot": pc.if_else(pc.greater_equal(slot, 0), slot, pa.scalar(None, pa.int64())),
            }
        )

    def measured(self, totals: Sequence[Total]) -> dict[str, list[Measure]]:
        """Return by topic what each codec made of its sample."""
        found = {}
        table = self._messages
        for total in totals:
            if not total.body_bytes:
                continue
            mine = table.filter(pc.equal(table.column("topic"), total.topic)).select(["shard", "offset", "body"])
            run, one_in = stride(total.messages, total.body_bytes, self.options.sample_bytes)
            if one_in > 1:
                offset = _longs(mine.column("offset"), np.arange(len(mine)))
                number = (offset // run).astype(np.uint64) * np.uint64(1024) + _longs(mine.column("shard")).astype(
                    np.uint64
                )
                drawn = (number * np.uint64(_SPREAD) >> np.uint64(32)) % np.uint64(one_in) == 0
                mine = mine.filter(pa.array(drawn))
            mine = mine.sort_by([("shard", "ascending"), ("offset", "ascending")])
            bodies = [body for body in mine.column("body").to_pylist() if body]
            found[total.topic] = measures(bodies, self.options.sample_bytes)
        return found

    # --- events ---------------------------------------------------------------------------------------------------

    def last_us(self) -> int | None:
        """Return when the last event or count was written."""
        tables = [table for table in (self._events, self._counts) if table is not None and len(table)]
        return max((pc.max(table.column("timestamp")).as_py() for table in tables), default=None)

    def happened(self, span: Span, shown: Sequence[str]) -> list[Row]:
        """Return how many events of each kind there were."""
        sums: dict[tuple[str, str, str | None, str | None], list[int]] = {}
        courses: dict[tuple[str, str, int], list[int]] = {}
        weights: dict[str, int] = collections.defaultdict(int)
        for written_us, run in self._runs(span):
            one = run.one_in * (run.count if run.at_us is None else 1)
            times = np.array([written_us] if run.at_us is None else run.at_us, np.int64)
            times = times[(times >= span.since_us) & (times < span.until_us)]
            if not len(times):
                continue
            _grow(sums, (run.topic, run.event, run.subscription, run.reason), one * len(times), run.one_in)
            weights[run.topic] += one * len(times)
            steps, counts = np.unique((times - span.start_us) // span.width_us, return_counts=True)
            for step, count in zip(steps.tolist(), counts.tolist(), strict=True):
                _grow(courses, (run.topic, run.event, step), one * count, run.one_in)
        ranked = sorted(weights, key=lambda topic: (topic not in shown, -weights[topic], topic))
        kept = {*ranked[: self.options.topics_max], *shown}
        return [*_events(sums, kept), *_courses(courses, kept)]

    def journeys(
        self, span: Span, shown: Sequence[str], busiest: Sequence[tuple[str, str]], *, timed: bool
    ) -> list[Row]:
        """Return latency, lease time and attempts."""
        measured: dict[tuple[Any, ...], list[Any]] = {}
        busy, kept = set(busiest), set(shown)
        for way in self._ways(span, timed=timed):
            if not span.since_us <= way.delivered_us < span.until_us:
                continue
            place = (way.topic, way.subscription) if way.topic in kept else (None, None)
            latency = None if way.latency_us is None else max(way.latency_us, 0)
            _measure(measured, ("latency", *place, _class(latency)), way, latency)
            _measure(measured, ("lease", *place, _class(way.lease_us)), way, latency)
            _measure(measured, ("attempts", *place, way.attempts), way, latency)
            if (way.topic, way.subscription) in busy:
                step = (way.delivered_us - span.start_us) // span.width_us
                _measure(measured, ("course", *place, step, _class(latency, COARSE)), way, latency)
        return [_measure_row(key, values) for key, values in measured.items()]

    def _runs(self, span: Span) -> list[tuple[int, Run]]:
        """Return the runs that may have to do with the range, and when each was written."""
        if self._parsed is None or self._parsed[0] != span:
            self._parsed = (span, list(self._parse(span)))
        return self._parsed[1]

    def _parse(self, span: Span) -> Iterator[tuple[int, Run]]:
        assert self._events is not None
        decode = msgspec.json.Decoder(Run).decode
        for time_us, body in _rows(self._events):
            if not span.since_us - BEFORE_US <= time_us < span.until_us + HOUR_US:
                continue
            try:
                run = decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            run.one_in = max(run.one_in, 1)
            if run.topic in self.options.topics if self.options.topics else not run.topic.startswith(OWN_PREFIX):
                yield time_us, run

    def _ways(self, span: Span, *, timed: bool) -> Iterator[Way]:
        """Yield one way for each message and subscription that it was delivered to."""
        stations: dict[tuple[str, int, int], list[Station]] = collections.defaultdict(list)
        for _, run in self._runs(span):
            if run.event not in STATIONS or run.at_us is None:
                continue
            rank = STATIONS.index(run.event)
            tries = run.attempts or [0] * len(run.at_us)
            for shard, offset, at_us, attempt in zip(run.shard, run.offset, run.at_us, tries, strict=False):
                stations[run.topic, shard, offset].append((at_us, rank, run.subscription, run.one_in, attempt))
        if timed:
            for topic, shard, offset, due_us in self._due_times():
                if (topic, shard, offset) in stations:
                    stations[topic, shard, offset].append((due_us, STATIONS.index("due"), None, 1, 0))
        for (topic, _, _), found in stations.items():
            found.sort(key=lambda station: station[:2])
            yield from _ways_of(topic, found)

    def _due_times(self) -> Iterable[tuple[str, int, int, int]]:
        table = self._messages
        waits = pc.greater(table.column("due"), table.column("timestamp"))
        some = table.filter(waits).select(["topic", "shard", "offset", "due"])
        return zip(*(some.column(name).to_pylist() for name in some.column_names), strict=True)

    def intervals(self) -> Iterator[bytes]:
        """Return what the node counted."""
        if self._counts is None:
            return
        since_us, until_us = self.options.since_us, self.options.until_us
        for time_us, body in _rows(self._counts):
            if (since_us is None or time_us >= since_us) and (until_us is None or time_us < until_us + HOUR_US):
                yield body


#: When, what (by its place in STATIONS), subscription, one_in, attempts.
Station = tuple[int, int, str | None, int, int]
PUBLISHED, DUE, DELIVERED, ACKED = range(4)


class Way(msgspec.Struct):
    """What became of one message in one subscription."""

    topic: str
    subscription: str | None
    weight: int = 0
    delivered_us: int = 0
    latency_us: int | None = None
    lease_us: int | None = None
    attempts: int = 0


def _ways_of(topic: str, stations: Sequence[Station]) -> Iterator[Way]:
    """Yield the journeys of one message; a topic made anew may have had another one at the same place."""
    published = [at_us for at_us, rank, *_ in stations if rank == PUBLISHED]
    begun_us = due_us = None
    mine: dict[tuple[str | None, int | None], list[tuple[Station, int | None]]] = {}
    for station in stations:
        at_us, rank, subscription, _, _ = station
        if rank == PUBLISHED:
            begun_us = at_us
        elif rank == DUE:
            due_us = at_us
        elif subscription is not None:
            # A delivery in the same turn may have been noted just before the publish.
            start_us = begun_us if begun_us is not None else next((each for each in published if each >= at_us), None)
            mine.setdefault((subscription, start_us), []).append((station, due_us))
    for (subscription, start_us), found in mine.items():
        delivered = [station[0] for station, _ in found if station[1] == DELIVERED]
        if not delivered:
            continue
        due = [each for _, each in found if each is not None]
        way = Way(topic, subscription, max(station[3] for station, _ in found), min(delivered))
        way.attempts = min(max(len(delivered), *(station[4] for station, _ in found)), ATTEMPTS_MAX)
        if start_us is not None:
            waited = way.delivered_us - max([start_us, *due])
            # Much less than none: what was published is another message, of a topic made anew.
            way.latency_us = waited if waited > -SECOND_US else None
        acked = [station[0] for station, _ in found if station[1] == ACKED]
        if acked and max(acked) >= max(delivered):
            way.lease_us = max(acked) - max(delivered)
        yield way


def _class(value: int | None, per_doubling: int = PER_DOUBLING) -> int | None:
    """Return the class of a value, as `class_of` has it."""
    if value is None or value < PLAIN:
        return value
    return math.floor(math.log(value) / math.log(2.0) * per_doubling) + PLAIN


def _measure(measured: dict[tuple[Any, ...], list[Any]], key: tuple[Any, ...], way: Way, latency: int | None) -> None:
    """Add a way: weight and number, the least and greatest latency and lease."""
    values = measured.get(key)
    if values is None:
        values = measured[key] = [0, 0, None, None, None, None]
    values[0] += way.weight
    values[1] += 1
    for at, value in ((2, latency), (4, way.lease_us)):
        if value is not None:
            values[at] = value if values[at] is None else min(values[at], value)
            values[at + 1] = value if values[at + 1] is None else max(values[at + 1], value)


def _measure_row(key: tuple[Any, ...], values: list[Any]) -> Row:
    kind, topic, subscription, *rest = key
    row = {
        "kind": kind, "topic": topic, "subscription": subscription, "messages": values[0], "sample": values[1],
        "latency_least": values[2], "latency_greatest": values[3], "lease_least": values[4],
        "lease_greatest": values[5], "latency_class": None, "lease_class": None, "attempts": None, "step": None,
        "coarse_class": None,
    }  # fmt: skip
    if kind == "course":
        return {**row, "step": rest[0], "coarse_class": rest[1]}
    return {**row, "attempts" if kind == "attempts" else f"{kind}_class": rest[0]}


def _grow(sums: dict[Any, list[int]], key: Any, weight: int, one_in: int) -> None:
    found = sums.setdefault(key, [0, 1])
    found[0] += weight
    found[1] = max(found[1], one_in)


def _events(sums: Mapping[tuple[str, str, str | None, str | None], list[int]], kept: set[str]) -> Iterator[Row]:
    together: dict[Any, list[int]] = {}
    for (topic, event, subscription, reason), (weight, one_in) in sums.items():
        shown = topic in kept
        _grow(together, (topic if shown else None, event, subscription if shown else None, reason), weight, one_in)
    for (name, event, subscription, reason), (weight, one_in) in together.items():
        yield {
            "kind": "events", "topic": name, "event": event, "subscription": subscription, "reason": reason,
            "step": None, "events": weight, "one_in": one_in,
        }  # fmt: skip


def _courses(courses: Mapping[tuple[str, str, int], list[int]], kept: set[str]) -> Iterator[Row]:
    together: dict[Any, list[int]] = {}
    for (topic, event, step), (weight, one_in) in courses.items():
        _grow(together, (topic if topic in kept else None, event, step), weight, one_in)
    for (name, event, step), (weight, one_in) in together.items():
        yield {
            "kind": "course", "topic": name, "event": event, "subscription": None, "reason": None, "step": step,
            "events": weight, "one_in": one_in,
        }  # fmt: skip


def _by(rows: Iterable[Row], name: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row)
    return found


def _wanted(messages: pa.Table, options: Report) -> pa.Table:
    """Return the messages in the range and of the topics, with every column that is read, null where it is missing."""
    found = messages
    for name in Report.COLUMNS:
        if name not in messages.column_names:
            found = found.append_column(name, pa.nulls(len(found), TYPES[name]))
    # Names have a byte at least, so the empty one is free for messages whose topic was not recorded.
    topic, timestamp = pc.fill_null(found.column("topic"), ""), found.column("timestamp")
    if options.topics:
        keep = pc.is_in(topic, value_set=pa.array(options.topics, pa.string()))
    else:
        keep = pc.invert(pc.starts_with(topic, OWN_PREFIX))
    if options.since_us is not None and "timestamp" in messages.column_names:
        keep = pc.and_(keep, pc.greater_equal(timestamp, options.since_us))
    if options.until_us is not None and "timestamp" in messages.column_names:
        keep = pc.and_(keep, pc.less(timestamp, options.until_us))
    found = found.set_column(found.column_names.index("topic"), "topic", topic)
    return found.select(list(Report.COLUMNS)).filter(keep)


def _rows(table: pa.Table) -> Iterator[tuple[int, bytes]]:
    """Return when each was written, and its body, in the order of time."""
    table = table.sort_by("timestamp")
    return zip(table.column("timestamp").to_pylist(), table.column("body").to_pylist(), strict=True)


def _longs(column: pa.ChunkedArray, missing: Longs | None = None) -> Longs:
    """Return whole numbers; where one is null, that of `missing`, or 0."""
    filled = np.asarray(pc.fill_null(pc.cast(column, pa.int64()), 0))
    if missing is None or not column.null_count:
        return filled
    return np.where(np.asarray(column.is_valid()), filled, missing)


def _mapped(column: pa.ChunkedArray, work: Any) -> pa.Array:
    """Return what a function on numbers makes of a column; null stays null."""
    return pa.array(work(_longs(column)), pa.int64(), mask=np.asarray(pc.is_null(column)))
