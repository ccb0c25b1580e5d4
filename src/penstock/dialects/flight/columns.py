"""Record batches of clients, checked and brought to the record's own types.

Owns which columns a publisher may send and in which types; what passes here cannot fail on its content later. Knows
nothing of topics or connections. Buffers are handed on as they came, without a copy, where the type is right.
Invariant: a batch that is returned has a body in every row, valid UTF-8 where it says text, and only known columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import (
    BITS,
    BUCKET_MAX,
    COLUMNS,
    HEADERS_BYTES_MAX,
    NAME_BYTES_MAX,
    NAMES,
    OPTIONAL_COLUMNS,
    TIMES,
)
from penstock.errors import Refusal, hint

#: Columns that the node fills itself.
GIVEN = ("offset", "timestamp", "source")
TOPIC = "topic"

#: One step of the loop stores at most about this much, so that a large batch delays nobody (ruling 25).
PIECE_BYTES = 2 << 20
PIECE_ROWS = 32_768
#: A smaller message is copied out of the transport's buffers, which may be much larger than it.
COPIED_BYTES = 64 << 10

Convert: TypeAlias = Callable[[pa.Array], pa.Array]

_header = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Intake:
    """Takes the batches of one stream."""

    def __init__(self, schema: pa.Schema, *, topics: bool, message_bytes_max: int, batch_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._batch_bytes_max = batch_bytes_max
        known = {name: COLUMNS[name] for name in ("body", *OPTIONAL_COLUMNS)}
        if topics:
            known[TOPIC] = pa.string()
        self._plan: list[tuple[int, str, Convert | None]] = []
        seen: set[str] = set()
        for number, field in enumerate(schema):
            if field.name not in known:
                raise _unknown(field.name, known, topics=topics)
            if field.name in seen:
                raise Refusal("bad_column", f"there are two columns {field.name!r}")
            seen.add(field.name)
            self._plan.append((number, field.name, _convert(field.name, field.type, known[field.name])))
        #: No column has to change its type.
        self._as_it_is = not any(convert for _, _, convert in self._plan)
        for name in ("body", TOPIC) if topics else ("body",):
            if name not in seen:
                have = ", ".join(schema.names) or "no columns at all"
                raise Refusal("bad_column", f"the batches need a column {name!r}; they have {have}")

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in the record's types. Budget: 30 us for 10,000 rows of a binary body, 15 us for one row."""
        size = batch.nbytes
        if size > self._batch_bytes_max:
            raise self._too_big(f"a batch of {size} bytes is")
        try:
            batch.validate(full=True)
            batch = self._converted(batch)
        except (pa.ArrowException, OverflowError) as error:
            raise Refusal("bad_column", f"the batch cannot be used: {str(error)[:300]}") from None
        if size > self._message_bytes_max and len(batch):
            self._check_body(batch.column("body"))
        if size < COPIED_BYTES and len(batch):
            batch = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
        return batch

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays, names = [], []
        for number, name, convert in self._plan:
            column = batch.column(number)
            if convert is not None:
                self._check_expanded(name, column)
                column = convert(column)
            if column is not None:
                _LIMITS.get(name, _nothing)(name, column)
                arrays.append(column)
                names.append(name)
        if self._as_it_is:
            return batch
        return pa.RecordBatch.from_arrays(arrays, names)

    def _check_expanded(self, name: str, column: pa.Array) -> None:
        """Refuse values that share their bytes and would not fit once each row has its own."""
        size = _expanded_bytes(column)
        if size > self._batch_bytes_max:
            raise self._too_big(f"column {name!r} has {size} bytes where each row has its own,")

    def _too_big(self, what: str) -> Refusal:
        limit = f"{self._batch_bytes_max} (flight.max_batch_size, never above memory.input_bytes)"
        return Refusal("message_too_big", f"{what} over the limit of {limit}; send smaller batches")

    def _check_body(self, body: pa.Array) -> None:
        sizes = np.diff(cuts_of(body))
        largest = int(sizes.argmax())
        if sizes[largest] > self._message_bytes_max:
            limit = f"over the limit of {self._message_bytes_max} (node.message_bytes)"
            raise Refusal("message_too_big", f"row {largest}: a message of {sizes[largest]} bytes is {limit}")


