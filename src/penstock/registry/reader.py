"""Reads what a registry holds, and passes over what it cannot read: one bad entry hurts nobody else."""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec

from penstock.errors import CorruptionError
from penstock.registry.records import decoded
from penstock.registry.registry import Entry, Registry

Record = TypeVar("Record", bound=msgspec.Struct)

_log = logging.getLogger("penstock.registry")


class Reader:
    """What is bad may be looked at every second, and is said once; again only when it was written again."""

    def __init__(self) -> None:
        #: What could not be read, and was said: the revision and why, by key.
        self._unreadable: dict[str, tuple[int, str]] = {}

    def read(self, key: str, entry: Entry | None, kind: type[Record]) -> Record | None:
        """Return what an entry says; None where there is none, or none that can be read."""
        if entry is None:
            return None
        try:
            return decoded(entry.value, kind, key)
        except CorruptionError as error:
            self.note(key, entry, str(error))
            return None

    def note(self, key: str, entry: Entry, why: str) -> None:
        """Remember and say that an entry cannot be used."""
        if self._unreadable.get(key, (0, ""))[0] != entry.revision:
            self._unreadable[key] = entry.revision, why
            _log.error("%s; it is passed over", why)

    def unreadable(self, registry: Registry) -> dict[str, str]:
        """Return why each entry cannot be used that was met here, and is still as it was."""
        for key, (revision, _) in list(self._unreadable.items()):
            entry = registry.get(key)
            if entry is None or entry.revision != revision:
                del self._unreadable[key]
        return {key: why for key, (_, why) in sorted(self._unreadable.items())}
