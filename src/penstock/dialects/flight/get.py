"""DoGet: rows of one shard, by offset or time, with columns and filters applied before anything is sent.

Rows on disk are read by Flight's own thread straight from the files, as the loop's view of the shard tells them; rows
of a memory topic come through the loop. Knows nothing of how either is stored.
Invariant: what was acknowledged before the call and is readable is in the answer, unless a filter leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Thread
from typing import NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from penstock.budget import Wait, Waiting
from penstock.callers import Caller
from penstock.client.wire import Read
from penstock.columns import BUCKET_MAX, COLUMNS
from penstock.dialects.flight.places import Place, hang_up
from penstock.dialects.flight.service import Service, host_of
from penstock.errors import Refusal, hint
from penstock.filters import pick
from penstock.log.manifest import View
from penstock.log.reader import JOINED_BYTES, JOINED_ROWS, Reader
from penstock.log.record import chosen, record_batch, schema_of
from penstock.log.shard import Shard
from penstock.message import Batch
from penstock.node.topic import Topic

#: From so many on, bytes of a batch count in memory.output_bytes while it is sent.
COUNTED_BYTES = 256 << 10

#: Rows of a memory topic taken in one hop.
HOP_ROWS = 65_536


class Source(NamedTuple):
    """A shard at one moment, for a thread to read; `view` is None where there are no files."""

    topic: Topic
    shard: Shard
    view: View | None
    start: int
    end: int


def stream(service: Service, document: Read, caller: Caller) -> flight.FlightDataStream:
    """Return the rows that a ticket asks for."""
    place = service.gets.take(caller.address)
    try:
        return flight.GeneratorStream(*_found(service, document, caller, place))
    except BaseException:
        service.gets.give(place)
        raise


def _found(service: Service, document: Read, caller: Caller, place: Place) -> tuple[pa.Schema, Sending]:
    """Return the schema of the rows that a ticket asks for, and the rows."""
    check(document)
    names = columns_of(document.columns)
    source = service.bridge.call(partial(look, service, caller, document.topic, document.shard, document.incarnation))
    reader = Reader(source.shard.path, source.view) if source.view is not None else None
    start, end = _bounds(service, document, source, reader)
    needed = [
        *names,
        *(name for name in pick.asked(document.tags, document.traffic, document.buckets) if name not in names),
    ]
    if reader is not None:
        found = _from_files(document, reader, start, end, needed)
    else:
        found = _from_memory(service, document, source, start, end, needed)
    return schema_of(tuple(names)), Sending(service, place, _sent(service, document, found, names, caller.address))


class Sending:
    """The rows on their way, one batch after the other; who asks for the next has sent the one before.

    What is out counts as output that its client does not read; small batches are gone before anybody could look.
    """

    def __init__(self, service: Service, place: Place, batches: Iterator[pa.RecordBatch]) -> None:
        self._service = service
        self._place = place
        self._batches = batches
        self._out = Unread(service.node.budget.output, place.peer, partial(hang_up, service.gets.port, place.peer))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Return itself."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch."""
        self._place.wait(False)
        self._count(0)
        batch = next(self._batches)
        self._count(batch.nbytes)
        self._place.wait(True)
        return batch

    def __del__(self) -> None:
        """Take no place any more: the call is over, whatever became of it."""
        self._count(0)
        self._service.gets.give(self._place)

    def _count(self, size: int) -> None:
        size = size if size > COUNTED_BYTES else 0
        if size or self._out.size:
            self._out.size = size
            self._service.bridge.tell(partial(self._out.count, size))


class Unread:
    """What is out at one client, on the loop; it outlives its stream by one call."""

    def __init__(self, output: Waiting, peer: str, cut: Callable[[], None]) -> None:
        #: The stream's own note of it.
        self.size = 0
        self._output = output
        self._address = host_of(peer)
        self._hang_up = cut
        self._wait: Wait | None = None

    def count(self, size: int) -> None:
        """Hold so much; whoever reads slowly does no harm while there is room."""
        self._wait = self._output.keep(self._wait, size, self._address, self._cut, fresh=True, paced=False)

    def _cut(self, why: Refusal) -> None:
        Thread(target=self._hang_up, name="flight-cut", daemon=True).start()  # which looks through all open files


def look(service: Service, caller: Caller, name: str, shard: int, incarnation: int = 0) -> Source:
    """Return a shard as it is now; on the loop."""
    topic = service.topic(caller, "read", name)
    if incarnation and incarnation != topic.record.incarnation:
        raise Refusal("gone", f"topic {name} was deleted and made anew: its incarnation is {topic.record.incarnation}")
    found = topic.shard(shard)
    view = found.view()
    return Source(topic, found, view, found.start, max(found.start, found.readable_end))


