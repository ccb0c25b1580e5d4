"""Inputs that are nearly right: samples with edits, cut into the pieces in which they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

#: What breaks parsers.
TOKENS = (
    b"\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"-1",
    b"4294967296", b"99999999999999999999999999", b"NaN", b"1e309", b"null", b"[" * 2000, b'{"a":' * 500, b"%00", b"%",
    b"\xc0\xaf", b"\xed\xa0\x80", b"..", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"A" * 9000,
)  # fmt: skip

#: An edit: what, where (a part of the whole), how much, and with which bytes.
Edit = tuple[str, float, int, bytes]

_edits = st.lists(
    st.tuples(
        st.sampled_from(("put", "over", "cut", "twice", "flip", "end")),
        st.floats(0, 1),
        st.integers(1, 40),
        st.one_of(st.sampled_from(TOKENS), st.binary(max_size=12)),
    ),
    max_size=5,
)


def edited(sample: bytes, edits: Sequence[Edit]) -> bytes:
    """Return a sample with edits made to it."""
    data = bytearray(sample)
    for what, part, size, more in edits:
        at = int(part * len(data))
        if what == "put":
            data[at:at] = more
        elif what == "over":
            data[at : at + len(more)] = more
        elif what == "cut":
            del data[at : at + size]
        elif what == "twice":
            data[at:at] = data[at : at + size]
        elif what == "flip" and at < len(data):
            data[at] ^= 1 << size % 8
        elif what == "end":
            del data[at:]
    return bytes(data)


def inputs(samples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return what makes inputs: one sample or two behind each other, edited; and now and then any bytes."""
    some = st.one_of(st.sampled_from(samples), st.tuples(*[st.sampled_from(samples)] * 2).map(b"".join))
    return st.one_of(st.builds(edited, some, _edits), st.builds(edited, some, _edits), st.binary(max_size=64))


def pieces(data: bytes, cuts: Sequence[float]) -> list[bytes]:
    """Return data as it arrives."""
    places = sorted({0, len(data), *(int(cut * len(data)) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


#: Where data is cut.
cuts = st.lists(st.floats(0, 1), max_size=3)
