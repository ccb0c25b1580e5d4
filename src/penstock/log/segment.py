"""One segment: a plain Arrow IPC stream on disk, its index, and what the manifest says of it.

Owns the segment's two files. Knows nothing of other segments, caches or durability.
Invariant: between `first` and `end` every offset is stored exactly once, except for the damaged ranges in `holes`; of
a sparse segment some are left out, because nobody needed them any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.columns import BASE_COLUMNS, COLUMNS, SMALL, Buffer
from penstock.disk import Disk, File, is_full
from penstock.errors import CorruptionError
from penstock.log.decode import Decoder, largest
from penstock.log.frame import VERSION, Template, schema_of, template_of
from penstock.log.index import Index
from penstock.log.layout import CONTINUATION, END_OF_STREAM, metadata_bytes_at
from penstock.log.manifest import DATA_SUFFIX, INDEX_SUFFIX, Damage, SegmentInfo, stem
from penstock.log.run import RUN_FRAMES, RUN_FRAMES_MIN, SMALL_BYTES, Run, frame_at, verified
from penstock.log.scan import Scan, scan
from penstock.message import Batch, Done

_DECODERS: dict[tuple[str, ...], Decoder] = {}
#: A node meets few schemas; the bound only guards against a flood of odd ones.
DECODERS_MAX = 256
#: The schema message of all columns has about 2 KB.
SCHEMA_BYTES_MAX = 64 << 10


def decoder_of(columns: Sequence[str]) -> Decoder:
    """Return the decoder for a segment's columns."""
    key = tuple(columns)
    found = _DECODERS.get(key)
    if found is None:
        if len(_DECODERS) >= DECODERS_MAX:
            _DECODERS.clear()
        found = _DECODERS[key] = Decoder(key)
    return found


