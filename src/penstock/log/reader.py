"""Reading a shard's directory beside the process that writes it, without its lock.

Owns the view that manifest and index files give. Writes nothing, and knows nothing of the node.
Invariant: it yields each row at most once, in order, and only rows that the writer has indexed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.disk import LocalDisk, LocalFile
from penstock.errors import CorruptionError
from penstock.log import manifest as manifests
from penstock.log.frame import schema_of
from penstock.log.index import Index
from penstock.log.manifest import INDEX_SUFFIX, Damage, Manifest
from penstock.log.segment import Segment
from penstock.message import COLUMNS

#: Files that vanish again and again while being listed are missing, not moved.
LISTINGS_MAX = 5
#: Bytes read in one go, at least one batch.
READ_BYTES = 4 << 20


class ReadOnlyDisk(LocalDisk):
    """The local file system, for looking only."""

    def open(self, path: str, *, create: bool = False) -> LocalFile:
        """Open for reading."""
        return LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))


class Reader:
    """A read-only view of one shard."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._disk = ReadOnlyDisk()
        #: Batches that could not be read so far.
        self.damaged: list[Damage] = []

    def ends(self) -> tuple[int, int]:
        """Return the first offset kept and the one after the last that can be read."""
        manifest = self._manifest()
        end = manifest.start
        for segment in self._segments(manifest):
            index = self._index(segment)
            end = max(end, index[len(index) - 1].end if len(index) else segment.first)
        return manifest.start, end

    def batches(
        self, start: int = 0, end: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with start <= offset < end; named columns that a segment lacks are null."""
        stop = self.ends()[1] if end is None else end
        misses = 0
        while start < stop:
            before = start
            try:
                for batch in self._walk(start, stop):
                    first, count = batch.column(0)[0].as_py(), len(batch)
                    start = first + count
                    yield batch if columns is None else _chosen(batch, columns)
                return
            except FileNotFoundError:
                # A rewrite or the retention took the file: the manifest names what there is now.
                misses = misses + 1 if start == before else 0
                if misses > LISTINGS_MAX:
                    raise

    def _walk(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        for segment in self._segments(self._manifest()):
            if segment.first >= stop or (segment.sealed and segment.end <= start):
                continue
            index = self._index(segment)
            schema = schema_of(segment.columns)
            number = index.at(start)
            while number < len(index) and index.firsts[number] < stop:
                last = number + 1
                limit = index.positions[number] + READ_BYTES
                while last < len(index) and index.firsts[last] < stop and index.positions[last] < limit:
                    last += 1
                data, runs, damaged = segment.load(number, last)
                self.damaged += [damage for damage in damaged if damage not in self.damaged]
                whole = pa.py_buffer(data)
                for frame in (run.frame(place) for run in runs for place in range(len(run))):
                    batch = pa.ipc.read_record_batch(whole.slice(frame.at, frame.end - frame.at), schema)
                    low, high = max(start - frame.first, 0), min(stop - frame.first, frame.rows)
                    if low < high:
                        yield batch.slice(low, high - low)
                number = last

    def _manifest(self) -> Manifest:
        found = manifests.load(self._disk, self._directory)
        if found is None:
            raise FileNotFoundError(f"{self._directory} has no manifest: it is no shard of a log")
        return found

    def _segments(self, manifest: Manifest) -> Iterator[Segment]:
        for info in manifest.segments:
            segment = Segment.of(self._disk, self._directory, info)
            if len(info.holes) != 1 or info.rows:
                yield segment

    def _index(self, segment: Segment) -> Index:
        """Return the entries that count: all of a sealed segment's, and what is written of a growing one's."""
        if segment.sealed:
            return segment.entries()
        try:
            file = self._disk.open(segment.path(INDEX_SUFFIX))
        except FileNotFoundError:
            if not self._disk.exists(segment.path()):
                raise
            segment.index = Index()  # its first rows are not indexed yet
            return segment.index
        try:
            segment.index, _ = Index.decoded(file.read(0, file.size()))
        finally:
            file.close()
        return segment.index


def _chosen(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise CorruptionError(f"a message has no column {unknown[0]!r}")
    present = set(batch.schema.names)
    arrays = [batch.column(name) if name in present else pa.nulls(len(batch), COLUMNS[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(name, COLUMNS[name]) for name in columns]))
