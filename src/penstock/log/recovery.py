"""Start of a shard: from the files a stopped, killed or powered-off process left to a log that can go on.

Owns the order in which manifest, state, index and data are believed. Knows nothing of caches or callbacks.
Invariant: no damaged row is ever counted readable, and no offset that may have been given out is given out again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from penstock.columns import BASE_COLUMNS
from penstock.disk import Disk
from penstock.errors import CorruptionError
from penstock.log import manifest as manifests
from penstock.log.frame import schema_of
from penstock.log.index import ENTRY_BYTES, Index
from penstock.log.manifest import DATA_SUFFIX, INDEX_SUFFIX, NEW_SUFFIX, Damage, Manifest
from penstock.log.scan import Scan
from penstock.log.segment import SCHEMA_BYTES_MAX, Segment, decoder_of, head_of
from penstock.log.state import State
from penstock.log.weight import Measures, edges

#: Bytes of a suspect file that are copied at a time.
COPY_BYTES = 8 << 20


class Recovered:
    """What a shard begins with."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.open: Segment | None = None
        #: Everything that was stored from here on is kept.
        self.start = 0
        self.end = 0
        self.weight = 0
        self.cut_bytes = 0
        self.damaged: list[Damage] = []
        #: What the manifest says, without its check; None where there is none that can be read and checked.
        self.manifest: Manifest | None = None
        #: Files that nothing refers to any more; a reader may still have them open.
        self.stale: list[str] = []
        #: Rows may have been given out that are gone: the next offset must come from beyond the reserved block.
        self.jump = False


def recover(
    disk: Disk, directory: str, state: State, *, measures: Measures, before_jump: Callable[[], None]
) -> Recovered:
    """Return the shard's segments, scanned where they were not sealed.

    `measures` say what its rows weigh.
    `before_jump` writes down that offsets are used up, before the bytes that tell so are cut: the process may die then.
    """
    return _Recovery(disk, directory, state, measures, before_jump).run()


def close_open(found: Recovered) -> None:
    """End the segment that recovery left open: a segment has no holes, and the next row leaves one."""
    segment = found.open
    if segment is None:
        return
    segment.finish()
    make_safe(segment)
    segment.close()
    segment.sealed, segment.synced_bytes = True, segment.bytes
    found.segments.append(segment)
    found.open = None


def make_safe(segment: Segment, *, suspect: bool = False) -> None:
    """Return once a segment's bytes are on the disk; where a sync failed, now or before, as a new file."""
    if not suspect:
        try:
            segment.sync()
            return
        except OSError:  # told once: the next sync would succeed, whatever was lost
            pass
    path = segment.path()
    copy = segment.disk.open(path + NEW_SUFFIX, create=True)
    try:
        copy.truncate(0)
        for position in range(0, segment.bytes, COPY_BYTES):
            copy.append([segment.read(position, min(COPY_BYTES, segment.bytes - position))])
        copy.sync()
    finally:
        copy.close()
    segment.disk.rename(path + NEW_SUFFIX, path)
    segment.disk.sync_directory(segment.directory)
    if segment.file is not None:
        segment.file.close()
    segment.file, segment.named = segment.disk.open(path), True


