"""Gathering: what arrives for a topic in one turn of the loop is stored together, in the order it came.

Owns the one ordered list of a topic's rows between decoder and log. Knows nothing of files, shards or replies: it
hands groups of rows to `store` together with whom to tell.
Invariant: rows are stored in the order they were offered, whatever their size, and every `done` is called once, by
`store` or by us if the rows never got that far.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeAlias, TypeVar
from weakref import ref

from penstock.budget import Share
from penstock.clock import MILLISECOND, Clock
from penstock.columns import SMALL
from penstock.errors import PenstockError, Refusal
from penstock.message import Rows, gathered

#: A larger piece is stored as it is: one more copy would cost more than one more append.
PIECE_ROWS_MAX = 1024
#: A group is one append: enough rows to make its fixed cost vanish, few enough to stay a short step.
GROUP_ROWS_MAX = 16 * 1024
#: The same bound for large messages; it also keeps the 32-bit cuts of a group far from their end.
GROUP_BYTES_MAX = 4 * 1024 * 1024
#: What a pending piece and each of its rows cost beside their bytes.
PIECE_BYTES = 256
ROW_BYTES = 16
#: While no second publisher was seen for this long, there is nothing to wait for.
ALONE_NS = 10 * MILLISECOND

#: What a publisher is told: where its rows went, which is the store's affair, or None and what went wrong.
T = TypeVar("T")
Stored: TypeAlias = Callable[[T | None, "BaseException | None"], None]
#: Whom to tell, the first of his rows in the group, and how many they are.
Owner: TypeAlias = tuple[Stored[T], int, int]
#: Appends a group and sees to it that each owner is told once; it may only raise before it told anybody.
Store: TypeAlias = Callable[[Rows, list[Owner[T]]], None]


class _Group(Generic[T]):
    """Pieces that are stored together, and whom to tell of each."""

    __slots__ = ("count", "kind", "owners", "pieces", "size_bytes")

    def __init__(self, kind: object) -> None:
        #: What its pieces agree in; None for one that stays by itself.
        self.kind = kind
        self.pieces: list[Rows] = []
        self.owners: list[Owner[T]] = []
        self.count = 0
        self.size_bytes = 0


class Gather(Generic[T]):
    """The rows of one shard that are not stored yet."""

    def __init__(
        self, clock: Clock, store: Store[T], memory: Share, refuse: Callable[[Refusal, int, Stored[T]], None]
    ) -> None:
        self._clock = clock
        self._store = store
        self._memory = memory
        self._refuse = refuse
        self._groups: list[_Group[T]] = []
        self._storing = False
        self._publisher = 0
        #: It was another one at some time since rows were first offered in a turn.
        self._changed = False
        #: Who published, while they live: where a topic has one shard, nothing else tells who is at home in it.
        self._publishers: dict[int, ref[object]] = {}
        self._offered_ns = -ALONE_NS
        self._shared_until_ns = 0

    def __len__(self) -> int:
        return sum(len(group.pieces) for group in self._groups)

    def offer(self, rows: Rows, done: Stored[T], publisher: object) -> None:
        """Take rows in: a lone publisher's few at once, otherwise with all others of this turn.

        Many rows are worth the wait even from one publisher: its next command is probably in the same read.
        The rows must own their bytes; a view of a shared receive buffer would change under them.
        """
        number = id(publisher)
        if number != self._publisher:
            self._publisher = number
            self._changed = True
            if number not in self._publishers:
                self._meet(publisher)
        groups, count = self._groups, rows.count
        if not groups and self._is_alone() and count <= SMALL and not self._storing:
            self._put(rows, [(done, 0, count)])
            return
        # The next lines run once for every message of publishers that wait for their answers: no call too many.
        size_bytes = bytes_of(rows) if rows.columns else PIECE_BYTES + ROW_BYTES * count + len(rows.body)
        memory = self._memory
        if memory.used + size_bytes > memory.bytes_max:
            if not self._make_room(size_bytes):
                memory.refused += 1
                text = f"input not yet stored fills its {memory.bytes_max} bytes: publish again in a moment"
                self._refuse(Refusal("memory_full", text), count, done)
                return
            groups = self._groups
        memory.used += size_bytes
        plain = count <= PIECE_ROWS_MAX and not rows.columns and not rows.sequence
        kind = rows.source if plain else _kind(rows)
        if not groups:
            self._clock.call_soon(self.flush)
            groups.append(_Group(kind))
        group = groups[-1]
        if group.count and (
            group.kind != kind
            or kind is None
            or group.count + count > GROUP_ROWS_MAX
            or group.size_bytes + size_bytes > GROUP_BYTES_MAX
        ):
            group = _Group(kind)
            groups.append(group)
        group.pieces.append(rows)
        group.owners.append((done, group.count, count))
        group.count += count
        group.size_bytes += size_bytes

    def _make_room(self, size_bytes: int) -> bool:
        """Store what came before, which makes room in the memory; False if that is not enough."""
        if self._groups:
            try:
                self.flush()
            except Exception as error:  # its owners know; the loop hears of it as it would have
                self._clock.call_soon(partial(_raise, error))
        return self._memory.used + size_bytes <= self._memory.bytes_max

    def flush(self) -> None:
        """Store all that is pending; what owners offer while they are told waits for the next turn."""
        if self._storing:
            return
        groups, self._groups = self._groups, []
        broken: Exception | None = None
        for group in groups:
            try:
                self._put(gathered(group.pieces), group.owners)
            except Exception as error:
                # Its owners know. The others' rows are stored all the same, then the loop hears of it.
                broken = broken or error
            self._memory.give(group.size_bytes)
        if broken is not None:
            raise broken

    def publishers(self) -> list[object]:
        """Return who published and is still here."""
        found = (known() for known in list(self._publishers.values()))
        return [publisher for publisher in found if publisher is not None]

    def _meet(self, publisher: object) -> None:
        publishers, number = self._publishers, id(publisher)
        try:
            # A dictionary that the callback holds, not this object: a publisher may outlive its topic.
            publishers[number] = ref(publisher, lambda _: publishers.pop(number, None) and None)
        except TypeError:
            return  # it cannot be told from the next one at the same address, so it has no home

    def _is_alone(self) -> bool:
        """Tell whether there is nobody to wait for, when rows are offered first in a turn."""
        now_ns = self._clock.monotonic()
        if self._changed:
            self._changed = False
            if now_ns - self._offered_ns < ALONE_NS:
                self._shared_until_ns = now_ns + ALONE_NS
        self._offered_ns = now_ns
        return now_ns >= self._shared_until_ns

    def _put(self, rows: Rows, owners: list[Owner[T]]) -> None:
        """Store one group. A refusal is the owners' business; anything else also goes up, after they were told."""
        self._storing = True
        try:
            self._store(rows, owners)
        except PenstockError as refused:
            _tell(owners, refused)
        except Exception as error:
            _tell(owners, error)
            raise
        finally:
            self._storing = False


def _kind(rows: Rows) -> object:
    """Return what rows must agree in to be stored together, None for those that stay by themselves."""
    if rows.sequence or rows.count > PIECE_ROWS_MAX:
        return None
    return (rows.source, *sorted(rows.columns)) if rows.columns else rows.source


def _raise(error: Exception) -> None:
    raise error


def _tell(owners: list[Owner[T]], error: BaseException) -> None:
    for done, _, _ in owners:
        done(None, error)


def bytes_of(rows: Rows) -> int:
    """Return about what pending rows hold in memory."""
    return PIECE_BYTES + ROW_BYTES * rows.count + content_bytes(rows)


def content_bytes(rows: Rows) -> int:
    """Return what rows bring: bodies, and the columns beside them."""
    size = len(rows.body)
    for column in rows.columns.values():
        if isinstance(column, list):
            size += sum(len(value) if isinstance(value, (bytes, str)) else 8 for value in column)
        else:
            size += column.nbytes
    return size
