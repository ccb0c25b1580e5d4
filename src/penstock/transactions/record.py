"""A transaction as the registry keeps it: how far it got, and the batches of its query before it."""

from __future__ import annotations

import msgspec

from penstock.intake.staging import digest

#: What the registry's keys begin with.
KEYS = "commit/"


class Past(msgspec.Struct, frozen=True, array_like=True):
    """A batch that was committed."""

    batch: int
    rows: int
    #: None: by a version that made none.
    mark: int | None
    done_ns: int


class TransactionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last commit of a query to a topic, as the registry keeps it."""

    query: str
    batch: int
    attempts: tuple[str, ...]
    #: None: the rows name their topics, or a version made it that did not tell topics apart (see `is_old`).
    topic: str | None = None
    #: That of the topic, which is another one when it was deleted and made anew.
    incarnation: int = 0
    done: bool = False
    rows: int = 0
    #: Of the rows so far; None in a record of a version that made none.
    mark: int | None = None
    #: (attempt, batch in it): everything before is in the log.
    reached: tuple[int, int] = (0, 0)
    #: (topic, shard): what of the batch at that place is in the log, too; see `_number`.
    parts: tuple[tuple[str, int], ...] = ()
    #: How often all of it was begun anew with other attempts, because those it had were damaged.
    begun: int = 0
    changed_ns: int = 0
    #: The batches that were committed before, the last of them last, and this one once it is done.
    past: tuple[Past, ...] = ()

    @property
    def is_old(self) -> bool:
        """Whether a version made it that knew one last commit for each query, whatever its topics."""
        return self.mark is None

    @property
    def key(self) -> str:
        """Where the registry keeps it."""
        return key_of(self.query, self.topic)

    def found(self, batch: int) -> Past | None:
        """Return what is remembered of a batch."""
        if self.done and self.is_old and batch == self.batch:
            return Past(batch, self.rows, None, self.changed_ns)
        return next((past for past in self.past if past.batch == batch), None)


def is_ahead(there: TransactionRecord, record: TransactionRecord) -> bool:
    """Tell whether what the registry has is further than what shall take its place: another node carried it on."""
    if there.incarnation != record.incarnation or there.is_old:
        return False
    if there.batch != record.batch or there.begun != record.begun:
        return (there.batch, there.begun) > (record.batch, record.begun)
    return not record.done and (there.done or there.reached > record.reached)


def key_of(query: str, topic: str | None) -> str:
    """Return where the registry keeps the last transaction of a query to a topic."""
    return KEYS + digest(query) + (f"/{digest(topic)}" if topic is not None else "")
