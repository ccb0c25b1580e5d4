"""Everybody who talks to the node without a connection: the operator, publishers with columns, sessions with receipts.

They do what the admin API does, with the same calls on `Node`, `Topic` and `Subscription`, and tell the book.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

import msgspec

from penstock.clock import MILLISECOND, SECOND
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.errors import Refusal
from penstock.inlet import Receipt
from penstock.message import Column, Rows, id_of, place_of
from penstock.node import Node
from penstock.settings import SubscriptionSettings, TopicSettings, TrafficSettings
from penstock.topic import Topic
from tests.simulation.book import Book, Handed
from tests.simulation.clock import Scheduler
from tests.simulation.model import Belongs, Message, Presence, Row, State, SubscriptionModel, TopicModel

#: Names of traffic types; some mappings lack some of them.
TYPES = ("raw", "minute", "hour", "test")


class Surroundings(Protocol):
    """What they need of the world."""

    scheduler: Scheduler
    book: Book
    busy: bool
    node: Node | None

    def body(self) -> bytes:
        """Make a body that never was before."""


class Actor:
    """Somebody who does something every now and then while the node is up."""

    def __init__(self, world: Surroundings, random: Random, gap_ns: int) -> None:
        self.world = world
        self.random = random
        self._gap_ns = gap_ns
        self._again()

    def _again(self) -> None:
        self.world.scheduler.after(int(self.random.expovariate(1 / self._gap_ns)), self._step)

    def _step(self) -> None:
        self._again()
        if self.world.node is not None and self.world.busy:
            self.act(self.world.node)

    def act(self, node: Node) -> None:
        """Do one thing."""


class Publisher(Actor):
    """Publishes rows with columns, as the admin API does."""

    def __init__(self, world: Surroundings, random: Random, gap_ns: int, topics: list[str], number: int) -> None:
        self.topics = topics
        self.name = f"publisher {number}"
        super().__init__(world, random, gap_ns)

    def act(self, node: Node) -> None:
        """Publish some rows."""
        book, random = self.world.book, self.random
        topic = node.topics.get(random.choice(self.topics))
        if topic is None:
            return
        model = book.bind(topic.name, topic.record.number, topic.settings)
        count = random.choice((1, 1, 1, 2, 2, 5, 20))
        wall_ns = node.clock.now()
        columns: dict[str, Column] = {}
        dues = traffics = expires = None
        if random.random() < 0.2:
            dues = [
                wall_ns + random.choice((0, 5, 100, 700)) * MILLISECOND if random.random() < 0.7 else None
                for _ in range(count)
            ]
            columns["due"] = dues
        if random.random() < 0.6:
            traffics = [random.choice((None, 0, 1, 2, 4, 6, 8, -(1 << 63))) for _ in range(count)]
            columns["traffic"] = traffics
        if random.random() < 0.05:
            expires = [wall_ns + random.choice((1, 50, 500)) * MILLISECOND for _ in range(count)]
            columns["expires"] = expires
        shard = random.randrange(topic.settings.shards) if random.random() < 0.3 else None
        bodies = [self.world.body() for _ in range(count)]
        messages = [
            book.offer(
                model,
                body,
                f"{self.name} to {shard}" if shard is not None else self.name,
                due_ns=(dues[row] or 0) if dues else 0,
                traffic=((traffics[row] or 0) & ((1 << 64) - 1)) if traffics else 0,
                expires_ns=expires[row] if expires else 0,
                shard=shard,
            )
            for row, body in enumerate(bodies)
        ]
        if random.random() < 0.15:
            columns["dedup"] = [self._key(model, message) for message in messages]
        book.record("publish", self.name, model.name, ",".join(message.name for message in messages), shard)
        topic.publish(Rows.of(bodies, "api", columns), self, self._done(messages), shard)

    def _key(self, model: TopicModel, message: Message) -> bytes:
        """Give a message an idempotence key, sometimes one that was used before."""
        message.key = message.body[:7]
        if model.keys and self.random.random() < 0.5:
            message.key = self.random.choice(list(model.keys))
        model.keys.setdefault(message.key, []).append(message)
        return message.key

    def _done(self, messages: list[Message]) -> Callable[[Receipt | None, BaseException | None], None]:
        book, life = self.world.book, self.world.book.life

        def done(receipt: Receipt | None, error: BaseException | None) -> None:
            if book.life != life:
                book.fail("one reply a command", f"a publish of {messages[0].name} was answered by a dead process")
            if messages[0].answered:
                book.fail("one reply a command", f"a publish of {messages[0].name} was answered twice")
            if receipt is None:
                book.record("refused", messages[0].name, str(error)[:60])
                for message in messages:
                    book.refused(message, str(error))
                return
            book.record("stored", messages[0].name, f"{receipt.first_id:x}", receipt.count)
            for message, id_ in zip(messages, receipt.ids(), strict=True):
                message.answered = True
                self._stored(message, id_)

        return done

    def _stored(self, message: Message, id_: int) -> None:
        """Note where a message is: its own place, or that of the one it repeats, which then is as safe as promised."""
        book = self.world.book
        if message.key:
            same = [other for other in message.topic.keys[message.key] if other.order < message.order]
            alive = [other for other in same if other.presence in (Presence.MUST, Presence.MAYBE)]
            first = next((other for other in alive if other.id in (id_, None)), None)
            if first is not None:
                message.presence = Presence.REFUSED
                message, alive = first, []
            if any(other.presence is Presence.MUST for other in alive):
                book.fail("idempotence", f"{message.name} has the key of {alive[0].name} and was stored as well")
        book.named(message, id_)
        book.stored(message)


class Session(Actor):
    """Leases by poll and answers by receipt, also for leases of a life before."""

    def __init__(self, world: Surroundings, random: Random, gap_ns: int) -> None:
        #: (topic number, subscription, id, attempts)
        self._receipts: list[tuple[SubscriptionModel, int, int]] = []
        super().__init__(world, random, gap_ns)

    def act(self, node: Node) -> None:
        """Ask for some messages, or answer for some."""
        if self._receipts and self.random.random() < 0.6:
            self._answer(node)
        else:
            self._ask(node)

    def _ask(self, node: Node) -> None:
        models = [model for model in self.world.book.subscriptions() if not model.deleted]
        if not models:
            return
        model = self.random.choice(models)
        found = self._subscription(node, model)
        if found is None:
            return
        topic, subscription = found
        lease_ns = self.random.choice((100, 400, 1500)) * MILLISECOND
        poll = subscription.poll(
            self.random.choice((1, 3, 10)), lease_ns, lambda rows: self._leased(model, rows, lease_ns)
        )
        topic.pump(subscription)
        if self.random.random() < 0.5:
            subscription.give_up(poll)
        else:
            self.world.scheduler.at(
                self.world.scheduler.time_ns + int(self.random.random() * 300 * MILLISECOND),
                lambda: subscription.give_up(poll),
                node.clock,  # type: ignore[arg-type]
            )

    def _subscription(self, node: Node, model: SubscriptionModel) -> tuple[Topic, Subscription] | None:
        topic = node.topics.get(model.topic.name)
        if topic is None or topic.record.number != model.topic.number or model.deleted:
            return None
        subscription = topic.subscriptions.get(model.name)
        return (topic, subscription) if subscription is not None else None

    def _leased(self, model: SubscriptionModel, deliveries: list[Delivery], lease_ns: int) -> None:
        book = self.world.book
        for delivery in deliveries:
            first = delivery.batch.first
            for number, offset in enumerate(delivery.offsets()):
                attempts = delivery.attempts if isinstance(delivery.attempts, int) else int(delivery.attempts[number])
                id_, row = id_of(delivery.shard, offset), offset - first
                body, time_ns = delivery.batch.row_body(row), delivery.batch.row_time(row)
                book.record("lease", f"{id_:x}", attempts, body[:7].decode("latin-1"))
                book.handed_out(model, Handed(id_, attempts, time_ns, body, book.now_ns, lease_ns), None)
                self._receipts.append((model, id_, attempts))

    def _answer(self, node: Node) -> None:
        book = self.world.book
        model, id_, attempts = self._receipts.pop(self.random.randrange(len(self._receipts)))
        found = self._subscription(node, model)
        row = model.rows.get(model.topic.ids[id_]) if id_ in model.topic.ids else None
        if found is None or row is None:
            return
        topic, subscription = found
        _, good, _ = subscription.by_receipt([(id_, attempts)])
        mine = row.state is State.LEASED and row.session and row.attempts == attempts
        certain = mine and book.now_ns < row.expires_ns and not row.maybe and row.message.stored
        word = self.random.choice(("ack", "ack", "ack", "extend", "release"))
        book.record("answer by", "receipt", word, f"{id_:x}", attempts, bool(good))
        if certain and not good:
            book.fail("the holder may", f"the receipt of {row.message.name}, attempt {attempts}, is refused")
        if good and not mine and not row.maybe and not book.jumpy:
            book.fail("only the holder may", f"a stale receipt of {row.message.name}, attempt {attempts}, is good")
        if good:
            getattr(self, f"_{word}")(node, topic, subscription, model, row, id_)

    def _ack(
        self, node: Node, topic: Topic, subscription: Subscription, model: SubscriptionModel, row: Row, id_: int
    ) -> None:
        refused = subscription.ack(subscription.session, [id_])
        topic.settle(subscription, always=True)
        self._must(not refused, row)
        row.finish(self.world.book.now_ns)
        row.certain = not self.world.book.is_full
        if model.acked is not None:
            model.acked += 1
        topic.pump(subscription)

    def _extend(
        self, node: Node, topic: Topic, subscription: Subscription, model: SubscriptionModel, row: Row, id_: int
    ) -> None:
        lease_ns = self.random.choice((200, 600)) * MILLISECOND
        now_ns = self.world.book.now_ns
        refused = subscription.extend(subscription.session, [id_], lease_ns, node.now())
        self._must(not refused, row)
        lease_max_ns = subscription.settings.lease_max_ns
        row.expires_ns = min(now_ns + lease_ns, row.leased_ns + lease_max_ns)
        row.leased_ns = min(row.leased_ns, now_ns)
        self._receipts.append((model, id_, row.attempts))

    def _release(
        self, node: Node, topic: Topic, subscription: Subscription, model: SubscriptionModel, row: Row, id_: int
    ) -> None:
        book, delay_ns = self.world.book, self.random.choice((0, 30, 300)) * MILLISECOND
        refused = subscription.release(subscription.session, [id_], delay_ns, node.now())
        topic.settle(subscription, always=True)
        self._must(not refused, row)
        row.settle(book.written_ns, book.full_ns)
        row.release(book.now_ns, book.scheduler.wall_ns() + delay_ns if delay_ns else 0)
        topic.wait(delay_ns)
        topic.pump(subscription)

    def _must(self, held: bool, row: Row) -> None:
        if not held:
            self.world.book.fail("the holder may", f"{row.message.name} is held by a session and refused")


class Operator(Actor):
    """Changes topics, subscriptions and the routing mapping under way."""

    def __init__(self, world: Surroundings, random: Random, gap_ns: int, deletes: bool) -> None:
        self._deletes = deletes
        super().__init__(world, random, gap_ns)

    def act(self, node: Node) -> None:
        """Do one thing to one subscription or topic."""
        book = self.world.book
        if self.random.random() < 0.1:
            self.map(node)
            return
        topics = [topic for topic in node.topics.values() if topic.name in book.topics]
        if not topics:
            return
        topic = self.random.choice(topics)
        model = book.bind(topic.name, topic.record.number, topic.settings)
        actions = [self._roll, self._retain, self._pause_topic, self._resume_topic]
        weights = [4, 4, 1, 3]
        if topic.name not in book.buriers:  # what is in there shows at the end what was buried
            actions.append(self._empty_topic)
            weights.append(1)
            if self._deletes:
                actions.append(self._delete_topic)
                weights.append(1)
        subscription = self._any(topic, model)
        if subscription is None or self.random.random() < 0.3:
            model.doubtful = True
            try:
                self.random.choices(actions, weights)[0](node, topic, model)
            except Refusal as refusal:
                book.record("refusal", str(refusal)[:60])
            model.doubtful = False
            return
        self._to_subscription(node, topic, subscription)

    def _any(self, topic: Topic, model: TopicModel) -> SubscriptionModel | None:
        known = [subscription for name, subscription in model.subscriptions.items() if name in topic.subscriptions]
        return self.random.choice(known) if known else None

    def _to_subscription(self, node: Node, topic: Topic, model: SubscriptionModel) -> None:
        actions = [self._pause, self._resume, self._seek, self._empty, self._ack_up_to, self._remove, self._refilter]
        weights = [1, 3, 2, 1, 1, 2, 2]
        if self._deletes:
            actions.append(self._delete)
            weights.append(1)
        model.doubtful = True
        try:
            self.random.choices(actions, weights)[0](topic, model)
        except Refusal as refusal:
            self.world.book.record("refusal", str(refusal)[:60])
        model.doubtful = False

    # --- topics ---------------------------------------------------------------------------------------------------

    def create(self, node: Node, name: str, settings: TopicSettings) -> TopicModel:
        """Make a topic."""
        book = self.world.book
        model = book.topic(name)
        model.doubtful = True
        topic = node.create_topic(name, settings)
        book.bind(name, topic.record.number, settings)
        model.doubtful = False
        book.record("create", name, settings.durability, settings.shards, settings.segment_bytes)
        return model

    def _roll(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("roll", topic.name)
        for shard in topic.shards:
            shard.roll()

    def _retain(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("retain", topic.name)
        topic.retain()

    def _pause_topic(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("pause", topic.name)
        topic.pause(paused=True)
        model.gate_ns = self.world.book.now_ns if model.gate_ns is None else model.gate_ns
        self._upheaval(model)

    def _resume_topic(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("resume", topic.name)
        gate_ns, model.gate_ns = model.gate_ns, None
        try:
            topic.pause(paused=False)
        except Refusal:
            model.gate_ns = gate_ns
            raise
        self._upheaval(model)

    def resume_all(self, node: Node) -> None:
        """Let everything flow again."""
        for topic in node.topics.values():
            model = self.world.book.bind(topic.name, topic.record.number, topic.settings)
            self._resume_topic(node, topic, model)
            for subscription in list(model.subscriptions.values()):
                if subscription.name in topic.subscriptions:
                    self._resume(topic, subscription)

    def _upheaval(self, model: TopicModel) -> None:
        for subscription in model.subscriptions.values():
            subscription.upheaval_ns = self.world.book.now_ns

    def _empty_topic(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("empty", topic.name)
        topic.empty()
        self.world.book.orphan(model)

    def _delete_topic(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("delete", topic.name)
        node.delete_topic(topic.name)
        self.world.book.drop_topic(model)

    # --- subscriptions --------------------------------------------------------------------------------------------

    def subscribe(self, node: Node, topic_name: str, name: str, settings: SubscriptionSettings) -> None:
        """Make a subscription."""
        book = self.world.book
        topic = node.topic(topic_name)
        book.record("subscribe", topic_name, name, settings.max_attempts, settings.ttl_ns, settings.traffic)
        model = book.make_subscription(book.topic(topic_name), name, settings)
        model.doubtful = True
        topic.create_subscription(name, settings)
        model.doubtful = False

    def _change(self, topic: Topic, model: SubscriptionModel, settings: SubscriptionSettings) -> None:
        before, paused_ns = model.settings, model.paused_ns
        model.settings = settings
        model.upheaval_ns = self.world.book.now_ns
        model.rules.append(self.world.book.rule(settings))
        model.paused_ns = self.world.book.now_ns if settings.paused else None
        try:
            topic.update_subscription(model.name, settings)
        except Refusal:
            model.settings, model.paused_ns = before, paused_ns
            model.rules.append(self.world.book.rule(before))
            raise

    def _pause(self, topic: Topic, model: SubscriptionModel) -> None:
        self.world.book.record("pause", topic.name, model.name)
        self._change(topic, model, msgspec.structs.replace(model.settings, paused=True))

    def _resume(self, topic: Topic, model: SubscriptionModel) -> None:
        self.world.book.record("resume", topic.name, model.name)
        self._change(topic, model, msgspec.structs.replace(model.settings, paused=False))

    def _refilter(self, topic: Topic, model: SubscriptionModel) -> None:
        traffic = some_filter(self.random)
        self.world.book.record("refilter", topic.name, model.name, traffic)
        self._change(topic, model, msgspec.structs.replace(model.settings, traffic=traffic))

    def _delete(self, topic: Topic, model: SubscriptionModel) -> None:
        self.world.book.record("delete", topic.name, model.name)
        topic.delete_subscription(model.name)
        self.world.book.drop_subscription(model)

    def _empty(self, topic: Topic, model: SubscriptionModel) -> None:
        book, subscription = self.world.book, topic.subscriptions[model.name]
        book.record("empty", topic.name, model.name)
        model.upheaval_ns = book.now_ns
        gate_ns = model.topic.gate_ns if model.topic.gate_ns is not None else book.now_ns
        for message in model.topic.messages.values():
            if message.offered_ns <= gate_ns:  # what a paused topic keeps back is not in the subscription yet
                surely = message.stored and message.stored_ns is not None and message.stored_ns <= gate_ns
                self._finish(model.row(message), surely)
        subscription.empty()
        topic.settle(subscription, always=True)

    def _finish(self, row: Row, surely: bool) -> None:
        """Note that the operator finished a row, or may have."""
        book = self.world.book
        if surely and row.state is not State.DONE:
            row.finish(book.now_ns)
            row.certain = not book.is_full
        elif not surely:
            row.belongs = Belongs.MAY if row.belongs is Belongs.MUST else row.belongs
            row.maybe = True

    def _ack_up_to(self, topic: Topic, model: SubscriptionModel) -> None:
        book, subscription = self.world.book, topic.subscriptions[model.name]
        if not model.topic.ids:
            return
        last = self.random.choice(list(model.topic.ids))
        shard, offset = place_of(last)
        if offset >= topic.shards[shard].readable_end:
            return
        book.record("ack up to", topic.name, model.name, f"{last:x}")
        model.upheaval_ns, model.acked = book.now_ns, None
        for message in model.topic.messages.values():
            if message.id is None:
                self._finish(model.row(message), surely=False)
            elif place_of(message.id)[0] == shard and message.id <= last:
                self._finish(model.row(message), surely=True)
        subscription.ack_up_to(last)
        topic.settle(subscription, always=True)
        topic.pump(subscription)

    def _remove(self, topic: Topic, model: SubscriptionModel) -> None:
        book, subscription = self.world.book, topic.subscriptions[model.name]
        known = [id_ for id_ in model.topic.ids if place_of(id_)[1] < topic.shards[place_of(id_)[0]].readable_end]
        ids = sorted(self.random.sample(known, min(len(known), self.random.choice((1, 2, 5)))))
        if not ids:
            return
        book.record("remove", topic.name, model.name, ",".join(f"{id_:x}" for id_ in ids))
        model.upheaval_ns = book.now_ns
        for id_ in ids:
            self._finish(model.row(model.topic.ids[id_]), surely=True)
        subscription.remove(ids)
        topic.settle(subscription, always=True)
        topic.pump(subscription)

    def _seek(self, topic: Topic, model: SubscriptionModel) -> None:
        book, subscription = self.world.book, topic.subscriptions[model.name]
        shard = self.random.randrange(len(topic.shards))
        kept = topic.shards[shard]
        known = [place_of(id_)[1] for id_ in model.topic.ids if place_of(id_)[0] == shard]
        known = [offset for offset in known if kept.start <= offset <= kept.readable_end]
        offset = self.random.choice([kept.start, kept.readable_end, *known[-20:]])
        book.record("seek", topic.name, model.name, shard, offset)
        model.upheaval_ns, model.acked = book.now_ns, None
        model.last_first.clear()
        for message in model.topic.messages.values():
            self._moved(model, model.row(message), shard, offset, kept.start, kept.readable_end)
        subscription.seek(shard, offset)
        topic.pump(subscription)

    def _moved(self, model: SubscriptionModel, row: Row, shard: int, offset: int, start: int, end: int) -> None:
        message = row.message
        if message.id is not None and place_of(message.id)[0] != shard:
            return
        if message.id is None and model.topic.settings.shards > 1:
            row.maybe = True
            row.belongs = Belongs.MAY
            return
        here = place_of(message.id)[1] if message.id is not None else None
        again = (offset == start and message.stored) if here is None else here >= offset
        below = (offset == end and message.stored) if here is None else here < offset
        if below:
            row.finish(self.world.book.now_ns)
            row.certain = not self.world.book.is_full
        else:
            was_done = row.was_done or row.state is State.DONE or row.belongs is not Belongs.MUST
            kept = not model.topic.tight or (here is not None and here >= start)
            row.let_go()
            fresh = Row(message, Belongs.MUST if again and kept else Belongs.MAY, was_done=was_done)
            fresh.maybe = fresh.due_maybe = not again
            fresh.peak = row.peak
            fresh.seeked_ns = self.world.book.now_ns
            model.rows[message] = fresh

    # --- routing --------------------------------------------------------------------------------------------------

    def map(self, node: Node) -> None:
        """Set another routing mapping."""
        mapping = {name: bit for bit, name in enumerate(TYPES) if self.random.random() < 0.8}
        book, before = self.world.book, self.world.book.mapping
        book.record("map", sorted(mapping))
        book.remap(mapping)
        try:
            node.catalog.set_mapping(mapping, force=True)
        except Refusal as refusal:
            book.record("refusal", str(refusal)[:60])
            book.remap(before)


def some_filter(random: Random) -> TrafficSettings | None:
    """Return a filter, or none."""
    if random.random() < 0.3:
        return None
    allowed = tuple(name for name in TYPES if random.random() < 0.4)
    return TrafficSettings(allowed, random.random() < 0.5)


def some_settings(random: Random, lease_ns: int, lease_max_ns: int, *, limited: bool) -> SubscriptionSettings:
    """Return settings of a subscription that an operator makes."""
    draw = random.random()
    return SubscriptionSettings(
        traffic=some_filter(random) if draw < 0.5 else None,
        max_attempts=random.choice((1, 2, 4)) if limited else 0,
        ttl_ns=random.choice((50 * MILLISECOND, SECOND)) if draw > 0.85 else 0,
        lease_ns=lease_ns,
        lease_max_ns=lease_max_ns,
    )
