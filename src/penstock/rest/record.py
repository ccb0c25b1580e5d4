"""A message as JSON, both ways: one object with the columns of the record under their own names.

Binary columns (body, key, message_id, dedup, group) are text where they are UTF-8, else base64 under `<name>_base64`.
Invariant: the columns that were shown, published again, make the same row (but for its place, time and source).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import UNSET, Meta, UnsetType

from penstock.columns import (
    BITS,
    BUCKET_MAX,
    COLUMNS,
    HEADERS_BYTES_MAX,
    KINDS,
    NAME_BYTES_MAX,
    OPTIONAL_COLUMNS,
    SMALL,
    TIMES,
    Column,
    id_of,
)
from penstock.errors import Refusal
from penstock.message import Batch, Rows, shaped
from penstock.rest.problem import BadField, unknown, unusable
from penstock.units import times

#: Lines of one slice, and ids: a few milliseconds.
SLICE_LINES = 500
SLICE_IDS = 10_000

#: The end of the name under which a binary column travels as base64.
_CODED = "_base64"

#: Kept as it was sent, byte for byte.
JsonObject = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]


#: Written here, because as texts hundreds of thousands would take far more memory than the messages they are of.
Ids = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "array", "items": {"type": "string"}})]


#: The types of JSON that each kind of column takes.
_TAKEN: dict[str, Any] = {"text": str, "bytes": str, "time": str | int | float}


def fields() -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields of a message to publish: name, type and default of each."""
    for name in ("body", *OPTIONAL_COLUMNS):
        kind = KINDS[name]
        if kind == "json":
            yield name, JsonObject, msgspec.field(default_factory=msgspec.Raw)
            continue
        # Traffic types by their bits as a number, or by their names.
        type_ = int | list[str] if name == "traffic" else _TAKEN.get(kind, int)
        yield name, type_ | None, None
        if kind == "bytes":
            yield name + _CODED, str | None, None


Line = msgspec.defstruct(
    "Line", list(fields()), namespace={"__doc__": "A message to publish."}, forbid_unknown_fields=True
)


