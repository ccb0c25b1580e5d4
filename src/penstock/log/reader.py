"""Reading a shard's directory beside the process that writes it, without its lock.

Owns the view that manifest and index files give. Writes nothing, and knows nothing of the node.
Invariant: it yields each row at most once, in order, and only rows that the writer has indexed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.columns import COLUMNS
from penstock.disk import Disk, File, LocalDisk, LocalFile
from penstock.errors import CorruptionError, Refusal
from penstock.log import manifest as manifests
from penstock.log.decode import FEW_ROWS
from penstock.log.frame import schema_of
from penstock.log.index import ENTRY_BYTES, Entry, Index
from penstock.log.manifest import INDEX_SUFFIX, Damage, Manifest, View
from penstock.log.record import chosen, record_batch
from penstock.log.segment import Segment, decoder_of

#: Files that vanish again and again while being listed are missing, not moved.
LISTINGS_MAX = 5
#: Bytes read in one go, at least one batch.
READ_BYTES = 4 << 20
#: Rows and bytes of a batch made of many small ones, as sealing makes them.
JOINED_ROWS = 16_384
JOINED_BYTES = 16 << 20


class Stretch(NamedTuple):
    """Offsets of one segment that can be read: what planning needs to share out work and to skip holes."""

    first: int
    end: int
    rows: int
    bytes: int


class ReadOnlyDisk(LocalDisk):
    """The local file system, for looking only."""

    def open(self, path: str, *, create: bool = False) -> LocalFile:
        """Open for reading."""
        return LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))


class Reader:
    """A read-only view of one shard."""

    def __init__(self, directory: str, view: View | None = None) -> None:
        self._directory = directory
        self._disk: Disk = ReadOnlyDisk() if view is None or view.disk is None else view.disk
        #: What the writing process itself said, for its own threads; dropped once a file it names is gone.
        self._view = view
        #: A node must outlive a disk that fails under it, and a process does not outlive that in mapped bytes.
        self._maps = view is None
        #: The first offset kept, as of the last look.
        self.start = 0
        self._known: tuple[tuple[int, int, int], Manifest] | None = None
        #: Batches that could not be read so far.
        self.damaged: list[Damage] = []
        #: The files that hold them.
        self.damaged_files: list[str] = []
        #: Offsets that were asked for and are not kept any more, as (first, end).
        self.lost: list[tuple[int, int]] = []

    def ends(self) -> tuple[int, int]:
        """Return the first offset kept and the one after the last that can be read."""
        start, stretches = self.view()
        return start, max((stretch.end for stretch in stretches), default=start)

    def view(self) -> tuple[int, list[Stretch]]:
        """Return the first offset kept, and what of each segment can be read."""
        misses = 0
        while True:
            manifest = self._manifest()
            try:
                return manifest.start, [stretch for stretch in self._stretches(manifest) if stretch.rows > 0]
            except FileNotFoundError:
                self._view = None
                misses += 1
                if misses > LISTINGS_MAX:
                    raise

    def batches(
        self,
        start: int = 0,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        from_ns: int | None = None,
        until_ns: int | None = None,
        strict: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with start <= offset < end; named columns that a segment lacks are null.

        Batches with no row taken in from_ns <= time < until_ns are left out; of the others all rows come. What is not
        kept any more is noted in `lost`; with `strict` it is a `Refusal` instead.
        """
        stop = self.ends()[1] if end is None else end
        if columns is not None:
            _check(columns)
        misses = 0
        while start < stop:
            before = start
            try:
                for first, count, batch in self._walk(start, stop, columns, from_ns, until_ns, strict):
                    start = first + count
                    yield batch
                return
            except FileNotFoundError:
                self._view = None
                # A rewrite or the retention took the file: the manifest names what there is now.
                misses = misses + 1 if start == before else 0
                if misses > LISTINGS_MAX:
                    raise

    def offset_at(self, time_ns: int) -> int:
        """Return the first offset whose row was taken at or after a time, or the end."""
        for batch in self.batches(self._manifest().start, columns=("offset", "timestamp"), from_ns=time_ns):
            late = batch.column(1).to_numpy() >= time_ns
            if late.any():
                return int(batch.column(0)[int(late.argmax())].as_py())
        return self.ends()[1]

    def _walk(
        self,
        start: int,
        stop: int,
        columns: Sequence[str] | None,
        from_ns: int | None,
        until_ns: int | None,
        strict: bool,
    ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        manifest = self._manifest()
        if start < manifest.start:
            self._lose(start, min(manifest.start, stop), manifest.start, strict)
            start = manifest.start  # what is kept before that is kept for somebody else
        for segment in self._segments(manifest):
            if segment.first >= stop or (segment.sealed and segment.end <= start):
                continue
            if segment.sealed and _apart(segment.ts_min, segment.ts_max, from_ns, until_ns):
                continue
            index = self._index(segment, start)
            number = index.at(start)
            while number < len(index) and index.firsts[number] < stop:
                if _apart(index.ts_min[number], index.ts_max[number], from_ns, until_ns):
                    number += 1
                    continue
                last = number + 1
                limit = index.positions[number] + READ_BYTES
                while (
                    last < len(index)
                    and index.firsts[last] < stop
                    and index.positions[last] < limit
                    and not _apart(index.ts_min[last], index.ts_max[last], from_ns, until_ns)
                ):
                    last += 1
                yield from self._loaded(segment, number, last, start, stop, columns)
                number = last

    def _loaded(
        self, segment: Segment, number: int, last: int, start: int, stop: int, columns: Sequence[str] | None
    ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield the rows of some batches, with those at both ends cut to what was asked for."""
        index = segment.entries()
        names = segment.columns if columns is None else columns
        rows = index[last - 1].end - index.firsts[number]
        small = last - number > 1 and rows < FEW_ROWS * (last - number)
        if isinstance(segment, MappedSegment):
            # Many small batches are put together anyway, so that mapping them would only cost.
            segment.mapped = not small
        data, runs, damaged = segment.load(number, last)
        self.damaged += [damage for damage in damaged if damage not in self.damaged]
        if damaged and segment.path() not in self.damaged_files:
            self.damaged_files.append(segment.path())
        if small:
            for piece in decoder_of(segment.columns).batches(data, runs, JOINED_ROWS):
                low, high = max(start - piece.first, 0), min(stop - piece.first, piece.count)
                if low < high:
                    yield piece.first + low, high - low, record_batch(piece, names).slice(low, high - low)
            return
        whole = pa.py_buffer(data)
        schema = schema_of(segment.columns)
        for frame in (run.frame(place) for run in runs for place in range(len(run))):
            low, high = max(start - frame.first, 0), min(stop - frame.first, frame.rows)
            if low < high:
                piece_bytes = whole.slice(frame.at, frame.end - frame.at)
                batch = _decoded(piece_bytes, schema, names, compressed=frame.layout.compressed)
                yield frame.first + low, high - low, batch.slice(low, high - low)

    def _lose(self, first: int, end: int, earliest: int, strict: bool) -> None:
        if strict:
            text = f"offsets {first} to {end - 1} are not kept any more; the earliest is {earliest}"
            raise Refusal("bad_offset", text)
        self.lost.append((first, end))

    def _manifest(self) -> Manifest:
        """Return the manifest, from memory while its file is the same."""
        found = self._view.manifest if self._view is not None else self._stored_manifest()
        self.start = found.start
        return found

    def _stored_manifest(self) -> Manifest:
        path = os.path.join(self._directory, manifests.FILE)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise FileNotFoundError(f"{self._directory} has no manifest: it is no shard of a log") from None
        # It is replaced by rename, so another content is another file.
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._known is None or self._known[0] != version:
            found = manifests.load(self._disk, self._directory)
            if found is None:
                raise FileNotFoundError(f"{self._directory} has no manifest: it is no shard of a log")
            self._known = version, found
        return self._known[1]

    def _segments(self, manifest: Manifest) -> Iterator[Segment]:
        for info in manifest.segments:
            kind = MappedSegment if self._maps and info.sealed and info.compression == "none" else Segment
            segment = kind.of(self._disk, self._directory, info)
            if len(info.holes) != 1 or info.rows:
                yield segment

    def _stretches(self, manifest: Manifest) -> Iterator[Stretch]:
        segments = list(self._segments(manifest))
        # The newest first: where a segment has rows to read, the index of the one before it is whole.
        growing = {segment.first: self._last(segment) for segment in reversed(segments) if not segment.sealed}
        for segment in segments:
            if segment.sealed and segment.end <= manifest.start:
                continue
            if segment.sealed:
                yield Stretch(segment.first, segment.end, segment.rows, segment.bytes)
                continue
            last = growing[segment.first]
            if last is not None:
                lost = sum(hole.end - hole.first for hole in segment.holes)
                rows = last.end - segment.first - lost
                yield Stretch(segment.first, last.end, rows, last.position + last.length)

    def _last(self, segment: Segment) -> Entry | None:
        """Return the newest entry of a growing segment, which is its end."""
        if self._view is not None and segment.first in self._view.indexes:
            known = self._view.indexes[segment.first]
            return known[len(known) - 1] if len(known) else None
        file = self._index_file(segment)
        if file is None:
            return None
        try:
            size = file.size() // ENTRY_BYTES * ENTRY_BYTES
            index, whole = Index.decoded(file.read(size - ENTRY_BYTES, ENTRY_BYTES) if size else b"")
            if not whole:  # caught while it was being written, or damaged: the good ones before it count
                index, _ = Index.decoded(file.read(0, size))
        finally:
            file.close()
        return index[len(index) - 1] if len(index) else None

    def _index(self, segment: Segment, start: int) -> Index:
        """Return the entries that count: all of a sealed segment's, and what a growing one has from a row on."""
        if segment.sealed:
            return segment.entries()
        if self._view is not None and segment.first in self._view.indexes:
            segment.index = self._view.indexes[segment.first]
            return segment.index
        segment.index = Index()
        file = self._index_file(segment)
        if file is not None:
            try:
                count = file.size() // ENTRY_BYTES
                low = _entry_at(file, count, start)
                segment.index, _ = Index.decoded(file.read(low * ENTRY_BYTES, (count - low) * ENTRY_BYTES))
            finally:
                file.close()
        return segment.index

    def _index_file(self, segment: Segment) -> File | None:
        """Return the open index of a growing segment; None if its first rows are not indexed yet."""
        try:
            return self._disk.open(segment.path(INDEX_SUFFIX))
        except FileNotFoundError:
            if not self._disk.exists(segment.path()):
                raise
            return None


class MappedSegment(Segment):
    """A sealed segment, whose file never changes: its bytes need not be copied to be looked at."""

    #: False: read as any other file.
    mapped = True
    _view: memoryview | None = None

    def read(self, position: int, length: int) -> bytes:
        """Return some bytes of the data file, where they are."""
        if not self.mapped:
            return super().read(position, length)
        if self._view is None:
            with open(self.path(), "rb") as file:
                if os.fstat(file.fileno()).st_size == 0:
                    return b""
                self._view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        # A view behaves as bytes do wherever it is looked at; what keeps a piece keeps the mapping with it.
        return self._view[position : position + length]  # type: ignore[return-value]


def _decoded(frame: pa.Buffer, schema: pa.Schema, names: Sequence[str], *, compressed: bool) -> pa.RecordBatch:
    """Return some columns of an IPC message; uncompressed ones keep pointing into it."""
    present = [number for number, name in enumerate(schema.names) if name in names]
    if compressed and present and len(present) < len(schema.names):
        # Only a stream reader leaves columns packed. Compressed messages are small, so the copy is too.
        stream = pa.py_buffer(b"".join((schema.serialize(), frame)))
        options = pa.ipc.IpcReadOptions(included_fields=present)
        batch = pa.ipc.open_stream(stream, options=options).read_next_batch()
    else:
        batch = pa.ipc.read_record_batch(frame, schema)
    return batch if batch.schema.names == list(names) else chosen(batch, names)


def _entry_at(file: File, count: int, offset: int) -> int:
    """Return an entry at or before the one that holds an offset, by looking at few of them."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        index, whole = Index.decoded(file.read(middle * ENTRY_BYTES, ENTRY_BYTES))
        if not whole:
            return 0  # damaged: let the whole of it be looked at
        if index.firsts[0] <= offset:
            low = middle
        else:
            high = middle
    return low


def _apart(ts_min: int, ts_max: int, from_ns: int | None, until_ns: int | None) -> bool:
    """Tell whether no row of a range of times can lie in another."""
    return (from_ns is not None and ts_max < from_ns) or (until_ns is not None and ts_min >= until_ns)


def _check(columns: Sequence[str]) -> None:
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise CorruptionError(f"a message has no column {unknown[0]!r}")
