"""The body of /mpub with one message a line, read in slices: a large one stops nobody else for long.

Pure: bytes in, rows out. Small bodies are one slice and plain Python, as everywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.columns import SMALL
from penstock.dialects.nsq.codec import SOURCE
from penstock.dialects.nsq.http.words import Fault
from penstock.message import Rows

#: Below this, splitting costs less than arrays do.
PLAIN_BYTES_MAX = 4096

#: One slice, whatever the lines in it: a few milliseconds.
SLICE_BYTES = 256 * 1024

_END = ord("\n")


class Lines:
    """Messages between line ends; empty ones are none."""

    def __init__(self, body: bytes, message_bytes_max: int) -> None:
        self._body = body
        self._message_bytes_max = message_bytes_max
        self._at = 0
        #: Of each slice: where lines end in the body, and its bytes without the line ends.
        self._ends: list[npt.NDArray[np.int32]] = []
        self._parts: list[bytes] = []

    def step(self) -> bool:
        """Read a slice; True when that was the last."""
        if len(self._body) <= PLAIN_BYTES_MAX:
            return True
        piece = np.frombuffer(self._body, np.uint8, min(SLICE_BYTES, len(self._body) - self._at), self._at)
        is_end = piece == _END
        self._ends.append((np.flatnonzero(is_end) + self._at).astype(np.int32))
        self._parts.append(piece[~is_end].tobytes())
        self._at += len(piece)
        return self._at >= len(self._body)

    def rows(self) -> Rows:
        """Return the messages, or refuse all of them."""
        if not self._ends:
            bodies = [line for line in self._body.split(b"\n") if line]
            if any(len(line) > self._message_bytes_max for line in bodies):
                raise Fault(413, "MSG_TOO_BIG")
            return Rows.of(bodies, SOURCE)
        sizes = np.diff(np.concatenate(self._ends), prepend=-1, append=len(self._body)) - 1
        sizes = sizes[sizes > 0]
        if len(sizes) and int(sizes.max()) > self._message_bytes_max:
            raise Fault(413, "MSG_TOO_BIG")
        cuts = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=cuts[1:])
        return Rows(len(sizes), cuts if len(sizes) > SMALL else cuts.tolist(), b"".join(self._parts), SOURCE)
