"""Dead letters: messages that failed too often go to the topic for them.

They are found by their attempts whenever they would be handed out once more, so a crash in between moves them again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.columns import Offsets
from penstock.delivery.cursor import Cursor
from penstock.delivery.subscription import Subscription
from penstock.message import Batch
from penstock.moves.letters import LEFT_BEHIND, as_letters
from penstock.moves.move import Origin, Piece, move
from penstock.peers.far import target
from penstock.settings import TopicSettings

if TYPE_CHECKING:
    from penstock.node.topic import Topic
    from penstock.peers.far import Target


def bury(topic: Topic, subscription: Subscription, cursor: Cursor, batch: Batch, offsets: Offsets) -> None:
    """Move rows of a batch that are on their way already (`RowStates.dying`) to a subscription's dead-letter topic."""
    node = topic.node
    origin = Origin(topic.name, topic.record.incarnation, subscription.name)
    piece = Piece(origin, cursor.source.number, batch, (offsets - batch.first).tolist())
    reason = f"{subscription.settings.max_attempts} attempts failed"
    letters = piece.copies(as_letters(piece, cursor.states.pages.attempts(offsets).tolist(), reason), LEFT_BEHIND)

    def finish() -> None:
        cursor.states.bury(offsets)
        node.ledger.add("dead_letter", topic.name, len(offsets), node.clock.now(), reason)

    def done(error: BaseException | None) -> None:
        if error is not None:
            cursor.states.unbury(offsets, topic.now())
            topic.set_timer()
        topic.touch()
        subscription.wake()  # rows may have waited for these

    def obtained(target: Target | None, error: Exception | None) -> None:
        if target is None:
            done(error)
        else:
            move(letters, [target], node, finish, done)

    name = subscription.settings.dead_letter or f"{topic.name}.dead"
    # Not inside the look for rows that found them: the dead-letter topic may be this one.
    node.clock.call_soon(partial(_obtain, topic, name, obtained))


def _obtain(topic: Topic, name: str, obtained: Callable[[Target | None, Exception | None], None]) -> None:
    asked = topic.node.obtain(name, TopicSettings(durability="fsync"), topic.record.owner)
    target(topic.node, asked).then(obtained)
