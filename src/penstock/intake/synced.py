"""Rows that are told of only once they survive a power loss, whatever their topic promises."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.columns import place_of
from penstock.intake.receipt import Published, Receipt
from penstock.log.shard import Shard


def synced(shards: Sequence[Shard], done: Published) -> Published:
    """Return who hears where rows went, and tells `done` when they are safe there, or why not.

    Rows that were there already wait for their sync like the first time.
    """

    def stored(receipt: Receipt | None, error: BaseException | None) -> None:
        if receipt is None:
            done(None, error)
            return
        numbers = {place_of(id_)[0] for id_ in receipt.ids()}
        left = len(numbers)
        failure: BaseException | None = None

        def told(error: BaseException | None) -> None:
            nonlocal left, failure
            left -= 1
            failure = failure or error
            if left == 0:
                done(receipt if failure is None else None, failure)

        for number in numbers:
            shards[number].sync(told)

    return stored
