"""Rows on lease become M3Msg's frames.

A message is named by its own id, so an ack names the row, and nothing is kept for it between the two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.columns import OFFSET_BITS, SMALL, Buffer, Cuts, Offsets
from penstock.delivery.policies.routed import routes
from penstock.delivery.source import Delivery
from penstock.m3.entries import Metadata, Metadatas
from penstock.m3.frames import FrameTooLarge
from penstock.m3.messages import encode, encoded


class Framed(NamedTuple):
    """What is sent of rows."""

    wire: Buffer
    ids: Offsets
    #: The ids of rows that fit into no frame.
    too_large: list[int]


def framed(delivery: Delivery, shards: int, first_shard: int, sent_ns: int, bytes_max: int) -> Framed:
    """Return rows as messages to the shards from `first_shard` on. Budget: 0.3 us a row from 1,000 on."""
    batch, rows = delivery.batch, delivery.picks()
    offsets = batch.first + rows
    ids = offsets + ((delivery.shard << OFFSET_BITS) + 1)
    named = routes(batch, offsets, shards).astype(np.uint64) + np.uint64(first_shard)
    said = Metadatas(named, ids.view(np.uint64), np.full(len(rows), sent_ns, np.uint64))
    cuts, values = _values(delivery, rows)
    try:
        return Framed(encode(said, cuts, values, bytes_max, zeros=True)[1], ids, [])
    except FrameTooLarge:
        return _fitting(said, ids, delivery, rows, bytes_max)


def _values(delivery: Delivery, rows: Offsets) -> tuple[Cuts, Buffer]:
    """Return the bodies of rows: where each begins, and what they are cut from."""
    batch = delivery.batch
    if isinstance(batch.cuts, list) or len(rows) <= SMALL:
        bodies = [batch.row_body(row) for row in rows.tolist()]
        cuts = np.zeros(len(bodies) + 1, np.int32)
        np.cumsum([len(body) for body in bodies], out=cuts[1:])
        return cuts, b"".join(bodies)
    if isinstance(delivery.rows, slice):
        return batch.cuts[delivery.rows.start : delivery.rows.stop + 1], batch.body
    whole = pa.Array.from_buffers(pa.binary(), batch.count, [None, pa.py_buffer(batch.cuts), pa.py_buffer(batch.body)])
    _, edges, body = whole.take(pa.array(rows)).buffers()
    return np.frombuffer(edges, np.int32, len(rows) + 1), body if body is not None else b""


def _fitting(said: Metadatas, ids: Offsets, delivery: Delivery, rows: Offsets, bytes_max: int) -> Framed:
    """Return the messages of those rows that fit, one by one."""
    wire, too_large = [], []
    for number, row in enumerate(rows.tolist()):
        named = Metadata(int(said.shard[number]), int(said.id[number]), int(said.sent_ns[number]))
        try:
            wire.append(encoded(named, delivery.batch.row_body(row), bytes_max))
        except FrameTooLarge:
            too_large.append(int(ids[number]))
    return Framed(b"".join(wire), ids, too_large)
