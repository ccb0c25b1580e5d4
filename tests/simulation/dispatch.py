"""The rules on who gets which message: tags, a consumer's own filter, one shard, and the order of keys.

They need more than one row or one consumer at a time, and speak only where the outside can know: a frame that a
publish held up was made at a moment nobody saw.
"""

from __future__ import annotations

from penstock.columns import place_of
from tests.simulation.book import REMAP_NS, Book
from tests.simulation.connection import Connection
from tests.simulation.model import Belongs, Handed, Message, Row, State, SubscriptionModel


def check_dispatch(
    book: Book, subscription: SubscriptionModel, row: Row, handed: Handed, holder: Connection | None
) -> None:
    """Check that a row, which is about to be leased, may go to this consumer (or, without one, to a session)."""
    if holder is not None:
        _check_taste(book, row.message, holder)
    _check_tag(book, subscription, row.message, handed.since_ns, holder)
    if handed.since_ns == book.now_ns:
        _check_first(book, subscription, row, handed.attempts)
        _check_order(book, subscription, row, holder, handed.look)
        _check_moved(book, subscription, row)


def _check_taste(book: Book, message: Message, holder: Connection) -> None:
    taste, extras = holder.taste, message.extras
    who = f"{message.name} came to connection {holder.link.number}"
    if taste.tag and taste.tag != extras.tag:
        book.fail("tags", f"{who}, which asks for {taste.tag!r}, with {extras.tag!r}")
    if message.id is not None and taste.shard not in (None, place_of(message.id)[0]):
        book.fail("one shard", f"{who}, which reads shard {taste.shard}")
    if message.id is not None and not taste.wants(message.id, extras.header, extras.members):
        book.fail("a consumer's filter", f"{who}, which wants {taste}, with {extras.members}")


def _check_tag(
    book: Book, subscription: SubscriptionModel, message: Message, since_ns: int, holder: Connection | None
) -> None:
    """Check that nobody who asks for its tag was there all the time while a row went to one who asks for none."""
    tag = message.extras.tag
    if not tag or (holder is not None and holder.taste.tag):
        return
    for other in book.connections.values():
        asks = other.subscription is subscription and other.taste.tag == tag and other.joined_ns < since_ns
        if asks and not other.closing and not other.deaf:
            whom = "a session" if holder is None else f"connection {holder.link.number}"
            book.fail("tags", f"{message.name} went to {whom}, although {other.link.number} asks for {tag!r}")


def _check_first(book: Book, subscription: SubscriptionModel, row: Row, attempts: int) -> None:
    """Check that what one publisher sent first comes first, as far as tags and keys leave that to chance."""
    message = row.message
    if subscription.is_queue and subscription.settings.order == "none":
        return  # they lie in any partition, or groups of them take turns
    if row.state is not State.NEW or message.life != book.life or message.due_ns or attempts != 1:
        return
    assert message.id is not None
    by_key = message.extras.key if subscription.settings.order == "key" else b""
    if subscription.settings.policy == "buckets" and subscription.settings.order != "shard" and not by_key:
        return  # who has its bucket may take it later
    key = (message.publisher, place_of(message.id)[0], message.extras.tag, by_key)
    last = subscription.last_first.get(key, -1)
    if message.order < last:
        book.fail("order", f"{message.name} of {message.publisher} came after a later message of the same publisher")
    subscription.last_first[key] = message.order


def _check_order(book: Book, subscription: SubscriptionModel, row: Row, holder: Connection | None, look: int) -> None:
    """Check that a key (or an ordered shard) is at one consumer, in order, with no more rows out than may be."""
    settings, message = subscription.settings, row.message
    if message.offered_ns <= subscription.ordered_ns or message.id is None:
        return
    run = settings.key_run if settings.order == "key" else 1
    out = 1
    who = f"{message.name} of {message.extras.key!r} in {subscription.topic.name}/{subscription.name}"
    for other in subscription.companions(message):
        theirs = other.message
        if theirs.offered_ns <= subscription.ordered_ns or theirs.id is None:
            continue
        if _is_out(book, subscription, other):
            if other.holder is not holder or other.look != look:
                book.fail("order by key", f"{who} went out while {theirs.name} is at another consumer")
            if theirs.id > message.id:
                book.fail("order by key", f"{who} went out after {theirs.name}")
            out += 1
            if out > run:
                book.fail("order by key", f"{who} is one too many: {out} are out")
        elif theirs.id < message.id and not message.due_ns and _comes_before(book, subscription, other, message):
            book.fail("order by key", f"{who} went out before {theirs.name} ({other.state.value})")


def _is_out(book: Book, subscription: SubscriptionModel, row: Row) -> bool:
    """Tell whether a row is at a consumer for sure."""
    if row.state is not State.LEASED or row.is_open() or book.now_ns >= row.expires_ns or row.maybe:
        return False
    # An earlier row of its key may have come back, taken this one with it, and been too old to go out again.
    return not subscription.may_be_revoked(row, book.now_ns)


def _check_moved(book: Book, subscription: SubscriptionModel, row: Row) -> None:
    """Check that a key whose shard changed goes out from its old one first, and from one of them at a time."""
    message = row.message
    if message.offered_ns <= subscription.ordered_ns:
        return
    who = f"{message.name} of {message.extras.key!r} in {subscription.topic.name}/{subscription.name}"
    for other, is_before in subscription.moved(message):
        theirs = other.message
        if theirs.offered_ns <= subscription.ordered_ns:
            continue
        if _is_out(book, subscription, other):
            book.fail("order by key", f"{who} went out while {theirs.name} is out of another shard")
        if is_before and not message.due_ns and _comes_before(book, subscription, other, message):
            book.fail("order by key", f"{who} went out before {theirs.name} of its old shard ({other.state.value})")


def _comes_before(book: Book, subscription: SubscriptionModel, earlier: Row, message: Message) -> bool:
    """Tell whether a row of a lower offset must go out first: it is there, wanted, and waits for no time."""
    settings, other = subscription.settings, earlier.message
    if earlier.state not in (State.NEW, State.READY) or earlier.maybe or earlier.belongs is not Belongs.MUST:
        return False
    if not other.stored or other.due_ns or earlier.due_ns or earlier.due_maybe or other.expires_ns or settings.ttl_ns:
        return False
    topic = subscription.topic
    if topic.tight or topic.was_shaken or topic.settings.durability == "memory":
        return False  # it may be gone
    if settings.max_attempts and (earlier.attempts >= settings.max_attempts or subscription.hidden):
        return False
    if settings.order == "shard" and other.extras.tag != message.extras.tag:
        return False  # it may wait for its consumer
    return subscription.takes(other, book.now_ns, REMAP_NS)[1] and not subscription.may_be_refused(other)
