"""Publishing for somebody: within the rate of its quota, else later, else not.

For those who wait for an answer before they send more, so that an answer held back slows them. A dialect whose
clients do not wait stops reading instead, and asks the account by itself.
Invariant: what is refused stores nothing, and is counted for its topic like any other refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.callers import Caller
from penstock.clock import Clock
from penstock.errors import Refusal
from penstock.intake.gather import content_bytes
from penstock.intake.receipt import Published, Receipt
from penstock.message import Rows
from penstock.peers.far import Target


def publish(
    topic: Target, caller: Caller, rows: Rows, publisher: object, done: Published, shard: int | None = None
) -> None:
    """Take rows in; `done` hears as from `Topic.publish`, a moment later where their publisher is too fast."""
    clock = topic.node.clock
    try:
        wait_ns = admit(clock, caller, [rows])
    except Refusal as refusal:
        topic.intake.refuse(refusal, rows.count, done)
        return
    if wait_ns:
        done = partial(_told_later, clock, clock.monotonic() + wait_ns, done)
    topic.publish(rows, publisher, done, shard)


def admit(clock: Clock, caller: Caller, copies: Sequence[Rows]) -> int:
    """Let all of it in and return for how long the answer is to be held back, or refuse all of it.

    For what goes to several topics: if some copies were refused, whoever tries again would store the others twice.
    """
    meter = caller.meter
    if meter is None:
        return 0
    size = sum([content_bytes(rows) for rows in copies])
    return meter.take(sum([rows.count for rows in copies]), size, clock.monotonic())


def _told_later(
    clock: Clock, at_ns: int, done: Published, receipt: Receipt | None, error: BaseException | None
) -> None:
    if error is None:
        clock.call_at(at_ns, partial(done, receipt, None))
    else:
        done(None, error)
