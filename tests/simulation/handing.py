"""The rules on handing a message out, as far as they do not depend on who else is there (that is `dispatch`).

Whoever sees a message leave the node (the tap on connections, a session that polls) calls `handed_out`; it raises a
`Violation` if it should not have, and notes the lease.
"""

from __future__ import annotations

from tests.simulation.book import REMAP_NS, Book
from tests.simulation.connection import Connection, Verdict
from tests.simulation.dispatch import check_dispatch
from tests.simulation.model import Belongs, Handed, Message, Row, State, SubscriptionModel


def handed_out(book: Book, subscription: SubscriptionModel, handed: Handed, holder: Connection | None) -> Row:
    """Check a message that a consumer (or, without a holder, a session) got, and note its lease."""
    book.checks += 1
    message = book.find(subscription.topic, handed.body, handed.id)
    book.named(message, handed.id)
    book.stored(message)
    row = subscription.row(message)
    _check_message(book, subscription, message, handed)
    if _is_overtaken(book, row, handed):
        return row
    if handed.since_ns > subscription.upheaval_ns or handed.since_ns == book.now_ns:
        _check_row(book, subscription, row, handed)
    if row.state is State.LEASED:
        row.settle(book.written_ns, book.full_ns)
        row.release(book.now_ns)  # it expired, or the connection's end was not heard of yet
        subscription.revoke_behind(row, book.now_ns)
    elif row.maybe:  # a session's lease of a life before may have ended only now
        subscription.revoke_behind(row, book.now_ns, surely=False)
    check_dispatch(book, subscription, row, handed, holder)
    _lease(book, subscription, row, handed, holder)
    if handed.since_ns < book.now_ns and handed.since_ns <= subscription.upheaval_ns:
        # A frame that was held up by a publish, and meanwhile somebody moved the subscription.
        row.maybe, row.expires_ns, row.low = True, book.now_ns, 0
        row.belongs = Belongs.MAY if row.belongs is Belongs.MUST else row.belongs
    return row


def _is_overtaken(book: Book, row: Row, handed: Handed) -> bool:
    """Tell whether a frame was held up by a publish so long that its row came back and went out again meanwhile."""
    return handed.since_ns < book.now_ns and handed.since_ns <= row.leased_ns and handed.attempts <= row.attempts


def _check_message(book: Book, subscription: SubscriptionModel, message: Message, handed: Handed) -> None:
    who = f"{message.name} in {subscription.topic.name}/{subscription.name}"
    low_ns, high_ns = book.scheduler.wall_between(message.offered_ns, book.now_ns)
    if message.due_ns > high_ns:
        book.fail("not before it is due", f"{who} came {(message.due_ns - high_ns) / 1e6:.3f} ms early")
    if handed.grain_ns and message.time_ns is None:
        if not low_ns - handed.grain_ns < handed.time_ns <= high_ns and subscription.topic.name not in book.buriers:
            book.fail("the time is that of publishing", f"{who} says {handed.time_ns}, not {low_ns}..{high_ns}")
        message.time_ns = handed.time_ns if handed.grain_ns == 1 else None
    elif (
        handed.grain_ns and message.time_ns is not None and not 0 <= message.time_ns - handed.time_ns < handed.grain_ns
    ):
        book.fail("the time is that of publishing", f"{who} says {handed.time_ns}, before {message.time_ns}")
    taken, _ = subscription.takes(message, book.now_ns, REMAP_NS)
    if not taken:
        book.fail("filters", f"{who} has traffic {message.extras.traffic:b}, which no filter since then takes")
    made_ns, _ = book.scheduler.wall_between(handed.since_ns, book.now_ns)
    ttl_ns = subscription.settings.ttl_ns
    if ttl_ns and handed.grain_ns and handed.time_ns + ttl_ns <= made_ns:
        book.fail("time to live", f"{who} came {(made_ns - handed.time_ns - ttl_ns) / 1e6:.3f} ms too late")
    if message.expires_ns and message.expires_ns <= made_ns:
        book.fail("time to live", f"{who} came {(made_ns - message.expires_ns) / 1e6:.3f} ms after it expired")