class _Recovery:
    def __init__(
        self, disk: Disk, directory: str, state: State, measures: Measures, before_jump: Callable[[], None]
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.state = state
        self.measures = measures
        self.before_jump = before_jump
        # As they were: the state changes on the way.
        self.clean = state.clean
        #: The machine did not restart, so files hold what was written to them, unless somebody damaged them.
        self.written = state.clean or (state.boot != "" and state.boot == disk.boot_id())
        self.found = Recovered()
        self.lost_manifest = False
        self.manifest = self.load_manifest()
        self.listed = {info.first: info for info in self.manifest.segments}

    def run(self) -> Recovered:
        found, manifest = self.found, self.manifest
        files = self.files()
        found.end, found.weight = manifest.end, manifest.weight
        for info in manifest.segments:
            if info.sealed:
                segment = Segment.of(self.disk, self.directory, info)
                self.check_presence(segment, files)
                found.segments.append(segment)
                found.end = max(found.end, info.end)
            elif info.first not in files:
                self.miss(Segment.of(self.disk, self.directory, info))
        tail = sorted(first for first in files if first >= found.end)
        for number, first in enumerate(tail):
            if first < found.end:  # written again after a failed sync, when what it was made from was not lost at all
                self.set_aside(first, files[first])
                continue
            if not self.take(first, files[first], last=first == tail[-1]):
                for later in tail[number + 1 :]:
                    self.discard(later, files[later])
                break
        found.start = manifest.start
        for segment in found.segments:
            found.damaged += segment.holes
            if segment.sparse:  # the manifest knows that as well, unless it is lost
                found.start = max(found.start, segment.end)
        # Whoever wrote the state gave out offsets that only the manifest would tell; a `memory` topic writes none.
        found.jump = found.jump or (self.lost_manifest and self.state.reserved_end > 0)
        return found

    def load_manifest(self) -> Manifest:
        try:
            found = manifests.load(self.disk, self.directory)
        except CorruptionError:
            found = None
        # It can be rebuilt: every segment is then scanned as if it had not been sealed.
        self.lost_manifest = found is None
        if found is not None and found.check:
            self.found.manifest = msgspec.structs.replace(found, check="")
        return found or Manifest()

    def files(self) -> dict[int, int]:
        """Return the generation in use of each data file; everything else of ours becomes stale."""
        listed = {first: info.generation for first, info in self.listed.items()}
        present: dict[int, list[int]] = {}
        names = self.disk.list(self.directory)
        for name in names:
            if name.endswith(NEW_SUFFIX):
                self.disk.remove(os.path.join(self.directory, name))
            parsed = manifests.parsed(name)
            if parsed and parsed[2] == DATA_SUFFIX:
                present.setdefault(parsed[0], []).append(parsed[1])
        used = {
            first: listed.get(first, max(generations))
            for first, generations in present.items()
            if first in listed or first >= self.manifest.end
        }
        used = {first: generation for first, generation in used.items() if generation in present[first]}
        for name in names:
            parsed = manifests.parsed(name)
            if parsed and used.get(parsed[0]) != parsed[1]:
                self.found.stale.append(os.path.join(self.directory, name))
        return used

    def check_presence(self, segment: Segment, files: dict[int, int]) -> None:
        if segment.first not in files:
            segment.holes = [Damage(segment.first, segment.end, "the file is missing")]
            segment.bytes = segment.batches = 0
            segment.sparse = False
            segment.index = Index()

    def miss(self, segment: Segment) -> None:
        """Take note of an open segment whose file is gone, if rows were in it."""
        known = self.known_of(segment)
        end = self.promised(segment.first, known)
        if end > segment.first:
            self.lose(segment, end, "the file is missing")
        elif len(known) or segment.end > segment.first:
            self.jump()

    def lose(self, segment: Segment, end: int, reason: str) -> None:
        """Go on behind a segment of which nothing can be read; what is left of it stays where it is."""
        segment.end = max(segment.first, end)
        segment.holes = [Damage(segment.first, segment.end, reason)]
        segment.bytes = segment.batches = 0
        segment.index, segment.sealed, segment.sparse = Index(), True, False
        self.jump()
        self.found.end = max(self.found.end, segment.end)
        self.found.segments.append(segment)

    def promised(self, first: int, known: Index) -> int:
        """Return the offset up to which rows of a segment must be there: they were synced, or no machine restarted."""
        if self.written or self.state.synced_segment > first:
            info = self.listed.get(first)
            return max(first, known[len(known) - 1].end if len(known) else 0, info.end if info is not None else 0)
        if self.state.synced_segment == first:
            entries = (known[number] for number in range(len(known)))
            safe = (entry for entry in entries if entry.position + entry.length <= self.state.synced_position)
            return max((entry.end for entry in safe), default=first)
        return first

    def take(self, first: int, generation: int, *, last: bool) -> bool:
        """Scan one segment that was not sealed; False if the log is cut in it."""
        segment, size, known = self.opened(first, generation)
        state, promised = self.state, self.promised(first, known)
        # The next one was begun when this one was whole.
        whole = self.clean or self.disk.is_shared or state.synced_segment > first or (self.written and not last)
        synced = size if whole else 0
        if state.synced_segment == first and not self.clean:
            synced = max(synced, state.synced_position)
        broken = ""
        try:
            columns, start, compression, sparse = head_of(segment.read(0, SCHEMA_BYTES_MAX), segment.path())
        except CorruptionError as error:
            info, broken = self.listed.get(first), str(error)
            if info is None or not size:
                return self.schema_lost(segment, size, promised, synced, known, broken)
            # The manifest knows the columns too; the rewrite of the segment will heal its schema.
            columns, compression, sparse = tuple(info.columns), info.compression, info.sparse
            start = known.positions[0] if len(known) else len(schema_of(columns, sparse=sparse).serialize())
        open_file = segment.file
        segment = Segment(self.disk, self.directory, first, generation, columns)
        segment.file, segment.compression, segment.sparse = open_file, compression, sparse
        # What is elsewhere need not come here for this. Which rows are due when, only a look at all of them tells.
        quick = self.disk.is_shared and not sparse and not broken and "due" not in columns
        trusted = known.leading(first, start, size) if quick else None
        scan = segment.scanned(size, synced, known, start, written=self.written, trusted=trusted)
        if trusted is not None and len(trusted) > 1:
            scan.used.update(columns)
            scan.sequences = scan.sequences or state.sequenced_segment == first
        if scan.end < promised:
            scan.holes.append(Damage(scan.end, promised, scan.cut_reason or "the file ends before them"))
            scan.end = promised
        if broken and len(scan.index):
            scan.holes.insert(0, Damage(first, first, broken))
        cut = bool(scan.cut_reason)
        # Also where it looks torn: a bit that flipped in a length makes a whole batch look so; its offsets are used.
        jump = scan.lost or cut
        if jump:
            self.jump()
        self.adopt(segment, scan, known, size)
        if not segment.batches and not segment.holes:
            segment.close()
            self.remove(segment)
            return not cut
        goes_on = (last or cut) and not (scan.ended or scan.holes or scan.lost or jump or sparse)
        if goes_on:
            self.make_safe(segment)
            segment.synced_bytes = segment.bytes
            self.found.open = segment
        else:
            self.close(segment, scan)
        return not cut

    def opened(self, first: int, generation: int) -> tuple[Segment, int, Index]:
        segment = Segment(self.disk, self.directory, first, generation, ("offset", "timestamp", "body", "source"))
        segment.file = self.disk.open(segment.path())
        return segment, segment.file.size(), self.known_of(segment)

    def known_of(self, segment: Segment) -> Index:
        """Return what a segment's index file tells."""
        try:
            file = self.disk.open(segment.path(INDEX_SUFFIX))
        except FileNotFoundError:
            return Index()
        try:
            return Index.salvaged(file.read(0, file.size()))
        finally:
            file.close()

    def adopt(self, segment: Segment, scan: Scan, known: Index, size: int) -> None:
        """Give a segment what its scan found, and cut what is not part of the log."""
        segment.index = scan.index
        segment.end = scan.end
        segment.batches = len(scan.index)
        segment.sparse_rows = sum(scan.index.counts)
        segment.holes = scan.holes
        segment.sequences = scan.sequences
        segment.due_max = scan.due_max
        segment.used = scan.used
        segment.weight = self.found.weight if scan.weight is None else scan.weight
        if segment.batches:
            segment.ts_min, segment.ts_max = min(scan.index.ts_min), max(scan.index.ts_max)
        segment.bytes = size
        if scan.cut_reason:
            self.found.cut_bytes += size - scan.good_bytes
            segment.file.truncate(scan.good_bytes)  # type: ignore[union-attr]
            segment.bytes = scan.good_bytes
        if self.disk.is_shared and len(known) and _begins(segment, scan.index, known):
            segment.indexed = len(known)
            segment.write_index(segment.end)
        else:
            segment.replace_index()
        self.found.end = max(self.found.end, scan.end)
        if scan.last is not None:
            data, frame = scan.last
            batch = decoder_of(segment.columns).batch(data, frame)
            self.found.weight = int(edges(batch, self.measures)[-1])

    def close(self, segment: Segment, scan: Scan) -> None:
        if not scan.ended and not scan.holes and not scan.lost:
            segment.finish()
        self.make_safe(segment)
        segment.close()
        segment.synced_bytes = segment.bytes
        segment.sealed = True
        self.found.segments.append(segment)

    def make_safe(self, segment: Segment) -> None:
        make_safe(segment, suspect=self.state.suspect)

    def schema_lost(self, segment: Segment, size: int, promised: int, synced: int, known: Index, reason: str) -> bool:
        """Treat a segment whose first bytes are bad: damage if they were synced, else the end of the log."""
        segment.close()
        if synced == 0 and promised == segment.first:
            self.found.cut_bytes += size
            if may_hold_rows(size, known):
                self.jump()
            self.remove(segment)
            return False
        self.lose(segment, max(promised, known[len(known) - 1].end if len(known) else 0), reason)
        return True

    def set_aside(self, first: int, generation: int) -> None:
        """Forget a file whose rows are in others."""
        segment = Segment(self.disk, self.directory, first, generation, ())
        self.found.stale += [segment.path(), segment.path(INDEX_SUFFIX)]

    def discard(self, first: int, generation: int) -> None:
        """Drop a segment that comes after a cut."""
        segment, size, known = self.opened(first, generation)
        segment.close()
        self.found.cut_bytes += size
        if may_hold_rows(size, known):
            self.jump()
        self.remove(segment)

    def jump(self) -> None:
        """Let the next offset come from beyond the reserved block, also if this start does not come to its end."""
        if not self.found.jump:
            self.before_jump()
            self.found.jump = True

    def remove(self, segment: Segment) -> None:
        self.disk.remove(segment.path())
        self.disk.remove(segment.path(INDEX_SUFFIX))


def _begins(segment: Segment, index: Index, known: Index) -> bool:
    """Tell whether an index file holds the first entries of an index, and nothing else."""
    file = segment.disk.open(segment.path(INDEX_SUFFIX))
    try:
        return file.size() == len(known) * ENTRY_BYTES and file.read(0, file.size()) == index.encoded(0, len(known))
    finally:
        file.close()


def may_hold_rows(size: int, known: Index) -> bool:
    """Tell whether a file that is dropped may have held rows that somebody has seen: then their offsets are used up."""
    return len(known) > 0 or size > len(schema_of(BASE_COLUMNS).serialize())
