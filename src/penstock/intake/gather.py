"""Gathering: what arrives for a topic in one turn of the loop is stored together, in the order it came.

Owns the one ordered list of a topic's rows between decoder and log. Knows nothing of files, shards or replies: it
hands groups of rows to `store` together with whom to tell.
Invariant: rows are stored in the order they were offered, whatever their size, and every `done` is called once, by
`store` or by us if the rows never got that far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeAlias, TypeVar
from weakref import ref

from penstock.clock import MILLISECOND, Clock
from penstock.errors import PenstockError, Refusal
from penstock.intake.limits import InputMemory
from penstock.message import SMALL, Rows, gathered

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

#: Rows, whom to tell, and the bytes taken for them.
_Piece: TypeAlias = tuple[Rows, Stored[T], int]


class Gather(Generic[T]):
    """The rows of one shard that are not stored yet."""

    def __init__(
        self, clock: Clock, store: Store[T], memory: InputMemory, refuse: Callable[[Refusal, int, Stored[T]], None]
    ) -> None:
        self._clock = clock
        self._store = store
        self._memory = memory
        self._refuse = refuse
        self._pending: list[_Piece[T]] = []
        self._armed = False
        self._storing = False
        self._publisher = 0
        #: Who published, while they live: where a topic has one shard, nothing else tells who is at home in it.
        self._publishers: dict[int, ref[object]] = {}
        self._offered_ns = -ALONE_NS
        self._shared_until_ns = 0

    def __len__(self) -> int:
        return len(self._pending)

    def offer(self, rows: Rows, done: Stored[T], publisher: object) -> None:
        """Take rows in: a lone publisher's few at once, otherwise with all others of this turn.

        Many rows are worth the wait even from one publisher: its next command is probably in the same read.
        The rows must own their bytes; a view of a shared receive buffer would change under them.
        """
        now_ns = self._clock.monotonic()
        if id(publisher) != self._publisher:
            if now_ns - self._offered_ns < ALONE_NS:
                self._shared_until_ns = now_ns + ALONE_NS
            self._publisher = id(publisher)
            if self._publisher not in self._publishers:
                self._meet(publisher)
        self._offered_ns = now_ns
        alone = now_ns >= self._shared_until_ns
        if alone and rows.count <= SMALL and not self._pending and not self._storing:
            self._storing = True
            try:
                self._store(rows, [(done, 0, rows.count)])
            except PenstockError as refused:
                done(None, refused)
            except Exception as error:
                done(None, error)
                raise
            finally:
                self._storing = False
            return
        size_bytes = bytes_of(rows) if rows.columns else PIECE_BYTES + ROW_BYTES * rows.count + len(rows.body)
        if not self._memory.take(size_bytes):
            text = f"input not yet stored fills its {self._memory.bytes_max} bytes: publish again in a moment"
            self._refuse(Refusal("memory_full", text), rows.count, done)
            return
        self._pending.append((rows, done, size_bytes))
        if not self._armed:
            self._armed = True
            self._clock.call_soon(self._turn)

    def flush(self) -> None:
        """Store all that is pending; what owners offer while they are told waits for the next turn."""
        if self._storing:
            return
        pending, self._pending = self._pending, []
        broken: Exception | None = None
        for pieces in _groups(pending):
            owners: list[Owner[T]] = []
            first = 0
            for rows, done, _ in pieces:
                owners.append((done, first, rows.count))
                first += rows.count
            try:
                self._put(gathered([rows for rows, _, _ in pieces]), owners)
            except Exception as error:
                # Its owners know. The others' rows are stored all the same, then the loop hears of it.
                broken = broken or error
            self._memory.give(sum(size_bytes for _, _, size_bytes in pieces))
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

    def _turn(self) -> None:
        self._armed = False
        self.flush()

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


def _groups(pending: list[_Piece[T]]) -> Iterator[list[_Piece[T]]]:
    """Cut the list where neighbours cannot be merged."""
    start = count = size_bytes = 0
    for at, (rows, _, bytes_) in enumerate(pending):
        if at > start and not (
            count + rows.count <= GROUP_ROWS_MAX
            and size_bytes + bytes_ <= GROUP_BYTES_MAX
            and _alike(pending[at - 1][0], rows)
        ):
            yield pending[start:at]
            start, count, size_bytes = at, 0, 0
        count += rows.count
        size_bytes += bytes_
    if pending:
        yield pending[start:]


def _alike(one: Rows, other: Rows) -> bool:
    if one.count > PIECE_ROWS_MAX or other.count > PIECE_ROWS_MAX or one.source != other.source:
        return False
    if not one.columns and not other.columns:
        return not one.sequence and not other.sequence
    return not one.sequence and not other.sequence and one.columns.keys() == other.columns.keys()


def _tell(owners: list[Owner[T]], error: BaseException) -> None:
    for done, _, _ in owners:
        done(None, error)


def bytes_of(rows: Rows) -> int:
    """Return about what pending rows hold in memory."""
    size = PIECE_BYTES + ROW_BYTES * rows.count + len(rows.body)
    for column in rows.columns.values():
        if isinstance(column, list):
            size += sum(len(value) if isinstance(value, (bytes, str)) else 8 for value in column)
        else:
            size += column.nbytes
    return size
