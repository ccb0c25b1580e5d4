"""One shard of a topic's log: append, read, recover, and the housekeeping around its segments.

Owns the order of segments and the offsets. Knows nothing of subscriptions, dialects or the network.
Invariant: an offset names one row for ever; rows below `readable_end` are as safe as the topic's durability says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from penstock.clock import SECOND, Clock
from penstock.disk import Disk, is_full
from penstock.errors import CorruptionError, InvariantError, Refusal
from penstock.log import retention, seal
from penstock.log.chunks import Chunks
from penstock.log.commit import Commit
from penstock.log.due import due_rows
from penstock.log.fetch import Fetches
from penstock.log.journal import Journal
from penstock.log.manifest import INDEX_SUFFIX, Damage, Manifest, ManifestWriter
from penstock.log.recovery import Recovered, recover
from penstock.log.segment import Segment, decoder_of
from penstock.log.state import RESERVED_BLOCK, StateFile
from penstock.log.tail import Tail
from penstock.log.weight import EXTEND_BYTES, PLAIN_BYTES, weigh
from penstock.message import BASE_COLUMNS, COLUMNS, SMALL, Batch, Column, Cuts, Done, Offsets, Rows, shaped
from penstock.settings import HOUR_NS, MINUTE_NS, TopicSettings

#: Bytes after which write-back is started, so that the kernel never stops an append to catch up.
WRITE_BACK_BYTES = 4 << 20
#: What a power loss may cost an `os` topic beyond what the kernel wrote by itself.
SYNC_EVERY_NS = 2 * SECOND
#: A segment that has rows is closed after this long, so that retention by age can work.
SEGMENT_AGE_NS = HOUR_NS
#: Readers without the lock may still have an old generation open; it is removed this much later.
KEPT_NS = 10 * MINUTE_NS
#: Indexes of closed segments kept in memory.
INDEXES_MAX = 8
#: The next block of offsets is reserved in a thread when this many are left.
RESERVE_AHEAD = RESERVED_BLOCK // 4


class Shard:
    """An ordered piece of a topic, on disk."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        path: str,
        number: int,
        settings: TopicSettings,
        state: StateFile,
        found: Recovered,
        weigh_headers: bool,
        cache_bytes: int,
    ) -> None:
        self.number = number
        self.path = path
        self.end = found.end
        self.weight = found.weight
        self.weigh_headers = weigh_headers
        self._settings = settings
        self.damaged: list[Damage] = found.damaged
        #: Bytes that recovery cut from the end because they were not whole.
        self.cut_bytes = found.cut_bytes
        #: Rows a `memory` topic dropped because it was full.
        self.dropped_rows = 0
        #: Syncs that failed since the start.
        self.sync_errors = 0
        self.on_readable: Callable[[], None] = _nothing
        self._disk = disk
        self._clock = clock
        self._state = state
        self._grouped = settings.durability == "fsync"
        self._closed: list[Segment] = found.segments
        self._ends = [segment.end for segment in self._closed]
        self._open = found.open
        stored_end = self._open.end if self._open else (self._ends[-1] if self._ends else self.end)
        # Nothing is stored between the last row and a fresh block, so nobody need look there.
        self.readable_end = stored_end if self._closed or self._open else self.end
        self.start = self._first_kept()
        self._cache_bytes = cache_bytes
        self._tail = Tail(self.readable_end)
        self._chunks = Chunks(cache_bytes)
        self._fetches = Fetches(disk, clock, self, self._chunks, cache_bytes)
        self._commit = Commit(disk, self.end, self._synced, self._sync_failed)
        self._manifest = ManifestWriter(disk, path, self._manifest_content)
        self._doomed: list[tuple[int, list[str]]] = []
        self._loaded: OrderedDict[int, Segment] = OrderedDict()
        self._sealing: Segment | None = None
        self._seal_wanted = True
        self._seal_after_ns = 0
        self._synced_ns = clock.monotonic()
        #: Offsets below this may be given out: that they are reserved is synced.
        self._usable_end = 0
        self._reserving = False
        self._stopped = False

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
        weigh_headers: bool = False,
        cache_bytes: int = 32 << 20,
    ) -> Shard:
        """Create a shard, or recover what a directory holds; blocking."""
        disk.make(path)
        state = StateFile(disk, path)
        if settings.durability == "memory":
            from penstock.log.memory import MemoryShard  # the memory shard is a shard without files

            return MemoryShard.begin(disk, clock, path, number, settings, state, weigh_headers)
        boot = disk.boot_id()
        unclean = state.found and not state.state.clean
        found = recover(disk, path, state.state, weigh_headers=weigh_headers)
        if strict and found.damaged:
            worst = found.damaged[0]
            raise CorruptionError(
                f"{path}: rows {worst.first} to {worst.end - 1} are damaged ({worst.reason}), and recovery is strict. "
                'Restore the directory from a backup, or set recovery = "lenient" to go on without these rows.'
            )
        if found.jump or (unclean and state.state.boot != boot):
            found.end = max(found.end, state.state.reserved_end)
            _close_open(found)
        shard = cls(disk, clock, path, number, settings, state, found, weigh_headers, cache_bytes)
        shard._begin(boot, found.stale)
        return shard

    @property
    def settings(self) -> TopicSettings:
        """How the topic keeps messages; may be changed while the shard is open, but not from or to `memory`."""
        return self._settings

    @settings.setter
    def settings(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._grouped = settings.durability == "fsync"
        if not self._grouped and self.readable_end < self.end:
            self.readable_end = self.end
            self.on_readable()

    def append(self, rows: Rows, now_ns: int) -> Batch:
        """Store rows at the end. Budget: 6 us for a lone message, of which the frame takes 3 and the write 2."""
        count = rows.count
        columns = rows.columns
        segment = self._open
        if (
            segment is None
            or segment.bytes >= self._settings.segment_bytes
            or (columns and not segment.column_set.issuperset(columns))
        ):
            segment = self._next_segment(columns)
        first = self.end
        end = first + count
        if end > self._usable_end - RESERVE_AHEAD:
            self._reserve(end)
        cuts = rows.cuts
        body = rows.body
        if columns or (type(cuts) is list) != (count <= SMALL):
            columns, cuts = shaped_rows(rows)
        batch = Batch(first, count, now_ns, cuts, body, rows.source, columns, self.weight, rows.sequence)
        try:
            segment.append(batch, now_ns)
        except OSError as error:
            raise self._refusal(error) from error
        dirty = self._commit.dirty
        if not dirty or dirty[-1] is not segment:
            dirty.append(segment)
        self.end = end
        if columns:
            self.weight += weigh(count, len(body), columns.get("headers"), weigh_headers=self.weigh_headers)
        else:
            self.weight += (EXTEND_BYTES if self.weigh_headers else PLAIN_BYTES) * count + len(body)
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
            self._commit.wait(self.end, done)
        else:
            done(None)

    def read(self, offset: int) -> Batch | None:
        """Return the batch that holds an offset, or the first after it, if it is readable and in memory."""
        found = self.find(offset)
        return None if isinstance(found, int) else found

    def fetch(self, offset: int, done: Callable[[], None]) -> None:
        """Load what is stored at an offset into memory, then call back; a `read` that still finds nothing then means
        that nothing is stored from there to `readable_end`."""
        self._fetches.want(offset, done)

    def find(self, offset: int) -> Batch | int:
        """Return the batch at an offset if it is in memory, else the first offset that must be read from disk."""
        tail = self._tail
        offset = max(offset, self.start)
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
        number = bisect_right(self._ends, offset)
        if number < len(self._closed):
            segment = self._closed[number]
            self._loaded[segment.first] = segment
            self._loaded.move_to_end(segment.first)
            while len(self._loaded) > INDEXES_MAX:
                self._loaded.popitem(last=False)[1].forget_index()
            return segment
        return self._open if self._open is not None and self._open.end > offset else None

    def damage_found(self, segment: Segment, damaged: list[Damage]) -> None:
        """Take note of batches that cannot be read."""
        new = [damage for damage in damaged if segment.damage(damage)]
        if new:
            self.damaged.extend(new)
            self._manifest.start()

    def offset_at(self, time_ns: int) -> int:
        """Return the first offset whose row was taken at or after a time; may block for one batch."""
        for segment in self._segments():
            if segment.batches == 0 or segment.ts_max < time_ns:
                continue
            index = segment.entries()
            number = index.since(time_ns)
            while number < len(index):
                if index.ts_min[number] >= time_ns:
                    return index.firsts[number]
                batch = self._loaded_batch(segment, number)
                if batch is not None:
                    late = np.broadcast_to(np.asarray(batch.timestamp), (batch.count,)) >= time_ns
                    if late.any():
                        return batch.first + int(late.argmax())
                number += 1
        return self.end

    def due_rows(self, from_offset: int, after_ns: int) -> tuple[Offsets, Offsets]:
        """Return (offsets, due times) of rows from an offset on that are due after a time; blocking."""
        return due_rows([segment for segment in self._segments() if segment.end > from_offset], from_offset, after_ns)

    def recent(self, since_ns: int) -> Iterator[Batch]:
        """Yield the batches with rows at or after a time, from segments that know duplicates; blocking."""
        for segment in list(self._segments()):
            if segment.ts_max < since_ns or not ("dedup" in segment.columns or segment.sequences):
                continue
            index = segment.entries()
            for number in range(index.since(since_ns), len(index)):
                if index.ts_max[number] >= since_ns:
                    batch = self._loaded_batch(segment, number)
                    if batch is not None:
                        yield batch

    def roll(self) -> None:
        """Close the open segment; the next append starts a new one."""
        segment = self._open
        if segment is None or not segment.batches:
            return
        self._write_index(segment)
        try:
            segment.finish()
        except OSError as error:  # a full disk: the marker is a courtesy to other readers, the rows are there
            if not is_full(error):
                raise
        self._open = None
        self._closed.append(segment)
        self._ends.append(segment.end)
        self._commit.touch(segment)
        self._commit.start(self.end)

    def tick(self, now_ns: int) -> None:
        """Do the housekeeping that is due; called about every 10 ms."""
        monotonic_ns = self._clock.monotonic()
        segment = self._open
        if segment is not None:
            self._write_index(segment)
            if segment.bytes - segment.written_back >= WRITE_BACK_BYTES:
                self._write_back(segment)
            if segment.batches and monotonic_ns - segment.opened_ns >= SEGMENT_AGE_NS:
                self.roll()
        if monotonic_ns - self._synced_ns >= SYNC_EVERY_NS:
            self._synced_ns = monotonic_ns
            self._commit.start(self.end)
            if self._manifest.failed:
                self._manifest.start()
        while self._doomed and self._doomed[0][0] <= monotonic_ns and not self._manifest.failed:
            for path in self._doomed.pop(0)[1]:
                self._disk.remove(path)
        if self._seal_wanted and self._sealing is None and monotonic_ns >= self._seal_after_ns:
            self._seal_next()

    def retain(self, needed_from: int | None, now_ns: int) -> int:
        """Drop old segments that nobody needs; return how many rows that were."""
        count = retention.droppable(self._closed, self.settings, needed_from, now_ns)
        if self._sealing in self._closed[:count]:
            count = self._closed.index(self._sealing)
        dropped = self._closed[:count]
        if not dropped:
            return 0
        del self._closed[:count]
        del self._ends[:count]
        for segment in dropped:
            self._loaded.pop(segment.first, None)
        self.start = self._first_kept()
        self._chunks.drop_below(self.start)
        self.damaged[:] = [damage for damage in self.damaged if damage.end > self.start]
        self._doom([path for segment in dropped for path in (segment.path(), segment.path(INDEX_SUFFIX))])
        self._manifest.start()
        return sum(segment.rows for segment in dropped)

    @property
    def last_ns(self) -> int:
        """When the last row was taken; 0 if none is kept."""
        return max((segment.ts_max for segment in self._segments() if segment.batches), default=0)

    def stored_bytes(self) -> int:
        """Return the size of all segments."""
        return sum(segment.bytes for segment in self._segments())

    def rows_between(self, start: int, end: int) -> int:
        """Return how many rows with start <= offset < end are stored and readable."""
        total = 0
        for number in range(bisect_right(self._ends, start), len(self._closed)):
            segment = self._closed[number]
            if segment.first >= end:
                return total
            total += segment.rows_between(start, end)
        return total + (self._open.rows_between(start, end) if self._open is not None else 0)

    def journal(self, name: str) -> tuple[Journal, Offsets]:
        """Open or recover a journal of delivery state beside the log."""
        return Journal.open(self._disk, self._clock, self.path, name)

    def close(self) -> None:
        """End cleanly: everything indexed, synced and noted as such; blocking."""
        if self._stopped:
            return
        self._commit.now(self.end)
        self._stopped = True
        segment = self._open
        if segment is not None:
            self._write_index(segment)
            if not self._commit.busy:
                segment.close()
        self._note_position()
        self._manifest.stop()
        self._state.state.clean = True
        try:
            self._manifest.write()
            self._state.replace()
        except OSError as error:  # a full disk: the next start recovers as after a crash
            if not is_full(error):
                raise
        self._state.close()

    def delete(self) -> None:
        """Remove everything."""
        self._stopped = True
        self._manifest.stop()
        for segment in self._segments():
            segment.close()
        self._state.close()
        self._disk.remove(self.path)

    # -- below: the parts of the above

    def _begin(self, boot: str, stale: list[str]) -> None:
        """Write down that the shard is in use, and what it was recovered to."""
        now = self._clock.monotonic()
        if self._open is not None:
            self._open.opened_ns = now
        state = self._state.state
        state.boot, state.clean = boot, False
        state.reserved_end = max(state.reserved_end, self.end + RESERVED_BLOCK)
        self._note_position()
        self._manifest.write()
        self._state.replace()
        self._usable_end = state.reserved_end
        self._doom(stale)

    def _segments(self) -> Iterator[Segment]:
        yield from self._closed
        if self._open is not None:
            yield self._open

    def _first_kept(self) -> int:
        if self._closed:
            return self._closed[0].first
        return self._open.first if self._open is not None else self.end

    def _next_segment(self, columns: Mapping[str, Column]) -> Segment:
        """Close the open segment and start one that has room for these columns."""
        last = self._open or (self._closed[-1] if self._closed else None)
        wanted = {*(last.used if last is not None else ()), *columns, *BASE_COLUMNS}
        unknown = wanted - COLUMNS.keys()
        if unknown:
            raise Refusal("bad_column", f"there is no column {sorted(unknown)[0]!r} in a message")
        try:
            if self._open is not None and not self._open.batches:
                self._abandon(self._open)
            names = [name for name in COLUMNS if name in wanted]
            segment = Segment.create(self._disk, self.path, self.end, names, self.weight)
        except OSError as error:
            raise self._refusal(error) from error
        segment.opened_ns = self._clock.monotonic()
        self.roll()
        if not self._closed:
            self.start = segment.first
        self._open = segment
        self._manifest.start()
        return segment

    def _abandon(self, segment: Segment) -> None:
        segment.close()
        self._disk.remove(segment.path())
        self._open = None

    def _refusal(self, error: OSError) -> Exception:
        if not is_full(error):
            return error
        return Refusal(
            "disk_full",
            f"no space left in {self.path}: the message was not stored. Free some space there, "
            "lower retention_bytes, or move the data directory to a larger disk; publishing goes on by itself then.",
        )

    def _reserve(self, end: int) -> None:
        """Keep the reserved block ahead of the log; blocking only if the thread was too slow."""
        urgent = end > self._usable_end
        if self._reserving and not urgent:
            return
        state = self._state.state
        state.reserved_end = reached = max(self._usable_end, end) + RESERVED_BLOCK
        try:
            self._state.note()
            if urgent:
                self._state.sync()
                self._usable_end = reached
                return
        except OSError as error:
            if urgent:
                raise self._refusal(error) from error
            return  # there is still room in this block; the next append tries again
        self._reserving = True

        def finished(_: None, error: BaseException | None) -> None:
            self._reserving = False
            if error is None:
                self._usable_end = max(self._usable_end, reached)

        self._disk.submit("sync", self._state.sync, finished)

    def _synced(self, clean: list[Segment]) -> None:
        """A sync has returned: rows become readable, closed segments become sealed."""
        if self._stopped:
            return
        if self._grouped and self._commit.synced_end > self.readable_end:
            self.readable_end = self._commit.synced_end
            moved = True
        else:
            moved = False
        settled = [segment for segment in clean if segment is not self._open]
        for segment in settled:
            self._write_index(segment)
            segment.sealed = True
            segment.close()
            if len(self._loaded) >= INDEXES_MAX or not seal.worthwhile(segment, self.settings.compression):
                segment.forget_index()
            else:  # its rewrite needs the index soon
                self._loaded[segment.first] = segment
        self._note_synced()
        if settled:
            self._seal_wanted = True
            self._manifest.start()
        if moved:
            self.on_readable()

    def _note_synced(self) -> None:
        self._note_position()
        try:
            self._state.note()
        except OSError:
            return  # a hint only: recovery is more careful without it

    def _note_position(self) -> None:
        state = self._state.state
        oldest = self._commit.dirty[0] if self._commit.dirty else self._open
        state.synced_segment = oldest.first if oldest is not None else self.end
        state.synced_position = oldest.synced_bytes if oldest is not None else 0

    def _sync_failed(self, error: BaseException) -> None:
        """A failed sync of an fsync topic takes back what was not synced: the kernel may have dropped those bytes."""
        self.sync_errors += 1
        if not self._grouped:
            return
        first = self._tail.at(self.readable_end) if self.readable_end >= self._tail.start else None
        self.weight = first.weight if first is not None else self.weight
        for segment in list(self._commit.dirty):
            try:
                self._take_back(segment)
            except OSError:  # the disk is beyond help; recovery will cut what is not whole
                self.sync_errors += 1
        self._commit.dirty.clear()
        self._tail.drop_from(self.readable_end)
        self._commit.synced_end = self.end

    def _take_back(self, segment: Segment) -> None:
        index = segment.index
        if index is None or segment.file is None:
            raise InvariantError("a segment with unsynced rows has its files open")
        index.cut(index.at(self.readable_end))
        if segment in self._closed:
            number = self._closed.index(segment)
            del self._closed[number], self._ends[number]
        self._open = None
        if not len(index):
            segment.close()
            self._disk.remove(segment.path())
            self._disk.remove(segment.path(INDEX_SUFFIX))
            return
        last = index[len(index) - 1]
        segment.end, segment.batches, segment.bytes = last.end, len(index), last.position + last.length
        segment.indexed = min(segment.indexed, len(index))
        segment.file.truncate(segment.bytes)
        segment.synced_bytes = segment.bytes
        segment.sealed = True
        segment.write_index(segment.end)
        segment.close()
        self._closed.append(segment)
        self._ends.append(segment.end)

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

    def _loaded_batch(self, segment: Segment, number: int) -> Batch | None:
        data, runs, damaged = segment.load(number, number + 1)
        self.damage_found(segment, damaged)
        return decoder_of(segment.columns).batch(data, runs[0].frame(0)) if runs else None

    def _seal_next(self) -> None:
        segment = next((s for s in self._closed if seal.worthwhile(s, self.settings.compression)), None)
        if segment is None:
            self._seal_wanted = False
            return
        self._sealing = segment
        compression = self.settings.compression

        def finished(merged: seal.Merged | None, error: BaseException | None) -> None:
            self._sealing = None
            if merged is None or self._stopped:
                self._seal_after_ns = self._clock.monotonic() + MINUTE_NS
                return
            self._swap(segment, merged)

        self._disk.submit("seal", lambda: seal.merge(segment, compression), finished)

    def _swap(self, old: Segment, merged: seal.Merged) -> None:
        self.damage_found(old, merged.damaged)
        number = self._closed.index(old)
        segment = Segment.of(self._disk, self.path, merged.info)
        segment.holes = list(old.holes)
        self._closed[number] = segment
        self._loaded.pop(old.first, None)
        self._doom([old.path(), old.path(INDEX_SUFFIX)])
        self._manifest.start()

    def _doom(self, paths: list[str]) -> None:
        if paths:
            self._doomed.append((self._clock.monotonic() + KEPT_NS, paths))

    def _manifest_content(self) -> bytes:
        pending = next((segment for segment in self._segments() if not segment.sealed), None)
        return Manifest(
            shard=self.number,
            start=self.start,
            end=self.end if pending is None else pending.first,
            weight=self.weight if pending is None else pending.weight,
            segments=[segment.info() for segment in self._segments()],
        ).encoded()


def _close_open(found: Recovered) -> None:
    """End the segment that recovery left open: a segment has no holes, and the next row leaves one."""
    segment = found.open
    if segment is None:
        return
    segment.finish()
    segment.sync()
    segment.close()
    segment.sealed, segment.synced_bytes = True, segment.bytes
    found.segments.append(segment)
    found.open = None


def shaped_rows(rows: Rows) -> tuple[Mapping[str, Column], Cuts]:
    """Return columns and cuts in the shape their row count asks for."""
    count, cuts = rows.count, rows.cuts
    if count <= SMALL:
        cuts = cuts if isinstance(cuts, list) else cuts.tolist()
    else:
        cuts = np.asarray(cuts, np.int32)
    return {name: shaped(column, count, name) for name, column in rows.columns.items()}, cuts


def _nothing() -> None:
    return


def _ignored(_: object, __: BaseException | None) -> None:
    return