class ShownColumns(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A message, with the columns it brings."""

    id: str
    timestamp: str
    source: str
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    headers: JsonObject | UnsetType = UNSET
    headers_base64: str | UnsetType = UNSET
    traffic: int | UnsetType = UNSET
    traffic_types: list[str] | UnsetType = UNSET
    due: str | UnsetType = UNSET
    expires: str | UnsetType = UNSET
    event_time: str | UnsetType = UNSET
    bucket: int | UnsetType = UNSET
    route: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    message_id_base64: str | UnsetType = UNSET
    dedup: str | UnsetType = UNSET
    dedup_base64: str | UnsetType = UNSET
    trace: int | UnsetType = UNSET
    group: str | UnsetType = UNSET
    group_base64: str | UnsetType = UNSET
    #: Only on a message that is leased.
    attempts: int | UnsetType = UNSET
    receipt: str | UnsetType = UNSET


class Shown(ShownColumns, kw_only=True):
    """A message as it is kept."""

    shard: int
    offset: int


_DECODER = msgspec.json.Decoder(Line)


def shown_id(id_: int) -> str:
    """Return an id as clients see it: 16 hex digits."""
    return f"{id_:016x}"


def read_id(text: str) -> int:
    """Return the id behind its 16 hex digits."""
    if len(text) != 16 or not all(digit in "0123456789abcdef" for digit in text):
        raise Refusal("bad_request", f"{text!r} is no message id: it has 16 hex digits")
    return int(text, 16)


class Reading:
    """The messages of an NDJSON body, read in slices, so that nobody waits for all of a large one."""

    def __init__(
        self, raw: bytes, mapping: Mapping[str, int], now_ns: int, message_bytes_max: int, source: str
    ) -> None:
        self._raw = raw
        self._source = source
        self._mapping = mapping
        self._now_ns = now_ns
        self._message_bytes_max = message_bytes_max
        self._at = 0
        self._line = 0
        self._count = 0
        #: The bodies of each slice, joined, and how long each is.
        self._parts: list[bytes] = []
        self._sizes: list[npt.NDArray[np.int32]] = []
        #: The columns of each slice but the last: in Arrow, which takes a tenth of what a list of values does.
        self._columns: list[dict[str, pa.Array]] = []
        self._values: dict[str, list[Any]] = {}

    def step(self, lines_max: int = SLICE_LINES) -> bool:
        """Read some lines, or refuse and name the first bad one; True when that was all of them."""
        if self._parts:
            self._pack()
        raw, end, bodies = self._raw, len(self._raw), list[bytes]()
        last = self._line + lines_max
        while self._at < end and self._line < last:
            stop = raw.find(b"\n", self._at)
            text = raw[self._at : stop if stop >= 0 else end]
            self._at = stop + 1 if stop >= 0 else end
            self._line += 1
            if text and not text.isspace():
                bodies.append(self._read(text, len(bodies)))
        self._count += len(bodies)
        self._parts.append(b"".join(bodies))
        self._sizes.append(np.fromiter(map(len, bodies), np.int32, len(bodies)))
        return self._at >= end

    def rows(self) -> Rows:
        """Return what was read."""
        count = self._count
        sizes = np.concatenate(self._sizes) if self._sizes else np.zeros(0, np.int32)
        cuts = np.zeros(count + 1, np.int32)
        np.cumsum(sizes, out=cuts[1:])
        if len(self._parts) > 1:
            self._pack()
            names = {name for columns in self._columns for name in columns}
            ready: dict[str, Column] = {name: self._column(name) for name in OPTIONAL_COLUMNS if name in names}
        else:
            pad(self._values, count)
            ready = {name: shaped(self._values[name], count, name) for name in OPTIONAL_COLUMNS if name in self._values}
        return Rows(count, cuts if count > SMALL else cuts.tolist(), b"".join(self._parts), self._source, ready)

    def _pack(self) -> None:
        """Put away the columns of the last slice."""
        values, self._values = self._values, {}
        pad(values, len(self._sizes[-1]))
        self._columns.append({name: pa.array(column, COLUMNS[name]) for name, column in values.items()})

    def _column(self, name: str) -> Column:
        """Return a column of all slices as one."""
        pieces = [
            columns[name] if name in columns else pa.nulls(len(sizes), COLUMNS[name])
            for columns, sizes in zip(self._columns, self._sizes, strict=True)
        ]
        return shaped(pa.concat_arrays(pieces), self._count, name)

    def _read(self, text: bytes, row: int) -> bytes:
        try:
            body = read(decode(text, _DECODER), row, self._values, self._mapping, self._now_ns)
            if len(body) > self._message_bytes_max:
                limit = f"{self._message_bytes_max} (node.message_bytes)"
                raise Refusal("message_too_big", f"a message of {len(body)} bytes is over the limit of {limit}")
        except Refusal as refusal:
            raise Refusal(refusal.code, f"line {self._line}: {refusal}") from None
        return body


class Writing:
    """Ids as a list in JSON, written in slices."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self._at = 0
        self._parts: list[bytes] = []
        self.count = len(ids)

    def step(self) -> bool:
        """Write some; True when that were the last."""
        stop = self._at + SLICE_IDS
        self._parts.append(",".join([f'"{id_:016x}"' for id_ in self._ids[self._at : stop]]).encode())
        self._at = stop
        return stop >= self.count

    def json(self) -> msgspec.Raw:
        """Return them."""
        return msgspec.Raw(b"[" + b",".join(self._parts) + b"]")


def shown(shard: int, batch: Batch, row: int, mapping: Mapping[str, int]) -> Shown:
    """Return one stored row as JSON shows it."""
    offset = batch.first + row
    message = Shown(
        id=shown_id(id_of(shard, offset)),
        shard=shard,
        offset=offset,
        timestamp=times.shown(batch.row_time(row)),
        source=batch.row_source(row),
    )
    show_columns(message, batch, row, mapping)
    return message


def show_columns(message: ShownColumns, batch: Batch, row: int, mapping: Mapping[str, int]) -> None:
    """Let a message show what its row brings."""
    _show_binary(message, "body", batch.row_body(row))
    for name in batch.columns:
        value = batch.row_value(name, row)
        if value is None:
            continue
        if isinstance(value, bytes):
            _show_headers(message, value) if name == "headers" else _show_binary(message, name, value)
        elif isinstance(value, str):
            setattr(message, name, value)
        elif name in TIMES:
            setattr(message, name, times.shown(value))
        else:
            setattr(message, name, value & (1 << 64) - 1 if name in BITS else value)
    if message.traffic is not UNSET and mapping:
        bits = message.traffic
        message.traffic_types = [name for name, bit in mapping.items() if bits >> bit & 1]


def bits_of(traffic: int | list[str], mapping: Mapping[str, int]) -> int:
    """Return the 64 traffic bits, without a sign, of a number or of names."""
    if isinstance(traffic, int):
        if not 0 <= traffic < 1 << 64:
            raise Refusal("bad_column", f"traffic {traffic} does not fit 64 bits")
        return traffic
    bits = 0
    for name in traffic:
        if name not in mapping:
            if not mapping:
                raise Refusal("bad_column", f"traffic type {name!r} is not known: no routing mapping is set")
            raise Refusal("bad_column", str(unknown(name, mapping, "traffic type")))
        bits |= 1 << mapping[name]
    return bits


def read(
    line: msgspec.Struct, row: int, columns: dict[str, list[Any]], mapping: Mapping[str, int], now_ns: int
) -> bytes:
    """Read one message: add its columns as a row and return its body; of one that is refused nothing is added."""
    try:
        return _read(line, row, columns, mapping, now_ns)
    except Refusal:
        for values in columns.values():
            del values[row:]
        raise


def _read(
    line: msgspec.Struct, row: int, columns: dict[str, list[Any]], mapping: Mapping[str, int], now_ns: int
) -> bytes:
    body: bytes | None = None
    for name, value in zip(line.__struct_fields__, msgspec.structs.astuple(line), strict=True):
        column = name.removesuffix(_CODED)
        if value is None or column not in KINDS:
            continue
        try:
            found = _value(name, column, value, mapping, now_ns)
        except Refusal as refusal:
            raise BadField(refusal.code, str(refusal), name) from None
        if column == "body":
            if body is not None:
                raise _both(column)
            body = found
        elif found is not None:
            values = columns.setdefault(column, [])
            if len(values) > row:
                raise _both(column)
            values += [None] * (row - len(values))
            values.append(found)
    if body is None:
        raise BadField("bad_request", 'a message needs "body" (text) or "body_base64"', "body")
    return body


def _value(name: str, column: str, value: Any, mapping: Mapping[str, int], now_ns: int) -> Any:
    """Return what is stored for one field of a line, None for nothing."""
    match KINDS[column]:
        case "bytes":
            read = _binary(name, value)
            return read if column == "body" else _sized(column, read, NAME_BYTES_MAX)
        case "json":
            return _headers(bytes(value))
        case "text":
            _sized(column, value.encode(), NAME_BYTES_MAX)
            return value
        case "time":
            return times.instant(value, column) if column == "event_time" else times.moment(value, now_ns, column)
        case "bits":
            return _signed(bits_of(value, mapping) if column == "traffic" else value, column)
        case "bucket":
            return _ranged(column, value, 0, BUCKET_MAX)
    return _ranged(column, value, -(1 << 63), times.INT64_MAX)


def pad(columns: dict[str, list[Any]], count: int) -> None:
    """Make all columns as long as there are rows."""
    for values in columns.values():
        values += [None] * (count - len(values))


def _both(column: str) -> BadField:
    return BadField("bad_column", f"{column} and {column}{_CODED} are both set; choose one", column)


def decode(text: bytes, decoder: msgspec.json.Decoder[Any]) -> msgspec.Struct:
    """Return one message as its fields; an unknown one gets its nearest name."""
    try:
        line: msgspec.Struct = decoder.decode(text)
        return line
    except msgspec.ValidationError as error:
        raise _named(text, error, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("bad_request", f"not a JSON object: {error}") from None


def _named(text: bytes, error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> Refusal:
    """Return the refusal of a line that is JSON and still no message."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as worse:
        return Refusal("bad_request", f"not a JSON object: {worse}")
    if isinstance(value, dict):
        for name in value:
            if name not in kind.__struct_fields__:
                return unknown(name, kind.__struct_fields__, "column", "bad_column")
    return unusable("", error, "bad_column")


def _binary(name: str, text: str) -> bytes:
    if not name.endswith(_CODED):
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal("bad_column", f"{name} is not base64: {error}") from None


def _headers(raw: bytes) -> bytes | None:
    if not raw or raw == b"null":
        return None
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("bad_column", f"headers are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refusal("bad_column", "headers must be an object")
    return _sized("headers", raw, HEADERS_BYTES_MAX)


def _sized(name: str, value: bytes, bytes_max: int) -> bytes:
    if len(value) > bytes_max:
        raise Refusal("bad_column", f"{name} has {len(value)} bytes, at most {bytes_max} are taken")
    return value


def _ranged(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise Refusal("bad_column", f"{name} {value} is outside {low} to {high}")
    return value


def _signed(bits: int, name: str) -> int:
    if not -(1 << 63) <= bits < 1 << 64:
        raise Refusal("bad_column", f"{name} {bits} does not fit 64 bits")
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def _show_binary(message: ShownColumns, name: str, value: bytes) -> None:
    try:
        setattr(message, name, value.decode())
    except UnicodeDecodeError:
        setattr(message, name + _CODED, base64.b64encode(value).decode("ascii"))


def _show_headers(message: ShownColumns, value: bytes) -> None:
    try:
        msgspec.json.decode(value)
        message.headers = msgspec.Raw(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        message.headers_base64 = base64.b64encode(value).decode("ascii")
