"""The checker's book: all topics and messages, and the rules on handing a message out.

Everybody who watches the node from outside (the tap on its connections, the admin, the pollers, the census after a
restart) writes into this one book; it raises a `Violation` the moment something cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from penstock.clock import MILLISECOND
from penstock.message import place_of
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.simulation.clock import LATE_NS_MAX, Scheduler
from tests.simulation.history import History, Violation
from tests.simulation.model import (
    Belongs,
    Connection,
    Message,
    Presence,
    Row,
    Rule,
    State,
    SubscriptionModel,
    TopicModel,
    Verdict,
)

#: The node looks after leases and journals this often, or as often as `ack_flush` says.
TICK_NS = 10 * MILLISECOND

#: A new routing mapping reaches the filters within this time.
REMAP_NS = 5 * MILLISECOND


class Handed(NamedTuple):
    """A message as it was handed out."""

    id: int
    attempts: int
    time_ns: int
    body: bytes
    #: It was made between this time and now.
    since_ns: int
    lease_ns: int


class Book:
    """What is known, and what must hold."""

    def __init__(self, scheduler: Scheduler, history: History, ack_flush_ns: int) -> None:
        self.scheduler = scheduler
        self.history = history
        self.life = 0
        self.topics: dict[str, TopicModel] = {}
        self.mapping: dict[str, int] = {}
        #: Dead-letter topics by name, and the one subscription that buries there.
        self.buriers: dict[str, SubscriptionModel] = {}
        self.connections: dict[int, Connection] = {}
        self.ack_flush_ns = ack_flush_ns
        #: An ack older than this is in the journal, whatever became of its connection.
        self.slack_ns = ack_flush_ns + 2 * TICK_NS + 2 * LATE_NS_MAX
        #: When the disk was last full: what was written then may still be waiting.
        self.full_ns = -1
        self.is_full = False
        self.booted_ns = 0
        #: The wall clock is set now and then, and with it end leases that outlive the process.
        self.jumpy = False
        #: The node is being closed: connections end, and their leases end unwritten as in a crash.
        self.stopping = False
        #: Topics whose name had another topic in this life: the ledger counts by name.
        self.reused: set[str] = set()
        self.checks = 0
        self._order = 0

    @property
    def now_ns(self) -> int:
        """The time of the world."""
        return self.scheduler.time_ns

    @property
    def written_ns(self) -> int:
        """What happened before this time is in the journals, unless the disk was full then."""
        return -1 if self.is_full else self.now_ns - self.slack_ns

    def fail(self, rule: str, text: str) -> NoReturn:
        """Report a broken promise."""
        raise Violation(rule, text)

    def record(self, kind: str, *fields: object) -> None:
        """Note an event."""
        self.history.record(self.now_ns, kind, *fields)

    # --- topics and subscriptions ---------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicModel:
        """Return the topic of this name; one that nobody made yet is made by whoever publishes to it."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicModel(name)
        return topic

    def bind(self, name: str, number: int, settings: TopicSettings) -> TopicModel:
        """Note that the node has a topic."""
        topic = self.topics.get(name)
        if topic is not None and topic.number not in (None, number):
            self.drop_topic(topic)
            topic = None
        topic = topic or self.topic(name)
        topic.number, topic.settings = number, settings
        topic.tight = settings.retention_age_ns < 10**12 or settings.retention_bytes < 1 << 20
        return topic

    def drop_topic(self, topic: TopicModel) -> None:
        """Note that a topic was deleted."""
        topic.deleted = True
        self.reused.add(topic.name)
        for subscription in list(topic.subscriptions.values()):
            self.drop_subscription(subscription)
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]

    def make_subscription(self, topic: TopicModel, name: str, settings: SubscriptionSettings) -> SubscriptionModel:
        """Note that a subscription is made now: the first gets what the topic kept, others what is yet to come."""
        subscription = SubscriptionModel(name, topic, settings, [self.rule(settings)])
        for message in topic.messages.values():
            belongs = message.orphaned
            if topic.tight and topic.settings.retention_hard and belongs is Belongs.MUST:
                belongs = Belongs.MAY  # nobody needed it so far
            if topic.subscriptions:
                belongs = Belongs.NO if message.stored else Belongs.MAY
            subscription.rows[message] = Row(message, belongs)
        topic.subscriptions[name] = subscription
        if settings.max_attempts:
            self.buriers[settings.dead_letter or f"{topic.name}.dead"] = subscription
        return subscription

    def drop_subscription(self, subscription: SubscriptionModel) -> None:
        """Note that a subscription was deleted."""
        subscription.deleted = True
        topic = subscription.topic
        for row in subscription.rows.values():
            row.let_go()
        topic.subscriptions.pop(subscription.name, None)
        if not topic.subscriptions:
            self.orphan(topic, surely=not subscription.doubtful)

    def orphan(self, topic: TopicModel, *, surely: bool = True) -> None:
        """Note that what the topic holds now is for no later subscription, or may not be."""
        topic.emptied = True
        for message in topic.messages.values():
            if message.stored and surely:
                message.orphaned = Belongs.NO
            elif message.orphaned is Belongs.MUST:
                message.orphaned = Belongs.MAY

    def rule(self, settings: SubscriptionSettings) -> Rule:
        """Return what a subscription's settings mean from now on."""
        traffic = settings.traffic
        if traffic is None:
            return Rule(self.now_ns, None, True, self.mapping)
        return Rule(self.now_ns, traffic.allowed, traffic.is_default, self.mapping)

    def remap(self, mapping: dict[str, int]) -> None:
        """Note a new routing mapping."""
        self.mapping = dict(mapping)
        for subscription in self.subscriptions():
            subscription.rules.append(self.rule(subscription.settings))

    def subscriptions(self) -> Iterator[SubscriptionModel]:
        """Go through all subscriptions."""
        for topic in self.topics.values():
            yield from topic.subscriptions.values()

    # --- messages -------------------------------------------------------------------------------------------------

    def offer(self, topic: TopicModel, body: bytes, publisher: str, *, due_ns: int = 0, shard: int | None = None,
              traffic: int = 0, expires_ns: int = 0) -> Message:  # fmt: skip
        """Note that a message reached the node."""
        self._order += 1
        message = Message(
            body, topic, publisher, self._order, self.now_ns, self.life, due_ns, expires_ns, traffic, shard=shard
        )
        topic.messages[body] = message
        topic.offered += 1
        return message

    def stored(self, message: Message) -> None:
        """Note that a message is in the log as safely as its topic promises."""
        if message.presence in (Presence.GONE, Presence.REFUSED):
            self.fail("only what was published", f"{message.name} was {message.presence.value} and is back")
        message.presence = Presence.MUST
        if message.stored_ns is None:
            message.stored_ns = self.now_ns

    def refused(self, message: Message, reason: str) -> None:
        """Note that the node did not take a message; a failed sync leaves it open whether it is there."""
        message.answered = True
        if "could not be synced" not in reason:
            message.presence = Presence.REFUSED

    def named(self, message: Message, id_: int) -> None:
        """Note a message's id."""
        wrong = message.topic.identify(message, id_)
        if wrong:
            self.fail("an id names one message", wrong)

    def find(self, topic: TopicModel, body: bytes, id_: int) -> Message:
        """Return the message that a body is, which must have been published to this topic."""
        message = topic.messages.get(body)
        if message is None:
            message = self._dead_letter(topic, body)
        if message is None:
            self.fail("only what was published", f"{topic.name} handed out {body[:40]!r} (id {id_:x})")
        return message

    def _dead_letter(self, topic: TopicModel, body: bytes) -> Message | None:
        """Return a message that the node itself moved here because it failed too often."""
        source = self.buriers.get(topic.name)
        original = source.topic.messages.get(body) if source is not None else None
        if source is None or original is None:
            return None
        row = source.row(original)
        if row.peak < source.settings.max_attempts and not source.hidden:
            self.fail("dead letters failed", f"{original.name} was buried after {row.peak} attempts")
        row.finish(self.now_ns)
        row.maybe = True
        message = self.offer(topic, body, f"dead letters of {source.topic.name}")
        topic.offered -= 1
        # Who emptied or moved a subscription before this was seen may have met it.
        message.orphaned = Belongs.MAY if topic.emptied else Belongs.MUST
        for subscription in topic.subscriptions.values():
            subscription.rows[message] = Row(message, Belongs.MAY, maybe=True)
        self.record("buried", original.name, topic.name)
        return message

    # --- handing out ----------------------------------------------------------------------------------------------

    def handed_out(self, subscription: SubscriptionModel, handed: Handed, holder: Connection | None) -> Row:
        """Check a message that a consumer (or, without a holder, a session) got, and note its lease."""
        self.checks += 1
        topic = subscription.topic
        message = self.find(topic, handed.body, handed.id)
        self.named(message, handed.id)
        self.stored(message)
        row = subscription.row(message)
        self._check_message(subscription, message, handed)
        if handed.since_ns > subscription.upheaval_ns or handed.since_ns == self.now_ns:
            self._check_row(subscription, row, handed)
            if handed.since_ns == self.now_ns:
                self._check_order(subscription, row, handed)
        self._lease(subscription, row, handed, holder)
        if handed.since_ns < self.now_ns and handed.since_ns <= subscription.upheaval_ns:
            # A frame that was held up by a publish, and meanwhile somebody moved the subscription.
            row.maybe, row.expires_ns, row.low = True, self.now_ns, 0
            row.belongs = Belongs.MAY if row.belongs is Belongs.MUST else row.belongs
        return row

    def _check_message(self, subscription: SubscriptionModel, message: Message, handed: Handed) -> None:
        who = f"{message.name} in {subscription.topic.name}/{subscription.name}"
        low_ns, high_ns = self.scheduler.wall_between(message.offered_ns, self.now_ns)
        if message.due_ns > high_ns:
            self.fail("not before it is due", f"{who} came {(message.due_ns - high_ns) / 1e6:.3f} ms early")
        if message.time_ns is None:
            if not low_ns <= handed.time_ns <= high_ns and subscription.topic.name not in self.buriers:
                self.fail("the time is that of publishing", f"{who} says {handed.time_ns}, not {low_ns}..{high_ns}")
            message.time_ns = handed.time_ns
        elif message.time_ns != handed.time_ns:
            self.fail("the time is that of publishing", f"{who} says {handed.time_ns}, before {message.time_ns}")
        taken, _ = subscription.takes(message, self.now_ns, REMAP_NS)
        if not taken:
            self.fail("filters", f"{who} has traffic {message.traffic:b}, which no filter since then takes")
        made_ns, _ = self.scheduler.wall_between(handed.since_ns, self.now_ns)
        ttl_ns = subscription.settings.ttl_ns
        if ttl_ns and handed.time_ns + ttl_ns <= made_ns:
            self.fail("time to live", f"{who} came {(made_ns - handed.time_ns - ttl_ns) / 1e6:.3f} ms too late")
        if message.expires_ns and message.expires_ns <= made_ns:
            self.fail("time to live", f"{who} came {(made_ns - message.expires_ns) / 1e6:.3f} ms after it expired")

    def _check_row(self, subscription: SubscriptionModel, row: Row, handed: Handed) -> None:
        who = f"{row.message.name} in {subscription.topic.name}/{subscription.name}"
        gate_ns = subscription.topic.gate_ns
        if subscription.paused_ns is not None and handed.since_ns > subscription.paused_ns:
            self.fail("paused", f"{who} came while the subscription was paused")
        if gate_ns is not None and row.message.offered_ns > gate_ns:
            self.fail("paused", f"{who} came while the topic was paused")
        if row.belongs is Belongs.NO:
            self.fail("a subscription's start", f"{who} was there before the subscription and is not for it")
        if row.state is State.LEASED and self.now_ns < row.expires_ns and not self._came_back(row, handed):
            left_ms = (row.expires_ns - self.now_ns) / 1e6
            holder = "a session" if row.holder is None else f"connection {row.holder.link.number}"
            self.fail("one holder at a time", f"{who} came again {left_ms:.3f} ms before its lease to {holder} ended")
        if row.state is State.DONE and not row.maybe:
            self.fail("acks are respected", f"{who} came again after it was finished at {row.done_ns / 1e6:.3f}")
        if row.state is State.READY and row.due_ns and not row.due_maybe:
            _, shown_ns = self.scheduler.wall_between(row.released_ns, self.now_ns)
            if shown_ns < row.due_ns:
                early_ms = (row.due_ns - shown_ns) / 1e6
                self.fail("not before it is due", f"{who} was released and came {early_ms:.3f} ms early")
        low, high = row.low + 1, row.attempts + 1 if not subscription.hidden else 1 << 16
        if not low <= handed.attempts <= high:
            self.fail("attempts", f"{who} came as attempt {handed.attempts}, not {low}..{high}")
        limit = subscription.settings.max_attempts
        if limit and handed.attempts > limit:
            self.fail("attempts", f"{who} came as attempt {handed.attempts} of {limit}")

    def _came_back(self, row: Row, handed: Handed) -> bool:
        """Tell whether the holder may have given the row back: its command, or the frame, is not settled yet."""
        if row.holder is None:
            return False
        late = handed.since_ns < self.now_ns and bool(row.holder.checks)
        return late or any(check.row is row and check.verdict is Verdict.EITHER for check in row.holder.checks)

    def _check_order(self, subscription: SubscriptionModel, row: Row, handed: Handed) -> None:
        message = row.message
        if row.state is not State.NEW or message.life != self.life or message.due_ns or handed.attempts != 1:
            return
        key = (message.publisher, place_of(handed.id)[0])
        last = subscription.last_first.get(key, -1)
        if message.order < last:
            self.fail(
                "order", f"{message.name} of {message.publisher} came after a later message of the same publisher"
            )
        subscription.last_first[key] = message.order

    def _lease(self, subscription: SubscriptionModel, row: Row, handed: Handed, holder: Connection | None) -> None:
        if row.state is State.LEASED:
            row.settle(self.written_ns, self.full_ns)
            row.release(self.now_ns)  # it expired, or the connection's end was not heard of yet
        row.maybe = False
        row.lease(handed.attempts, handed.since_ns, handed.lease_ns, holder)
        if holder is None and not self.is_full:
            row.floor = handed.attempts  # a session's lease is written down before anybody hears of it
        if holder is not None:
            self._check_credit(subscription, holder, handed)

    def _check_credit(self, subscription: SubscriptionModel, holder: Connection, handed: Handed) -> None:
        if len(holder.held) <= holder.credit:
            return
        if handed.since_ns != self.now_ns or subscription.upheaval_ns == self.now_ns:
            return
        if any(check.verdict is Verdict.EITHER for check in holder.checks):
            return  # it may have come back in this very read
        out = sum(1 for row in holder.held if row.expires_ns > self.now_ns and not row.maybe)
        if out > holder.credit:
            self.fail("credit", f"connection {holder.link.number} has {out} messages out with RDY {holder.credit}")
