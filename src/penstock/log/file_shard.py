"""A shard whose rows are in files: append, read, and what comes around.

Owns the offsets, and the segment that grows. What is in memory, how safe rows are, what goes and what is written down
of its life are the business of its parts. Knows nothing of subscriptions, dialects or the network.
Invariant: an offset names one row for ever; rows below `readable_end` are as safe as the topic's durability says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import numpy as np

from penstock.clock import Clock
from penstock.columns import SMALL, Column, Offsets
from penstock.disk import Disk, TornFileError, is_full
from penstock.errors import Refusal
from penstock.log.due import due_rows
from penstock.log.journal import Journal
from penstock.log.life import Life
from penstock.log.manifest import Damage, Manifest, ManifestWriter, View
from penstock.log.quota import Quota
from penstock.log.read_cache import READ_BYTES, ReadCache
from penstock.log.recovery import Recovered
from penstock.log.refusal import refusal
from penstock.log.safety import Safety
from penstock.log.segment import Segment
from penstock.log.segments import Segments
from penstock.log.shape import shaped_rows
from penstock.log.state import StateFile
from penstock.log.times import first_since, recent
from penstock.log.upkeep import Upkeep
from penstock.log.weight import Measures, weigh
from penstock.message import Batch, Done, Rows
from penstock.settings import HOUR_NS, TopicSettings

#: Bytes after which write-back is started, so that the kernel never stops an append to catch up.
WRITE_BACK_BYTES = 4 << 20
#: A segment that has rows is closed after this long, so that retention by age can work.
SEGMENT_AGE_NS = HOUR_NS


class FileShard:
    """An ordered piece of a topic, on disk."""

    # As attributes of a dict they would take a kilobyte more; a dict is there only once something else is set.
    __slots__ = (
        "__dict__",
        "_cache",
        "_clock",
        "_disk",
        "_life",
        "_manifest",
        "_safety",
        "_segments",
        "_settings",
        "_stopped",
        "_upkeep",
        "cut_bytes",
        "damaged",
        "end",
        "kept_from",
        "last_version",
        "make_room",
        "measure",
        "measures",
        "number",
        "on_readable",
        "on_taken_back",
        "path",
        "readable_end",
        "start",
        "waiting",
        "weight",
    )
    #: Rows dropped because memory was full: none of a shard that has files.
    dropped_rows = 0
    dropped: ClassVar[Counter[str]] = Counter()

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        path: str,
        number: int,
        settings: TopicSettings,
        state: StateFile,
        found: Recovered,
        measures: Measures,
        cache_bytes: int,
        quota: Quota,
    ) -> None:
        self.number, self.path = number, path
        self.end = found.end
        self.weight = found.weight
        #: What its rows weigh, and weighed; the last is that of the next row.
        self.measures: Measures = measures
        self.measure = measures[-1][1]
        self.damaged: list[Damage] = found.damaged
        #: Bytes that recovery cut from the end because they were not whole.
        self.cut_bytes = found.cut_bytes
        #: The highest version that a lease of its rows had in this life, as far as nobody else knows it.
        self.last_version = 0
        self.on_readable: Callable[[], None] = _nothing
        #: Told the offset from which on rows are gone because they could not be synced, before anybody else hears.
        self.on_taken_back: Callable[[int], None] = _kept
        #: Tells which rows of a range of offsets are still waited for; None if all of them may be.
        self.waiting: Callable[[int, int], Offsets | None] = _nobody_waits
        #: Asked to make room for so many bytes where the quota has none; it raises the refusal if it cannot.
        self.make_room: Callable[[int], None] = _full
        self._disk = disk
        self._clock = clock
        self._settings = settings
        self._stopped = False
        self._segments = segments = Segments(found.segments, found.open)
        # Nothing is stored between the last row and a fresh block, so nobody need look there.
        self.readable_end = segments.last.end if segments.last is not None else self.end
        #: Something is stored from here on: before `start` only what subscriptions still wait for.
        self.kept_from = segments.first.first if segments.first is not None else self.end
        #: Everything that was stored from here on is there.
        self.start = segments.first_from(found.start, self.end)
        self._manifest = manifest = ManifestWriter(disk, path, lambda: self._listed().encoded())
        self._life = life = Life(disk, clock, path, state, manifest)
        self._cache = cache = ReadCache(disk, clock, self, segments, cache_bytes)
        self._upkeep = upkeep = Upkeep(disk, clock, self, segments, manifest, cache, quota)
        self._safety = Safety(disk, clock, self, segments, cache.tail, life, manifest, upkeep.rewrites)

    def begin(self, boot: str, found: Recovered) -> None:
        """Write down that the shard is in use, and what it was recovered to; where nothing changed, not yet."""
        if self._segments.open is not None:
            self._segments.open.opened_ns = self._clock.monotonic()
        # On the loop, later, only a disk that is here is quick enough.
        unchanged = not found.stale and found.manifest == self._listed() and not self._disk.is_shared
        self._safety.place()
        self.last_version = self._life.begin(boot, self.end, unchanged=unchanged)
        self._upkeep.rewrites.doom(found.stale)

    @property
    def settings(self) -> TopicSettings:
        """How the topic keeps messages; may be changed while the shard is open, but not from or to `memory`."""
        return self._settings

    @settings.setter
    def settings(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._safety.grouped = settings.durability == "fsync"
        self._upkeep.room.resize(settings)
        if not self._safety.grouped and self.readable_end < self.end:
            self.readable_end = self.end
            self.on_readable()

    def weigh_by(self, measures: Measures) -> None:
        """Measure rows by the last of these from now on; nothing that is stored changes its weight."""
        self.measures, self.measure = measures, measures[-1][1]

    def append(self, rows: Rows, now_ns: int) -> Batch:
        """Store rows at the end. Budget: 6 us for a lone message, of which the frame takes 3 and the write 2."""
        count = rows.count
        columns = rows.columns
        body = rows.body
        segment = self._segments.open
        room = self._upkeep.room
        if (
            segment is None
            or segment.bytes >= room.segment_bytes
            or (columns and not segment.column_set.issuperset(columns))
        ):
            segment = self._next_segment(columns)
        if segment.bytes + len(body) > room.open_bytes_max:
            room.take(rows, self.make_room)
        first = self.end
        end = first + count
        if end > self._life.reserve.refill_at:
            self._life.refill(end)
        cuts = rows.cuts
        if columns or (type(cuts) is list) != (count <= SMALL) or cuts[-1] != len(body) or cuts[0]:
            columns, cuts, body = shaped_rows(rows)
        batch = Batch(first, count, now_ns, cuts, body, rows.source, columns, self.weight, rows.sequence)
        safety = self._safety
        try:
            segment.append(batch, now_ns)
        except OSError as error:
            if isinstance(error, TornFileError):
                safety.torn(error)
            raise refusal(self.path, error) from error
        if rows.sequence and self._disk.is_shared:
            self._life.sequenced(segment)
        dirty = safety.group_sync.dirty
        if not dirty or dirty[-1] is not segment:
            dirty.append(segment)
        self.end = end
        if columns:
            self.weight += weigh(self.measure, count, len(body), columns.get("headers"))
        else:
            self.weight += self.measure.row_bytes * count + len(body)
        cache = self._cache
        tail = cache.tail
        tail.add(batch)
        while tail.bytes > cache.bytes_max and len(tail) > 1:
            tail.drop_oldest()
        if not safety.grouped:
            self.readable_end = end
        return batch

    def when_durable(self, done: Done) -> None:
        """Call back once everything appended so far is as safe as the topic's durability asks."""
        if self._safety.grouped:
            self._safety.group_sync.wait(self.end, done)
        else:
            done(None)

    def sync(self, done: Done) -> None:
        """Call back once everything appended so far survives a power loss, whatever the topic promises."""
        self._safety.group_sync.wait(self.end, done)

    @property
    def sync_errors(self) -> int:
        """Syncs that failed since the start."""
        return self._safety.errors

    @property
    def read_only(self) -> str:
        """Why nothing can be appended, until the disk takes what it lost; empty while all is well."""
        return self._safety.read_only

    @property
    def journals_wait(self) -> bool:
        """Whether journals are to be synced soon, because another node may go on with the topic."""
        return self._safety.journals_wait

    @property
    def journals_suspect(self) -> bool:
        """Whether a sync of some journal failed, so that whoever writes it must write all of it anew."""
        return self._safety.journals_suspect

    def read(self, offset: int, joined_below: int = 0) -> Batch | None:
        """Return the batch that holds an offset, or the first after it, if it is readable and in memory.

        Whoever is behind may have batches of fewer rows than it says together: one by one they cost much.
        """
        found = self._cache.find(offset)
        if isinstance(found, int):
            return None
        if found.count < joined_below and found.first + found.count < self.readable_end:
            return self._cache.joined(found, joined_below)
        return found

    def fetch(self, offset: int, done: Callable[[], None]) -> None:
        """Load what is stored at an offset, then call back; `read` finds nothing then if nothing is behind it."""
        self._cache.fetches.want(offset, done)

    def damage_found(self, segment: Segment, damaged: list[Damage]) -> None:
        """Take note of batches that cannot be read."""
        new = [damage for damage in damaged if segment.damage(damage)]
        if new:
            self.damaged.extend(new)
            self._manifest.start()

    def offset_at(self, time_ns: int) -> int:
        """Return the first offset whose row was taken at or after a time; may block for one batch."""
        found = first_since(self._segments, time_ns, self.damage_found)
        return self.end if found is None else max(found, self.start)

    def due_rows(self, from_offset: int, after_ns: int) -> tuple[Offsets, Offsets]:
        """Return (offsets, due times) of rows from an offset on that are due after a time; blocking."""
        segments = [segment for segment in self._segments if segment.end > from_offset]
        return due_rows(segments, from_offset, after_ns)

    def recent(self, since_ns: int) -> Iterator[Batch]:
        """Yield the batches with rows at or after a time, from segments that know duplicates; blocking."""
        return recent(self._segments, since_ns, self.damage_found)

    def roll(self) -> None:
        """Close the open segment; the next append starts a new one."""
        segment = self._segments.open
        if segment is None or not segment.batches:
            return
        segment.update_index(self.readable_end)
        try:
            segment.finish()
        except OSError as error:  # a full disk: the marker is a courtesy to other readers, the rows are there
            if not is_full(error):
                raise
        self._segments.close_open()
        self._safety.group_sync.touch(segment)
        self._safety.group_sync.start(self.end)

    def tick(self, now_ns: int) -> None:
        """Do the housekeeping that is due; called about every 10 ms."""
        monotonic_ns = self._clock.monotonic()
        segment = self._segments.open
        if segment is not None:
            segment.update_index(self.readable_end)
            if segment.bytes - segment.written_back >= WRITE_BACK_BYTES:
                segment.start_write_back()
            if segment.batches and monotonic_ns - segment.opened_ns >= SEGMENT_AGE_NS:
                self.roll()
        self._safety.tick(monotonic_ns)
        self._upkeep.tick(monotonic_ns)

    def retain(self, needed_from: int | None, now_ns: int, room: int = 0) -> int:
        """Drop old segments that nobody needs, more of them to make room; return how many rows that were."""
        return self._upkeep.retain(needed_from, now_ns, room)

    def oldest(self) -> tuple[int, int, int] | None:
        """Return (first, end, time of the last row) of the oldest segment if it could be dropped."""
        first = self._segments.closed[0] if self._segments.closed else None
        return (first.first, first.end, first.ts_max) if first is not None and first.sealed else None

    def drop_oldest(self) -> int:
        """Drop the oldest segment, needed or not; return how many rows that were."""
        return self._upkeep.drop(self._segments.closed[:1])

    @property
    def last_ns(self) -> int:
        """When the last row was taken; 0 if none is kept."""
        return self._segments.last_ns

    @property
    def cached_bytes(self) -> int:
        """How much of the log is in memory and could be read back."""
        return self._cache.bytes

    def trim(self, bytes_max: int) -> None:
        """Keep no more than this in memory, as far as it could be read back; what is not synced stays until it is."""
        if self._cache.tail.bytes > bytes_max:
            self._safety.group_sync.start(self.end)
        self._cache.trim(bytes_max, self._safety.safe_end)

    def let_go(self, end: int) -> bool:
        """Forget rows below an offset that everybody has read, as far as they are synced; some stay for late readers.

        False if there is more than can be forgotten in one go. They come back from the disk if they must be handed out
        again; kept, they would fill memory that nobody uses.
        """
        if self._cache.tail.bytes <= READ_BYTES:
            return True
        return self._cache.let_go(min(end, self._safety.safe_end))

    def stored_bytes(self) -> int:
        """Return the size of all segments."""
        return self._segments.bytes

    def rows_between(self, start: int, end: int) -> int:
        """Return how many rows with start <= offset < end are stored and readable."""
        return self._segments.rows_between(start, end)

    def view(self) -> View | None:
        """Return what a reader in another thread may trust: every row that is readable now is in it."""
        indexes = self._segments.unwritten_indexes(self.readable_end)
        return View(self._listed(), indexes, self._disk if self._disk.is_shared else None)

    def stretches(self) -> list[tuple[int, int, int, int]]:
        """Return (first, end, rows, bytes) of each segment that can be read: holes lie between them."""
        return self._segments.stretches(self.start, self.readable_end)

    def journal(self, name: str) -> tuple[Journal, Offsets]:
        """Open or recover a journal of delivery state beside the log."""
        journal, entries = Journal.open(self._disk, self._clock, self.path, name, suspect=self._life.was_suspect)
        journal.before_first = self._life.rise
        self._safety.journals.append(journal)
        return journal, entries

    def syncs(self) -> list[Callable[[Done], None]]:
        """Return what brings rows and journals to the disk, in the executor."""
        return [self.sync, *(journal.sync for journal in self._safety.journals if not journal.ended)]

    def close(self) -> None:
        """End cleanly: everything indexed, synced and noted as such; blocking."""
        if not self._stopped:
            self._wind_up()
            self._write_end()

    def close_later(self, done: Done) -> None:
        """End cleanly, with the last writes in the executor; blocking only if something was not synced before."""
        if self._stopped:
            done(None)
            return
        self._wind_up()
        self._disk.submit("sync", self._write_end, lambda _, error: done(error))

    def _wind_up(self) -> None:
        """Let nothing change any more, and know what is to be written about the end."""
        safety, state = self._safety, self._life.state
        clean = safety.settle()
        self._stop()
        segment = self._segments.open
        if segment is not None:
            segment.update_index(self.readable_end)
            if not safety.group_sync.busy:
                segment.close()
        safety.place()
        state.clean, state.suspect = clean, not clean or safety.journals_suspect

    def _write_end(self) -> None:
        try:
            self._life.end()
        except OSError:  # the next start recovers as after a crash
            self._safety.errors += 1

    def delete(self) -> None:
        """Remove everything; blocking."""
        self.drop()
        self._disk.remove(self.path)

    def drop(self) -> None:
        """Hold nothing any more; the files are left to whoever removes the topic."""
        self._stop()
        for segment in self._segments:
            segment.close()
        self._upkeep.room.give_back()

    def _stop(self) -> None:
        """Let nothing that a thread still does change the files any more."""
        self._stopped = self._upkeep.rewrites.stopped = True
        self._safety.stop()
        self._manifest.stop()
        self._cache.fetches.stop()

    def _next_segment(self, columns: Mapping[str, Column]) -> Segment:
        """Close the open segment and start one that has room for these columns."""
        if self._safety.read_only:
            raise Refusal("disk_failed", self._safety.read_only)
        segments = self._segments
        names = segments.columns_with(columns)
        self._life.rise()
        try:
            segments.abandon_open()
            segment = Segment.create(self._disk, self.path, self.end, names, self.weight)
        except OSError as error:
            raise refusal(self.path, error) from error
        segment.opened_ns = self._clock.monotonic()
        self.roll()
        if not segments.closed:
            self.start = self.kept_from = segment.first
        segments.open = segment
        self._upkeep.room.count()
        self._manifest.start()
        return segment

    def _listed(self) -> Manifest:
        return self._segments.manifest(self.number, self.start, self.end, self.weight)


def _nothing() -> None:
    return


def _kept(_: int) -> None:
    return


def _nobody_waits(_: int, __: int) -> Offsets:
    return np.empty(0, np.int64)


def _full(size: int) -> None:
    raise Refusal("quota_full", f"there is no room for {size} bytes more")
