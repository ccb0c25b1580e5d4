"""Entries by key, in order of their keys, so that listing a few of many costs little."""

from __future__ import annotations

from bisect import bisect_left, insort

from penstock.registry.registry import Entry


class Entries:
    """What a registry shows."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> Entry | None:
        """Return the entry, or None."""
        return self._entries.get(key)

    def put(self, key: str, entry: Entry) -> None:
        """Set an entry."""
        if key not in self._entries:
            insort(self._keys, key)
        self._entries[key] = entry

    def remove(self, key: str) -> None:
        """Forget an entry, if there is one."""
        if self._entries.pop(key, None):
            del self._keys[bisect_left(self._keys, key)]

    def list(self, prefix: str = "") -> dict[str, Entry]:
        """Return all entries whose key starts so, by key in order."""
        found = {}
        for at in range(bisect_left(self._keys, prefix), len(self._keys)):
            key = self._keys[at]
            if not key.startswith(prefix):
                break
            found[key] = self._entries[key]
        return found
