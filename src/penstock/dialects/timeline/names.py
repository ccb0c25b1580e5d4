"""What ids may be: bytes of graphic characters, within a length; and which cluster is meant."""

from __future__ import annotations

import unicodedata

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.timeline.wire import Kind
from penstock.dialects.timeline.errors import Fault

TOPIC_BYTES_MAX = 1024
MEMBER_BYTES_MAX = 256
MESSAGE_BYTES_MAX = 128

_GRAPHIC = frozenset("LMNPS")


def check_name(what: str, name: str, bytes_max: int) -> None:
    """Refuse a name that nothing could have."""
    size = len(name.encode("utf-8", "replace"))
    if not 1 <= size <= bytes_max:
        raise Fault(Kind.PROTOCOL, f"{what} has {size} bytes; it may have 1 to {bytes_max}")
    if not is_graphic(name):
        raise Fault(Kind.PROTOCOL, f"{what} {name[:100]!r} has characters that cannot be seen; leave them out")


def check_cluster(asked: str, here: str) -> None:
    """Refuse what is meant for another cluster; who names none means this one."""
    if asked and asked != here:
        raise Fault(Kind.WRONG_CLUSTER, f"this is cluster {here!r}, and not {asked[:256]!r}")


def is_graphic(text: str) -> bool:
    """Tell whether all characters are letters, marks, numbers, punctuation, symbols or spaces."""
    if text.isascii():
        return text.isprintable()
    return all((category := unicodedata.category(character))[0] in _GRAPHIC or category == "Zs" for character in text)


def are_message_ids(ids: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Tell which of some bytes may be message ids; there are no nulls among them."""
    count = len(ids)
    _, ends, data = ids.buffers()
    cuts = np.frombuffer(ends, np.int32, count + 1, ids.offset * 4) if count else np.zeros(1, np.int32)
    sizes = np.diff(cuts)
    good = (sizes >= 1) & (sizes <= MESSAGE_BYTES_MAX)
    content = np.frombuffer(data, np.uint8)[cuts[0] : cuts[-1]] if cuts[-1] > cuts[0] else np.zeros(0, np.uint8)
    if ((content < 0x20) | (content > 0x7E)).any():  # more than plain ASCII: one by one
        good &= np.array([_is_readable(each) for each in ids.to_pylist()], np.bool_)
    return good


def _is_readable(raw: bytes) -> bool:
    try:
        return is_graphic(raw.decode())
    except UnicodeDecodeError:
        return False
