"""What a new owner reads: all of a state partition, the end of the log's, and later what somebody asks for.

Owns the order of reading and the checks of what is there. Writes to local files alone.
Invariant: what it leaves is what the last owner had synced, or it raises.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import CorruptionError
from penstock.log.kafka.files import Files, Node, Replay, is_segment
from penstock.log.kafka.record import is_ours, piece_of
from penstock.log.kafka.store import AwayError, GoneError, Partition, Store, Stored

if TYPE_CHECKING:
    from penstock.log.kafka.disk import CacheDisk

#: An earlier owner's last cut may come between a look at the bounds and the read; more often it is no such thing.
TRIES = 5

Patch = Callable[[int, bytes], None]

_log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """What a shard's partitions hold."""

    files: Files
    #: Nothing was ever written there.
    is_new: bool
    #: Bytes of the state partition since its last checkpoint.
    bytes: int
    #: Behind the last record of the log's partition.
    log_end: int
    #: Ranges of segments' bytes that were not read, by file.
    missing: dict[str, list[tuple[int, int]]]


def load_part(store: Store, state: Partition, log: Partition, local: CacheDisk, root: str) -> Loaded:
    """Read a shard's partitions, and put its files on the local disk; blocking."""
    files, is_new, size = replayed(store, state)
    start, end = store.bounds(log)
    if is_new and any(is_ours(stored, _shown(log)) for stored in store.read(log, start, end)):
        raise CorruptionError(
            f"{_shown(log)} has records, and {_shown(state)}, which tells what they are, has none: somebody deleted "
            "them. Restore them from a copy."
        )
    if start > files.until:
        raise CorruptionError(
            f"{_shown(log)} begins at {start}, and what was written from {files.until} on is needed: somebody deleted "
            "records or set a retention there. Restore the topic from a copy, or delete it in Penstock."
        )
    for name in files.directories:
        local.make(os.path.join(root, name))
    for name in files.names:
        local.make(os.path.join(root, os.path.dirname(name)))
    read = _tail(store, log, files.until, end, files, local, root)
    files.forget_nameless()
    missing = {}
    for name, number in files.names.items():
        node = files.nodes[number]
        file = local.open(os.path.join(root, name), create=True)
        try:
            if is_segment(name):
                _check_whole(node, name, log, start)
                file.truncate(node.size)
                missing[number] = _unread(node.size, read.get(number, []))
            elif node.content:
                file.append([bytes(node.content)])
        finally:
            file.close()
    return Loaded(files, is_new, size, end, missing)


def replayed(store: Store, state: Partition) -> tuple[Files, bool, int]:
    """Return what a state partition tells, whether that is nothing, and its bytes since the last checkpoint."""
    for left in reversed(range(TRIES)):
        start, end = store.bounds(state)
        replay = Replay(_shown(state))
        try:
            for stored in store.read(state, start, end):
                if is_ours(stored, _shown(state)):
                    replay.take(stored)
        except GoneError:
            if not left:
                raise
            continue
        if replay.files is None and start > 0:
            raise CorruptionError(
                f"the first {start} records of {_shown(state)} were removed, and what is left tells nothing: somebody "
                "deleted records or set a retention there. Restore the topic from a copy."
            )
        # A first checkpoint that did not come to its end was promised to nobody.
        return replay.files or Files(), replay.files is None, replay.bytes
    raise AssertionError("unreachable")


def _tail(
    store: Store, log: Partition, start: int, end: int, files: Files, local: CacheDisk, root: str
) -> dict[str, list[tuple[int, int]]]:
    """Take in the records that no note tells of; return which bytes of which file are on the local disk now."""
    read: dict[str, list[tuple[int, int]]] = {}
    names = {number: name for name, number in files.names.items()}
    if start >= end:
        return read
    for stored in store.read(log, start, end):
        if not is_ours(stored, _shown(log)):
            continue
        piece = piece_of(stored, _shown(log))
        if not files.read(piece, stored.offset):
            continue  # it never got a name, or was removed
        ranges = read.setdefault(piece.file, [])
        if piece.is_cut:
            ranges[:] = [(low, min(high, piece.at)) for low, high in ranges if low < piece.at]
            continue
        _warn_damaged(piece.intact, log, stored.offset)
        if piece.file in names:
            local.patch(os.path.join(root, names[piece.file]), piece.at, piece.data)
            ranges.append((piece.at, piece.at + len(piece.data)))
    return read


def _check_whole(node: Node, name: str, log: Partition, start: int) -> None:
    at = 0
    for extent in node.extents:
        if extent.at != at:
            raise CorruptionError(f"{_shown(log)} lacks bytes {at} to {extent.at - 1} of {name}")
        at = extent.end
    if node.extents and node.extents[0].first < start:
        raise CorruptionError(
            f"{_shown(log)} begins at {start}, and bytes of {name} were at {node.extents[0].first}: somebody deleted "
            "records or set a retention there. Restore the topic from a copy, or delete it in Penstock."
        )


def _unread(size: int, read: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of a file that are not among these."""
    at = 0
    missing = []
    for low, high in sorted(read):
        if low > at:
            missing.append((at, low))
        at = max(at, high)
    if at < size:
        missing.append((at, size))
    return missing


def fetch(
    store: Store, log: Partition, node: Node, within: tuple[int, int], start: int, stop: int, patch: Patch
) -> tuple[int, int]:
    """Read bytes of a segment from Kafka and hand them on; return the range that came: wider, but `within`. Blocking.

    What somebody removed or damaged there reads as zeros, or as it is: the log sees that its rows are not intact.
    """
    extents = list(node.extents)
    begins = [extent.at for extent in extents]
    chosen = extents[max(0, bisect_right(begins, start) - 1) : max(1, bisect_right(begins, stop - 1))]
    firsts = [extent.first for extent in chosen]
    low, high = max(within[0], chosen[0].at), min(within[1], chosen[-1].end)
    try:
        for stored in _kept(store, log, firsts[0], chosen[-1].last + 1):
            if not is_ours(stored, _shown(log)):
                continue
            piece = piece_of(stored, _shown(log))
            extent = chosen[max(0, bisect_right(firsts, stored.offset) - 1)]
            if piece.file != node.id or piece.is_cut or stored.offset > extent.last:
                continue
            _warn_damaged(piece.intact, log, stored.offset)
            begin, end = max(low, piece.at), min(high, extent.end, piece.at + len(piece.data))
            if begin < end:
                patch(begin, piece.data[begin - piece.at : end - piece.at])
    except GoneError as error:
        _log.error("bytes %s to %s of a segment are gone: %s", start, stop, error)
    return low, high


def _kept(store: Store, log: Partition, start: int, end: int) -> Iterator[Stored]:
    """Yield records; without those before the first that is kept, but only where it is sure that there are none."""
    while start < end:
        try:
            for stored in store.read(log, start, end):
                start = stored.offset + 1
                yield stored
            return
        except GoneError as error:  # which a broker also says that has just become the leader, or not heard yet
            first, _ = store.bounds(log)
            if first <= start:
                text = f"{_shown(log)} has records from {first} on, and did not show {start}"
                raise AwayError(f"{text}: {error}") from error
            _log.error("records %s to %s of %s are gone: %s", start, min(first, end) - 1, _shown(log), error)
            start = first


def _warn_damaged(intact: bool, log: Partition, offset: int) -> None:
    if not intact:
        _log.error("%s: the CRC of the record at %s is wrong; its rows may be damaged", _shown(log), offset)


def _shown(partition: Partition) -> str:
    return f"partition {partition.number} of {partition.topic} in Kafka"
