"""How records are compressed: Kafka's four codecs, and what must come of it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from typing import Literal, TypeAlias

import msgspec
import pyarrow as pa

from penstock.columns import Buffer

CodecName: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
#: What a batch's attributes say of its records.
NUMBERS: Mapping[CodecName, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
#: The levels that a codec knows; snappy knows none.
LEVELS: Mapping[str, range] = {"gzip": range(10), "lz4": range(1, 13), "zstd": range(1, 23)}

#: zlib's window for a gzip head.
_GZIP = 31
#: The head of an LZ4 frame whose blocks do not refer to each other, as Kafka wants it and Arrow does not do it:
#: version 1, no checksums, blocks of up to 256 KiB, and the check byte of these two.
_LZ4_HEAD, _LZ4_END, _LZ4_BLOCK = bytes.fromhex("04224d18 60 50 fb"), bytes(4), 256 * 1024
_LZ4_SIZE, _LZ4_PLAIN = Struct("<I"), 1 << 31


class Compression(msgspec.Struct, frozen=True):
    """What is tried, and what it must bring."""

    codec: CodecName = "none"
    #: None = the codec's own. One that it does not know counts as none.
    level: int | None = None
    #: Smaller sets go as they are: the bytes of keys and values, and 26 more for each record.
    bytes_min: int = 0
    #: What may be left of a set, in percent; one that shrinks less goes as it is.
    percent: int = 100


PLAIN = Compression()


def compressed(codec: CodecName, level: int | None, data: bytes | memoryview) -> Buffer:
    """Return bytes as readers of Kafka expect them of this codec."""
    if level is not None and level not in LEVELS.get(codec, ()):
        level = None
    if codec == "gzip":
        return zlib.compress(data, -1 if level is None else level, _GZIP)
    if codec == "lz4":
        return _lz4(data, level)
    # Snappy is one block without a frame, as librdkafka and Dory write it.
    found: bytes = _codec(codec, level).compress(data, asbytes=True) if codec != "none" else bytes(data)
    return found


@lru_cache
def _codec(name: str, level: int | None) -> pa.Codec:
    return pa.Codec(name, compression_level=level)


def _lz4(data: bytes | memoryview, level: int | None) -> bytes:
    codec, view, out = _codec("lz4_raw", level), memoryview(data), [_LZ4_HEAD]
    for at in range(0, len(view), _LZ4_BLOCK):
        block = view[at : at + _LZ4_BLOCK]
        small: bytes = codec.compress(block, asbytes=True)
        if len(small) < len(block):
            out += _LZ4_SIZE.pack(len(small)), small
        else:
            out += _LZ4_SIZE.pack(len(block) | _LZ4_PLAIN), bytes(block)
    out.append(_LZ4_END)
    return b"".join(out)
