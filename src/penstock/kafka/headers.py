"""A message's headers, a JSON object as it was sent, as the headers of a record."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import pyarrow as pa

from penstock.varints import varint

#: What a record without headers has.
NONE = b"\0"
#: What a column that is no JSON object becomes one header of, so that nothing is lost.
UNREAD = "headers"

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


@lru_cache(4096)
def section(headers: bytes | None) -> bytes:
    """Return what a record has of them: how many, then each; text as it is, null as null, the rest as JSON."""
    if not headers:
        return NONE
    try:
        found: dict[str, msgspec.Raw] = _decoder.decode(headers)
    except msgspec.MsgspecError:
        found = {}
        pairs: list[tuple[str, bytes | None]] = [(UNREAD, headers)]
    else:
        pairs = [(name, _value(bytes(raw))) for name, raw in found.items()]
    out = [_zigzag(len(pairs))]
    for name, value in pairs:
        key = name.encode(errors="replace")
        out += _zigzag(len(key)), key, _zigzag(-1 if value is None else len(value)), value or b""
    return b"".join(out)


def sections(column: pa.Array) -> pa.Array:
    """Return the same of a whole column; what is there more than once is looked at once."""
    coded = column.dictionary_encode()
    # A null has no place in the dictionary, so one is made for it.
    known = pa.array([*map(section, coded.dictionary.to_pylist()), NONE], pa.binary())
    places = coded.indices.fill_null(len(known) - 1) if coded.indices.null_count else coded.indices
    return known.take(places)


def _value(raw: bytes) -> bytes | None:
    if raw.startswith(b'"'):
        try:
            return msgspec.json.decode(raw, type=str).encode()
        except (msgspec.MsgspecError, UnicodeEncodeError):
            return raw
    return None if raw == b"null" else raw


def _zigzag(number: int) -> bytes:
    return varint((number << 1) ^ (number >> 63))
