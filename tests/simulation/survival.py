"""What must outlive a crash, and what must be true once everything has healed.

A crash makes some of what the book says uncertain; what the log holds after the restart settles the messages
again, the deliveries that follow settle the rest.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.clock import SECOND
from penstock.columns import place_of
from tests.simulation.book import REMAP_NS, Book
from tests.simulation.model import Belongs, Message, Presence, Row, State, SubscriptionModel, TopicModel

CLEAN, DEATH, POWER = "clean stop", "process death", "power loss"

#: Journals are synced every two seconds, on a disk that may be slow.
JOURNAL_SYNCED_NS = 3 * SECOND
#: One that could not be synced is written anew, again and again until it is safe.
JOURNAL_MENDED_NS = 2 * SECOND


class Stored(NamedTuple):
    """A message as it stands in the log."""

    id: int
    time_ns: int
    body: bytes


class LogContents(NamedTuple):
    """What one topic's log holds, and what the node says is lost."""

    stored: list[Stored]
    #: (shard, first, end) of damaged ranges, and the shards of which recovery cut the end.
    damaged: list[tuple[int, int, int]]
    cut: set[int]


def crash(book: Book, kind: str) -> None:
    """Let the book forget what a crash of this kind may have taken."""
    if book.is_full:
        book.full_ns = book.now_ns
    book.record("crash", kind)
    for topic in book.topics.values():
        if topic.spoiled and kind == DEATH:
            for message in topic.messages.values():
                message.is_ghost = message.is_ghost or message.presence is Presence.MAYBE
        _crash_topic(book, topic, POWER if topic.spoiled else kind)
        topic.spoiled = False
    book.stopping = False
    book.life += 1
    book.reused.clear()
    for topic in book.topics.values():
        topic.offered = 0


def _crash_topic(book: Book, topic: TopicModel, kind: str) -> None:
    durability = topic.settings.durability
    for message in topic.messages.values():
        if durability == "memory":
            if message.presence is not Presence.REFUSED:
                message.presence = Presence.GONE
        elif kind == POWER and message.presence is Presence.MUST and (durability == "os" or message.is_ghost):
            message.presence = Presence.MAYBE
    for subscription in topic.subscriptions.values():
        subscription.last_first.clear()
        if kind != CLEAN or durability == "memory" or book.full_ns >= 0:
            subscription.acked = None
        for row in subscription.rows.values():
            if durability == "memory":
                row.let_go()
                row.state, row.maybe = State.READY, True
            else:
                _crash_row(book, row, kind)
        if subscription.doubtful:
            _doubt(subscription)
    if topic.doubtful:
        topic.gate_ns = None


def _crash_row(book: Book, row: Row, kind: str) -> None:
    now_ns, seen = book.now_ns, row.attempts
    row.settle(book.written_ns if kind != CLEAN or book.is_full else now_ns + 1, book.full_ns)
    last_ns = max(row.released_ns, row.done_ns)
    doubtful = kind == POWER or book.full_ns >= last_ns or (kind == DEATH and now_ns - last_ns <= book.slack_ns)
    row.low = 0 if kind == POWER else min(row.floor, row.attempts)
    row.released_ns = row.released_ns if row.state is State.READY else -1
    if kind == POWER:
        row.floor = 0
    if kind == POWER or book.full_ns >= row.seeked_ns > 0:
        row.attempts = max(row.attempts, row.peak)
    row.released_attempts = row.floor
    if row.was_done and row.belongs is Belongs.MUST and (kind == POWER or book.full_ns >= row.seeked_ns):
        row.belongs = Belongs.MAY
    if row.state is State.DONE:
        row.safe = row.safe or _is_synced(book, row)
        row.maybe = row.maybe or (doubtful and not row.safe and (kind == POWER or not row.certain))
        row.safe = row.safe or (kind == CLEAN and not row.maybe)
    elif row.state is State.LEASED and row.session and kind != POWER and _keeps_sessions(book, row):
        row.low = seen
    elif row.state is State.LEASED:
        row.state, row.due_ns, row.maybe = State.READY, 0, row.session
        row.let_go()
    elif row.state is State.READY:
        row.due_maybe = row.due_maybe or doubtful
        row.maybe = row.maybe or (doubtful and row.version > 0)  # a session may have its lease again that it gave back


def _is_synced(book: Book, row: Row) -> bool:
    """Tell whether the node had the time to bring the end of a row to the disk."""
    since_ns = max(row.done_ns, book.booted_ns, row.message.topic.spoiled_ns + JOURNAL_MENDED_NS)
    return not row.maybe and book.full_ns < row.done_ns and book.now_ns - since_ns > JOURNAL_SYNCED_NS


def _doubt(subscription: SubscriptionModel) -> None:
    """Take everything as possible: the process died while an operator moved the subscription."""
    subscription.paused_ns = None
    for row in subscription.rows.values():
        row.maybe = row.due_maybe = True
        row.low = 0
        if row.belongs is Belongs.MUST:
            row.belongs = Belongs.MAY


