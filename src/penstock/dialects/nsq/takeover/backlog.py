"""What a topic of nsqd's has not handed out: one row per message, whichever channels still have a copy of it.

Owns the matching of copies: the same id, time and length in several queues is one message. Knows nothing of nodes.
Invariant: every whole record of every queue is in exactly one message, and a message has at most one record of each
queue; so nothing is lost and nothing becomes more, whatever ids say.

Memory: about 300 bytes a record while copies are matched, 80 after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.columns import SMALL, Column, Offsets
from penstock.dialects.nsq.codec import SOURCE
from penstock.dialects.nsq.takeover import diskqueue
from penstock.dialects.nsq.takeover.diskqueue import HEADER_AT, JSON, TAG, Data, Mask
from penstock.dialects.nsq.takeover.queues import Problem, Topic, mapped
from penstock.filters.header import TAG as TAG_NAME
from penstock.filters.header import members_of
from penstock.message import Rows, shaped

#: A batch is one append: the sizes that intake gathers up to.
BATCH_ROWS_MAX = 8 * 1024
BATCH_BYTES_MAX = 4 << 20

#: The queue of messages that a topic gave to no channel yet.
OWN = 0

Words = npt.NDArray[np.uint64]

_RECORD = np.dtype(
    [
        ("file", "u4"),
        ("queue", "u2"),
        ("attempts", "u2"),
        ("raw", "?"),
        ("version", "u1"),
        ("start", "i8"),
        ("body", "i8"),
        ("end", "i8"),
        ("time", "i8"),
        ("high", "u8"),
        ("low", "u8"),
    ]
)
Records = npt.NDArray[np.void]


class Copies(NamedTuple):
    """What one channel has of a batch: which rows, and how often it handed each out."""

    unread: Mask
    attempts: Offsets


class Backlog:
    """The messages of one topic that are unread somewhere, those of channels first, each part oldest first."""

    def __init__(self, topic: Topic) -> None:
        self.problems: list[Problem] = []
        self.channels = sorted({*topic.channels, *(queue.channel for queue in topic.queues if queue.channel)})
        self._data: list[Data] = []
        parts = [np.empty(0, _RECORD)]
        for queue in topic.queues:
            number = OWN if queue.channel is None else 1 + self.channels.index(queue.channel)
            parts += [self._records(piece.path, piece.start, number) for piece in queue.pieces]
        self._records_of = _ordered(np.concatenate(parts))
        del parts
        self._match()

    def _records(self, path: str, start: int, queue: int) -> Records:
        data = mapped(path)
        found = diskqueue.scan(data, start, len(data))
        if found.damage is not None:
            self.problems.append(Problem(path, *found.damage))
        heads = diskqueue.heads(data, found.starts, found.lengths)
        if heads.bad.any():
            first = int(found.starts[heads.bad][0]) - 4
            count = int(heads.bad.sum())
            others = f", and {count - 1} others in this file" if count > 1 else ""
            self.problems.append(Problem(path, first, f"the record is none of nsqd's{others}"))
        records = np.empty(len(found.starts), _RECORD)
        records["file"], records["queue"] = len(self._data), queue
        records["attempts"], records["raw"], records["version"] = heads.attempts, heads.raw, heads.version
        records["start"], records["body"] = found.starts, heads.body_starts
        records["end"], records["time"] = found.starts + found.lengths, heads.time_ns
        records["high"], records["low"] = heads.id_high, heads.id_low
        self._data.append(data)
        return records[~heads.bad]

    def _match(self) -> None:
        """Number the messages behind the records."""
        records = self._records_of
        same = np.zeros(len(records), np.bool_)
        if len(records):
            same[1:] = _alike(records, "time", "high", "low") & (np.diff(_lengths(records)) == 0)
        # A queue that has a record twice has two messages: the second goes with the second ones of other queues.
        twin = same.copy()
        twin[1:] &= records["queue"][1:] == records["queue"][:-1]
        at = np.arange(len(records))
        nth = at - np.maximum.accumulate(np.where(twin, 0, at))
        group = np.cumsum(~same)
        order = np.lexsort((nth, group)) if nth.any() else at
        records, group, nth = records[order], group[order], nth[order]
        new = np.ones(len(records), np.bool_)
        new[1:] = (np.diff(group) != 0) | (np.diff(nth) != 0)
        message = np.cumsum(new) - 1
        #: One record of each message, and the number of its message for each record.
        firsts = np.flatnonzero(new)
        own = np.zeros(len(firsts), np.bool_)
        own[message[records["queue"] == OWN]] = True
        # What the topic itself still has comes last, as it would in nsqd: a paused topic holds back just that.
        places = np.argsort(own, kind="stable")
        rank = np.empty(len(places), np.int64)
        rank[places] = np.arange(len(places))
        back = np.argsort(rank[message], kind="stable")
        self._records_of, self._message = records[back], rank[message][back]
        self._firsts = np.searchsorted(self._message, np.arange(len(places)))
        self.own_from = int((~own).sum())
        self.keys = _keys(self._records_of[self._firsts], nth[firsts][places])

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._firsts)

    def unread(self) -> dict[str | None, int]:
        """Return the number of records in each channel, and in the topic itself (None)."""
        counts = np.bincount(self._records_of["queue"], minlength=1 + len(self.channels)).tolist()
        return dict(zip((None, *self.channels), counts, strict=True))

    @property
    def extended(self) -> int:
        """Messages that carry a header or a tag."""
        return int((self._records_of["version"][self._firsts] != 0).sum())

    def batches(self, wanted: Mask) -> Iterator[Offsets]:
        """Yield the wanted messages, some thousands at a time, a batch on one side of `own_from`."""
        picked = np.flatnonzero(wanted)
        records = self._records_of[self._firsts[picked]]
        ends = np.cumsum(_lengths(records))
        own = int(np.searchsorted(picked, self.own_from))
        at = 0
        while at < len(picked):
            low = int(ends[at - 1]) if at else 0
            fits = int(np.searchsorted(ends, low + BATCH_BYTES_MAX, side="right"))
            stop = min(max(fits, at + 1), at + BATCH_ROWS_MAX, own if at < own else len(picked))
            yield picked[at:stop]
            at = stop

    def rows(self, picked: Offsets) -> Rows:
        """Return messages as rows; their times are the producers', nsqd's ids are not kept."""
        records = self._records_of[self._firsts[picked]]
        sizes = records["end"] - records["body"]
        cuts = np.zeros(len(picked) + 1, np.int32)
        np.cumsum(sizes, out=cuts[1:])
        body = b"".join(self._slices(records, records["body"], records["end"]))
        columns: dict[str, Column] = {"event_time": records["time"].tolist()}
        traces = np.where(records["raw"], records["low"], 0).astype(np.int64)
        if traces.any():
            columns["trace"] = [trace or None for trace in traces.tolist()]
        columns |= self._headers(records)
        return Rows(
            len(picked),
            cuts.tolist() if len(picked) <= SMALL else cuts,
            body,
            SOURCE,
            {name: shaped(values, len(picked), name) for name, values in columns.items()},
            # The same messages are the same batch, however often and from wherever they are brought.
            b"nsq:" + blake2b(self.keys[picked].tobytes(), digest_size=16).digest(),
        )

    def copies(self, picked: Offsets) -> list[Copies]:
        """Return what each channel has of these messages; what the topic itself has is unread in all of them."""
        low, high = np.searchsorted(self._message, (picked[0], picked[-1] + 1))
        message, records = self._message[low:high], self._records_of[low:high]
        row = np.minimum(np.searchsorted(picked, message), len(picked) - 1)
        known = picked[row] == message
        copies = []
        for queue in range(1, 1 + len(self.channels)):
            mine = known & (records["queue"] == queue)
            unread = picked >= self.own_from
            unread[row[mine]] = True
            attempts = np.zeros(len(picked), np.int64)
            attempts[row[mine]] = np.minimum(records["attempts"][mine], diskqueue.ATTEMPTS_MAX)
            copies.append(Copies(unread, attempts))
        return copies

    def _slices(self, records: Records, starts: Offsets, ends: Offsets) -> list[Data]:
        data = self._data
        places = zip(records["file"].tolist(), starts.tolist(), ends.tolist(), strict=True)
        return [data[file][start:end] for file, start, end in places]

    def _headers(self, records: Records) -> dict[str, Column]:
        """Return the header and tag columns where any row has one; a header that is no object is left out."""
        rows = np.flatnonzero(records["version"])
        headers: list[bytes | None] = [None] * len(records)
        tags: list[str | None] = [None] * len(records)
        some = records[rows]
        read: dict[bytes, str | bool] = {}
        contents = self._slices(some, some["start"] + HEADER_AT, some["body"])
        for row, version, content in zip(rows.tolist(), some["version"].tolist(), map(bytes, contents), strict=True):
            if version == TAG:
                tags[row] = content.decode("utf-8", "replace") or None
            elif version == JSON:
                tag = read.get(content)
                if tag is None:
                    members = members_of(content)
                    tag = read[content] = False if members is None else members.get(TAG_NAME, "")
                if tag is not False:
                    headers[row] = content
                    tags[row] = str(tag) or None
        columns: Sequence[tuple[str, Column]] = (("headers", headers), ("tag", tags))
        return {name: values for name, values in columns if any(values)}


def _lengths(records: Records) -> Offsets:
    lengths: Offsets = records["end"] - records["start"]
    return lengths


def _ordered(records: Records) -> Records:
    """Return records by time; the copies of a message side by side, by queue, each queue in its own order."""
    order = np.lexsort((records["queue"], _lengths(records), records["low"], records["high"], records["time"]))
    ordered: Records = records[order]
    return ordered


def _alike(records: Records, *names: str) -> Mask:
    alike: Mask = np.logical_and.reduce([records[name][1:] == records[name][:-1] for name in names])
    return alike


def _keys(records: Records, nth: Offsets) -> Words:
    """Return two words a message that tell it from all others, the same for the same message everywhere."""
    rest = _lengths(records).astype(np.uint64) << np.uint64(32) | nth.astype(np.uint64)
    words = (records["high"], records["low"], records["time"].astype(np.uint64), rest)
    keys = np.empty((len(records), 2), np.uint64)
    for side in range(2):
        mixed = np.full(len(records), side + 1, np.uint64)
        for word in words:
            mixed = _mixed(mixed ^ word)
        keys[:, side] = mixed
    return keys


def _mixed(words: Words) -> Words:
    """Spread every bit of a word over the whole of it (the finaliser of splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
