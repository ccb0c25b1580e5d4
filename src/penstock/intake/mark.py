"""The mark of rows: a number by which two sets of rows are the same or not, whatever their order and their cuts.

Spark repeats a batch with other tasks, so nothing that depends on order can tell it from another one. Looked at are
bodies, keys and topics: length, first, middle and last bytes of each, and the sum of all bytes, because a hash of every
byte would cost as much as writing them. Marks are kept in the registry: what makes them may never change.
Invariant: the mark of two batches together is the sum of theirs, modulo 2^64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BITS = (1 << 64) - 1
#: What is looked at, each with an odd number of its own.
COLUMNS = {"body": 0x9E3779B97F4A7C15, "key": 0xC2B2AE3D27D4EB4F, "topic": 0x165667B19E3779F9}
_WORD = 8
#: For each length up to a word, the bits of that many bytes.
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_WORD + 1)], np.uint64)

Words = npt.NDArray[np.uint64]


def mark(batch: pa.RecordBatch) -> int:
    """Return the mark of these rows. Budget: 0.1 µs a row of 100 bytes."""
    if not len(batch):
        return 0
    rows: Words = np.zeros(len(batch), np.uint64)
    rest = 0
    for name, factor in COLUMNS.items():
        place = batch.schema.get_field_index(name)
        if place >= 0:
            words, total = _words(batch.column(place))
            rows += words * np.uint64(factor)
            rest += total * factor
    return (int(np.add.reduce(_mixed(rows))) + rest) & BITS


def _words(column: pa.Array) -> tuple[Words, int]:
    """Return one number for each value, and the sum of all bytes."""
    if column.null_count:
        column = column.fill_null("" if pa.types.is_string(column.type) else b"")
    _, cuts, content = column.buffers()
    ends = np.frombuffer(cuts, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    low, high = int(ends[0]), int(ends[-1])
    content_bytes: npt.NDArray[np.uint8] = np.zeros(high - low + _WORD, np.uint8)
    if high > low:
        content_bytes[:-_WORD] = np.frombuffer(content, np.uint8)[low:high]
    starts, ends = ends[:-1] - low, ends[1:] - low
    lengths = ends - starts
    masks = _MASKS[np.minimum(lengths, _WORD)]
    at: Words = np.ndarray(high - low + 1, np.dtype("<u8"), content_bytes, strides=(1,))
    first = at[starts] & masks
    middle = at[np.maximum(starts + lengths // 2 - _WORD // 2, starts)] & masks
    last = at[np.maximum(ends - _WORD, starts)] & masks
    words = _mixed(first + np.uint64(COLUMNS["body"])) + _mixed(middle ^ np.uint64(COLUMNS["key"])) + _mixed(last)
    # A column that is not there is one of empty values.
    words = _mixed(words + lengths.astype(np.uint64)) * (lengths != 0)
    return words, int(np.add.reduce(content_bytes, dtype=np.uint64))


def _mixed(words: Words) -> Words:
    """Return words each of whose bits depends on all bits of its own (the end of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
