"""The registry: what a node, and later all nodes together, must remember besides messages.

This is the seam only: small values under names, guarded by revisions, watched from a revision. Back ends know nothing
of what the values mean; `catalog` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

#: A value is a record of settings, never data; a larger one is somebody's mistake.
VALUE_BYTES_MAX = 1 << 20
KEY_BYTES_MAX = 2048
#: Keys, and bytes of keys and values, that one change may hold: what etcd takes by default is about this.
CHANGE_EDITS_MAX = 128
CHANGE_BYTES_MAX = 3 << 19


class Entry(NamedTuple):
    """A value and the revision at which it was last put."""

    value: bytes
    revision: int


class Event(NamedTuple):
    """One change: a put, or a delete where the value is None."""

    key: str
    value: bytes | None
    revision: int


OnEvents: TypeAlias = Callable[[Sequence[Event]], None]
Cancel: TypeAlias = Callable[[], None]


class Registry(Protocol):
    """Names with values. Every change has the next revision; a change that returned survives a power loss."""

    @property
    def revision(self) -> int:
        """The revision of the last change; 0 before the first."""

    def get(self, key: str) -> Entry | None:
        """Return the entry, or None."""

    def list(self, prefix: str) -> dict[str, Entry]:
        """Return all entries whose key starts so, by key in order."""

    def change(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), guards: Mapping[str, int] | None = None
    ) -> int:
        """Put and delete several keys in one step and return the new revision; without an effect, the last one.

        With `guards` only if each of those entries is still at its revision, 0 meaning that there is none; else
        Refusal("conflict").
        """

    def put(self, key: str, value: bytes, if_revision: int | None = None) -> int:
        """Set a value and return the new revision.

        With `if_revision` only if the entry is still at that revision, 0 meaning that there is none; else
        Refusal("conflict").
        """

    def delete(self, key: str, if_revision: int | None = None) -> int:
        """Remove an entry and return the revision then; without `if_revision` it may be gone already."""

    def watch(self, prefix: str, from_revision: int, on_events: OnEvents) -> Cancel:
        """Report every change after a revision, in order, in later turns of the loop, until cancelled.

        A revision whose changes are no longer known is Refusal("gone"): list again and watch from there.
        """
