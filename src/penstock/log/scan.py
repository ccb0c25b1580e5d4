"""A walk through a segment's bytes from batch to batch, as recovery, `verify` and a lost index need it.

Owns the rule of what is damage and what is a cut tail. Knows nothing of files beyond a function that reads.
Invariant: a batch is counted good only if its CRC is right and it goes on where the one before it ended, or, in a
sparse segment, anywhere after.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from penstock.errors import CorruptionError
from penstock.log.decode import Decoder
from penstock.log.index import Index
from penstock.log.layout import CONTINUATION, END_OF_STREAM, layout_at
from penstock.log.manifest import Damage
from penstock.log.run import Frame, Run, frame_at, run_from

#: Bytes looked at in one go; large enough to make the reads cheap, small enough to bound the memory.
WINDOW_BYTES = 8 << 20

#: Every message of an Arrow stream begins at a multiple of this.
ALIGNMENT = 8

Read = Callable[[int, int], bytes]


class Scan:
    """What a walk found."""

    def __init__(self, first: int, start: int) -> None:
        self.index = Index()
        #: The offset after the last good batch.
        self.end = first
        #: The position after the last good batch.
        self.good_bytes = start
        self.holes: list[Damage] = []
        #: The end-of-stream marker was met.
        self.ended = False
        #: Why the walk stopped early; empty if it came to the end.
        self.cut_reason = ""
        #: The bytes after the cut are the beginning of a batch that was never written in full.
        self.torn = False
        #: Damaged bytes held rows whose number nobody knows.
        self.lost = False
        self.used: set[str] = set()
        self.due_max = 0
        self.sequences = False
        #: What stands before the first good batch.
        self.weight: int | None = None
        #: The last good batch, for what must be known of its rows.
        self.last: tuple[bytes, Frame] | None = None


class _Walker:
    def __init__(
        self,
        read: Read,
        decoder: Decoder,
        first: int,
        start: int,
        size: int,
        synced: int,
        *,
        sparse: bool,
        written: bool,
    ) -> None:
        self.read = read
        self.decoder = decoder
        self.start = start
        self.size = size
        self.synced = min(synced, size)
        self.written = written
        self.found = Scan(first, start)
        self.pending = ""
        self.sparse = sparse

    def believe(self, trusted: Index) -> None:
        """Take batches as they were indexed, without a look at them, but for what the first one says."""
        found = self.found
        head = self.read(self.start, min(trusted.lengths[0], WINDOW_BYTES))
        found.weight = layout_at(head, 0).weight(head, 0)
        found.index = trusted
        last = trusted[len(trusted) - 1]
        found.end, found.good_bytes = last.end, last.position + last.length

    def walk(self, known: Index) -> Scan:
        position = self.found.good_bytes
        while position < self.size:
            step = self.window(position)
            if step is None:
                break
            if step > 0:
                position += step
                continue
            # Nothing good here: the index, or else the synced position, says where a batch begins at the latest.
            number = bisect_right(known.positions, position)
            behind = self.size if self.written else self.synced
            place = known.positions[number] if number < len(known) else behind
            if position < place:
                place = self.next_good(position, min(place, self.size))
            if not position < place < self.size:
                break
            position = place
        if self.pending:
            end = known[len(known) - 1].end if len(known) else self.found.end
            self.found.lost = end <= self.found.end
            self.found.holes.append(Damage(self.found.end, max(end, self.found.end), self.pending))
            self.found.end = max(end, self.found.end)
        return self.found

    def next_good(self, position: int, stop: int) -> int:
        """Return where the next intact batch begins after a bad one, `stop` if there is none before it."""
        at = position + ALIGNMENT
        while at < stop:
            data = self.read(at, min(WINDOW_BYTES, self.size - at))
            place = data.find(CONTINUATION)
            while 0 <= place < stop - at:
                if (at + place) % ALIGNMENT == 0 and self.is_good(at + place, data, place):
                    return at + place
                place = data.find(CONTINUATION, place + 1)
            at += max(len(data) - len(CONTINUATION) + 1, ALIGNMENT)
        return stop

    def is_good(self, position: int, data: bytes, at: int) -> bool:
        more = declared(data, at)
        if len(data) - at < more <= self.size - position:
            data, at = self.read(position, more), 0
        try:
            return frame_at(data, at, len(data)).first >= self.found.end
        except CorruptionError:
            return False

    def window(self, position: int) -> int | None:
        """Take the good batches of one window; return how far they reach, 0 at damage, None at the end."""
        length = min(WINDOW_BYTES, self.size - position)
        data = self.read(position, length)
        taken: list[Run] = []
        at = 0
        verdict: int | None = 0
        while at < len(data):
            if data[at : at + 8] == END_OF_STREAM:
                self.found.ended = True
                verdict = None
                break
            run = run_from(data, at, len(data))
            if run is not None and self.accept_run(data, run, position):
                taken.append(run)
                at = int(run.ends[-1])
                continue
            try:
                frame = frame_at(data, at, len(data))
                self.accept(data, frame, position)
            except CorruptionError as error:
                more = declared(data, at)
                if at == 0 and len(data) < more <= self.size - position:
                    data = self.read(position, more)
                    if len(data) >= more:
                        continue
                if at == 0 or position + len(data) >= self.size:
                    verdict = self.bad(position + at, str(error), torn=more == 0 or more > self.size - position - at)
                break
            taken.append(Run.of(frame))
            at = frame.end
        self.summarise(data, taken)
        return verdict if verdict is None else at

    def accept_run(self, data: bytes, run: Run, position: int) -> bool:
        """Take many batches at once if they go on where the last one ended."""
        found = self.found
        if self.pending or int(run.firsts[0]) != found.end:
            return False
        if found.weight is None:
            found.weight = run.layout.weight(data, int(run.ats[0]))
        lengths = run.ends - run.ats
        found.index.extend([run.firsts, run.rows, run.ats + position, lengths, *self.decoder.run_times(data, run)])
        last = run.frame(len(run) - 1)
        found.end = last.first + last.rows
        found.good_bytes = position + last.end
        found.last = (data, last)
        return True

    def accept(self, data: bytes, frame: Frame, position: int) -> None:
        found = self.found
        if frame.first < found.end or frame.rows <= 0:
            raise CorruptionError("the batch repeats offsets")
        low, high = self.decoder.times(data, frame)
        if frame.first > found.end and (self.pending or not self.sparse):
            found.holes.append(Damage(found.end, frame.first, self.pending or "a batch is missing"))
        self.pending = ""
        if found.weight is None:
            found.weight = frame.layout.weight(data, frame.at)
        found.index.add(frame.first, frame.rows, position + frame.at, frame.end - frame.at, low, high)
        found.end = frame.first + frame.rows
        found.good_bytes = position + frame.end
        found.last = (data, frame)

    def bad(self, position: int, reason: str, *, torn: bool) -> int | None:
        """Decide between damage and a cut; 0 means damage, None the cut."""
        # A process that dies leaves a batch unfinished, and nothing behind it: whatever else is wrong became so later.
        became = self.written and (not torn or self.next_good(position, self.size) < self.size)
        if position < self.synced or became:
            self.pending = self.pending or reason
            return 0
        self.found.cut_reason = reason
        self.found.torn = torn
        return None

    def summarise(self, data: bytes, taken: list[Run]) -> None:
        found = self.found
        if any(run.layout.sequence_bytes for run in taken):
            found.sequences = True
        if taken and len(self.decoder.columns) > 4:
            for batch in self.decoder.batches(data, taken):
                found.used.update(batch.columns)
                found.due_max = max(found.due_max, self.decoder.due_max(batch))


def scan(
    read: Read,
    decoder: Decoder,
    first: int,
    start: int,
    size: int,
    synced: int,
    known: Index,
    *,
    sparse: bool = False,
    written: bool = False,
    trusted: Index | None = None,
) -> Scan:
    """Walk a segment from its first batch on; before `synced` a bad batch is damage, after it the end.

    With `written` the bytes are those that a process wrote, which may have died, on a machine that did not: then only a
    batch that is not whole, with nothing behind it, is the end. Batches that are `trusted` are not looked at: all but
    the last, whose rows tell what the next ones weigh.
    """
    walker = _Walker(read, decoder, first, start, size, synced, sparse=sparse, written=written)
    if trusted is not None and len(trusted) > 1:
        walker.believe(trusted.first(len(trusted) - 1))
    return walker.walk(known)


def declared(data: bytes, at: int) -> int:
    """Return how long the message at a position says it is, 0 if it does not even say that."""
    try:
        layout = layout_at(data, at)
    except CorruptionError:
        return 0
    return layout.body_at + layout.body_bytes(data, at)
