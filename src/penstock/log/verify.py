"""A check of everything a data directory holds, beside a running node or without one.

Owns what counts as a finding. Writes nothing. Invariant: every batch of every file that is in use is read and its
CRC checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from penstock.disk import Disk
from penstock.errors import CorruptionError
from penstock.log import journal, label, manifest, state
from penstock.log.index import Index
from penstock.log.manifest import DATA_SUFFIX, INDEX_SUFFIX, Damage, Manifest, SegmentInfo
from penstock.log.reader import Reader, ReadOnlyDisk
from penstock.log.segment import SCHEMA_BYTES_MAX, Segment, head_of


class SegmentReport(msgspec.Struct, kw_only=True):
    """What one segment holds."""

    name: str
    sealed: bool
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    bad: list[Damage] = []
    #: The index file agrees with the data; it can be rebuilt if not.
    index_good: bool = True
    #: Bytes at the end that are not a whole batch: normal beside a running node and after a crash.
    tail_bytes: int = 0


class JournalReport(msgspec.Struct, kw_only=True):
    """What one journal holds."""

    name: str
    entries: int
    bytes: int
    tail_bytes: int


class ShardReport(msgspec.Struct, kw_only=True):
    """What one shard's directory holds."""

    directory: str
    segments: list[SegmentReport] = []
    journals: list[JournalReport] = []
    #: Findings beside bad batches: a missing file, an unreadable manifest.
    problems: list[str] = []

    @property
    def good(self) -> bool:
        """Whether everything that was promised can be read."""
        return not self.problems and not any(segment.bad for segment in self.segments)


class Report(msgspec.Struct, kw_only=True):
    """What was found below a directory."""

    shards: list[ShardReport] = []

    @property
    def good(self) -> bool:
        """Whether all shards are good."""
        return all(shard.good for shard in self.shards)

    @property
    def rows(self) -> int:
        """How many rows can be read."""
        return sum(segment.rows for shard in self.shards for segment in shard.segments)


def verify(directory: str) -> Report:
    """Check every shard at or below a directory."""
    return Report(shards=[verify_shard(ReadOnlyDisk(), found) for found in shards_below(directory)])


def shards_below(directory: str) -> Iterator[str]:
    """Yield the directories that are shards, in order."""
    for place, names, files in os.walk(directory):
        names.sort()
        if label.CACHED in files:
            names.clear()
            continue
        if manifest.FILE in files or state.FILE in files:
            names.clear()
            yield place


def verify_shard(disk: Disk, directory: str) -> ShardReport:
    """Check one shard."""
    report = ShardReport(directory=directory)
    try:
        found = manifest.load(disk, directory)
    except CorruptionError as error:
        report.problems.append(str(error))
        found = None
    if not state.StateFile(disk, directory).found:
        report.problems.append(f"{os.path.join(directory, state.FILE)} is missing or unreadable")
    listed = found.segments if found is not None else []
    for info in listed:
        report.segments.append(_listed(disk, directory, info, report))
    for first, generation in _unlisted(disk, directory, found):
        report.segments.append(_segment(Segment(disk, directory, first, generation, ()), None))
    for name in disk.list(directory):
        if name.endswith(journal.SUFFIX):
            report.journals.append(_journal(disk, directory, name, report))
    return report


def _listed(disk: Disk, directory: str, info: SegmentInfo, report: ShardReport) -> SegmentReport:
    segment = Segment.of(disk, directory, info)
    if not disk.exists(segment.path()):
        if not info.holes:
            report.problems.append(f"{segment.path()} is missing")
        return SegmentReport(name=os.path.basename(segment.path()), sealed=info.sealed, bad=list(info.holes))
    return _segment(segment, info)


def _segment(segment: Segment, info: SegmentInfo | None) -> SegmentReport:
    size = _size(segment)
    sealed = info is not None and info.sealed
    report = SegmentReport(name=os.path.basename(segment.path()), sealed=sealed, bytes=size)
    known, whole = _index(segment)
    if info is not None and sealed and info.bytes < size:  # after a failed sync a file may go on after its end
        size = info.bytes
        known.cut(info.batches)
    end = known[len(known) - 1] if len(known) else None
    indexed_bytes = size if sealed else (end.position + end.length if end is not None else 0)
    # What is on the shared log was told to be kept, all of it.
    promised = size if segment.disk.is_shared else indexed_bytes
    try:
        head = head_of(segment.read(0, SCHEMA_BYTES_MAX), segment.path())
    except CorruptionError as error:
        if not promised and (info is None or not info.batches):
            report.tail_bytes = size  # just made: the node, or a kill, is between the file and its first row
            return report
        last = info.end if info is not None else segment.first
        report.bad.append(Damage(segment.first, last, str(error)))
        return report
    scan = Segment(segment.disk, segment.directory, segment.first, segment.generation, head.columns).scanned(
        size, promised, known
    )
    report.batches = len(scan.index)
    report.rows = sum(scan.index.counts)
    report.bad = scan.holes
    report.tail_bytes = size - scan.good_bytes - (8 if scan.ended else 0)
    indexed = {known[number] for number in range(len(known))}
    stored = {scan.index[number] for number in range(len(scan.index))}
    missing = [entry for entry in stored - indexed if entry.position < indexed_bytes]
    # Entries of damaged batches are right: they say what is lost. A growing file's index is sent now and then.
    whole = whole or (segment.disk.is_shared and not sealed)
    report.index_good = whole and not missing and (bool(scan.holes) or indexed <= stored)
    return report


def _size(segment: Segment) -> int:
    file = segment.disk.open(segment.path())
    try:
        return file.size()
    finally:
        file.close()


def _index(segment: Segment) -> tuple[Index, bool]:
    try:
        file = segment.disk.open(segment.path(INDEX_SUFFIX))
    except FileNotFoundError:
        return Index(), False
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    index, whole = Index.decoded(data)
    return (index, True) if whole else (Index.salvaged(data), False)


def _unlisted(disk: Disk, directory: str, found: Manifest | None) -> list[tuple[int, int]]:
    """Return the segments that a manifest does not name yet: the newest, or all if it is unreadable."""
    listed = {info.first for info in found.segments} if found is not None else set()
    newest: dict[int, int] = {}
    for name in disk.list(directory):
        parsed = manifest.parsed(name)
        if parsed is None or parsed[2] != DATA_SUFFIX or parsed[0] in listed:
            continue
        if found is None or parsed[0] >= found.end:
            newest[parsed[0]] = max(newest.get(parsed[0], 0), parsed[1])
    return sorted(newest.items())


def _journal(disk: Disk, directory: str, name: str, report: ShardReport) -> JournalReport:
    file = disk.open(os.path.join(directory, name))
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    entries, good, _ = journal.recovered(data)
    if entries is None:
        return JournalReport(name=name, entries=0, bytes=len(data), tail_bytes=len(data))
    return JournalReport(name=name, entries=len(entries), bytes=len(data), tail_bytes=len(data) - good)


def dump(reader: Reader, start: int = 0, end: int | None = None) -> Iterator[dict[str, object]]:
    """Yield the rows of a shard one by one as mappings, for people."""
    for batch in reader.batches(start, end):
        yield from batch.to_pylist()


def cat(reader: Reader, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the bodies of a shard one by one."""
    for batch in reader.batches(start, end, ("offset", "body")):
        yield from batch.column(1).to_pylist()
