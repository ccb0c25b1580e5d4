"""A message's headers, a JSON object as it was sent, as the headers of a record."""

from __future__ import annotations

from base64 import b64decode
from functools import lru_cache

import msgspec
import pyarrow as pa

from penstock.varints import varint

#: What a record without headers has.
NONE = b"\0"
#: What a column that is no JSON object becomes one header of, so that nothing is lost.
UNREAD = "headers"

#: In a message without a body: it was a record without a value, which makes Kafka forget its key.
TOMBSTONE = "penstock.tombstone"
_TOMBSTONE = TOMBSTONE.encode()

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


@lru_cache(4096)
def section(headers: bytes | None) -> bytes:
    """Return what a record has of them: how many, then each.

    Text as it is, null as null, {"type": "Binary", "value": base64} as those bytes, a list of such as one header each,
    the rest as JSON: what was brought in from Kafka goes out as it was.
    """
    if not headers:
        return NONE
    try:
        found: dict[str, msgspec.Raw] = _decoder.decode(headers)
    except msgspec.MsgspecError:
        found = {}
        pairs: list[tuple[str, bytes | None]] = [(UNREAD, headers)]
    else:
        pairs = [(name, value) for name, raw in found.items() for value in _values(bytes(raw))]
    out = [_zigzag(len(pairs))]
    for name, value in pairs:
        key = name.encode(errors="replace")
        out += _zigzag(len(key)), key, _zigzag(-1 if value is None else len(value)), value or b""
    return b"".join(out)


@lru_cache(4096)
def below(headers: bytes) -> bytes | None:
    """Return what else the headers of a tombstone say; None where they are not those of one."""
    if _TOMBSTONE not in headers:
        return None
    try:
        found = _decoder.decode(headers)
        said = found.pop(TOMBSTONE, None)
    except msgspec.MsgspecError:
        return None
    return msgspec.json.encode(found) if said is not None and bytes(said) == b'"true"' else None


def sections(column: pa.Array) -> pa.Array:
    """Return the same of a whole column; what is there more than once is looked at once."""
    coded = column.dictionary_encode()
    # A null has no place in the dictionary, so one is made for it.
    known = pa.array([*map(section, coded.dictionary.to_pylist()), NONE], pa.binary())
    places = coded.indices.fill_null(len(known) - 1) if coded.indices.null_count else coded.indices
    return known.take(places)


def _values(raw: bytes) -> list[bytes | None]:
    try:
        said: object = msgspec.json.decode(raw)
        return [_value(each) for each in said] if isinstance(said, list) and said else [_value(said)]
    except (msgspec.MsgspecError, ValueError):  # what cannot be said in bytes is said in JSON
        return [raw]


def _value(said: object) -> bytes | None:
    match said:
        case None:
            return None
        case str():
            return said.encode()
        case {"type": "Binary", "value": str(text), **more} if not more:
            return b64decode(text, validate=True)
    raise ValueError(said)


def _zigzag(number: int) -> bytes:
    return varint((number << 1) ^ (number >> 63))
