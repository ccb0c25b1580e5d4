"""Keeps every fan-out in a file of its own beside the topics, so that a lost registry can be made again with them.

Owns the directory `fanouts/`. Hears of changes by watching; writes in the executor, because nobody waits for it.
Invariant: one file is written at a time, and the last one written is the newest. A file whose fan-out the registry does
not know is left alone: the registry may be the one that lost it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from penstock.disk import Disk, replace_file
from penstock.fanout.fanouts import FANOUTS
from penstock.fanout.record import FanoutRecord
from penstock.registry.registry import Event

if TYPE_CHECKING:
    from penstock.node.node import Node

DIRECTORY = "fanouts"
#: A file begins with the sum of the rest: the record as the registry has it.
SUM_BYTES = 4

_log = logging.getLogger("penstock.rescue")


class FanoutFiles:
    """The files of a running node's fan-outs."""

    def __init__(self, node: Node) -> None:
        self._disk = node.disk
        self._path = f"{node.config.data_dir}/{DIRECTORY}"
        self._registry = node.catalog.registry
        self._reader = node.catalog.reader
        #: Names that are being written, and whether what is written is out of date already.
        self._writing: dict[str, bool] = {}
        known = set(self._disk.list(self._path))
        for key in self._registry.list(FANOUTS):
            if file_of(key[len(FANOUTS) :]) not in known:
                self._write(key[len(FANOUTS) :])
        self._cancel = self._registry.watch(FANOUTS, self._registry.revision, self._changed)

    def close(self) -> None:
        """Hear no more."""
        self._cancel()

    def _changed(self, events: Sequence[Event]) -> None:
        for name in dict.fromkeys(event.key[len(FANOUTS) :] for event in events):
            self._write(name)

    def _write(self, name: str) -> None:
        if name in self._writing:
            self._writing[name] = True
            return
        entry = self._registry.get(FANOUTS + name)
        if entry is not None and self._reader.read(FANOUTS + name, entry, FanoutRecord) is None:
            return  # what is kept of it is better
        self._writing[name] = False
        work = partial(_put, self._disk, self._path, file_of(name), entry.value if entry is not None else None)
        self._disk.submit("seal", work, partial(self._written, name))

    def _written(self, name: str, _: None, error: BaseException | None) -> None:
        if error is not None:
            _log.warning("the file of fan-out %s could not be written: %s", name, error)
        if self._writing.pop(name):
            self._write(name)


def file_of(name: str) -> str:
    """Return what the file of a fan-out is called: a name may be longer than that of a file."""
    return blake2b(name.encode(), digest_size=16).hexdigest()


def read(disk: Disk, data_dir: str) -> tuple[list[FanoutRecord], list[str]]:
    """Return the fan-outs that are kept below a data directory, and the files that cannot be read."""
    found, damaged = [], []
    for name in disk.list(f"{data_dir}/{DIRECTORY}"):
        path = f"{data_dir}/{DIRECTORY}/{name}"
        if name.endswith(".new"):  # it was being written
            continue
        file = disk.open(path)
        try:
            content = file.read(0, file.size())
        finally:
            file.close()
        record = _record(content)
        if record is None:
            damaged.append(path)
        else:
            found.append(record)
    return sorted(found, key=lambda record: record.name), damaged


def _record(content: bytes) -> FanoutRecord | None:
    if content[:SUM_BYTES] != _sum(content[SUM_BYTES:]):
        return None
    try:
        return msgspec.msgpack.decode(content[SUM_BYTES:], type=FanoutRecord)
    except msgspec.MsgspecError:  # a later version's
        return None


def _put(disk: Disk, directory: str, file: str, value: bytes | None) -> None:
    if value is None:
        disk.remove(f"{directory}/{file}")
        return
    disk.make(directory)
    replace_file(disk, f"{directory}/{file}", _sum(value) + value)


def _sum(value: bytes) -> bytes:
    return crc32(value).to_bytes(SUM_BYTES, "little")
