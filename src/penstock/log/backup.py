"""A copy of a data directory, taken beside the running node, and the way back.

Owns the order of copying. Needs no lock for a backup: files that are sealed never change, growing ones are copied as
far as their index says, the newest first: where a segment has rows, the index of the one before it is whole.
Invariant: a restored directory passes `verify`, has no gap that the log did not have, and gives out no offset a second
time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import msgspec

from penstock.disk import LocalDisk, private, replace_file
from penstock.errors import ConfigError
from penstock.log import journal, label, lock, manifest, state
from penstock.log.index import Index
from penstock.log.manifest import DATA_SUFFIX, INDEX_SUFFIX, NEW_SUFFIX, Manifest
from penstock.log.reader import LISTINGS_MAX, ReadOnlyDisk
from penstock.log.segment import SCHEMA_BYTES_MAX, Segment, head_of
from penstock.log.state import State, StateFile
from penstock.log.verify import shards_below

#: Marks a directory as a backup, and is the last thing written.
MARK = "penstock-backup.json"
#: No machine ever had this boot id, so a restored shard goes on beyond its reserved offsets.
RESTORED_BOOT = "restored from a backup"


class Backup(msgspec.Struct, kw_only=True):
    """What a backup holds."""

    version: int = 1
    shards: int = 0
    rows: int = 0
    bytes: int = 0
    #: Topics of the node that are on Kafka, of which it has but a part.
    left_out: int = 0


def backup(data: str, target: str) -> Backup:
    """Copy a data directory, in use or not, into a new directory."""
    if not os.path.isdir(data):
        raise ConfigError(f"there is no data directory {data}. Name the one the node was started with.")
    _must_be_empty(target, "A backup goes into a directory of its own; choose a new one.")
    LocalDisk().make(target)
    made = Backup()
    places = set(shards_below(data))
    # What names things goes first: a topic made meanwhile is then simply not in the backup.
    topics = os.path.join(data, label.TOPICS)
    known = set(os.listdir(topics)) if os.path.isdir(topics) else set()
    for path in _other_files(data, places):
        if path.startswith(topics + os.sep) and os.path.relpath(path, topics).split(os.sep)[0] not in known:
            continue
        _copy(path, os.path.join(target, os.path.relpath(path, data)))
    for place in sorted(places):
        _shard(place, os.path.join(target, os.path.relpath(place, data)), made)
    made.left_out = sum(label.CACHED in files for _, _, files in os.walk(data))
    made.bytes = sum(os.path.getsize(path) for path in _files(target))
    _sync_tree(target)
    replace_file(LocalDisk(), os.path.join(target, MARK), msgspec.json.encode(made))
    return made


def restore(source: str, data: str) -> Backup:
    """Make a data directory of a backup; the node must not run on it yet."""
    try:
        with open(os.path.join(source, MARK), "rb") as file:
            made = msgspec.json.decode(file.read(), type=Backup)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{source} is no finished Penstock backup: it has no readable {MARK}.") from error
    if made.version != 1:
        raise ConfigError(f"{source} is a backup of version {made.version}; this Penstock reads 1. Upgrade it.")
    _must_be_empty(data, "Move it away, or choose another data directory.")
    for path in _files(source):
        name = os.path.relpath(path, source)
        if name != MARK:
            _copy(path, os.path.join(data, name))
    LocalDisk().make(data)
    _sync_tree(data)
    return made


def _must_be_empty(place: str, way_out: str) -> None:
    if os.path.exists(place) and (not os.path.isdir(place) or os.listdir(place)):
        raise ConfigError(f"{place} is not empty. {way_out}")


def _shard(place: str, target: str, made: Backup) -> None:
    LocalDisk().make(target)
    disk = ReadOnlyDisk()
    # Delivery state before rows: a row acknowledged meanwhile comes again, rather than being lost.
    for name in disk.list(place):
        if name.endswith(journal.SUFFIX):
            _journal(os.path.join(place, name), os.path.join(target, name))
    for attempt in range(LISTINGS_MAX):
        try:
            rows, reached = _segments(disk, place, target)
            break
        except FileNotFoundError:
            # A rewrite or the retention came between: the manifest names what there is now.
            for name in os.listdir(target):
                if manifest.parsed(name):
                    os.unlink(os.path.join(target, name))
            if attempt == LISTINGS_MAX - 1:
                raise
    # The state last: its reserved offsets then cover every row copied before.
    found = StateFile(disk, place).state
    copied = State(
        reserved_end=max(found.reserved_end, reached[0]),
        synced_segment=reached[0],
        synced_position=reached[1],
        boot=RESTORED_BOOT,
        clean=False,
    )
    _write(os.path.join(target, state.FILE), state.line(copied))
    made.shards += 1
    made.rows += rows


def _segments(disk: ReadOnlyDisk, place: str, target: str) -> tuple[int, tuple[int, int]]:
    """Copy what the manifest names, and what is newer; return the rows and the position all of it reaches to."""
    found = manifest.load(disk, place)
    if found is None:
        return 0, (0, 0)
    copied = Manifest(shard=found.shard, start=found.start, end=found.end, weight=found.weight)
    rows, reached = 0, (found.end, 0)
    for info in found.segments:
        segment = Segment.of(disk, place, info)
        if not info.sealed:
            continue
        copied.segments.append(info)
        rows += info.rows
        if info.batches == 0:
            continue  # a damaged segment without a file
        for suffix in (DATA_SUFFIX, INDEX_SUFFIX):
            _copy(segment.path(suffix), os.path.join(target, os.path.basename(segment.path(suffix))))
    listed = {info.first for info in copied.segments}
    for first, generation in sorted(_newer(disk, place, found.end).items(), reverse=True):
        if first in listed:
            continue
        taken, position = _growing(Segment(disk, place, first, generation, ()), target)
        rows += taken
        if position:
            reached = max(reached, (first, position))
    now = manifest.load(disk, place)
    if now is not None and now.start > found.end:
        raise FileNotFoundError(f"{place}: the retention has overtaken the backup, so that rows between are gone")
    _write(os.path.join(target, manifest.FILE), copied.encoded())
    return rows, reached


def _newer(disk: ReadOnlyDisk, place: str, end: int) -> dict[int, int]:
    """Return the generation of each segment that may be newer than a manifest; a rewrite leaves two for a while."""
    newer: dict[int, int] = {}
    for name in disk.list(place):
        parsed = manifest.parsed(name)
        if parsed and parsed[2] == DATA_SUFFIX and parsed[0] >= end:
            newer[parsed[0]] = min(parsed[1], newer.get(parsed[0], parsed[1]))
    return newer


def _growing(segment: Segment, target: str) -> tuple[int, int]:
    """Copy a segment up to the end its index tells; return its rows and that end."""
    try:
        with open(segment.path(INDEX_SUFFIX), "rb") as file:
            index, _ = Index.decoded(file.read())
    except FileNotFoundError:
        if not os.path.exists(segment.path()):
            raise  # removed since it was listed: what took its place has its rows
        index = Index()
    if not len(index):
        return 0, 0
    last = index[len(index) - 1]
    head_of(segment.read(0, SCHEMA_BYTES_MAX), segment.path())
    end = last.position + last.length
    path = os.path.join(target, os.path.basename(segment.path()))
    with open(segment.path(), "rb") as source, open(path, "wb", opener=private) as sink:
        left = end
        while left:
            piece = source.read(min(left, 1 << 20))
            if not piece:
                raise FileNotFoundError(segment.path())  # it was cut meanwhile: list again
            sink.write(piece)
            left -= len(piece)
        os.fsync(sink.fileno())
    _write(os.path.join(target, os.path.basename(segment.path(INDEX_SUFFIX))), index.encoded())
    return sum(index.counts), end


def _journal(path: str, target: str) -> None:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return  # compacted meanwhile; the newer generation is in the list, or comes with the next backup
    entries, good, _ = journal.recovered(data)
    if entries is not None:
        _write(target, data[:good])


def _other_files(data: str, shards: set[str]) -> Iterator[str]:
    for place, names, files in os.walk(data):
        names[:] = sorted(name for name in names if os.path.join(place, name) not in shards)
        if label.CACHED in files:  # it is elsewhere, and a copy of this would be one of a part of it
            names.clear()
            continue
        for name in sorted(files):
            if name not in (lock.FILE, MARK) and not name.endswith(NEW_SUFFIX):
                yield os.path.join(place, name)


def _files(place: str) -> Iterator[str]:
    for directory, _, files in os.walk(place):
        for name in sorted(files):
            yield os.path.join(directory, name)


def _copy(path: str, target: str) -> None:
    LocalDisk().make(os.path.dirname(target))
    with open(path, "rb") as source, open(target, "wb", opener=private) as sink:
        shutil.copyfileobj(source, sink)
        sink.flush()
        os.fsync(sink.fileno())


def _write(target: str, content: bytes) -> None:
    with open(target, "wb", opener=private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_tree(place: str) -> None:
    disk = LocalDisk()
    for directory, _, _ in os.walk(place):
        disk.sync_directory(directory)