class Segment:
    """A run of offsets in one file."""

    def __init__(self, disk: Disk, directory: str, first: int, generation: int, columns: Sequence[str]) -> None:
        self.disk = disk
        self.directory = directory
        self.first = first
        self.end = first
        self.generation = generation
        self.columns = tuple(columns)
        self.column_set = frozenset(columns)
        self.sealed = False
        self.bytes = 0
        self.batches = 0
        self.ts_min = 0
        self.ts_max = 0
        self.due_max = 0
        self.weight = 0
        self.sequences = False
        #: Its file goes on after its end, with bytes that do not count: a rewrite makes a clean one.
        self.ragged = False
        self.compression = "none"
        self.holes: list[Damage] = []
        self.sparse = False
        #: How many rows a sparse segment has; those of another follow from its offsets.
        self.sparse_rows = 0
        #: Columns that batches brought; the next segment starts with these.
        self.used: set[str] = set()
        self.index: Index | None = None
        #: Entries of the index that are in its file already.
        self.indexed = 0
        self.synced_bytes = 0
        #: The directory entry is synced as well.
        self.named = False
        self.written_back = 0
        self.opened_ns = 0
        self.file: File | None = None
        self._index_file: File | None = None
        self._template: Template | None = None
        #: Damage met while the index was rebuilt; the next load tells it.
        self._unreported: list[Damage] = []

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        first: int,
        columns: Sequence[str],
        weight: int,
        generation: int = 0,
        path: str | None = None,
    ) -> Segment:
        """Make the file of a new segment, with its schema in it; under another name than its own if one is given."""
        segment = cls(disk, directory, first, generation, columns)
        segment.weight = weight
        segment.index = Index()
        path = path or segment.path()
        disk.remove(segment.path(INDEX_SUFFIX))
        file = disk.open(path, create=True)
        try:
            file.truncate(0)
            segment.bytes = file.append([schema_of(segment.columns).serialize().to_pybytes()])
        except OSError:
            file.close()
            disk.remove(path)
            raise
        segment.file = file
        return segment

    @classmethod
    def of(cls, disk: Disk, directory: str, info: SegmentInfo) -> Segment:
        """Return the closed segment that a manifest describes; nothing is read yet."""
        segment = cls(disk, directory, info.first, info.generation, info.columns)
        segment.end = info.end
        segment.sealed = info.sealed
        segment.bytes = segment.synced_bytes = info.bytes
        segment.batches = info.batches
        segment.ts_min, segment.ts_max, segment.due_max = info.ts_min, info.ts_max, info.due_max
        segment.weight = info.weight
        segment.sequences = info.sequences
        segment.compression = info.compression
        segment.holes = list(info.holes)
        segment.sparse, segment.sparse_rows = info.sparse, info.rows
        segment.used = set(info.columns)
        segment.named = True
        return segment

    def info(self) -> SegmentInfo:
        """Return what the manifest says of this segment."""
        return SegmentInfo(
            first=self.first,
            end=self.end,
            generation=self.generation,
            sealed=self.sealed,
            columns=list(self.columns),
            rows=self.rows,
            batches=self.batches,
            bytes=self.bytes,
            ts_min=self.index.earliest() if self.index and (self.file or not self.ts_min) else self.ts_min,
            ts_max=self.ts_max,
            due_max=self.due_max,
            weight=self.weight,
            sequences=self.sequences,
            compression=self.compression,
            holes=list(self.holes),
            sparse=self.sparse,
        )

    def path(self, suffix: str = DATA_SUFFIX) -> str:
        """Return the path of one of the segment's files."""
        return os.path.join(self.directory, stem(self.first, self.generation) + suffix)

    @property
    def rows(self) -> int:
        """How many rows can be read."""
        if self.sparse:
            return self.sparse_rows
        return self.end - self.first - sum(hole.end - hole.first for hole in self.holes)

    def rows_between(self, start: int, end: int) -> int:
        """Return how many readable rows lie in a range of offsets; for a part of a sparse segment it may block."""
        start, end = max(start, self.first), min(end, self.end)
        if start >= end:
            return 0
        if self.sparse:
            whole = start == self.first and end == self.end
            return self.sparse_rows if whole else self.entries().rows_between(start, end)
        lost = sum(max(0, min(end, hole.end) - max(start, hole.first)) for hole in self.holes)
        return end - start - lost

    def damage(self, found: Damage) -> bool:
        """Note a damaged range; False if it was known."""
        if any(hole.first <= found.first and found.end <= hole.end for hole in self.holes):
            return False
        self.sparse_rows -= min(found.end - found.first, self.sparse_rows)
        self.holes.append(found)
        self.holes.sort()
        return True

    def append(self, batch: Batch, time_ns: int) -> None:
        """Write one batch to the page cache; OSError leaves everything as it was."""
        sequence = batch.sequence
        template = self._template
        if template is None:
            template = self._template = template_of(self.columns)
        if sequence:
            template = template_of(self.columns, len(sequence))
        position = self.bytes
        if batch.count <= SMALL and not sequence and type(batch.source) is str:
            parts: list[Buffer] = [template.small(batch)]
        else:
            parts = template.encode(batch)
        size = self.file.append(parts)  # type: ignore[union-attr]
        self.index.add(batch.first, batch.count, position, size, time_ns, time_ns)  # type: ignore[union-attr]
        self.bytes = position + size
        self.end = batch.first + batch.count
        self.batches += 1
        if time_ns > self.ts_max:
            self.ts_max = time_ns
        if batch.columns:
            self.used.update(batch.columns)
            due = batch.columns.get("due")
            if due is not None:
                self.due_max = max(self.due_max, largest(due))
        if sequence:
            self.sequences = True

    def write_index(self, end: int) -> None:
        """Append to the index file what is missing there of the entries that end at or before an offset."""
        index = self.index
        if index is None or self.indexed == len(index):
            return
        stop = len(index) if end >= self.end else index.at(end)
        if stop <= self.indexed:
            return
        if self._index_file is None:
            self._index_file = self.disk.open(self.path(INDEX_SUFFIX), create=True)
        self._index_file.append([index.encoded(self.indexed, stop)])
        self.indexed = stop

    def update_index(self, end: int) -> None:
        """Do the same if the disk has room for it: readers beside the node are helped by it, nothing else."""
        try:
            self.write_index(end)
        except OSError as error:
            if not is_full(error):
                raise

    def replace_index(self) -> None:
        """Write the whole index anew, as recovery does."""
        self.close_index()
        self.disk.remove(self.path(INDEX_SUFFIX))
        self.indexed = 0
        self.write_index(self.end)

    def start_write_back(self) -> None:
        """Have the kernel start writing what was appended since the last time, from a thread."""
        file, start, end = self.file, self.written_back, self.bytes
        self.written_back = end
        if file is not None:
            self.disk.submit("sync", lambda: file.write_back(start, end - start), lambda _, __: None)

    def finish(self) -> None:
        """End the stream with its marker; no append may follow."""
        if self.index:
            self.ts_min = self.index.earliest()
        self.bytes += self.file.append([END_OF_STREAM])  # type: ignore[union-attr]

    def sync(self) -> None:
        """Return once the data survives a power loss; blocking."""
        self.file.sync()  # type: ignore[union-attr]
        if not self.named:
            self.disk.sync_directory(self.directory)
            self.named = True

    def sync_soon(self, done: Done) -> bool:
        """Do the same without waiting, and call back; False where that cannot be: nothing is done then."""
        return self.named and self.file is not None and self.file.sync_soon(done)

    def close_index(self) -> None:
        """Close the index file."""
        if self._index_file is not None:
            self._index_file.close()
            self._index_file = None

    def close(self) -> None:
        """Close the files."""
        self.close_index()
        if self.file is not None:
            self.file.close()
            self.file = None

    def entries(self) -> Index:
        """Return the index, from memory, from its file, or by scanning the segment; may block."""
        index = self.index
        if index is None:
            index = self._load_index() if self.batches else Index()
        if index is None:
            scan = self.scanned(self.bytes, self.bytes, Index())
            index, self._unreported = scan.index, scan.holes
        self.index = index
        return index

    def forget_index(self) -> None:
        """Free the memory of a closed segment's index; it is read again when needed."""
        if self.sealed and self.file is None:
            self.index = None

    def load(
        self, start: int, stop: int, pause: Callable[[], None] | None = None
    ) -> tuple[bytes, list[Run], list[Damage]]:
        """Read the batches of entries start .. stop-1 and check them; blocking, on any thread."""
        index = self.entries()
        damaged, self._unreported = self._unreported, []
        if start >= stop:
            return b"", [], damaged
        position = index.positions[start]
        wanted = index.positions[stop - 1] + index.lengths[stop - 1] - position
        data = self.read(position, wanted)
        found: list[Run] = []
        large = np.flatnonzero(np.array(index.lengths[start:stop]) >= SMALL_BYTES) + start
        number = start
        while number < stop:
            if pause is not None and number > start:
                pause()
            following = large[np.searchsorted(large, number, "right") :]
            last = min(number + RUN_FRAMES, stop, int(following[0]) if len(following) else stop)
            run = self._run(data, position, number, last) if last - number >= RUN_FRAMES_MIN else None
            if run is not None:
                found.append(run)
            else:
                self._each(data, position, number, last, found, damaged)
            number = last
        return data, found, damaged

    def _run(self, data: bytes, position: int, start: int, stop: int) -> Run | None:
        """Check many small batches at once; None if they must be looked at one by one."""
        index = self.entries()
        ats = np.array(index.positions[start:stop]) - position
        run = verified(data, ats, ats + np.array(index.lengths[start:stop]))
        if run is None or int(run.firsts[0]) != index.firsts[start]:
            return None
        return run if (run.rows == np.array(index.counts[start:stop])).all() else None

    def _each(self, data: bytes, position: int, start: int, stop: int, found: list[Run], damaged: list[Damage]) -> None:
        index = self.entries()
        for number in range(start, stop):
            at, first = index.positions[number] - position, index.firsts[number]
            try:
                frame = frame_at(data, at, min(len(data), at + index.lengths[number]))
                if (frame.first, frame.rows) != (first, index.counts[number]):
                    raise CorruptionError("the batch holds other offsets than the index says")
                found.append(Run.of(frame))
            except CorruptionError as error:
                damaged.append(Damage(first, first + index.counts[number], str(error)))

    def read(self, position: int, length: int) -> bytes:
        """Read some bytes of the data file; blocking, on any thread."""
        # Opened anew each time: the loop may close its own handle while a thread reads.
        file = self.disk.open(self.path())
        try:
            data = file.read(position, length)
            while len(data) < length:
                more = file.read(position + len(data), length - len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            file.close()

    def _load_index(self) -> Index | None:
        """Return the index from its file if all of it is good and it covers the segment."""
        try:
            file = self.disk.open(self.path(INDEX_SUFFIX))
        except FileNotFoundError:
            return None
        try:
            index, whole = Index.decoded(file.read(0, file.size()))
        finally:
            file.close()
        if self.sealed:
            index.cut(self.batches)  # it may know more than was kept of the segment after a failed sync
        complete = whole and len(index) == self.batches
        return index if complete and (not len(index) or index[len(index) - 1].end <= self.end) else None

    def scanned(
        self,
        size: int,
        synced: int,
        known: Index,
        start: int | None = None,
        *,
        written: bool = False,
        trusted: Index | None = None,
    ) -> Scan:
        """Walk the data file from its first batch on; blocking, on any thread."""
        broken = ""
        if start is None:
            try:
                head = head_of(self.read(0, SCHEMA_BYTES_MAX), self.path())
                start, self.sparse = head.bytes, head.sparse
            except CorruptionError as error:  # the manifest knows the columns too, and so where the batches begin
                schema = schema_of(self.columns, self.compression, sparse=self.sparse)
                start, broken = len(schema.serialize()), str(error)
        found = scan(
            self.read,
            decoder_of(self.columns),
            self.first,
            start,
            size,
            synced,
            known,
            sparse=self.sparse,
            written=written,
            trusted=trusted,
        )
        if broken:
            found.holes.insert(0, Damage(self.first, self.first, broken))
        return found


class Head(NamedTuple):
    """What the schema message at the start of a segment file says, and how long it is."""

    columns: tuple[str, ...]
    bytes: int
    compression: str
    sparse: bool


def head_of(head: bytes, path: str) -> Head:
    """Return what the start of a segment file says."""
    try:
        size = metadata_bytes_at(head, 0)
        if size == 0 or len(head) < size:
            raise CorruptionError("the schema is cut short")
        schema = pa.ipc.read_schema(pa.py_buffer(head[:size]))
        types = {field.name: field.type for field in schema}
        metadata = {key: value.decode() for key, value in (schema.metadata or {}).items()}
    except (pa.ArrowException, OSError, UnicodeDecodeError, CorruptionError) as error:
        raise CorruptionError(f"{path} does not begin with a schema: {error}") from error
    version = metadata.get(b"penstock.version", "?")
    if version != str(VERSION):
        raise CorruptionError(f"{path} has record version {version}; this Penstock reads version {VERSION}")
    columns = tuple(types)
    wrong = [name for name, type_ in types.items() if COLUMNS.get(name) != type_]
    if wrong or columns[:4] != BASE_COLUMNS:
        raise CorruptionError(f"{path} has columns that are none of the record's: {', '.join(wrong or columns)}")
    compression = metadata.get(b"penstock.compression", "none")
    sparse = b"penstock.sparse" in metadata
    begin = len(schema_of(columns, compression, sparse=sparse).serialize())
    if size != begin and head[begin : begin + len(CONTINUATION)] == CONTINUATION:
        size = begin  # the length it gives is damaged: batches begin where they always do after such a schema
    return Head(columns, size, compression, sparse)


def times_of(batch: Batch) -> tuple[int, int]:
    """Return the earliest and the latest time in a batch."""
    if isinstance(batch.timestamp, int):
        return batch.timestamp, batch.timestamp
    times = np.asarray(batch.timestamp)
    return int(times.min()), int(times.max())