def cuts_of(body: pa.Array) -> npt.NDArray[np.int32]:
    """Return where each value of a binary array begins and ends in its data."""
    ends = body.buffers()[1]
    return np.frombuffer(ends, np.int32, len(body) + 1, 4 * body.offset) if len(body) else np.zeros(1, np.int32)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into what one step of the loop may store; the same batch is always cut the same way."""
    count = len(batch)
    if count <= PIECE_ROWS and batch.nbytes <= PIECE_BYTES:
        if count:
            yield batch
        return
    cuts = cuts_of(batch.column("body"))
    start = 0
    while start < count:
        stop = int(np.searchsorted(cuts, int(cuts[start]) + PIECE_BYTES, "right")) - 1
        stop = min(max(stop, start + 1), start + PIECE_ROWS, count)
        yield batch.slice(start, stop - start)
        start = stop


def _unknown(name: str, known: dict[str, pa.DataType], *, topics: bool) -> Refusal:
    if name in GIVEN:
        return Refusal("bad_column", f"column {name!r} is given by the node; leave it out")
    if name == TOPIC and not topics:
        return Refusal("bad_column", "the stream names its topic, so a column 'topic' is not taken; leave out one")
    return Refusal("bad_column", f"a message has no column {name!r}; {hint(name, known, show=repr)}")


def _convert(name: str, given: pa.DataType, wanted: pa.DataType) -> Convert | None:
    """Return what brings a column to the record's type, None if it has it; refuse what cannot be brought there."""
    if given == wanted:
        return None
    if pa.types.is_null(given):
        if name in ("body", TOPIC):
            raise Refusal("bad_column", f"column {name!r} is null throughout; every row needs one")
        return _dropped
    value = given.value_type if pa.types.is_dictionary(given) else given
    if pa.types.is_binary(wanted) or pa.types.is_string(wanted):
        if _is_text(value) or _is_bytes(value):
            return lambda column: column.cast(wanted)
        raise _wrong(name, given, f"{wanted}, or text or bytes of another kind")
    if name in TIMES and pa.types.is_timestamp(value):
        return lambda column: column.cast(pa.timestamp("ns", getattr(value, "tz", None))).cast(pa.int64())
    if pa.types.is_integer(value):
        if name in BITS and value == pa.uint64():  # as they are
            return lambda column: column.cast(pa.uint64()).view(pa.int64())
        return lambda column: column.cast(wanted)
    raise _wrong(name, given, "nanoseconds as int64, or a timestamp" if name in TIMES else f"{wanted}")


def _expanded_bytes(column: pa.Array) -> int:
    """Return the bytes of a column whose rows may share values, as if they did not; 0 where they cannot."""
    if not len(column):
        return 0
    if pa.types.is_dictionary(column.type) and (_is_text(column.type.value_type) or _is_bytes(column.type.value_type)):
        values = column.dictionary
        if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
            sizes = pa.array(_view_sizes(values))
        else:
            sizes = pc.binary_length(values)
        return int(pc.sum(sizes.take(column.indices).cast(pa.int64())).as_py() or 0)
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        return int(_view_sizes(column).sum(dtype=np.int64))
    return 0


def _view_sizes(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return the lengths of a view column: the first of the four numbers that each view has."""
    views = np.frombuffer(column.buffers()[1], np.int32, 4 * len(column), 16 * column.offset)
    return views[::4]


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_binary_view(type_)
        or pa.types.is_fixed_size_binary(type_)
    )


def _wrong(name: str, given: pa.DataType, wanted: str) -> Refusal:
    return Refusal("bad_column", f"column {name!r} is {given}; it must be {wanted}")


def _dropped(column: pa.Array) -> None:
    return None


def _nothing(name: str, column: pa.Array) -> None:
    return None


def _everywhere(name: str, column: pa.Array) -> None:
    if column.null_count:
        row = int(np.asarray(column.is_null()).argmax())
        raise Refusal("bad_column", f"row {row} has no {name}: it is null")


def _short(name: str, column: pa.Array) -> None:
    _sized(name, column, NAME_BYTES_MAX)


def _sized(name: str, column: pa.Array, bytes_max: int) -> None:
    sizes = np.asarray(pc.binary_length(column).fill_null(0))
    if len(sizes) and int(sizes.max()) > bytes_max:
        row = int(sizes.argmax())
        raise Refusal("bad_column", f"row {row}: {name} has {sizes[row]} bytes, at most {bytes_max} are taken")


def _bucket(name: str, column: pa.Array) -> None:
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and not 0 <= low <= high <= BUCKET_MAX:
        raise Refusal("bad_column", f"bucket {low if low < 0 else high} is outside 0 to {BUCKET_MAX}")


def _headers(name: str, column: pa.Array) -> None:
    """Check that every header is a JSON object; equal ones are looked at once."""
    _sized(name, column, HEADERS_BYTES_MAX)
    encoded = column.dictionary_encode()
    for number, header in enumerate(encoded.dictionary.to_pylist()):
        try:
            header.decode()  # msgspec does not look inside what it leaves raw
            _header(header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            row = encoded.indices.index(number).as_py()
            raise Refusal("bad_column", f"row {row}: headers are no JSON object: {error}") from None


_LIMITS: dict[str, Callable[[str, pa.Array], None]] = {
    "body": _everywhere,
    TOPIC: _everywhere,
    "headers": _headers,
    "bucket": _bucket,
    **dict.fromkeys(NAMES, _short),
}
