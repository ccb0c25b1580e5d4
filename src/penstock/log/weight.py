"""What rows would weigh in an NSQ queue file: the byte position that ordered subscriptions see.

Owns one sum. Invariant: the weight of a batch is the sum of its rows' weights, whatever batch they are in.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.message import Column

#: Length, time, attempts and id of a record before its body.
PLAIN_BYTES = 30
#: The same with the version byte of an extend topic.
EXTEND_BYTES = 31
#: Length field of a header, where there is one.
HEADER_LENGTH_BYTES = 2


def weigh(count: int, body_bytes: int, headers: Column | None, *, weigh_headers: bool) -> int:
    """Return what rows with so many bytes of bodies weigh; headers count on extend topics only."""
    if not weigh_headers:
        return PLAIN_BYTES * count + body_bytes
    total = EXTEND_BYTES * count + body_bytes
    if headers is None:
        return total
    if isinstance(headers, pa.Array):
        present = count - int(headers.null_count)
        total += HEADER_LENGTH_BYTES * present + int(pc.sum(pc.binary_length(headers)).as_py() or 0)
        return total
    for header in headers:
        if header is not None:
            total += HEADER_LENGTH_BYTES + len(header)  # type: ignore[arg-type]
    return total
