"""When closed segments are rewritten, and when the files of old generations go.

Owns the one rewrite under way and the list of doomed files. Knows nothing of how a rewrite is done.
Invariant: a file is removed only after ten minutes in which no manifest on disk named it, or where room is short at
once when none does: a reader beside the node finds what took its place, or learns that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.clock import Clock
from penstock.columns import Offsets
from penstock.disk import Disk
from penstock.log import seal
from penstock.log.compact import compact
from penstock.log.manifest import INDEX_SUFFIX, ManifestWriter
from penstock.log.segment import Segment
from penstock.log.segments import Segments
from penstock.log.weight import UNCHANGED, Measures
from penstock.settings import MINUTE_NS

#: Takes what a rewrite made of a segment in its place; False if that came too late.
Accepted = Callable[[Segment, seal.Merged], bool]
#: The same where only some rows were kept, which come first.
Compacted = Callable[[Offsets, Segment, seal.Merged], bool]

#: Readers without the lock may still have an old generation open; it is removed this much later.
KEPT_NS = 10 * MINUTE_NS
#: A rewrite that failed, as on a full disk, is tried again after this long.
RETRY_NS = MINUTE_NS


class Rewrites:
    """The rewrites of one shard's segments."""

    __slots__ = (
        "_clock",
        "_compacted",
        "_disk",
        "_doomed",
        "_manifest",
        "_measures",
        "_on_rewritten",
        "_pinned",
        "_retry_ns",
        "_segments",
        "doomed_bytes",
        "stopped",
        "under_way",
        "wanted",
    )

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        segments: Segments,
        manifest: ManifestWriter,
        on_rewritten: Accepted,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._segments = segments
        self._manifest = manifest
        self._on_rewritten = on_rewritten
        self._doomed: list[tuple[int, list[str], int]] = []
        #: What the files that are yet to be removed hold.
        self.doomed_bytes = 0
        self._retry_ns = 0
        #: Segments to be rewritten with some of their rows, and what takes the result.
        self._pinned: list[tuple[Segment, Offsets]] = []
        self._measures: Measures = UNCHANGED
        self._compacted: Compacted = _refused
        #: The segment that a thread is reading now.
        self.under_way: Segment | None = None
        #: Something was closed since the last look.
        self.wanted = True
        self.stopped = False

    def tick(self, monotonic_ns: int, compression: str, *, hurry: bool = False) -> None:
        """Remove what is due, or all that is to go if there is no room for it, and start the next rewrite."""
        hurry = hurry and self._manifest.settled
        while self._doomed and (hurry or (self._doomed[0][0] <= monotonic_ns and not self._manifest.failed)):
            _, paths, size = self._doomed.pop(0)
            self.doomed_bytes -= size
            for path in paths:
                self._disk.remove(path)
        if self.wanted and self.under_way is None and monotonic_ns >= self._retry_ns:
            self._start(compression)

    def doom(self, paths: list[str], size: int = 0) -> None:
        """Have files of this size removed once no reader needs them any more."""
        if paths:
            self._doomed.append((self._clock.monotonic() + KEPT_NS, paths, size))
            self.doomed_bytes += size

    def doom_segments(self, segments: list[Segment]) -> None:
        """Have the files of segments removed once no reader needs them any more."""
        paths = [path for segment in segments for path in (segment.path(), segment.path(INDEX_SUFFIX))]
        self.doom(paths, sum(segment.bytes for segment in segments))

    def _start(self, compression: str) -> None:
        segment = next((one for one in self._segments.closed if seal.worthwhile(one, compression)), None)
        if segment is None:
            self.wanted = False
        else:
            self._run(segment, lambda: seal.merge(segment, compression), self._on_rewritten)

    def compact(self, pinned: list[tuple[Segment, Offsets]], measures: Measures, accepted: Compacted) -> None:
        """Rewrite segments with these rows alone, one after the other; what was asked for before counts no more."""
        self._pinned, self._measures, self._compacted = pinned, measures, accepted
        if self.under_way is None and self._clock.monotonic() >= self._retry_ns:
            self._compact_next()

    def _compact_next(self) -> None:
        while self._pinned and self.under_way is None:
            segment, keep = self._pinned.pop(0)
            if segment in self._segments.closed:
                work = partial(compact, segment, keep, self._measures)
                self._run(segment, work, partial(self._compacted, keep))

    def _run(self, segment: Segment, work: Callable[[], seal.Merged], accepted: Accepted) -> None:
        self.under_way = segment
        # A process that died before its manifest told of them left files of the same names. They are not removed any
        # more: the thread may have put the new ones in their place before the loop hears of it.
        following = Segment(self._disk, segment.directory, segment.first, segment.generation + 1, segment.columns)
        coming = (following.path(), following.path(INDEX_SUFFIX))
        self._doomed = [(at, [path for path in gone if path not in coming], size) for at, gone, size in self._doomed]

        def finished(merged: seal.Merged | None, error: BaseException | None) -> None:
            self.under_way = None
            if merged is None or self.stopped:
                self._retry_ns = self._clock.monotonic() + RETRY_NS
                return
            made = Segment.of(self._disk, segment.directory, merged.info)
            paths = [made.path(), made.path(INDEX_SUFFIX)]
            if segment in self._segments.closed and accepted(segment, merged):
                self.doom_segments([segment])
                self._compact_next()
            else:
                self._retry_ns = self._clock.monotonic() + RETRY_NS
                for path in paths:  # nobody has heard of them
                    self._disk.remove(path)

        self._disk.submit("seal", work, finished)


def _refused(_: Offsets, __: Segment, ___: seal.Merged) -> bool:
    return False
