"""What follows a failed sync: rows that may be lost are written again, into new files.

A kernel that has told of a failed write forgets that the pages were to be written, so no later sync says anything
about them. Owns the new files and the tries. Knows nothing of callers or publishers.
Invariant: of a suspect file only what an earlier sync covered is believed; a new file is whole and synced before it
has its name, and the manifest on disk names it before anybody is told that its rows are safe.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from penstock.clock import SECOND, Clock, Timer
from penstock.columns import BASE_COLUMNS, COLUMNS
from penstock.disk import Disk
from penstock.errors import CorruptionError
from penstock.log.manifest import DATA_SUFFIX, NEW_SUFFIX, ManifestWriter, stem
from penstock.log.segment import Segment, decoder_of, times_of
from penstock.log.tail import Tail
from penstock.message import Batch

#: A disk that failed twice is asked again after this long, then less and less often.
RETRY_NS = SECOND
RETRY_NS_MAX = 30 * SECOND
#: Batches read back at a time, where memory does not have the rows any more.
READ_BATCHES = 1024


class Repair:
    """The repair of one shard, from a failed sync until all its rows are safe again."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        suspects: Sequence[Segment],
        tail: Tail,
        manifest: ManifestWriter,
        on_written: Callable[[list[Segment], list[Segment]], None],
        on_failed: Callable[[BaseException], None],
        on_healed: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._suspects = list(suspects)
        #: How many batches of each suspect an earlier sync covered.
        self._synced = [synced_batches(segment) for segment in suspects]
        unsynced = [s.index.firsts[n] for s, n in self._plan() if s.index is not None and n < len(s.index)]
        first = min(unsynced, default=None)
        # Kept here as well: the shard may need the memory, these rows need it more.
        self._batches = [batch for batch in tail if first is not None and batch.first >= first]
        self._read_end = tail.start
        self._manifest = manifest
        self._on_written = on_written
        self._on_failed = on_failed
        self._on_healed = on_healed
        self._retry_ns = RETRY_NS
        self._timer: Timer | None = None
        # The last try, at closing, may meet one that a thread has not ended yet.
        self._lock = threading.Lock()
        self._made: list[Segment] | None = None
        self._taken = False
        self._stopped = False

    def start(self) -> None:
        """Try now; what becomes of it is told."""
        self._timer = None
        if self._taken:
            self._manifest.ensure(self._noted)
        else:
            self._disk.submit("sync", self._work, self._worked)

    def drop_rows(self) -> None:
        """Write none of the rows again: they were promised to nobody, and their publishers were told so."""
        with self._lock:
            self._batches, self._read_end = [], 0

    def finish(self) -> None:
        """Try for the last time, and not again; blocking. OSError or CorruptionError if it comes to nothing."""
        self.stop()
        self._take(self._work())
        self._manifest.write()
        self._on_healed()

    def stop(self) -> None:
        """Try no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _worked(self, made: list[Segment] | None, error: BaseException | None) -> None:
        if self._stopped:
            return
        if made is None:
            self._failed(error or OSError("the repair came to nothing"))
            return
        self._take(made)
        self._manifest.ensure(self._noted)

    def _take(self, made: list[Segment]) -> None:
        if not self._taken:
            self._taken = True
            kept = [shortened(segment, count) for segment, count in self._plan() if count]
            self._on_written(self._suspects, [*kept, *made])

    def _noted(self, error: BaseException | None) -> None:
        if self._stopped:
            return
        if error is not None:
            self._failed(error)
        else:
            self._on_healed()

    def _failed(self, error: BaseException) -> None:
        self._timer = self._clock.call_at(self._clock.monotonic() + self._retry_ns, self.start)
        self._retry_ns = min(2 * self._retry_ns, RETRY_NS_MAX)
        self._on_failed(error)

    # --- on a thread ----------------------------------------------------------------------------------------------

    def _work(self) -> list[Segment]:
        with self._lock:
            if self._made is None:
                self._made = self._written()
            return self._made

    def _written(self) -> list[Segment]:
        """Write the rows into new files, under names that nothing has yet."""
        made: list[Segment] = []
        try:
            for batch in chain(self._read_back(), self._batches):
                if not made or made[-1].end != batch.first:  # a segment has no holes
                    made.append(self._begun(batch))
                _store(made[-1], batch)
            for segment in made:
                segment.finish()
                segment.named = True  # as soon as it has the name that is its own
                segment.sync()
                segment.close()
            for segment in made:
                self._disk.rename(segment.path() + NEW_SUFFIX, segment.path())
            if made:
                self._disk.sync_directory(self._directory)
        except (OSError, CorruptionError):
            self._discard(made)
            raise
        for segment in made:
            segment.sealed = True
            segment.synced_bytes = segment.bytes
        return made

    def _begun(self, batch: Batch) -> Segment:
        used = set(BASE_COLUMNS).union(*(segment.used for segment in self._suspects))
        generations = [segment.generation + 1 for segment in self._suspects if segment.first == batch.first]
        names = [name for name in COLUMNS if name in used]
        generation = max(generations, default=0)
        path = os.path.join(self._directory, stem(batch.first, generation) + DATA_SUFFIX + NEW_SUFFIX)
        return Segment.create(self._disk, self._directory, batch.first, names, batch.weight, generation, path)

    def _read_back(self) -> Iterator[Batch]:
        """Yield the rows that memory does not have any more, as far as the suspect files still show them whole."""
        for segment, start in self._plan():
            index = segment.index
            stop = index.at(self._read_end) if index is not None else 0
            for number in range(start, stop, READ_BATCHES):
                data, runs, damaged = segment.load(number, min(number + READ_BATCHES, stop))
                if damaged:
                    first, end, reason = damaged[0]
                    raise CorruptionError(f"rows {first} to {end - 1} were not synced and are lost: {reason}")
                yield from decoder_of(segment.columns).batches(data, runs)

    def _discard(self, made: list[Segment]) -> None:
        for segment in made:
            segment.close()
            for path in (segment.path() + NEW_SUFFIX, segment.path()):
                try:
                    self._disk.remove(path)
                except OSError:  # the next try, or the next start, removes it
                    continue

    def _plan(self) -> Iterator[tuple[Segment, int]]:
        return zip(self._suspects, self._synced, strict=True)


def synced_batches(segment: Segment) -> int:
    """Return how many batches of a segment survive a power loss by what an earlier sync has covered."""
    index = segment.index
    if index is None:
        return 0
    count = bisect_left(index.positions, segment.synced_bytes)
    if count and index.positions[count - 1] + index.lengths[count - 1] > segment.synced_bytes:
        count -= 1
    return count


def shortened(segment: Segment, count: int) -> Segment:
    """Return a suspect segment as a sealed one that ends after so many batches; its file may go on, unread."""
    index = segment.index.first(count) if segment.index is not None else None
    if index is None or not count:
        raise CorruptionError(f"nothing of {segment.path()} is known to be synced")
    last = index[count - 1]
    short = Segment.of(segment.disk, segment.directory, segment.info())
    short.index, short.batches = index, count
    short.end, short.bytes = last.end, last.position + last.length
    short.ts_min, short.ts_max = index.earliest(), max(index.ts_max)
    short.holes = [hole for hole in segment.holes if hole.first < short.end]
    short.used, short.indexed = set(segment.used), min(segment.indexed, count)
    short.synced_bytes = short.bytes
    short.sealed = short.ragged = True
    return short


def _store(segment: Segment, batch: Batch) -> None:
    earliest, latest = times_of(batch)
    segment.append(batch, latest)
    if segment.index is not None:
        segment.index.ts_min[-1] = earliest
