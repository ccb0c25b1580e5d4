"""Reads what brokers write for each other, and passes over what it cannot read: one bad entry hurts nobody else."""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec

from penstock.errors import CorruptionError
from penstock.registry.records import decoded
from penstock.registry.registry import Entry

Record = TypeVar("Record", bound=msgspec.Struct)

_log = logging.getLogger("penstock.cluster")


class Reader:
    """What is bad is looked at every second, and said once; again only when it was written again."""

    def __init__(self) -> None:
        #: What could not be read, and was said: the revision by key.
        self._unreadable: dict[str, int] = {}

    def read(self, key: str, entry: Entry | None, kind: type[Record]) -> Record | None:
        """Return what an entry says; None where there is none, or none that can be read."""
        if entry is None:
            return None
        try:
            return decoded(entry.value, kind, key)
        except CorruptionError as error:
            if self._unreadable.get(key) != entry.revision:
                self._unreadable[key] = entry.revision
                _log.error("%s; it is passed over", error)
            return None