def _check_row(book: Book, subscription: SubscriptionModel, row: Row, handed: Handed) -> None:
    who = f"{row.message.name} in {subscription.topic.name}/{subscription.name}"
    gate_ns = subscription.topic.gate_ns
    if subscription.paused_ns is not None and handed.since_ns > subscription.paused_ns:
        book.fail("paused", f"{who} came while the subscription was paused")
    if gate_ns is not None and row.message.offered_ns > gate_ns:
        book.fail("paused", f"{who} came while the topic was paused")
    if row.belongs is Belongs.NO:
        book.fail("a subscription's start", f"{who} was there before the subscription and is not for it")
    early = row.state is State.LEASED and book.now_ns < row.expires_ns and not _came_back(book, row, handed)
    # An earlier row of its key may have come back, taken this one with it, and been too old to go out again.
    if early and not subscription.may_be_revoked(row, book.now_ns):
        left_ms = (row.expires_ns - book.now_ns) / 1e6
        holder = "a session" if row.holder is None else f"connection {row.holder.link.number}"
        book.fail("one holder at a time", f"{who} came again {left_ms:.3f} ms before its lease to {holder} ended")
    if row.state is State.DONE and not row.maybe:
        book.fail("acks are respected", f"{who} came again after it was finished at {row.done_ns / 1e6:.3f}")
    if row.state is State.READY and row.due_ns and not row.due_maybe:
        _, shown_ns = book.scheduler.wall_between(row.released_ns, book.now_ns)
        if shown_ns < row.due_ns:
            early_ms = (row.due_ns - shown_ns) / 1e6
            book.fail("not before it is due", f"{who} was released and came {early_ms:.3f} ms early")
    low, high = row.low + 1, row.attempts + 1 if not _has_unseen(book, subscription) else 1 << 16
    if not low <= handed.attempts <= high:
        book.fail("attempts", f"{who} came as attempt {handed.attempts}, not {low}..{high}")
    limit = subscription.settings.max_attempts
    if limit and handed.attempts > limit:
        book.fail("attempts", f"{who} came as attempt {handed.attempts} of {limit}")


def _has_unseen(book: Book, subscription: SubscriptionModel) -> bool:
    """Tell whether frames may have been made that nobody saw: lost with a connection, or held up by a publish."""
    return subscription.hidden or any(
        connection.subscription is subscription and (connection.owes or connection.since_ns(book.now_ns) < book.now_ns)
        for connection in book.connections.values()
    )


def _came_back(book: Book, row: Row, handed: Handed) -> bool:
    """Tell whether the holder may have given the row back: its command, or the frame, is not settled yet."""
    holder = row.holder
    if holder is None:
        return False
    if holder.outgrown and holder.owes:
        return True  # it was sent away, and the word of that waits behind a publish
    late = handed.since_ns < book.now_ns and bool(holder.checks)
    return late or row.is_open()


def _lease(book: Book, subscription: SubscriptionModel, row: Row, handed: Handed, holder: Connection | None) -> None:
    row.maybe = False
    row.lease(handed.attempts, handed.since_ns, handed.lease_ns, holder)
    row.look = handed.look
    if holder is None and not book.is_full:
        row.floor = handed.attempts  # a session's lease is written down before anybody hears of it
    if holder is not None:
        _check_credit(book, subscription, holder, handed)


def _check_credit(book: Book, subscription: SubscriptionModel, holder: Connection, handed: Handed) -> None:
    if len(holder.held) <= holder.credit:
        return
    if handed.since_ns != book.now_ns or subscription.upheaval_ns == book.now_ns:
        return
    if any(check.verdict is Verdict.EITHER for check in holder.checks):
        return  # it may have come back in this very read
    sure = (row for row in holder.held if row.expires_ns > book.now_ns and not row.maybe)
    out = sum(1 for row in sure if not subscription.may_be_revoked(row, book.now_ns))
    if out > holder.credit:
        book.fail("credit", f"connection {holder.link.number} has {out} messages out with RDY {holder.credit}")
