"""One message as it goes over the wire, the same on all transports: big endian, its size first.

Owns what a message weighs and how it is written. Knows nothing of sockets.
"""

from __future__ import annotations

import struct
import time

#: Formats: any partition will do, or one is chosen by a number.
ANY_PARTITION, PARTITION_KEY = 0x0100, 0x0101
#: What a message weighs beside topic, key and value.
ANY_PARTITION_BYTES, PARTITION_KEY_BYTES = 28, 32
#: What the fields for them can say.
TOPIC_BYTES_MAX = (1 << 15) - 1
MESSAGE_BYTES_MAX = (1 << 31) - 1

_ANY = struct.Struct(">ihhhh")
_KEYED = struct.Struct(">ihhhIh")
_TIME_AND_KEY = struct.Struct(">qi")
_VALUE = struct.Struct(">i")


class TooLong(ValueError):
    """A topic or a message does not fit the format."""


def encode(
    topic: bytes | str,
    value: bytes,
    key: bytes = b"",
    *,
    partition_key: int | None = None,
    timestamp_ms: int | None = None,
) -> bytes:
    """Return one message; without a time it is of now, and text of a topic is UTF-8."""
    name = topic.encode() if isinstance(topic, str) else topic
    if not 0 < len(name) <= TOPIC_BYTES_MAX:
        raise TooLong(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes, not {len(name)}")
    if timestamp_ms is None:
        timestamp_ms = time.time_ns() // 1_000_000
    overhead = ANY_PARTITION_BYTES if partition_key is None else PARTITION_KEY_BYTES
    size = overhead + len(name) + len(key) + len(value)
    if size > MESSAGE_BYTES_MAX:
        raise TooLong(f"a message has at most {MESSAGE_BYTES_MAX} bytes, not {size}")
    if partition_key is None:
        head = _ANY.pack(size, ANY_PARTITION, 0, 0, len(name))
    else:
        head = _KEYED.pack(size, PARTITION_KEY, 0, 0, partition_key & 0xFFFFFFFF, len(name))
    return b"".join((head, name, _TIME_AND_KEY.pack(timestamp_ms, len(key)), key, _VALUE.pack(len(value)), value))
