"""Metrics by the column: what is read of many values of messages in a few steps, for those who store or aggregate them.

Only what is written as everybody writes it goes this way; whoever gets None reads one metric at a time with `metrics`.
Budget: 0.5 us a metric from 1,000 on. Invariant: the columns say what `metrics` says of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock import varints
from penstock.columns import Buffer, Cuts
from penstock.m3 import metric_tables
from penstock.m3.metrics import KINDS, Asked, Metric, asked, decode, policy_bytes, policy_of
from penstock.m3.policies import StoragePolicy
from penstock.m3.wire import BadMessage, bytes_field
from penstock.varints import PAD, Marks, Places, Reader, Writer

#: Traffic types of 64 bits are kept in an int64.
Bits = npt.NDArray[np.int64]

_NESTED = tuple(no << 3 | 2 for no in range(9))


class Metrics(NamedTuple):
    """Many metrics."""

    ids: pa.Array
    #: Numbers in KINDS.
    kinds: npt.NDArray[np.uint8]
    #: 0 = it says nothing of it.
    times_ns: npt.NDArray[np.int64]
    #: The one value of each; None where some may have several.
    values: npt.NDArray[np.float64] | None
    #: Counters as they are, 0 for others; None where nobody counted whole numbers.
    wholes: npt.NDArray[np.int64] | None
    #: What metrics ask for, each of it once, and which of these each metric asks for.
    asked: tuple[Asked, ...]
    which: npt.NDArray[np.int32]
    is_aggregated: bool

    def traffic(self) -> Bits:
        """Return the traffic types of each."""
        known = np.array([each.traffic for each in self.asked], np.uint64).view(np.int64)
        return known[self.which]


def read(cuts: npt.NDArray[np.int32], body: Buffer, now_ns: int, until_ns: int | None = None) -> Metrics | None:
    """Return metrics that are all of one form; None if some are not written as everybody does, or are none.

    With `until_ns` also where the metadata in force is not the same from `now_ns` to then.
    """
    if len(cuts) < 2:
        return None
    sizes = np.diff(cuts)
    least = int(sizes.min())
    if least <= 0:
        return None
    if least == int(sizes.max()):
        table = np.frombuffer(body, np.uint8, len(sizes) * least, int(cuts[0])).reshape(-1, least)
        found = _alike(table) if table[0, 0] == _NESTED[1] else None
        if found is not None:
            return found
    whole = b"".join([body, PAD])
    starts, stops = cuts[:-1].astype(np.int64), cuts[1:].astype(np.int64)
    reader = Reader(whole)
    first = reader.raw[starts]
    if (first == _NESTED[1]).all():
        return _aggregated(reader, whole, starts, stops)
    return _samples(reader, whole, starts, stops, now_ns, until_ns) if (first == 1 << 3).all() else None


def _alike(table: npt.NDArray[np.uint8]) -> Metrics | None:
    """Return aggregated metrics that are written alike."""
    found = metric_tables.read(table)
    if found is None:
        return None
    kinds, times, traffic = (
        np.full(len(table), each, np.uint64) if isinstance(each, int) else each
        for each in (found.kinds, found.times_ns, found.traffic)
    )
    asked_for = _aggregated_asked(found.policies, traffic)
    if asked_for is None or int(kinds.max()) >= len(KINDS):
        return None
    return Metrics(found.ids, kinds.astype(np.uint8), times.view(np.int64), found.values, None, *asked_for, True)


def _aggregated(reader: Reader, data: bytes, starts: Places, stops: Places) -> Metrics | None:
    at, end, good = reader.nested(_NESTED[1], starts, stops)
    if not (good & (end == stops)).all():
        return None
    timed, after, good = reader.nested(_NESTED[1], at, end)
    policy, last, fine = reader.nested(_NESTED[2], after, end)
    routing, final, well = reader.nested(_NESTED[3], last, end)
    if not (good & fine & well & (final == end)).all():
        return None
    kinds, timed, good = reader.optional(1 << 3, timed, after)
    id_, timed, fine = reader.optional_nested(_NESTED[2], timed, after)
    id_end = timed
    times, timed, well = reader.optional(3 << 3, timed, after)
    good &= fine & well
    values, timed = _doubles(reader, 4 << 3 | 1, timed, after)
    _, timed, fine = reader.optional_nested(_NESTED[5], timed, after)
    traffic, routing, well = reader.optional(1 << 3, routing, final)
    if not (good & fine & well & (timed == after) & (routing == final) & (kinds < len(KINDS))).all():
        return None
    found = _aggregated_asked(varints.slices(data, policy, last), traffic)
    if found is None:
        return None
    ids = varints.slices(data, id_, id_end)
    return Metrics(ids, kinds.astype(np.uint8), times.view(np.int64), values, None, *found, True)


def _aggregated_asked(
    policies: pa.Array | bytes, traffic: npt.NDArray[np.uint64]
) -> tuple[tuple[Asked, ...], npt.NDArray[np.int32]] | None:
    """Return the policies and traffic types of metrics; there are few of both, so each is read once."""
    encoded = pa.array([policies], pa.binary()) if isinstance(policies, bytes) else policies
    encoded = encoded.dictionary_encode()
    try:
        known = [policy_of(each.as_py()) for each in encoded.dictionary]
    except BadMessage:
        return None
    masks, codes = _codes(traffic)
    if len(known) == 1:
        return tuple(Asked((known[0],), mask) for mask in masks), codes
    which = np.asarray(encoded.indices)
    pairs = which.astype(np.int64) * len(masks) + codes
    there = np.flatnonzero(np.bincount(pairs))
    places = np.zeros(int(there[-1]) + 1, np.int32)
    places[there] = np.arange(len(there))
    found = [Asked((known[pair // len(masks)],), masks[pair % len(masks)]) for pair in there.tolist()]
    return tuple(found), places[pairs]


def _codes(numbers: npt.NDArray[np.uint64]) -> tuple[list[int], npt.NDArray[np.int32]]:
    """Return different numbers, of which there are few, and which of them each is."""
    if (numbers == numbers[0]).all():
        return [int(numbers[0])], np.zeros(len(numbers), np.int32)
    coded = pa.array(numbers).dictionary_encode()
    return coded.dictionary.to_pylist(), np.asarray(coded.indices)


def _samples(
    reader: Reader, data: bytes, starts: Places, stops: Places, now_ns: int, until_ns: int | None
) -> Metrics | None:
    """Return counters, gauges and timers that nobody aggregated."""
    raw = reader.raw
    kinds = raw[starts + 1]
    at = starts + 2
    if not ((kinds >= 1) & (kinds <= 3) & (at < stops) & (raw[at] == (kinds + 1) << 3 | 2)).all():
        return None
    # Whatever its field is, what follows is one length.
    at, end, good = _content(reader, at, stops)
    metric, after, fine = reader.nested(_NESTED[1], at, end)
    staged, last, well = reader.nested(_NESTED[2], after, end)
    if not (good & fine & well & (end == stops) & (last == end)).all():
        return None
    id_, place, good = reader.optional_nested(_NESTED[1], metric, after)
    id_end = place
    place, fine, values, wholes = _value(reader, kinds, place, after)
    _, place, well = reader.optional_nested(_NESTED[3], place, after)
    times, place, right = reader.optional(4 << 3, place, after)
    if not (good & fine & well & right & (place == after)).all():
        return None
    metadata = varints.slices(data, staged, last).dictionary_encode()
    try:
        known = tuple(asked(each.as_py(), now_ns) for each in metadata.dictionary)
        if until_ns is not None and known != tuple(asked(each.as_py(), until_ns) for each in metadata.dictionary):
            return None
    except BadMessage:
        return None
    which = np.asarray(metadata.indices).astype(np.int32)
    return Metrics(varints.slices(data, id_, id_end), kinds, times.view(np.int64), values, wholes, known, which, False)


def _content(reader: Reader, at: Places, stops: Places) -> tuple[Places, Places, Marks]:
    sizes, start, good = reader.numbers(at + 1)
    good &= sizes <= np.uint64(len(reader.raw))
    end = start + np.where(good, sizes, 0).astype(np.int64)
    return start, np.minimum(end, stops), good & (end <= stops)


def _value(
    reader: Reader, kinds: npt.NDArray[np.uint8], at: Places, end: Places
) -> tuple[Places, Marks, npt.NDArray[np.float64] | None, npt.NDArray[np.int64] | None]:
    """Return where the values of samples end, which are well, and the values where each has one, counters as well."""
    raw = reader.raw
    there = at < end
    tags = raw[at]
    # Counter, timer, gauge: a number, packed doubles, a double. Another kind's is none of its own.
    wrong = there & np.isin(tags, (2 << 3, 2 << 3 | 1, 2 << 3 | 2))
    wrong &= tags != np.array([0, 2 << 3, 2 << 3 | 2, 2 << 3 | 1], np.uint8)[kinds]
    if wrong.any():
        return at, ~wrong, None, None
    counts, at, good = reader.optional(2 << 3, at, end)
    doubles, at = _doubles(reader, 2 << 3 | 1, at, end)
    start, at, fine = reader.optional_nested(2 << 3 | 2, at, end)
    # Packed doubles are eight bytes each.
    timers = kinds == 2
    fine &= ~timers | ((at - start) % 8 == 0)
    if timers.any():
        return at, good & fine, None, None
    wholes = counts.view(np.int64)
    return at, good & fine, np.where(kinds == 1, wholes.astype(np.float64), doubles), wholes


def _doubles(reader: Reader, tag: int, at: Places, end: Places) -> tuple[npt.NDArray[np.float64], Places]:
    """Return the doubles of a field that is at these places or left out, 0 there, and where each ends."""
    there = (reader.raw[at] == tag) & (at + 9 <= end)
    words = reader.words(np.where(there, at + 1, 0))
    return np.where(there, words.view(np.float64), 0.0), np.where(there, at + 9, at)


def each(cuts: Cuts, body: Buffer, now_ns: int) -> list[Metric | BadMessage]:
    """Return metrics one at a time, or why one is none."""
    found: list[Metric | BadMessage] = []
    view = memoryview(body)
    for start, stop in pairwise(cuts):
        try:
            found.append(decode(bytes(view[int(start) : int(stop)]), now_ns))
        except BadMessage as error:
            found.append(error)
    return found


def encode(
    ids: pa.Array,
    times_ns: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
    traffic: Bits,
    policies: Sequence[StoragePolicy],
    which: npt.NDArray[np.int32],
    kinds: npt.NDArray[np.uint8] | None = None,
) -> pa.Array:
    """Return aggregated metrics as `metrics.encode` writes each; `which` says which of the policies each has."""
    count = len(ids)
    named = Writer(count)
    named.optional(1 << 3, np.zeros(count, np.uint64) if kinds is None else kinds.astype(np.uint64))
    lengths = pc.binary_length(ids).to_numpy(zero_copy_only=False).astype(np.uint64)
    rows = lengths != 0
    named.constant(bytes((_NESTED[2],)), rows)
    named.numbers(lengths, rows)
    measured = Writer(count)
    measured.optional(3 << 3, times_ns.view(np.uint64))
    rows = values.view(np.uint64) != 0
    measured.constant(bytes((4 << 3 | 1,)), rows)
    measured.fixed(values.astype("<f8").view(np.uint8).reshape(count, 8), rows)
    routed = Writer(count)
    types = Writer(count)
    types.optional(1 << 3, traffic.view(np.uint64))
    routed.constant(bytes((_NESTED[3],)))
    routed.fixed(types.sizes.astype(np.uint8)[:, None])
    routed.take(types)
    fields = [bytes_field(2, policy_bytes(policy)) for policy in policies]
    timed = named.sizes + lengths.astype(np.int64) + measured.sizes
    inner = timed + 1 + varints.sizes_of(timed.astype(np.uint64)) + routed.sizes
    inner += np.array([len(field) for field in fields], np.int64)[which]
    head = Writer(count)
    for sizes in (inner, timed):
        head.constant(bytes((_NESTED[1],)))
        head.numbers(sizes.astype(np.uint64))
    head.take(named)
    kept = pa.array(fields, pa.binary()).take(pa.array(which))
    return pc.binary_join_element_wise(head.column(), ids, measured.column(), kept, routed.column(), b"")
