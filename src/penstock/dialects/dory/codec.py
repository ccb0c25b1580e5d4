"""Dory's wire: messages of one read become columns, by topic; what is none is told with its reason.

Owns framing, both formats and everything a message can have wrong. Above SMALL messages numpy and Arrow, below plain
Python. Budget: 0.35 us a message from 1,000 in a read on.
Invariant: however a stream is cut, the same messages come out; and one by itself is read like one among thousands.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns import SMALL, Column
from penstock.dory.message import ANY_PARTITION, ANY_PARTITION_BYTES, PARTITION_KEY
from penstock.message import Rows

SOURCE = "dory"

#: Below this a message does not say what it is, ...
HEAD_BYTES = 8
#: ... below this a stream cannot go on: the size is not even that of its own field.
SIZE_BYTES = 4
#: Nothing shorter is a message: it has a topic.
MESSAGE_BYTES_MIN = ANY_PARTITION_BYTES + 1

#: So many messages of one size in a row make it likely that more follow.
_ALIKE = 8
#: How many are then looked at together.
_RUN_MAX = 4096
_NS = 1_000_000
#: A time in milliseconds that is one in nanoseconds, too.
_MS_MIN = -(1 << 63) // _NS + 1

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">ihhh")
_SHORT = struct.Struct(">h")
_ROUTE = struct.Struct(">I")
_TIME_AND_SIZE = struct.Struct(">qi")

Places: TypeAlias = "Sequence[int] | npt.NDArray[np.int64]"
Longs: TypeAlias = npt.NDArray[np.int64]
#: Why bytes are no message, as the node's discards name it.
Kind: TypeAlias = Literal["malformed", "unclean_unix", "unclean_tcp", "unsupported_api_key", "unsupported_version"]


class Group(NamedTuple):
    """Messages of one topic, in their order."""

    topic: bytes
    rows: Rows
    #: The times that their senders gave them, in milliseconds.
    times_ms: list[int] | Longs


class Fault(NamedTuple):
    """What is wrong with bytes that were to be a message."""

    kind: Kind
    #: The API key or version that is not known.
    number: int | None = None
    api_key: int = 0


MALFORMED = Fault("malformed")


class Decoded(NamedTuple):
    """What was in one read."""

    groups: list[Group]
    #: What was no message, by what is wrong with it.
    faults: dict[Fault, list[bytes]]


class _Message(NamedTuple):
    topic: bytes
    time_ms: int
    key: bytes
    value: bytes
    route: int | None


_NO_PLACES: tuple[int, ...] = ()


class Stream:
    """What one connection sends, cut into messages."""

    __slots__ = ("_bytes_max", "_have", "_need", "_pieces", "fault")

    def __init__(self, bytes_max: int) -> None:
        """Take how many bytes may follow the field for the size."""
        self._bytes_max = bytes_max
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = SIZE_BYTES
        #: Why nothing more can be read: "size" or "large"; empty while it can.
        self.fault = ""

    @property
    def held(self) -> int:
        """How many bytes are held of a message that is not all there, or is what the fault is about."""
        return self._have

    def rest(self) -> bytes:
        """Return them."""
        return b"".join(self._pieces)

    def forget(self) -> None:
        """Hold nothing any more."""
        self._pieces, self._have = [], 0

    def cut(self, data: bytes) -> tuple[bytes, Places, Places]:
        """Return bytes, and where whole messages in them begin and end."""
        if self._have:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return b"", _NO_PLACES, _NO_PLACES
            data = b"".join(self._pieces)
        elif len(data) < self._need:
            self._pieces, self._have = [data], len(data)
            return b"", _NO_PLACES, _NO_PLACES
        starts, at, self._need = self._cut(data)
        rest = data[at:]
        self._pieces, self._have = [rest] if rest else [], len(rest)
        if len(starts) > SMALL:
            begins = np.array(starts, np.int64)
            return data, begins, np.append(begins[1:], at)
        return data, starts, [*starts[1:], at] if starts else _NO_PLACES

    def _cut(self, data: bytes) -> tuple[list[int], int, int]:
        """Return where messages begin, where the last of them ends, and how many bytes the next one needs."""
        unpack, most, end = _SIZE.unpack_from, self._bytes_max + SIZE_BYTES, len(data)
        starts: list[int] = []
        at, alike, before, last = 0, 0, -1, end - SIZE_BYTES
        while at <= last:
            (size,) = unpack(data, at)
            if not SIZE_BYTES <= size <= most:
                self.fault = "size" if size < SIZE_BYTES else "large"
                break
            if at + size > end:
                return starts, at, size
            starts.append(at)
            at += size
            if size != before:
                before, alike = size, 0
                continue
            alike += 1
            if alike >= _ALIKE and end - at >= _ALIKE * size:
                alike = 0
                run = _run(data, at, size)
                starts.extend(range(at, at + run * size, size))
                at += run * size
        return starts, at, SIZE_BYTES


def _run(data: bytes, at: int, size: int) -> int:
    """Return how many messages from here on have this size."""
    count = min((len(data) - at) // size, _RUN_MAX)
    alike = np.ndarray((count,), ">i4", data, at, (size,)) == size
    return count if alike.all() else int(alike.argmin())


def decode(data: bytes, starts: Places, stops: Places, now_ms: int) -> Decoded:
    """Return the messages between these places, by topic; times after `now_ms` are that."""
    if isinstance(starts, np.ndarray) and isinstance(stops, np.ndarray):
        return _many(data, starts, stops, now_ms)
    return _few(data, starts, stops, now_ms)


# --- one by one ---------------------------------------------------------------------------------------------------


def _few(data: bytes, starts: Places, stops: Places, now_ms: int) -> Decoded:
    topics: dict[bytes, list[_Message]] = {}
    faults: dict[Fault, list[bytes]] = {}
    for start, stop in zip(starts, stops, strict=True):
        found = message(data[start:stop])
        if isinstance(found, _Message):
            topics.setdefault(found.topic, []).append(found)
        else:
            faults.setdefault(found, []).append(data[start:stop])
    return Decoded([_listed(topic, each, now_ms) for topic, each in topics.items()], faults)


def message(wire: bytes) -> _Message | Fault:
    """Return what one message says, or what is wrong with it; the first thing wrong is what counts."""
    size = len(wire)
    if size < HEAD_BYTES or _SIZE.unpack_from(wire)[0] != size:
        return MALFORMED
    api_key, version = _SHORT.unpack_from(wire, 4)[0], _SHORT.unpack_from(wire, 6)[0]
    if api_key not in (ANY_PARTITION, PARTITION_KEY):
        return Fault("unsupported_api_key", api_key, api_key)
    if version:
        return Fault("unsupported_version", version, api_key)
    at = 10 if api_key == ANY_PARTITION else 14
    if size < at + 2 or wire[8:10] != b"\0\0":
        return MALFORMED
    (topic_size,) = _SHORT.unpack_from(wire, at)
    end = at + 2 + topic_size
    if topic_size <= 0 or end + 12 > size:
        return MALFORMED
    time_ms, key_size = _TIME_AND_SIZE.unpack_from(wire, end)
    stop = end + 12 + key_size
    if key_size < 0 or stop + 4 > size or _SIZE.unpack_from(wire, stop)[0] != size - stop - 4:
        return MALFORMED
    route = _ROUTE.unpack_from(wire, 10)[0] if api_key == PARTITION_KEY else None
    return _Message(wire[at + 2 : end], time_ms, wire[end + 12 : stop], wire[stop + 4 :], route)


def _listed(topic: bytes, messages: Sequence[_Message], now_ms: int) -> Group:
    times = [each.time_ms for each in messages]
    columns: dict[str, Column] = {"event_time": [max(min(time, now_ms), _MS_MIN) * _NS for time in times]}
    if any(each.key for each in messages):
        columns["key"] = [each.key or None for each in messages]
    if any(each.route is not None for each in messages):
        columns["route"] = [each.route for each in messages]
    return Group(topic, Rows.of([each.value for each in messages], SOURCE, columns), times)


# --- many at once -------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """Where everything of good messages is."""

    topic_at: Longs
    topic_end: Longs
    times_ms: Longs
    key_at: Longs
    key_end: Longs
    value_at: Longs
    stops: Longs
    #: -1 where any partition will do.
    routes: Longs

    def picked(self, rows: npt.NDArray[np.intp]) -> _Found:
        """Return some of them."""
        return _Found(*(column[rows] for column in self))

    def between(self, start: int, stop: int) -> _Found:
        """Return those from one place to another."""
        return _Found(*(column[start:stop] for column in self))


def _many(data: bytes, starts: Longs, stops: Longs, now_ms: int) -> Decoded:
    alike = _alike(data, starts, stops, now_ms) if len(starts) > SMALL else None
    if alike is not None:
        return Decoded([alike], {})
    found, bad = _places(data, starts, stops)
    faults = _faults(data, starts[bad], stops[bad]) if len(bad) else {}
    if not len(found.stops):
        return Decoded([], faults)
    return Decoded([_group(data, topic, each, now_ms) for topic, each in _by_topic(data, found)], faults)


def _alike(data: bytes, starts: Longs, stops: Longs, now_ms: int) -> Group | None:
    """Return messages that differ in their times and values alone, read as a table of bytes; None if others do.

    One program that sends one kind of message is the common case, and a third of the work that way.
    """
    count, begin, size = len(starts), int(starts[0]), int(stops[0] - starts[0])
    if not size:  # a datagram of nothing
        return None
    if int(stops[-1]) - begin != count * size or not (starts == np.arange(begin, begin + count * size, size)).all():
        return None
    first = message(data[begin : begin + size])
    if not isinstance(first, _Message) or first.key or first.route is not None or not first.value:
        return None
    time_at, value_at = 12 + len(first.topic), size - len(first.value)
    table = np.ndarray((count, size), np.uint8, data, begin)
    if not _same(table, 0, time_at) or not _same(table, time_at + 8, value_at):
        return None
    times = np.ndarray((count,), ">i8", data, begin + time_at, (size,)).astype(np.int64)
    body = pa.py_buffer(table[:, value_at:].tobytes())
    cuts = np.arange(0, (count + 1) * len(first.value), len(first.value), dtype=np.int32)
    columns: dict[str, Column] = {"event_time": _event_times(times, now_ms)}
    return Group(first.topic, Rows(count, cuts, body, SOURCE, columns), times)


def _same(table: npt.NDArray[np.uint8], start: int, stop: int) -> bool:
    """Tell whether all rows have in these places what the first one has."""
    places = table[:, start:stop]
    return bool(places.tobytes() == places[0].tobytes() * len(table))


def _faults(data: bytes, starts: Longs, stops: Longs) -> dict[Fault, list[bytes]]:
    """Return what is wrong with messages that are not good: what they are, if they say so, else all the rest."""
    sizes = stops - starts
    says = sizes >= HEAD_BYTES
    heads = np.full((len(starts), 3), -1, np.int64)
    if says.any():
        shorts, ints = (np.ndarray((len(data) - n + 1,), f">i{n}", data, 0, (1,)) for n in (2, 4))
        begins = starts[says]
        heads[says] = np.stack([ints[begins], shorts[begins + 4], shorts[begins + 6]], 1)
    known = (heads[:, 1] == ANY_PARTITION) | (heads[:, 1] == PARTITION_KEY)
    malformed = (heads[:, 0] != sizes) | (known & (heads[:, 2] == 0))
    # As one number each, to be sorted once however many there are; the version of an unknown key is nothing.
    kinds = (heads[:, 1] & 0xFFFF) << 16 | np.where(known, heads[:, 2] & 0xFFFF, 0)
    order, edges = _sorted(np.where(malformed, -1, kinds))
    begins, ends = starts[order].tolist(), stops[order].tolist()
    firsts = order[edges[:-1]]
    faults: dict[Fault, list[bytes]] = {}
    for is_malformed, is_known, (_, api_key, version), (at, end) in zip(
        malformed[firsts].tolist(), known[firsts].tolist(), heads[firsts].tolist(), pairwise(edges), strict=True
    ):
        if is_malformed:
            fault = MALFORMED
        elif is_known:
            fault = Fault("unsupported_version", version, api_key)
        else:
            fault = Fault("unsupported_api_key", api_key, api_key)
        faults[fault] = [data[start:stop] for start, stop in zip(begins[at:end], ends[at:end], strict=True)]
    return faults


def _sorted(kinds: Longs) -> tuple[npt.NDArray[np.intp], list[int]]:
    """Return rows by their kind, each in its order, and where in that the kinds begin; last of all where it ends."""
    order = np.argsort(kinds, kind="stable")
    return order, [0, *(np.flatnonzero(np.diff(kinds[order])) + 1).tolist(), len(order)]


def _places(data: bytes, starts: Longs, stops: Longs) -> tuple[_Found, npt.NDArray[np.intp]]:
    """Return where everything is in good messages, and which ones are not good."""
    sizes = stops - starts
    good = sizes >= MESSAGE_BYTES_MIN
    if not good.any():
        return _Found(*[np.zeros(0, np.int64)] * 8), np.arange(len(starts))
    shorts, ints, longs = (np.ndarray((len(data) - n + 1,), f">i{n}", data, 0, (1,)) for n in (2, 4, 8))
    begins = _kept(starts, good)
    keyed = ints[begins + 4] == PARTITION_KEY << 16
    good &= keyed | (ints[begins + 4] == ANY_PARTITION << 16)
    good &= (ints[begins] == sizes) & (shorts[begins + 8] == 0)
    topic_at = starts + np.where(keyed, 16, 12)
    topic_sizes = shorts[_kept(topic_at - 2, good)].astype(np.int64)
    topic_end = topic_at + topic_sizes
    good &= (topic_sizes > 0) & (topic_end + 16 <= stops)
    ends = _kept(topic_end, good)
    key_sizes = ints[ends + 8].astype(np.int64)
    key_end = topic_end + 12 + key_sizes
    good &= (key_sizes >= 0) & (key_end + 4 <= stops)
    good &= ints[_kept(key_end, good)] == stops - key_end - 4
    routes, times = np.where(keyed, ints[begins + 10].astype(np.int64) & 0xFFFFFFFF, -1), longs[ends].astype(np.int64)
    found = _Found(topic_at, topic_end, times, topic_end + 12, key_end, key_end + 4, stops, routes)
    if good.all():
        return found, np.zeros(0, np.intp)
    return found.picked(np.flatnonzero(good)), np.flatnonzero(~good)


def _kept(places: Longs, good: npt.NDArray[np.bool_]) -> Longs:
    """Return places that may be read: of what is not good already, any."""
    return np.where(good, places, 0)


def _by_topic(data: bytes, found: _Found) -> list[tuple[bytes, _Found]]:
    sizes = found.topic_end - found.topic_at
    first = data[int(found.topic_at[0]) : int(found.topic_end[0])]
    if (sizes == len(first)).all():
        names = np.ndarray((len(data) - len(first) + 1,), f"V{len(first)}", data, 0, (1,))
        if (names[found.topic_at] == np.void(first)).all():
            return [(first, found)]
    encoded = _slices(data, found.topic_at, found.topic_end).dictionary_encode()
    codes = np.asarray(encoded.indices)
    order, edges = _sorted(codes)
    topics, found = encoded.dictionary.to_pylist(), found.picked(order)
    return [
        (topics[code], found.between(at, end))
        for code, (at, end) in zip(codes[order[edges[:-1]]].tolist(), pairwise(edges), strict=True)
    ]


def _group(data: bytes, topic: bytes, found: _Found, now_ms: int) -> Group:
    if len(found.stops) <= SMALL:
        columns = zip(*(column.tolist() for column in found[2:]), strict=True)
        listed = [
            _Message(topic, time_ms, data[key_at:key_end], data[value_at:stop], route if route >= 0 else None)
            for time_ms, key_at, key_end, value_at, stop, route in columns
        ]
        return _listed(topic, listed, now_ms)
    return _wide(data, topic, found, now_ms)


def _wide(data: bytes, topic: bytes, found: _Found, now_ms: int) -> Group:
    count, times = len(found.stops), found.times_ms
    bodies = _slices(data, found.value_at, found.stops)
    columns: dict[str, Column] = {"event_time": _event_times(times, now_ms)}
    if (found.key_end > found.key_at).any():
        columns["key"] = _slices(data, found.key_at, found.key_end, nulls=True)
    if (found.routes >= 0).any():
        columns["route"] = pa.array(found.routes, mask=found.routes < 0)
    _, edges, body = bodies.buffers()
    cuts = np.frombuffer(edges, np.int32, count + 1)
    return Group(topic, Rows(count, cuts, body or b"", SOURCE, columns), times)


def _event_times(times_ms: Longs, now_ms: int) -> pa.Array:
    return pa.array(np.clip(times_ms, _MS_MIN, now_ms) * _NS)


def _slices(data: bytes, starts: Longs, stops: Longs, *, nulls: bool = False) -> pa.Array:
    """Return pieces of bytes as an Arrow column, null where empty if asked; they are in order and do not overlap."""
    count = len(starts)
    edges = np.empty(2 * count, np.int32)
    edges[::2], edges[1::2] = starts, stops
    gaps = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    picks = np.arange(0, 2 * count, 2, dtype=np.int32)
    return gaps.take(pa.array(picks, mask=starts == stops if nulls else None))
