"""One shard of a topic's log: append, read, recover, and the housekeeping around its segments.

Owns the order of segments and the offsets. Knows nothing of subscriptions, dialects or the network.
Invariant: an offset names one row for ever; rows below `readable_end` are as safe as the topic's durability says.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from penstock.budget import Share
from penstock.clock import SECOND, Clock
from penstock.columns import BASE_COLUMNS, COLUMNS, SMALL, Column, Offsets
from penstock.disk import Disk, TornFileError, is_full
from penstock.errors import CorruptionError, Refusal
from penstock.log import retention, seal
from penstock.log.chunks import Chunk, Chunks
from penstock.log.compact import KNOWN_NS_MIN, worthwhile
from penstock.log.due import due_rows
from penstock.log.fetch import Fetches
from penstock.log.index import Index
from penstock.log.journal import Journal
from penstock.log.manifest import Damage, ManifestWriter, View
from penstock.log.quota import Quota
from penstock.log.recovery import Recovered, close_open, recover
from penstock.log.repair import Repair
from penstock.log.reserve import Reserve
from penstock.log.rewrite import Rewrites
from penstock.log.segment import Segment
from penstock.log.segments import Segments
from penstock.log.shape import shaped_rows
from penstock.log.state import RESERVED_BLOCK, StateFile
from penstock.log.sync import GroupSync
from penstock.log.tail import Tail
from penstock.log.times import first_since, recent
from penstock.log.weight import UNCHANGED, Measures, weigh
from penstock.message import Batch, Done, Rows, joined
from penstock.settings import HOUR_NS, TopicSettings

#: Of what everybody has read, the newest rows stay in memory: for whoever looks at the end, or gets them again.
READ_BYTES = 2 << 20
#: Batches of it that go in one go, at least: a quarter of a millisecond if they are lone messages.
LET_GO_BATCHES = 256
#: Bytes after which write-back is started, so that the kernel never stops an append to catch up.
WRITE_BACK_BYTES = 4 << 20
#: What a power loss may cost an `os` topic beyond what the kernel wrote by itself.
SYNC_EVERY_NS = 2 * SECOND
#: How often the synced position is written down at most.
NOTE_EVERY_NS = SECOND
#: A segment that has rows is closed after this long, so that retention by age can work.
SEGMENT_AGE_NS = HOUR_NS
#: Segments compacted between two looks at what is needed.
COMPACTED_MAX = 16
#: About what a frame and each of its rows take on disk beside their bodies and columns.
FRAME_BYTES = 1024
ROW_BYTES = 32

_log = logging.getLogger(__name__)


class Shard:
    """An ordered piece of a topic, on disk."""

    # As attributes of a dict they would take a kilobyte more; a dict is there only once something else is set.
    __slots__ = (
        "__dict__",
        "_cache_bytes",
        "_chunks",
        "_clock",
        "_counted",
        "_disk",
        "_fetches",
        "_fresh",
        "_group_sync",
        "_grouped",
        "_journals",
        "_manifest",
        "_noted_ns",
        "_position_noted",
        "_quota",
        "_repair",
        "_reserve",
        "_resting",
        "_rewrites",
        "_room",
        "_segment_bytes",
        "_segments",
        "_settings",
        "_state",
        "_stopped",
        "_synced_ns",
        "_tail",
        "_ticked_end",
        "_was_suspect",
        "cut_bytes",
        "damaged",
        "dropped",
        "dropped_rows",
        "end",
        "kept_from",
        "last_version",
        "make_room",
        "measure",
        "measures",
        "number",
        "on_full",
        "on_readable",
        "on_taken_back",
        "path",
        "read_only",
        "readable_end",
        "start",
        "sync_errors",
        "waiting",
        "weight",
    )

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
        quota: Quota | None = None,
    ) -> None:
        self.number = number
        self.path = path
        self.end = found.end
        self.weight = found.weight
        #: What its rows weigh, and weighed; the last is that of the next row.
        self.measures: Measures = measures
        self.measure = measures[-1][1]
        self.damaged: list[Damage] = found.damaged
        #: Bytes that recovery cut from the end because they were not whole.
        self.cut_bytes = found.cut_bytes
        #: Rows a `memory` topic dropped because it was full.
        self.dropped_rows = 0
        #: The same by reason, since somebody last asked.
        self.dropped: Counter[str] = Counter()
        #: The highest version that a lease of its rows had in this life, as far as nobody else knows it.
        self.last_version = 0
        #: Syncs that failed since the start.
        self.sync_errors = 0
        #: Why nothing can be appended, until the disk takes what it lost; empty while all is well.
        self.read_only = ""
        self.on_readable: Callable[[], None] = _nothing
        #: Told the offset from which on rows are gone because they could not be synced, before anybody else hears.
        self.on_taken_back: Callable[[int], None] = _kept
        #: Tells which rows of a range of offsets are still waited for; None if all of them may be.
        self.waiting: Callable[[int, int], Offsets | None] = _nobody_waits
        #: Asked to make room for so many bytes where the quota has none; it raises the refusal if it cannot.
        self.make_room: Callable[[int], None] = _full
        #: Told when the memory for all `memory` topics is full; it makes room.
        self.on_full: Callable[[], None] = _nothing
        self._disk = disk
        self._clock = clock
        self._settings = settings
        self._grouped = settings.durability == "fsync"
        self._state = state
        self._segments = segments = Segments(found.segments, found.open)
        # Nothing is stored between the last row and a fresh block, so nobody need look there.
        self.readable_end = segments.last.end if segments.last is not None else self.end
        #: Something is stored from here on: before `start` only what subscriptions still wait for.
        self.kept_from = segments.first.first if segments.first is not None else self.end
        #: Everything that was stored from here on is there.
        self.start = self._first_from(found.start)
        self._cache_bytes = cache_bytes
        self._tail = Tail(self.readable_end)
        self._chunks = Chunks(cache_bytes)
        self._fetches = Fetches(disk, clock, self, self._chunks, cache_bytes)
        self._group_sync = GroupSync(disk, self.end, self._synced, self._sync_failed)
        self._manifest = ManifestWriter(disk, path, self._manifest_content)
        self._rewrites = Rewrites(disk, clock, segments, self._manifest, self._rewritten)
        self._reserve = Reserve(disk, state)
        self._repair: Repair | None = None
        #: What a repair made, until it is all over.
        self._fresh: list[Segment] = []
        self._synced_ns = clock.monotonic()
        self._noted_ns = self._synced_ns
        self._position_noted = True
        self._journals: list[Journal] = []
        self._stopped = False
        self._quota = quota or Quota()
        self._segment_bytes = self._quota.segment_bytes(settings.segment_bytes, settings.shards)
        #: What the quota counts of this shard, and the size that the open segment may reach within it.
        self._counted = (0, 0)
        self._room = 0
        self._ticked_end = self.end
        self._count()
        #: It is as its last life left it, and the files say so: what a start writes down waits for the first change.
        self._resting = False
        #: A sync failed in another life, and the machine has not restarted since: what files show may not be there.
        self._was_suspect = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        clock: Clock,
        path: str,
        number: int,
        settings: TopicSettings,
        *,
        strict: bool = False,
        measures: Measures = UNCHANGED,
        cache_bytes: int = 32 << 20,
        quota: Quota | None = None,
        memory: Share | None = None,
    ) -> Shard:
        """Create a shard, or recover what a directory holds; blocking.

        `measures` say what its rows weigh, and weighed; `memory` is shared by all that have no files.
        """
        disk.make(path)
        state = StateFile(disk, path)
        if settings.durability == "memory":
            from penstock.log.memory import MemoryShard  # the memory shard is a shard without files

            return MemoryShard.begin(disk, clock, path, number, settings, state, measures, memory)
        boot = disk.boot_id()
        unclean = not state.state.clean and state.state.boot != boot
        # After another boot the page cache shows what is on the disk.
        state.state.suspect = state.state.suspect and state.state.boot in (boot, "")
        found = recover(disk, path, state.state, measures=measures, before_jump=state.forget_boot)
        if strict and found.damaged:
            worst = found.damaged[0]
            rows = f"{worst.first} to {worst.end - 1}" if worst.end > worst.first else f"from {worst.first} on"
            raise CorruptionError(
                f"{path}: rows {rows} are damaged ({worst.reason}), and recovery is strict. "
                'Restore the directory from a backup, or set recovery = "cut" to go on without these rows.'
            )
        if not state.found and found.end > 0:
            # Nobody knows how far offsets were given out; one block is more than was ever reserved ahead of a row.
            state.state.reserved_end = found.end + 2 * RESERVED_BLOCK
        if found.end < state.state.reserved_end and (found.jump or unclean):
            found.end = state.state.reserved_end
            close_open(found)
        shard = cls(disk, clock, path, number, settings, state, found, measures, cache_bytes, quota)
        shard._was_suspect = state.state.suspect
        shard._begin(boot, found)
        return shard

    @property
    def settings(self) -> TopicSettings:
        """How the topic keeps messages; may be changed while the shard is open, but not from or to `memory`."""
        return self._settings

    @settings.setter
    def settings(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._grouped = settings.durability == "fsync"
        self._segment_bytes = self._quota.segment_bytes(settings.segment_bytes, settings.shards)
        if not self._grouped and self.readable_end < self.end:
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
        if (
            segment is None
            or segment.bytes >= self._segment_bytes
            or (columns and not segment.column_set.issuperset(columns))
        ):
            segment = self._next_segment(columns)
        if segment.bytes + len(body) > self._room:
            self._take_room(rows)
        first = self.end
        end = first + count
        if end > self._reserve.refill_at:
            self._refill(end)
        cuts = rows.cuts
        if columns or (type(cuts) is list) != (count <= SMALL) or cuts[-1] != len(body) or cuts[0]:
            columns, cuts, body = shaped_rows(rows)
        batch = Batch(first, count, now_ns, cuts, body, rows.source, columns, self.weight, rows.sequence)
        try:
            segment.append(batch, now_ns)
        except OSError as error:
            if isinstance(error, TornFileError):
                self._close_suspect(error)
                self._group_sync.suspend(self._start_repair)
            raise self._refusal(error) from error
        dirty = self._group_sync.dirty
        if not dirty or dirty[-1] is not segment:
            dirty.append(segment)
        self.end = end
        if columns:
            self.weight += weigh(self.measure, count, len(body), columns.get("headers"))
        else:
            self.weight += self.measure.row_bytes * count + len(body)
        tail = self._tail
        tail.add(batch)
        while tail.bytes > self._cache_bytes and len(tail) > 1:
            tail.drop_oldest()
        if not self._grouped:
            self.readable_end = end
        return batch

    def when_durable(self, done: Done) -> None:
        """Call back once everything appended so far is as safe as the topic's durability asks."""
        if self._grouped:
            self._group_sync.wait(self.end, done)
        else:
            done(None)

    def sync(self, done: Done) -> None:
        """Call back once everything appended so far survives a power loss, whatever the topic promises."""
        self._group_sync.wait(self.end, done)

    def read(self, offset: int, joined_below: int = 0) -> Batch | None:
        """Return the batch that holds an offset, or the first after it, if it is readable and in memory.

        Whoever is behind may have batches of fewer rows than it says together: rows that were stored one by one cost
        much one by one.
        """
        found = self.find(offset)
        if isinstance(found, int):
            return None
        if found.count < joined_below and found.first + found.count < self.readable_end:
            return self._joined(found, joined_below)
        return found

    def _joined(self, first: Batch, below: int) -> Batch:
        """Return a batch together with those behind it, where that pays; kept like what is read back."""
        chunk = self._chunks.at(first.first)
        if chunk is not None or first.first < self._tail.start:
            return first if chunk is None else chunk.at(first.first) or first
        run = self._tail.run(first.first, self.readable_end, below)
        rows = sum([batch.count for batch in run])
        if rows <= SMALL or rows < 2 * first.count:
            return first
        batch = joined(run)
        self._chunks.add(Chunk(batch.first, batch.end, [batch]))
        return batch

    def fetch(self, offset: int, done: Callable[[], None]) -> None:
        """Load what is stored at an offset into memory, then call back; a `read` that still finds nothing then means
        that nothing is stored from there to `readable_end`."""
        self._fetches.want(offset, done)

    def find(self, offset: int) -> Batch | int:
        """Return the batch at an offset if it is in memory, else the first offset that must be read from disk."""
        tail = self._tail
        offset = max(offset, self.kept_from)
        while offset < self.readable_end:
            if offset >= tail.start:
                batch = tail.at(offset)
                return batch if batch is not None and batch.first < self.readable_end else self.readable_end
            chunk = self._chunks.at(offset)
            if chunk is None:
                return offset
            batch = chunk.at(offset)
            if batch is not None:
                return batch
            offset = chunk.end
        return offset

    def segment_at(self, offset: int) -> Segment | None:
        """Return the first segment that ends after an offset."""
        return self._segments.at(offset)

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
        self._write_index(segment)
        try:
            segment.finish()
        except OSError as error:  # a full disk: the marker is a courtesy to other readers, the rows are there
            if not is_full(error):
                raise
        self._segments.close_open()
        self._group_sync.touch(segment)
        self._group_sync.start(self.end)

    def tick(self, now_ns: int) -> None:
        """Do the housekeeping that is due; called about every 10 ms."""
        monotonic_ns = self._clock.monotonic()
        segment = self._segments.open
        if segment is not None:
            self._write_index(segment)
            if segment.bytes - segment.written_back >= WRITE_BACK_BYTES:
                self._write_back(segment)
            if segment.batches and monotonic_ns - segment.opened_ns >= SEGMENT_AGE_NS:
                self.roll()
        if monotonic_ns - self._synced_ns >= SYNC_EVERY_NS:
            self._synced_ns = monotonic_ns
            self._group_sync.start(self.end)
            self._note_synced()
            if self._manifest.failed:
                self._manifest.start()
            self._journals = [journal for journal in self._journals if not journal.ended]
            for journal in self._journals:
                journal.sync_soon()
            self._note_suspect()
        for journal in self._journals:
            journal.catch_up()
        self._rewrites.tick(monotonic_ns, self._settings.compression, hurry=self._quota.tight)
        quiet, self._ticked_end = self.end == self._ticked_end, self.end
        if quiet and self._counted != (self.stored_bytes(), self._rewrites.doomed_bytes):
            self._count()

    def retain(self, needed_from: int | None, now_ns: int, room: int = 0) -> int:
        """Drop old segments that nobody needs, more of them to make room; return how many rows that were.

        One that is kept for a few rows only is rewritten with these alone, a little later.
        """
        closed, settings = self._segments.closed, self._settings
        free, pinned = retention.surplus(closed, settings, needed_from, self.waiting, now_ns, room)
        dropped = self._drop([segment for segment in free if segment is not self._rewrites.under_way])
        if pinned:
            known_ns = self.last_ns - max(settings.dedup_window_ns, KNOWN_NS_MIN)
            chosen = [each for each in pinned if worthwhile(*each, known_ns)]
            self._rewrites.compact(chosen[:COMPACTED_MAX], self.measures, self._compacted)
        return dropped

    def oldest(self) -> tuple[int, int, int] | None:
        """Return (first, end, time of the last row) of the oldest segment if it could be dropped."""
        first = self._segments.closed[0] if self._segments.closed else None
        return (first.first, first.end, first.ts_max) if first is not None and first.sealed else None

    def drop_oldest(self) -> int:
        """Drop the oldest segment, needed or not; return how many rows that were."""
        return self._drop(self._segments.closed[:1])

    def _drop(self, dropped: list[Segment]) -> int:
        if not dropped:
            return 0
        self._segments.drop(dropped)
        self._rewrites.doom_segments(dropped)
        for segment in dropped:
            self._let_go(segment)
        self._manifest.start()
        self._count()
        return sum(segment.rows for segment in dropped)

    def _let_go(self, segment: Segment) -> None:
        """Let nobody find rows in memory that are not stored any more."""
        self.damaged[:] = [found for found in self.damaged if not segment.first <= found.first < segment.end]
        self._chunks.drop_between(segment.first, segment.end)
        tail = self._tail
        while len(tail) and tail.start < segment.end:
            tail.drop_oldest()
        first = self._segments.first
        self.kept_from = first.first if first is not None else self.end
        self.start = self._first_from(max(self.start, segment.end))

    def _first_from(self, offset: int) -> int:
        """Return the first offset at or after one that may be stored."""
        return next((max(one.first, offset) for one in self._segments if one.end > offset), self.end)

    @property
    def last_ns(self) -> int:
        """When the last row was taken; 0 if none is kept."""
        return max((segment.ts_max for segment in self._segments if segment.batches), default=0)

    @property
    def cached_bytes(self) -> int:
        """How much of the log is in memory and could be read back."""
        return self._tail.bytes + self._chunks.bytes

    def trim(self, bytes_max: int) -> None:
        """Keep no more than this in memory, as far as it could be read back; what was read back goes first.

        What is not synced stays until it is: a sync that fails may leave memory as the only place that has it.
        """
        tail = self._tail
        self._chunks.trim(max(bytes_max - tail.bytes, 0))
        if tail.bytes > bytes_max:
            self._group_sync.start(self.end)
        synced_end = min(self.readable_end, self._group_sync.synced_end)
        while tail.bytes > bytes_max and len(tail) > 1 and next(iter(tail)).end <= synced_end:
            tail.drop_oldest()

    def let_go(self, end: int) -> bool:
        """Forget rows below an offset that everybody has read, as far as they are synced; some stay for late readers.

        False if there is more than can be forgotten in one go.

        They come back from the disk if they must be handed out again. Kept, they would fill memory that nobody uses.
        """
        tail = self._tail
        if tail.bytes <= READ_BYTES:
            return True
        end = min(end, self.readable_end, self._group_sync.synced_end)
        return tail.drop_below(end, READ_BYTES, max(LET_GO_BATCHES, len(tail) // 32))

    def stored_bytes(self) -> int:
        """Return the size of all segments."""
        return self._segments.closed_bytes + (self._segments.open.bytes if self._segments.open is not None else 0)

    def rows_between(self, start: int, end: int) -> int:
        """Return how many rows with start <= offset < end are stored and readable."""
        return self._segments.rows_between(start, end)

    def view(self) -> View:
        """Return what a reader in another thread may trust: every row that is readable now is in it."""
        indexes = {}
        for segment in self._segments:
            if not segment.sealed:
                self._write_index(segment)
                if segment.index is not None and segment.indexed < segment.index.at(self.readable_end):
                    copy, _ = Index.decoded(segment.index.encoded(0, segment.index.at(self.readable_end)))
                    indexes[segment.first] = copy  # a full disk: nothing can be written, all can be read
        return View(self._segments.manifest(self.number, self.start, self.end, self.weight), indexes)

    def stretches(self) -> list[tuple[int, int, int, int]]:
        """Return (first, end, rows, bytes) of each segment that can be read: holes lie between them."""
        found = []
        for segment in self._segments:
            end = min(segment.end, self.readable_end)
            if end > max(segment.first, self.start):
                found.append((segment.first, end, segment.rows_between(segment.first, end), segment.bytes))
        return found

    def journal(self, name: str) -> tuple[Journal, Offsets]:
        """Open or recover a journal of delivery state beside the log."""
        journal, entries = Journal.open(self._disk, self._clock, self.path, name, suspect=self._was_suspect)
        journal.before_first = self._rise
        self._journals.append(journal)
        return journal, entries

    def close(self) -> None:
        """End cleanly: everything indexed, synced and noted as such; blocking."""
        if not self._stopped:
            self._wind_up()
            self._write_end()

    def syncs(self) -> list[Callable[[Done], None]]:
        """Return what brings rows and journals to the disk, in the executor."""
        return [self.sync, *(journal.sync for journal in self._journals if not journal.ended)]

    def close_later(self, done: Done) -> None:
        """End cleanly, with the last writes in the executor; blocking only if something was not synced before."""
        if self._stopped:
            done(None)
            return
        self._wind_up()
        self._disk.submit("sync", self._write_end, lambda _, error: done(error))

    def _wind_up(self) -> None:
        """Let nothing change any more, and know what is to be written about the end."""
        clean = self._settled()
        self._stop()
        segment = self._segments.open
        if segment is not None:
            self._write_index(segment)
            if not self._group_sync.busy:
                segment.close()
        self._note_position()
        self._state.state.clean, self._state.state.suspect = clean, not clean or self.journals_suspect

    def _write_end(self) -> None:
        state = self._state.state
        try:
            if not self._resting or self._manifest.is_used:
                self._manifest.write()
            if not self._resting or not state.clean or state.suspect:
                self._state.replace()
        except OSError:  # likewise
            self.sync_errors += 1

    def _settled(self) -> bool:
        """Sync everything, elsewhere if it must be; False if the next start has to recover as after a crash."""
        try:
            if self._repair is None:
                self._group_sync.now(self.end)
                return True
        except OSError as error:
            self.sync_errors += 1
            self._close_suspect(error)
            self._repair = self._new_repair()
        try:
            if self._repair is not None:
                self._repair.finish()
        except (OSError, CorruptionError):
            self.sync_errors += 1
            return False
        return True

    def delete(self) -> None:
        """Remove everything; blocking."""
        self.drop()
        self._disk.remove(self.path)

    def drop(self) -> None:
        """Hold nothing any more; the files are left to whoever removes the topic."""
        self._stop()
        for segment in self._segments:
            segment.close()
        self._quota.add(-self._counted[0], -self._counted[1])
        self._counted = (0, 0)

    def _begin(self, boot: str, found: Recovered) -> None:
        """Write down that the shard is in use, and what it was recovered to; where nothing changed, not yet."""
        if self._segments.open is not None:
            self._segments.open.opened_ns = self._clock.monotonic()
        state = self._state.state
        unchanged = found.manifest == self._segments.manifest(self.number, self.start, self.end, self.weight)
        self._resting = state.clean and not state.suspect and unchanged and not found.stale
        state.boot, state.clean = boot, False
        self._reserve.begin(self.end)
        self._note_position()
        self.last_version = self._state.start(self._clock.now())
        if not self._resting:
            self._manifest.write()
            self._write_begin()
        self._rewrites.doom(found.stale)

    def _write_begin(self) -> None:
        self._state.replace()
        self._resting = False
        self._reserve.synced(self._state.state.reserved_end)

    def _rise(self) -> None:
        """Write down that the shard is in use, before its first row or a lease that outlives connections.

        Until then a crash leaves what the last life did, which ended cleanly. Retention and rewriting need none of
        this: what they make is synced before the manifest names it.
        """
        if self._resting:
            try:
                self._write_begin()
            except OSError as error:
                raise self._refusal(error) from error

    def _take_room(self, rows: Rows) -> None:
        """Take room for rows from the quota, and a step more; what there is none for is refused."""
        size = len(rows.body) + FRAME_BYTES + ROW_BYTES * rows.count
        for column in rows.columns.values():
            size += 64 * rows.count if isinstance(column, list) else column.nbytes
        self._count()
        if self._quota.left() < size:
            self.make_room(size)
        self._count(self._quota.step(size))

    def _count(self, ahead: int = 0) -> None:
        """Let the quota count what the files hold now, and this much for what comes next."""
        stored, doomed = self.stored_bytes() + ahead, self._rewrites.doomed_bytes
        self._room = stored - self._segments.closed_bytes
        self._quota.add(stored - self._counted[0], doomed - self._counted[1])
        self._counted = stored, doomed

    def _stop(self) -> None:
        """Let nothing that a thread still does change the files any more."""
        self._stopped = self._rewrites.stopped = True
        if self._repair is not None:
            self._repair.stop()
            self._group_sync.fail(OSError(f"{self.path} was closed before its rows were safe"))
        self._manifest.stop()
        self._fetches.stop()

    def _next_segment(self, columns: Mapping[str, Column]) -> Segment:
        """Close the open segment and start one that has room for these columns."""
        if self.read_only:
            raise Refusal("disk_failed", self.read_only)
        segments = self._segments
        used = segments.last.used if segments.last is not None else set()
        wanted = {*used, *columns, *BASE_COLUMNS}
        unknown = wanted - COLUMNS.keys()
        if unknown:
            raise Refusal("bad_column", f"there is no column {sorted(unknown)[0]!r} in a message")
        self._rise()
        try:
            if segments.open is not None and not segments.open.batches:
                self._abandon(segments.open)
            names = [name for name in COLUMNS if name in wanted]
            segment = Segment.create(self._disk, self.path, self.end, names, self.weight)
        except OSError as error:
            raise self._refusal(error) from error
        segment.opened_ns = self._clock.monotonic()
        self.roll()
        if not segments.closed:
            self.start = self.kept_from = segment.first
        segments.open = segment
        self._count()
        self._manifest.start()
        return segment

    def _abandon(self, segment: Segment) -> None:
        """Make room for a segment of the same name: nothing was written to this one."""
        segment.close()
        self._disk.remove(segment.path())
        self._segments.open = None

    def _refill(self, end: int) -> None:
        self._rise()
        if end <= self._reserve.refill_at:
            return
        try:
            self._reserve.refill(end)
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> Exception:
        if not is_full(error):
            text = f"{self.path} cannot be written ({error}): the message was not stored. Look at the disk."
            return Refusal("disk_failed", text)
        return Refusal(
            "disk_full",
            f"no space left in {self.path}: the message was not stored. Free some space there, "
            "lower retention_bytes, or move the data directory to a larger disk; publishing goes on by itself then.",
        )

    def _synced(self, clean: list[Segment]) -> None:
        """A sync has returned: rows become readable, closed segments become sealed."""
        if self._stopped:
            return
        moved = self._grouped and self._group_sync.synced_end > self.readable_end
        if moved:
            self.readable_end = self._group_sync.synced_end
        settled = [segment for segment in clean if segment is not self._segments.open]
        for segment in settled:
            self._seal(segment)
        self._position_noted = False
        self._note_synced()
        if settled:
            self._rewrites.wanted = True
            self._manifest.start()
        if moved:
            self.on_readable()

    def _seal(self, segment: Segment) -> None:
        self._write_index(segment)
        segment.sealed = True
        segment.close()
        if seal.worthwhile(segment, self._settings.compression):
            self._segments.keep_index(segment)  # its rewrite needs it soon
        else:
            segment.forget_index()

    def _note_synced(self) -> None:
        """Write down how far the log is synced, at most once a second: group syncs come by the thousand."""
        monotonic_ns = self._clock.monotonic()
        if self._position_noted or self._resting or monotonic_ns - self._noted_ns < NOTE_EVERY_NS:
            return
        self._position_noted, self._noted_ns = True, monotonic_ns
        self._note_position()
        try:
            self._state.note()
        except OSError:
            return  # a hint only: recovery is more careful without it

    def _note_position(self) -> None:
        state = self._state.state
        oldest = self._group_sync.dirty[0] if self._group_sync.dirty else self._segments.open
        state.synced_segment = oldest.first if oldest is not None else self.end
        state.synced_position = oldest.synced_bytes if oldest is not None else 0

    def _sync_failed(self, error: BaseException) -> None:
        self.sync_errors += 1
        if self._stopped:
            self._group_sync.fail(error)
        else:
            self._close_suspect(error)
            self._start_repair()

    # --- after a failed sync --------------------------------------------------------------------------------------

    def _close_suspect(self, error: BaseException) -> None:
        """Write nothing more to a file whose pages may be lost; the next append would need another, and is refused."""
        self.read_only = self._why_read_only(error)
        _log.error("%s", self.read_only)
        self._state.state.suspect = True
        segment = self._segments.open
        try:
            self._state.note()
            if segment is not None and not segment.batches:
                self._abandon(segment)
        except OSError:
            self.sync_errors += 1
        if segment is not None and segment.batches:
            self._segments.close_open()
            self._group_sync.touch(segment)
        self._segments.open = None

    def _why_read_only(self, error: BaseException) -> str:
        return (
            f"{self.path} is read-only: its disk failed ({error}). What may be lost with that is written again "
            "elsewhere, and publishing goes on by itself once this succeeds. Look at the disk if it does not."
        )

    @property
    def journals_suspect(self) -> bool:
        """Whether a sync of some journal failed, so that whoever writes it must write all of it anew."""
        return any(journal.suspect for journal in self._journals)

    def _note_suspect(self) -> None:
        """Let the next process know if it must not trust what files show."""
        suspect = bool(self.read_only) or self.journals_suspect
        if self._state.state.suspect != suspect:
            self._state.state.suspect = suspect
            try:
                self._state.note()
            except OSError:
                self.sync_errors += 1

    def _start_repair(self) -> None:
        self._repair = self._new_repair()
        self._repair.start()

    def _new_repair(self) -> Repair:
        return Repair(
            self._disk,
            self._clock,
            self.path,
            self._group_sync.dirty,
            self._tail,
            self._manifest,
            self._written_again,
            self._repair_failed,
            self._healed,
        )

    def _written_again(self, old: list[Segment], new: list[Segment]) -> None:
        """Rows are in new files, which the manifest does not name yet."""
        self._segments.swap(old, new)
        self._fresh = new
        for segment in old:
            segment.close()
        kept = {segment.path() for segment in new}
        self._rewrites.doom_segments([segment for segment in old if segment.path() not in kept])

    def _repair_failed(self, error: BaseException) -> None:
        """The rows are nowhere but here: nothing is taken in before they are safe. What nobody was promised goes."""
        self.sync_errors += 1
        if self._why_read_only(error) != self.read_only:
            self.read_only = self._why_read_only(error)
            _log.error("%s", self.read_only)
        if self._grouped and self._repair is not None and self.readable_end < self.end:
            self._repair.drop_rows()
            self._note_taken_back()
            gone = [segment for segment in self._segments.closed if segment.first >= self.readable_end]
            self._segments.swap(gone, [])
            self._fresh = [segment for segment in self._fresh if segment not in gone]
            self._rewrites.doom_segments(gone)
            first = self._tail.at(self.readable_end) if self.readable_end >= self._tail.start else None
            self.weight = first.weight if first is not None else self.weight
            self._tail.drop_from(self.readable_end)
            self.on_taken_back(self.readable_end)
        self._group_sync.fail(error)

    def _note_taken_back(self) -> None:
        """Write down that offsets are used up, before files go that tell so: gates and growths were told of them."""
        self._state.state.boot = ""
        try:
            self._state.note()
        except OSError:
            self.sync_errors += 1

    def _healed(self) -> None:
        """Everything is synced, and the manifest says where."""
        moved = self._grouped and self.readable_end < self.end
        self.readable_end = self.end if self._grouped else self.readable_end
        for segment in self._fresh:
            self._seal(segment)
        self._fresh, self._repair, self.read_only = [], None, ""
        self._group_sync.dirty.clear()
        self._state.state.suspect = self.journals_suspect
        self._position_noted, self._noted_ns = False, 0
        self._note_synced()
        self._rewrites.wanted = True
        if moved:
            self.on_readable()
        self._group_sync.resume(self.end)
        _log.warning("%s takes messages again: what a failed sync may have lost is safe in new files", self.path)

    def _write_index(self, segment: Segment) -> None:
        try:
            segment.write_index(self.readable_end)
        except OSError as error:
            if not is_full(error):
                raise

    def _write_back(self, segment: Segment) -> None:
        file, start, end = segment.file, segment.written_back, segment.bytes
        segment.written_back = end
        if file is not None:
            self._disk.submit("sync", lambda: file.write_back(start, end - start), _ignored)

    def _rewritten(self, old: Segment, merged: seal.Merged) -> bool:
        """A rewrite is done: its generation takes the place of the old one."""
        self.damage_found(old, merged.damaged)
        segment = Segment.of(self._disk, self.path, merged.info)
        segment.holes = list(old.holes)
        self._segments.replace(old, segment)
        self._count()
        self._manifest.start()
        return True

    def _compacted(self, kept: Offsets, old: Segment, merged: seal.Merged) -> bool:
        """Put what was kept of a segment in its place, unless somebody needs more of it by now."""
        self.damage_found(old, merged.damaged)
        needed = self.waiting(old.first, old.end)
        if merged.damaged or needed is None or not np.isin(needed, kept).all():
            return False
        self._segments.replace(old, Segment.of(self._disk, self.path, merged.info))
        self._let_go(old)
        self._count()
        self._manifest.start()
        return True

    def _manifest_content(self) -> bytes:
        return self._segments.manifest(self.number, self.start, self.end, self.weight).encoded()


def _nothing() -> None:
    return


def _kept(_: int) -> None:
    return


def _nobody_waits(_: int, __: int) -> Offsets:
    return np.empty(0, np.int64)


def _full(size: int) -> None:
    raise Refusal("quota_full", f"there is no room for {size} bytes more")


def _ignored(_: object, __: BaseException | None) -> None:
    return
