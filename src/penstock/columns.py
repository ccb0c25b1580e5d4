"""The record: its columns, the ids of rows, and limits.

Owns what a message may consist of. Needs numpy and pyarrow and nothing else: Spark's executors and users of the SDK
have no other package of the node's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: Below this many rows a Python loop beats numpy and Arrow call overhead (shared measurements: 0.5-3 us a call).
SMALL = 16

#: All columns of the record in the order of a full schema, each with what its values are; the first four are in every
#: segment. Dialects, the SDK and Spark derive from it in which form they take and show a column.
KINDS: Mapping[str, str] = {
    "offset": "number",
    "timestamp": "time",
    "body": "bytes",
    "source": "text",
    "due": "time",
    "expires": "time",
    "event_time": "time",
    "key": "bytes",
    "tag": "text",
    "headers": "json",
    "traffic": "bits",
    "bucket": "bucket",
    "route": "number",
    "message_id": "bytes",
    "dedup": "bytes",
    "trace": "bits",
    "group": "bytes",
}
_TYPES = {
    "number": pa.int64(),
    "time": pa.int64(),
    "bits": pa.int64(),
    "bucket": pa.int32(),
    "bytes": pa.binary(),
    "text": pa.string(),
    "json": pa.binary(),
}
COLUMNS: Mapping[str, pa.DataType] = {name: _TYPES[kind] for name, kind in KINDS.items()}
BASE_COLUMNS = ("offset", "timestamp", "body", "source")
OPTIONAL_COLUMNS = tuple(name for name in COLUMNS if name not in BASE_COLUMNS)
#: Nanoseconds since 1970; and 64 bits, shown without a sign and stored in an int64.
TIMES = tuple(name for name in OPTIONAL_COLUMNS if KINDS[name] == "time")
BITS = tuple(name for name in OPTIONAL_COLUMNS if KINDS[name] == "bits")
#: Keys, tags, ids: names of something, not data.
NAMES = tuple(name for name in OPTIONAL_COLUMNS if KINDS[name] in ("bytes", "text"))
NAME_BYTES_MAX = 4096
#: What every dialect with headers can carry as those of a message.
HEADERS_BYTES_MAX = 65_534
BUCKET_MAX = 0xFFFF

#: An id is shard * 2^48 + offset + 1, so it fits 63 bits and is never 0.
OFFSET_BITS = 48
OFFSET_MAX = (1 << OFFSET_BITS) - 2
SHARD_MAX = (1 << 15) - 1
TOPIC_NAME_BYTES_MAX = 1024

Cuts: TypeAlias = "list[int] | npt.NDArray[np.int32]"
Buffer: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
Column: TypeAlias = "list[int | None] | list[bytes | None] | list[str | None] | pa.Array"
Offsets: TypeAlias = npt.NDArray[np.int64]


def id_of(shard: int, offset: int) -> int:
    """Return the id that clients see for a row."""
    return (shard << OFFSET_BITS) + offset + 1


def place_of(id_: int) -> tuple[int, int]:
    """Return the (shard, offset) behind an id."""
    return (id_ - 1) >> OFFSET_BITS, (id_ - 1) & ((1 << OFFSET_BITS) - 1)