def offset_at(service: Service, source: Source, time_ns: int) -> int:
    """Return the first offset whose row was taken at or after a time; on a Flight thread."""
    if source.view is not None:
        found = Reader(source.shard.path, source.view).offset_at(time_ns)
    else:
        found = service.bridge.call(partial(source.shard.offset_at, time_ns))
    return min(max(found, source.start), source.end)


def columns_of(asked: Sequence[str] | None) -> list[str]:
    """Return the columns that were asked for, all of the record's if nothing was said."""
    if asked is None:
        return list(COLUMNS)
    if not asked or len(set(asked)) < len(asked):
        raise Refusal("bad_column", "columns names at least one column, and each once")
    for name in asked:
        if name not in COLUMNS:
            raise Refusal("bad_column", f"a message has no column {name!r}; {hint(name, COLUMNS, show=repr)}")
    return list(asked)


def _bounds(service: Service, document: Read, source: Source, reader: Reader | None) -> tuple[int, int]:
    """Return the range of offsets to read."""
    start, end = source.start, source.end
    if document.start is not None:
        start = document.start
        if start > source.end:
            text = f"offset {start} of shard {document.shard} is beyond its end, which is {source.end}"
            raise Refusal("bad_offset", text)
        if start < source.start and not document.skip_lost:
            raise _lost(document, start, source.start)
    if document.from_ns is not None:
        start = max(start, offset_at(service, source, document.from_ns))
    if document.end is not None:
        end = min(end, document.end)
    if document.until_ns is not None:
        end = min(end, offset_at(service, source, document.until_ns))
    return max(start, source.start), end


def _lost(document: Read, start: int, earliest: int) -> Refusal:
    text = f"offset {start} of shard {document.shard} of topic {document.topic} is not kept; earliest is {earliest}"
    return Refusal("bad_offset", text)


def _from_files(document: Read, reader: Reader, start: int, end: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader.batches(start, end, names, strict=not document.skip_lost)
    except FileNotFoundError:
        raise Refusal("gone", f"topic {document.topic} was deleted while it was read") from None


def _from_memory(
    service: Service, document: Read, source: Source, start: int, end: int, names: list[str]
) -> Iterator[pa.RecordBatch]:
    while start < end:
        batches = service.bridge.call(partial(_held, source, start, end))
        for batch in batches:
            if batch.first > start and not document.skip_lost:
                raise _lost(document, start, batch.first)
            low, high = max(start - batch.first, 0), min(end - batch.first, batch.count)
            yield record_batch(batch, names).slice(low, high - low)
            start = batch.first + high
        if not batches:
            return


def _held(source: Source, start: int, end: int) -> list[Batch]:
    """Return some batches of a memory topic; on the loop."""
    if source.topic.deleted:
        raise Refusal("gone", f"topic {source.topic.name} was deleted while it was read")
    found: list[Batch] = []
    rows = 0
    while start < end and rows < HOP_ROWS:
        batch = source.shard.read(start)
        if batch is None or batch.first >= end:
            break
        found.append(batch)
        rows += batch.count
        start = batch.end
    return found


def check(document: Read) -> None:
    """Refuse filters that cannot be meant."""
    buckets = document.buckets
    if buckets is not None and not (len(buckets) == 2 and 0 <= buckets[0] <= buckets[1] <= BUCKET_MAX + 1):
        text = f"buckets is [low, high), two numbers from 0 to {BUCKET_MAX + 1}, not {buckets[:10]}"
        raise Refusal("bad_request", text)


def _sent(
    service: Service, document: Read, found: Iterator[pa.RecordBatch], names: list[str], peer: str
) -> Iterator[pa.RecordBatch]:
    """Yield what is sent: filtered, and small pieces joined."""
    with service.guarded(peer):
        filtering = bool(pick.asked(document.tags, document.traffic, document.buckets))
        parts: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in found:
            service.check_open()
            if filtering:
                batch = chosen(pick.picked(batch, document.tags, document.traffic, document.buckets), names)
                if not len(batch):
                    continue
            if not parts and len(batch) >= JOINED_ROWS // 4:
                yield batch
                continue
            parts.append(batch)
            rows += len(batch)
            size += batch.nbytes
            if rows >= JOINED_ROWS or size >= JOINED_BYTES:
                yield from _joined(parts)
                parts, rows, size = [], 0, 0
        yield from _joined(parts)


def _joined(parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(parts) == 1:
        yield parts[0]
    elif parts:
        yield pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
