"""The registry: what a node, and later all nodes together, must remember besides messages.

This is the seam only: small values under names, guarded by revisions, watched from a revision; it may be far away. Back
ends know nothing of what the values mean; `catalog` does. `tests/registry/test_conformance.py` is what each must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from penstock.errors import PenstockError, Refusal
from penstock.registry.answer import Answer

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


class Figure(NamedTuple):
    """Something to measure: a name below the registry's own, its kind, what it is, and how much."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    value: float


OnEvents: TypeAlias = Callable[[Sequence[Event]], None]
Cancel: TypeAlias = Callable[[], None]
#: Answered with the revision of the change; else with a Refusal, and nothing was changed ("conflict": a guard does not
#: hold, "gone": the lease is over, "unavailable", "disk_full"), or with UnknownOutcomeError.
Proposal: TypeAlias = Answer[int]


class UnknownOutcomeError(PenstockError):
    """Whether a change was made, or still will be, is not known: its answer was lost. Ask for the same again."""


class Lease(Protocol):
    """The right to something while its holder is alive. Its number fences: a later lease has a larger one."""

    @property
    def number(self) -> int:
        """Larger than that of every lease given before."""

    @property
    def is_over(self) -> bool:
        """Whether the holder must do nothing more in its name; never later than the registry forgets it."""

    def renew(self) -> Answer[None]:
        """Let it last its time to live from now on; "gone" if it is over."""

    def end(self) -> Answer[None]:
        """End it; the keys that hang on it go in the same step."""


class Registry(Protocol):
    """Names with values. Reads are answered from a replica here, changes by the registry, wherever it is.

    Every change has the next revision; one that was answered survives a power loss. Once a proposal is answered, done
    or conflict, the replica shows why. Proposals that are under way at the same time are done in any order.
    """

    @property
    def revision(self) -> int:
        """The revision of the last change that the replica shows; 0 before the first."""

    def get(self, key: str) -> Entry | None:
        """Return the entry, or None."""

    def list(self, prefix: str) -> dict[str, Entry]:
        """Return all entries whose key starts so, by key in order."""

    def propose(
        self,
        puts: Mapping[str, bytes],
        deletes: Iterable[str] = (),
        guards: Mapping[str, int] | None = None,
        lease: Lease | None = None,
    ) -> Proposal:
        """Ask for several keys to be put and deleted in one step; without an effect it is done at the last revision.

        With `guards` only if each of those entries is still at its revision, 0 meaning that there is none. With
        `lease` what is put goes when the lease does.
        """

    def lease(self, ttl_ns: int) -> Answer[Lease]:
        """Ask for a lease that ends unless it is renewed in time."""

    def watch(self, prefix: str, from_revision: int, on_events: OnEvents) -> Cancel:
        """Report every change after a revision, in order, in later turns of the loop, until cancelled.

        A revision whose changes are no longer known is Refusal("gone"): list again and watch from there.
        """

    def problems(self) -> Sequence[str]:
        """Return what stands against changes, one sentence each."""

    def figures(self) -> Iterable[Figure]:
        """Return what there is to measure."""


def check_edits(edits: Mapping[str, bytes | None]) -> None:
    """Refuse a change that no registry takes."""
    size = 0
    for key, value in edits.items():
        try:
            length = len(key.encode())
        except UnicodeEncodeError:
            raise Refusal("bad_request", f"{key!r} is no registry key: it is not UTF-8 text") from None
        if not 0 < length <= KEY_BYTES_MAX:
            raise Refusal("bad_request", f"a registry key has 1 to {KEY_BYTES_MAX} bytes, not {length}")
        if value is not None and len(value) > VALUE_BYTES_MAX:
            raise Refusal(
                "bad_request", f"the value of {key} has {len(value)} bytes, at most {VALUE_BYTES_MAX} are taken"
            )
        size += length + len(value or b"")
    if len(edits) > CHANGE_EDITS_MAX or size > CHANGE_BYTES_MAX:
        text = f"{len(edits)} keys and {size} bytes in one change; {CHANGE_EDITS_MAX} and {CHANGE_BYTES_MAX} are taken"
        raise Refusal("bad_request", text)
