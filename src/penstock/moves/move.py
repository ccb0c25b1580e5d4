"""The one way in which messages go from a subscription to other topics, each once.

They are copied under keys that name them, synced there, and finished here only then. Whoever moves holds them until
then in a way that a crash does not end (a lease under a name, or rows that are found again by what they are), and does
the same again after it; the target knows the keys and stores nothing twice, within the window in which it does.
Invariant: a message is not finished here before every copy of it survives a power loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.columns import OPTIONAL_COLUMNS, Column, id_of
from penstock.intake.receipt import Receipt
from penstock.intake.synced import synced
from penstock.message import Batch, Done, Rows
from penstock.peers.far import FarTopic, Unreached

if TYPE_CHECKING:
    from penstock.peers.far import Reached


class Origin(NamedTuple):
    """Where messages are moved from: the subscription they are finished in."""

    topic: str
    incarnation: int
    subscription: str

    def key(self, shard: int, offset: int) -> bytes:
        """Return the dedup key of moving one message."""
        return msgspec.msgpack.encode((self.topic, self.incarnation, shard, offset, self.subscription))


class Piece(NamedTuple):
    """Rows of one batch that are moved together."""

    origin: Origin
    shard: int
    batch: Batch
    rows: list[int]

    def ids(self) -> list[int]:
        """Return the id of each row."""
        return [id_of(self.shard, self.batch.first + row) for row in self.rows]

    def copies(self, headers: Sequence[bytes | None], left_behind: Collection[str] = ()) -> Rows:
        """Return the rows as they are published elsewhere: with these headers, without some columns."""
        batch = self.batch
        columns: dict[str, Column] = {"dedup": [self.origin.key(self.shard, batch.first + row) for row in self.rows]}
        for name in OPTIONAL_COLUMNS:
            if name in batch.columns and name not in left_behind and name not in ("dedup", "headers"):
                columns[name] = [batch.row_value(name, row) for row in self.rows]
        if any(header is not None for header in headers):
            columns["headers"] = list(headers)
        return Rows.of([batch.row_body(row) for row in self.rows], batch.row_source(self.rows[0]), columns)


def move(copies: Rows, targets: Sequence[Reached], publisher: object, finish: Callable[[], None], done: Done) -> None:
    """Publish copies of messages to topics, `finish` them when all are synced, and tell `done`, or why not.

    If one topic refuses them, nothing is finished; those that took them know them when they come again.
    """
    left = len(targets)
    failure: BaseException | None = None

    def copied(error: BaseException | None) -> None:
        nonlocal left, failure
        left -= 1
        failure = failure or error
        if left == 0:
            if failure is None:
                finish()
            done(failure)

    for target in targets:
        _publish_synced(target, copies, publisher, copied)


def _publish_synced(topic: Reached, rows: Rows, publisher: object, done: Done) -> None:
    """Publish rows; `done` hears once they survive a power loss, whatever the topic promises, or why not."""

    def told(_: Receipt | None, error: BaseException | None) -> None:
        done(error)

    if isinstance(topic, FarTopic):
        topic.publish(rows, publisher, told, synced=True)
    elif isinstance(topic, Unreached):
        topic.publish(rows, publisher, told)
    else:
        topic.publish(rows, publisher, synced(topic.shards, told))
