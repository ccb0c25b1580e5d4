"""The embedded registry: a dictionary in memory and an append-only file beside the log.

For one node alone. Changes are few, so each is synced and answered on the caller's turn.
Invariant: the dictionary is what the synced file says; a change is in both or in neither. What hangs on a lease is in
neither file nor the next life: it goes with the process, which nobody survives here.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from penstock.clock import Clock, Timer
from penstock.disk import Disk, File, TornFileError, is_full, replace_file
from penstock.errors import ConfigError, PenstockError, Refusal
from penstock.registry.answer import Answer
from penstock.registry.entries import Entries
from penstock.registry.frames import HEADER, Change, frame, mark, scan
from penstock.registry.registry import (
    Cancel,
    Entry,
    Event,
    Figure,
    Lease,
    OnEvents,
    Proposal,
    check_edits,
)

#: Changes kept for watchers that come back; more than an operator makes while a node restarts.
HISTORY_CHANGES_MAX = 1000
#: A file smaller than this is not worth compacting.
COMPACT_BYTES_MIN = 64 * 1024
#: What a key and its value take in the file beside themselves, about.
FRAME_BYTES = 24

#: Keys of the registry's own: the leases, and what hangs on each.
LEASES = "lease/"

encode_keys = msgspec.msgpack.Encoder().encode
decode_keys = msgspec.msgpack.Decoder(list[str]).decode

_log = logging.getLogger(__name__)


class EmbeddedRegistry:
    """The registry of a node that stands alone."""

    def __init__(self, disk: Disk, clock: Clock, path: str, file: File, read_only: bool) -> None:
        self.path = path
        #: Bytes of an unfinished change that were cut at start; its writer never got an answer.
        self.cut_bytes = 0
        self._disk = disk
        self._clock = clock
        self._file = file
        self._read_only = read_only
        self._entries = Entries()
        self._frame_bytes: dict[str, int] = {}
        self._live_bytes = len(HEADER)
        self._revision = 0
        self._history: deque[Change] = deque()
        #: Every change after this revision is in the history.
        self._history_from = 0
        self._watchers: list[_Watcher] = []
        self._compact_at = COMPACT_BYTES_MIN
        self._broken = ""
        self._leases: dict[int, _Lease] = {}
        #: Key -> the number of the lease it hangs on.
        self._hangs: dict[str, int] = {}
        #: Those of them that the file does not have.
        self._passing: set[str] = set()
        #: The file has the format of an older version; it is replaced before anything is added to it.
        self._is_old = False

    @classmethod
    def open(cls, disk: Disk, clock: Clock, path: str, *, read_only: bool = False) -> EmbeddedRegistry:
        """Open the file, or make an empty one; an unfinished last change is cut.

        With `read_only` nothing on disk is touched, so it may be used beside a running node.
        """
        try:
            if not read_only:
                disk.make(os.path.dirname(path))
                disk.remove(path + ".new")
                if not disk.exists(path):
                    replace_file(disk, path, HEADER)
            file = disk.open(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened ({error.strerror or error}); check data_dir") from error
        registry = cls(disk, clock, path, file, read_only)
        try:
            registry._load()
        except BaseException:
            registry.close()
            raise
        return registry

    def close(self) -> None:
        """Close the file and drop all watchers and leases; what hangs on these goes at the next start."""
        for lease in list(self._leases.values()):
            lease.stop()
        for watcher in self._watchers:
            watcher.cancelled = True
        self._watchers.clear()
        self._file.close()

    @property
    def revision(self) -> int:
        """The revision of the last change; 0 before the first."""
        return self._revision

    def get(self, key: str) -> Entry | None:
        """Return the entry, or None."""
        return self._entries.get(key)

    def list(self, prefix: str) -> dict[str, Entry]:
        """Return all entries whose key starts so, by key in order."""
        return self._entries.list(prefix)

    def problems(self) -> Sequence[str]:
        """Return what stands against changes, one sentence each."""
        return [self._broken] if self._broken else []

    def figures(self) -> Iterable[Figure]:
        """Return what there is to measure."""
        yield Figure("up", "gauge", "1 while changes can be made.", int(not self._broken))
        yield Figure("revision", "gauge", "The revision of the last change that is known.", self._revision)

    def propose(
        self,
        puts: Mapping[str, bytes],
        deletes: Iterable[str] = (),
        guards: Mapping[str, int] | None = None,
        lease: Lease | None = None,
    ) -> Proposal:
        """Put and delete several keys in one step, if what is guarded is as expected; answered when this returns."""
        edits: dict[str, bytes | None] = {key: bytes(value) for key, value in puts.items()}
        for key in deletes:
            edits[key] = None
        try:
            check_edits(edits)
            self._check_guards(guards or {})
            if lease is not None and (lease.is_over or self._leases.get(lease.number) is not lease):
                raise Refusal("gone", f"lease {lease.number} is over; ask for another")
            effective = {key: value for key, value in edits.items() if value is not None or key in self._entries}
            if not effective:
                return Answer.of(self._revision)
            if self._is_passing(edits, lease):
                revision = self._pass(effective)
            else:
                revision = self._change(effective | self._hung(edits, lease))
        except PenstockError as error:
            return Answer.refused(error)
        for key, value in edits.items():
            self._hangs.pop(key, None)
            if lease is not None and value is not None:
                self._hangs[key] = lease.number
        return Answer.of(revision)

    def lease(self, ttl_ns: int) -> Answer[Lease]:
        """Give a lease; its number is the revision at which that was."""
        number = self._revision + 1
        return self.propose({f"{LEASES}{number}": encode_keys(())}).then_make(lambda _: self._begin(number, ttl_ns))

    def _begin(self, number: int, ttl_ns: int) -> Lease:
        lease = self._leases[number] = _Lease(self._clock, number, ttl_ns, self._drop)
        return lease

    def _is_passing(self, edits: Mapping[str, bytes | None], lease: Lease | None) -> bool:
        """Tell whether a change concerns nothing that the file has, or shall have."""
        if lease is None and any(value is not None for value in edits.values()):
            return False
        return all(key in self._passing or key not in self._entries for key in edits)

    def _pass(self, edits: Mapping[str, bytes | None]) -> int:
        """Make a change that ends with the process."""
        change = Change(self._revision + 1, tuple(edits.items()))
        self._revision = change.revision
        for key, value in change.edits:
            if value is None:
                self._entries.remove(key)
                self._passing.discard(key)
            else:
                self._entries.put(key, Entry(value, change.revision))
                self._passing.add(key)
        self._remember(change)
        for watcher in self._watchers:
            watcher.add(change)
        return self._revision

    def _hung(self, edits: Mapping[str, bytes | None], lease: Lease | None) -> dict[str, bytes | None]:
        """Return what changes in the lists of keys that hang on leases."""
        lists: dict[int, set[str]] = {}

        def listed(number: int) -> set[str]:
            hanging = {key for key, other in self._hangs.items() if other == number and key not in self._passing}
            return lists.setdefault(number, hanging)

        for key, value in edits.items():
            if key in self._hangs and key not in self._passing:
                listed(self._hangs[key]).discard(key)
            if lease is not None and value is not None:
                listed(lease.number).add(key)
        found: dict[str, bytes | None] = {f"{LEASES}{n}": encode_keys(sorted(keys)) for n, keys in lists.items()}
        return {name: value for name, value in found.items() if name not in edits}  # one that ends has no list any more

    def _drop(self, number: int) -> Proposal:
        """End a lease and remove what hangs on it."""
        self._leases.pop(number, None)
        name = f"{LEASES}{number}"
        entry = self._entries.get(name)
        hanging = dict.fromkeys(key for key, other in self._hangs.items() if other == number)
        return self.propose({}, [*dict.fromkeys((*decode_keys(entry.value), *hanging)), name] if entry else [])

    def watch(self, prefix: str, from_revision: int, on_events: OnEvents) -> Cancel:
        """Report every change after a revision, in order, in later turns of the loop, until cancelled."""
        if not self._history_from <= from_revision <= self._revision:
            raise Refusal(
                "gone",
                f"changes after revision {from_revision} are not known here (only {self._history_from} to "
                f"{self._revision}); list again and watch from the current revision",
            )
        watcher = _Watcher(self._clock, prefix, on_events)
        self._watchers.append(watcher)
        for change in self._history:
            if change.revision > from_revision:
                watcher.add(change)

        def cancel() -> None:
            watcher.cancelled = True
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return cancel

    def _load(self) -> None:
        data = _whole(self._file)
        found = scan(data, self.path)
        for change, size in found.changes:
            self._apply(change, size)
        self.cut_bytes = len(data) - found.end
        self._compact_at = max(COMPACT_BYTES_MIN, 2 * self._live_bytes)
        self._is_old = found.is_old
        if self._read_only:
            return
        if self.cut_bytes:
            self._file.truncate(found.end)
        if self.cut_bytes or not found.is_marked:  # the process died between a change and its mark
            self._file.sync()
        if self._is_old:
            self._compact()
        elif not found.is_marked and self._revision:
            self._mark()
        for name in self.list(LEASES):  # their holders were in the process that is gone
            self._drop(int(name[len(LEASES) :]))

    def _check_guards(self, guards: Mapping[str, int]) -> None:
        if self._read_only:
            raise Refusal("forbidden", f"{self.path} was opened for reading only")
        if self._broken:
            raise PenstockError(self._broken)
        for key, expected in guards.items():
            entry = self._entries.get(key)
            actual = entry.revision if entry else 0
            if expected != actual:
                state = f"is at revision {actual}" if actual else "does not exist"
                wanted = f"revision {expected}" if expected else "that it does not exist"
                raise Refusal("conflict", f"{key} {state}, the request expected {wanted}; read it again")

    def _change(self, edits: Mapping[str, bytes | None]) -> int:
        if self._is_old:
            self._compact()
            if self._is_old:
                raise Refusal(
                    "disk_full", f"{self.path} is of an older format and could not be copied; free some space"
                )
        change = Change(self._revision + 1, tuple(edits.items()))
        kept = tuple((key, value) for key, value in edits.items() if value is not None or key not in self._passing)
        size = self._write(Change(change.revision, kept))
        self._apply(change, size)
        self._passing.difference_update(edits)
        self._mark()
        for watcher in self._watchers:
            watcher.add(change)
        if self._file.size() > self._compact_at:
            self._compact()
        return self._revision

    def _write(self, change: Change) -> int:
        before = self._file.size()
        data = frame(change, before)
        try:
            self._file.append([data])
            self._file.sync()
        except OSError as error:
            self._cut_back(before)
            text = f"{self.path} cannot be written ({error.strerror or error})"
            if is_full(error):
                raise Refusal("disk_full", f"{text}; free some space and try again") from error
            raise PenstockError(f"{text}; nothing was changed. Check the disk") from error
        return len(data)

    def _mark(self) -> None:
        """Write down that everything so far was synced: from now on a bad frame here is damage."""
        before = self._file.size()
        try:
            self._file.append([mark(self._revision, before)])
        except OSError as error:  # a full disk: the change itself is in
            _log.warning("%s: the last change could not be marked as synced (%s)", self.path, error.strerror or error)
            if isinstance(error, TornFileError):  # behind half a mark the next change would be cut at the next start
                self._cut_back(before)

    def _cut_back(self, length: int) -> None:
        # What was written and not synced must not come back at the next start: its writer is told that it failed.
        try:
            self._file.truncate(length)
            self._file.sync()
        except OSError as error:
            self._broken = (
                f"{self.path} could be neither written nor cut ({error.strerror or error}); "
                "no change is taken until the node is restarted. Check the disk"
            )

    def _apply(self, change: Change, size: int) -> None:
        self._revision = change.revision
        if not change.edits:  # the end of a compacted start: what stands before it is no complete history
            self._history.clear()
            self._history_from = change.revision
            self._live_bytes += size
            return
        for key, value in change.edits:
            self._live_bytes -= self._frame_bytes.pop(key, 0)
            if value is None:
                self._entries.remove(key)
            else:
                self._entries.put(key, Entry(value, change.revision))
                self._frame_bytes[key] = len(key) + len(value) + FRAME_BYTES
                self._live_bytes += self._frame_bytes[key]
        self._remember(change)

    def _remember(self, change: Change) -> None:
        self._history.append(change)
        if len(self._history) > HISTORY_CHANGES_MAX:
            self._history_from = self._history.popleft().revision

    def _compact(self) -> None:
        data = bytearray(HEADER)
        by_revision: dict[int, list[tuple[str, bytes | None]]] = {}
        for key, entry in self._entries.list().items():
            if key not in self._passing:
                by_revision.setdefault(entry.revision, []).append((key, entry.value))
        # One frame per revision: the next one of a reader is then never the same again, with something lost between.
        for revision in sorted(by_revision):
            data += frame(Change(revision, tuple(by_revision[revision])), len(data))
        data += frame(Change(self._revision, ()), len(data))
        if self._revision:
            data += mark(self._revision, len(data))
        self._live_bytes = len(data)
        self._compact_at = max(COMPACT_BYTES_MIN, 2 * self._live_bytes)
        try:
            replace_file(self._disk, self.path, bytes(data))
        except OSError as error:
            if self._disk.exists(self.path + ".new"):  # not renamed: the old file stands and is complete
                self._compact_at = self._file.size() + COMPACT_BYTES_MIN
            else:
                self._broken = (
                    f"{self.path} was compacted, but its directory could not be synced ({error.strerror or error}); "
                    "no change is taken until the node is restarted. Check the disk"
                )
            return
        old, self._file = self._file, self._disk.open(self.path)
        old.close()
        self._is_old = False


class _Lease:
    """The right to something in this process."""

    def __init__(self, clock: Clock, number: int, ttl_ns: int, drop: Callable[[int], Proposal]) -> None:
        self.number = number
        self._clock = clock
        self._ttl_ns = ttl_ns
        self._drop = drop
        self._until_ns = clock.monotonic() + ttl_ns
        self._timer: Timer | None = clock.call_at(self._until_ns, self._ring)

    @property
    def is_over(self) -> bool:
        return self._timer is None or self._clock.monotonic() >= self._until_ns

    def renew(self) -> Answer[None]:
        if self.is_over:
            return Answer.refused(Refusal("gone", f"lease {self.number} is over; ask for another"))
        self._until_ns = self._clock.monotonic() + self._ttl_ns
        return Answer.of(None)

    def end(self) -> Answer[None]:
        self.stop()
        return self._drop(self.number).then_make(lambda _: None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        if self._clock.monotonic() < self._until_ns:  # it was renewed since
            self._timer = self._clock.call_at(self._until_ns, self._ring)
        else:
            self._timer = None
            self._drop(self.number)


class _Watcher:
    """One who watches a prefix, and what it has not been told yet."""

    def __init__(self, clock: Clock, prefix: str, on_events: OnEvents) -> None:
        self.cancelled = False
        self._call_soon: Callable[[Callable[[], None]], None] = clock.call_soon
        self._prefix = prefix
        self._on_events = on_events
        self._pending: list[Event] = []

    def add(self, change: Change) -> None:
        events = [Event(key, value, change.revision) for key, value in change.edits if key.startswith(self._prefix)]
        if events and not self._pending:
            self._call_soon(self._tell)
        self._pending += events

    def _tell(self) -> None:
        events, self._pending = self._pending, []
        if not self.cancelled:
            self._on_events(events)


def _whole(file: File) -> bytes:
    parts = []
    position = 0
    while part := file.read(position, 1 << 24):
        parts.append(part)
        position += len(part)
    return b"".join(parts)
