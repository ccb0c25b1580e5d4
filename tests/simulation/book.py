"""The checker's book: all topics, subscriptions and messages.

Everybody who watches the node from outside (the tap on its connections, the admin, the pollers, the log after a
restart) writes into this one book; it raises a `Violation` the moment something cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

from penstock.clock import MILLISECOND
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.simulation.clock import LATE_NS_MAX, Scheduler
from tests.simulation.connection import Connection
from tests.simulation.extras import NOTHING, Extras
from tests.simulation.history import History, Violation
from tests.simulation.model import Belongs, Message, Presence, Row, Rule, SubscriptionModel, TopicModel

#: The node looks after leases and journals this often, or as often as `ack_flush` says.
TICK_NS = 10 * MILLISECOND

#: A new routing mapping reaches the filters within this time.
REMAP_NS = 5 * MILLISECOND


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
        #: Receives that found something; their number tells them apart.
        self.looks = 0
        #: The promise that was broken: a parser may have caught the word of it.
        self.broken: Violation | None = None
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
        self.broken = Violation(rule, text)
        raise self.broken

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
        topic.tight = topic.tight or settings.quota_bytes > 0  # then history gives way to what is new
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

    def adopt(self, subscription: SubscriptionModel, settings: SubscriptionSettings) -> None:
        """Note what a subscription does from now on."""
        before, subscription.settings = subscription.settings, settings
        subscription.rules.append(self.rule(settings))
        if (before.order, before.key_run) != (settings.order, settings.key_run):
            subscription.ordered_ns = self.now_ns
            subscription.last_first.clear()

    def subscriptions(self) -> Iterator[SubscriptionModel]:
        """Go through all subscriptions."""
        for topic in self.topics.values():
            yield from topic.subscriptions.values()

    # --- messages -------------------------------------------------------------------------------------------------

    def offer(self, topic: TopicModel, body: bytes, publisher: str, *, due_ns: int = 0, shard: int | None = None,
              expires_ns: int = 0, extras: Extras = NOTHING) -> Message:  # fmt: skip
        """Note that a message reached the node."""
        self._order += 1
        due_ns = due_ns or extras.due_ns
        message = Message(
            body, topic, publisher, self._order, self.now_ns, self.life, due_ns, expires_ns, extras, shard=shard
        )
        topic.messages[body] = message
        if extras.key:
            topic.keyed.setdefault(extras.key, []).append(message)
        topic.offered += 1
        return message

    def stored(self, message: Message) -> None:
        """Note that a message is in the log as safely as its topic promises."""
        if message.presence in (Presence.GONE, Presence.REFUSED):
            self.fail("only what was published", f"{message.name} was {message.presence.value} and is back")
        message.presence = Presence.MUST
        if message.stored_ns is None:
            message.stored_ns = self.now_ns

    def stored_at(self, message: Message, id_: int) -> None:
        """Note where a message is: its own place, or that of the one it repeats, which then is as safe as promised."""
        if message.dedup:
            same = [other for other in message.topic.dedups[message.dedup] if other.order < message.order]
            alive = [other for other in same if other.presence in (Presence.MUST, Presence.MAYBE)]
            # One of an earlier life without an id was not in the log that this life's keys come from.
            first = next(
                (other for other in alive if other.id == id_ or (other.id is None and other.life == self.life)), None
            )
            if first is not None:
                message.presence = Presence.REFUSED
                message, alive = first, []
            if any(other.presence is Presence.MUST for other in alive):
                self.fail("idempotence", f"{message.name} has the key of {alive[0].name} and was stored as well")
        self.named(message, id_)
        self.stored(message)

    def refused(self, message: Message, reason: str) -> None:
        """Note that the node did not take a message; a failed sync leaves it open whether it is there."""
        message.answered = True
        if "could not be synced" not in reason:
            message.presence = Presence.REFUSED

    def turned_away(self, message: Message) -> None:
        """Note that a message was refused before it came to its topic, which therefore does not count it."""
        message.answered = True
        message.presence = Presence.REFUSED
        message.topic.offered -= 1

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
        kept = replace(original.extras, due_ns=0, header=original.extras.header or b"{}")
        message = self.offer(topic, body, f"dead letters of {source.topic.name}", extras=kept)
        message.is_letter = True
        topic.offered -= 1
        # Who emptied or moved a subscription before this was seen may have met it.
        message.orphaned = Belongs.MAY if topic.emptied else Belongs.MUST
        for subscription in topic.subscriptions.values():
            subscription.rows[message] = Row(message, Belongs.MAY, maybe=True)
        self.record("buried", original.name, topic.name)
        return message
