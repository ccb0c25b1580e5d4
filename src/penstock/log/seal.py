"""Sealing: a closed segment of many small batches is rewritten once into few large ones.

Owns how a new generation is written, in a thread beside the event loop. Knows nothing of the shard that asked for it.
Invariant: rows keep their offsets, and the new generation is complete and synced before its name appears.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import pyarrow as pa
from fastcrc.crc32 import iscsi as crc32c

from penstock.columns import Buffer
from penstock.disk import File
from penstock.errors import CorruptionError
from penstock.log.decode import FEW_ROWS, largest
from penstock.log.frame import schema_of, template_of
from penstock.log.index import Index
from penstock.log.layout import CRC_DIGITS, CRC_ZEROS, DIGITS, END_OF_STREAM, KEY, Layout
from penstock.log.manifest import INDEX_SUFFIX, NEW_SUFFIX, Damage, SegmentInfo
from penstock.log.segment import Segment, decoder_of, times_of
from penstock.message import Batch

#: Rows of a rewritten batch: the work per batch vanishes, and one batch still fits a cache.
MERGED_ROWS = 16_384
#: Bytes read for one rewritten batch at most, unless a single batch is larger.
MERGED_BYTES = 16 << 20
#: So much is written between two pauses, at least one batch.
PAUSE_BYTES = 64 << 10
#: Long enough that the loop's thread, waiting for the interpreter lock, gets it.
PAUSE_SECONDS = 0.0001


class Merged(msgspec.Struct):
    """What a rewrite made."""

    info: SegmentInfo
    damaged: list[Damage]


def worthwhile(segment: Segment, compression: str) -> bool:
    """Tell whether a closed segment should be rewritten: never twice."""
    if segment.generation > 0 or not segment.sealed or segment.batches == 0:
        return False
    small = segment.batches > 1 and segment.rows < FEW_ROWS * segment.batches
    return small or segment.ragged or bool(segment.holes) or (compression != "none" and segment.compression == "none")


def merge(segment: Segment, compression: str) -> Merged:
    """Write the next generation of a segment with all its rows in large batches; blocking, on a thread."""
    damaged: list[Damage] = []
    made = next_generation(segment, batches(segment, damaged), compression)
    made.holes = sorted({*segment.holes, *damaged})
    return Merged(made.info(), damaged)


def next_generation(segment: Segment, rows: Iterable[Batch], compression: str, *, sparse: bool = False) -> Segment:
    """Write the next generation of a segment with these rows, which survives a power loss; blocking, on a thread."""
    disk = segment.disk
    made = Segment(disk, segment.directory, segment.first, segment.generation + 1, segment.columns)
    made.end, made.weight = segment.end, segment.weight
    made.compression, made.sparse = compression, sparse
    made.index = Index()
    data_path, index_path = made.path() + NEW_SUFFIX, made.path(INDEX_SUFFIX) + NEW_SUFFIX
    for path in (data_path, index_path):
        disk.remove(path)
    file = disk.open(data_path, create=True)
    try:
        _write(made, file, rows)
        file.sync()
    except (OSError, CorruptionError):
        disk.remove(data_path)
        raise
    finally:
        file.close()
    index_file = disk.open(index_path, create=True)
    try:
        index_file.append([made.index.encoded()])
        index_file.sync()
    finally:
        index_file.close()
    disk.rename(index_path, made.path(INDEX_SUFFIX))
    disk.rename(data_path, made.path())
    disk.sync_directory(segment.directory)
    made.sealed = True
    return made


def pause() -> None:
    """Let the event loop have the interpreter; a rewrite that held it for long would be felt as latency."""
    time.sleep(PAUSE_SECONDS)


def _write(made: Segment, file: File, rows: Iterable[Batch]) -> None:
    schema = schema_of(made.columns, made.compression, sparse=made.sparse)
    index = made.entries()
    made.bytes = file.append([schema.serialize().to_pybytes()])
    written = 0
    for batch in rows:
        frame = template_of(made.columns, len(batch.sequence)).encode(batch)
        if made.compression != "none":
            frame = [_compressed(frame, schema, made.compression, batch)]
        size = file.append(frame)
        index.add(batch.first, batch.count, made.bytes, size, *times_of(batch))
        made.bytes += size
        made.batches += 1
        made.sparse_rows += batch.count
        made.sequences = made.sequences or bool(batch.sequence)
        if "due" in batch.columns:
            made.due_max = max(made.due_max, largest(batch.columns["due"]))
        written += size
        if written >= PAUSE_BYTES:
            written = 0
            pause()
    made.bytes += file.append([END_OF_STREAM])
    if made.batches:
        made.ts_min, made.ts_max = index.earliest(), max(index.ts_max)


def batches(segment: Segment, damaged: list[Damage]) -> Iterator[Batch]:
    """Yield the segment's rows in batches as large as they may become."""
    index = segment.entries()
    decoder = decoder_of(segment.columns)
    rows_before = np.cumsum(np.array(index.counts)) - np.array(index.counts)
    positions = np.array(index.positions)
    start = 0
    while start < len(index):
        enough_rows = np.searchsorted(rows_before, rows_before[start] + MERGED_ROWS)
        enough_bytes = np.searchsorted(positions, positions[start] + MERGED_BYTES, "right")
        stop = max(start + 1, int(min(enough_rows, enough_bytes)))
        data, runs, bad = segment.load(start, stop, pause)
        damaged += [damage for damage in bad if not any(h.first <= damage.first < h.end for h in segment.holes)]
        yield from decoder.batches(data, runs, 2 * MERGED_ROWS)
        start = stop


def _compressed(frame: list[Buffer], schema: pa.Schema, compression: str, batch: Batch) -> bytes:
    """Return the frame as pyarrow compresses it, with our value in its metadata and the CRC over the result."""
    whole = pa.py_buffer(b"".join(frame))
    rows = pa.ipc.read_record_batch(whole, schema)
    value = b"%b %016x %016x %b" % (CRC_ZEROS, batch.first, batch.weight, batch.sequence)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(rows, custom_metadata={KEY: value})
    start = len(schema.serialize().to_pybytes())
    made = bytearray(sink.getvalue().to_pybytes()[start : -len(END_OF_STREAM)])
    at = Layout(made, 0).value_at
    if made[at : at + CRC_DIGITS + 1 + DIGITS] != value[: CRC_DIGITS + 1 + DIGITS]:
        raise CorruptionError("pyarrow wrote other metadata than it was given")
    made[at : at + CRC_DIGITS] = b"%08x" % crc32c(made)
    return bytes(made)