def _keeps_sessions(book: Book, row: Row) -> bool:
    """Tell whether a session's lease must still hold: it is counted on the wall clock then, which may be set."""
    return book.full_ns < row.leased_ns and not book.jumpy


def compare_log(book: Book, topic: TopicModel, found: LogContents) -> None:
    """Compare a topic's log with the book after a restart: nothing lost that was promised, nothing new, no mix-up."""
    present: set[Message] = set()
    for stored in found.stored:
        message = topic.messages.get(stored.body) or book.find(topic, stored.body, stored.id)
        book.named(message, stored.id)
        if message in present:
            book.fail("an id names one message", f"{message.name} is twice in {topic.name}")
        present.add(message)
        book.stored(message)
        if message.time_ns not in (None, stored.time_ns):
            book.fail("the time is that of publishing", f"{message.name} in {topic.name} says {stored.time_ns}")
    for message in topic.messages.values():
        under_way = message.presence is Presence.MAYBE and message.life == book.life
        if message not in present and message.presence in (Presence.MUST, Presence.MAYBE) and not under_way:
            if message.presence is Presence.MUST and not _may_be_gone(book, topic, message, found):
                book.fail(
                    "nothing acknowledged is lost",
                    f"{message.name} ({message.id or 0:x}) of {topic.name} ({topic.settings.durability}) is not there",
                )
            # What retention dropped a moment before the process died, the next one may find.
            message.presence = Presence.MAYBE if topic.tight else Presence.GONE
    _check_stored_order(book, topic)
    book.record("log", topic.name, len(present))


def _may_be_gone(book: Book, topic: TopicModel, message: Message, found: LogContents) -> bool:
    if topic.settings.durability == "memory" and topic.settings.memory_rows < 1000:
        return True  # the oldest go when there is no room
    if topic.cut_unseen or (topic.shaken and _is_reported(message, found)):
        return True
    return topic.tight and not needed(book, topic, message)


def _is_reported(message: Message, found: LogContents) -> bool:
    """Tell whether the node says of the gap in which a message is missing that something is damaged or cut there."""
    if message.id is None:
        return bool(found.cut or found.damaged)
    shard, offset = place_of(message.id)
    offsets = [place_of(stored.id)[1] for stored in found.stored if place_of(stored.id)[0] == shard]
    low = max((other for other in offsets if other < offset), default=-1)
    high = min((other for other in offsets if other > offset), default=1 << 62)
    return shard in found.cut or any(s == shard and low < max(b, a + 1) and a < high for s, a, b in found.damaged)


def needed(book: Book, topic: TopicModel, message: Message) -> bool:
    """Tell whether retention must keep a message: a subscription has not finished it, or there is none."""
    if not topic.subscriptions:
        return message.orphaned is Belongs.MUST and not topic.settings.retention_hard
    return any(owes(book, subscription, message) for subscription in topic.subscriptions.values())


def owes(book: Book, subscription: SubscriptionModel, message: Message) -> bool:
    """Tell whether a subscription is still to deliver a message."""
    row = subscription.row(message)
    if row.belongs is not Belongs.MUST or row.state is State.DONE or message.presence is not Presence.MUST:
        return False
    if subscription.settings.ttl_ns or message.expires_ns:
        return False
    limit = subscription.settings.max_attempts
    if limit and _is_buried(book, subscription, row):
        return False
    return subscription.takes(message, book.now_ns, REMAP_NS)[1] and not subscription.may_be_refused(message)


def _check_stored_order(book: Book, topic: TopicModel) -> None:
    last: dict[tuple[str, int, int], int] = {}
    for message in topic.messages.values():
        if message.id is None or topic.name in book.buriers:
            continue
        key = (message.publisher, message.life, place_of(message.id)[0])
        if message.id < last.get(key, -1):
            book.fail("order", f"{message.name} of {message.publisher} stands before an earlier message of it")
        last[key] = message.id


def _is_buried(book: Book, subscription: SubscriptionModel, row: Row) -> bool:
    """Tell whether a message lies in the dead-letter topic, or was lost there unseen.

    It may have been moved there again, which does nothing.
    """
    tried = row.attempts >= subscription.settings.max_attempts
    dead = book.topics.get(subscription.settings.dead_letter or f"{subscription.topic.name}.dead")
    if dead is not None and dead.was_shaken and (tried or subscription.hidden):
        return True
    letter = dead.messages.get(row.message.body) if dead is not None else None
    return tried and letter is not None and letter.stored


def missing(book: Book, subscription: SubscriptionModel) -> list[Row]:
    """Return what a subscription still owes."""
    settings = subscription.topic.settings
    if settings.durability == "memory" and settings.memory_rows < 1000:
        return []  # the oldest go when there is no room
    messages = subscription.topic.messages.values()
    return [subscription.row(message) for message in messages if owes(book, subscription, message)]
