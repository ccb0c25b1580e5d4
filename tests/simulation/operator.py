"""The operator: changes topics, subscriptions and the routing mapping under way, and tells the book."""

from __future__ import annotations

from random import Random

import msgspec

from penstock.clock import SECOND
from penstock.columns import place_of
from penstock.dialects.nsq.choices import NsqChoices
from penstock.errors import Refusal
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.simulation.actor import Actor, Surroundings
from tests.simulation.choices import TYPES, some_filter, some_order
from tests.simulation.model import Belongs, Row, State, SubscriptionModel, TopicModel
from tests.simulation.plan import MANY
from tests.simulation.topics import topics_of

#: Topics do not grow from more than this.
SHARDS_MAX = 5


class Operator(Actor):
    """Changes topics, subscriptions and the routing mapping under way."""

    def __init__(self, world: Surroundings, random: Random, gap_ns: int, deletes: bool, grows: bool) -> None:
        self._deletes = deletes
        self._grows = grows
        super().__init__(world, random, gap_ns)

    #: It does nothing more by itself.
    rests = False

    @property
    def waits(self) -> bool:
        """Whether something is not answered yet."""
        return False

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
        actions = [self._roll, self._retain, self._pause_topic, self._resume_topic, self._upgrade]
        weights = [4, 4, 2, 4, 2]
        if self._grows and len(topic.shards) < SHARDS_MAX:
            actions.append(self._grow)
            weights.append(12)
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
        actions = [self._pause, self._resume, self._seek, self._empty, self._ack_up_to, self._remove]
        weights = [2, 4, 2, 1, 1, 2]
        actions += [self._refilter, self._reorder, self._seek_paused]
        weights += [2, 1, 1]
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
        made = node.create_topic(name, settings)
        if not made.is_given:
            self.world.scheduler.run_until(self.world.scheduler.time_ns + SECOND, lambda: made.is_given)
        topic = made.now()
        book.bind(name, topic.record.number, settings)
        model.doubtful = False
        book.record("create", name, settings.durability, settings.shards, settings.segment_bytes, model.extend)
        return model

    def _roll(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("roll", topic.name)
        for shard in topic.shards:
            shard.roll()

    def _retain(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("retain", topic.name)
        topic.storage.retain()

    def _pause_topic(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("pause", topic.name)
        topic.pause(paused=True).now()
        model.gate_ns = self.world.book.now_ns if model.gate_ns is None else model.gate_ns
        self._upheaval(model)

    def _resume_topic(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("resume", topic.name)
        gate_ns, model.gate_ns = model.gate_ns, None
        try:
            topic.pause(paused=False).now()
        except Refusal:
            model.gate_ns = gate_ns
            raise
        self._upheaval(model)

    def _upgrade(self, node: Node, topic: Topic, model: TopicModel) -> None:
        """Let a topic take headers; clients that know none must go at their next message, which they never see."""
        if topic.chosen.of(NsqChoices).extend != "off":
            return
        book = self.world.book
        chosen = NsqChoices(extend=self.random.choice(("on", "on", "auto")))
        settings = chosen.put(topic.settings)
        book.record("upgrade", topic.name, chosen.extend)
        for connection in book.connections.values():
            subscription = connection.subscription
            if subscription is not None and subscription.topic is model and connection.fragile:
                subscription.hidden = True
        try:
            topic.update(settings).now()
        finally:
            book.bind(topic.name, topic.record.number, topic.settings)

    def _grow(self, node: Node, topic: Topic, model: TopicModel) -> None:
        """Give a topic more shards, at once or, if they are many, in a while; if the node dies, it may have them."""
        book = self.world.book
        count = len(topic.shards) + self.random.choice((1, 1, 2, MANY))
        book.record("grow", topic.name, count)
        model.asked_shards = max(model.asked_shards, count)

        def grown(_: None, error: Exception | None) -> None:
            if error is not None:
                book.record("refusal", str(error)[:60])
            else:
                book.record("grown", topic.name, count)
                model.settings = topic.settings
                model.grown_ns.append(book.now_ns)

        topic.update(msgspec.structs.replace(topic.settings, shards=count)).then(grown)

    def resume_all(self, node: Node) -> None:
        """Let everything flow again."""
        for topic in topics_of(node):
            model = self.world.book.bind(topic.name, topic.record.number, topic.settings)
            self._resume_topic(node, topic, model)
            for subscription in list(model.subscriptions.values()):
                if subscription.name in topic.subscriptions:
                    self._resume(topic, subscription)

    def _upheaval(self, model: TopicModel) -> None:
        for subscription in model.subscriptions.values():
            subscription.upheaval_ns = self.world.book.now_ns

    def _empty_topic(self, node: Node, topic: Topic, model: TopicModel) -> None:
        book = self.world.book
        book.record("empty", topic.name)
        here = [subscription for name, subscription in model.subscriptions.items() if name in topic.subscriptions]
        for subscription in here:
            self._empty_behind(topic, subscription, done=False)
        topic.empty().now()
        for subscription in here:
            self._empty_behind(topic, subscription, done=True)
        book.orphan(model)

    def _empty_behind(self, topic: Topic, model: SubscriptionModel, *, done: bool) -> None:
        """Note that what a pause keeps back goes, or may be gone if the node dies meanwhile."""
        gate_ns = model.topic.gate_ns
        if gate_ns is None and topic.record.gate is None:
            return
        if gate_ns is None:  # a crash left it open whether the pause held
            gate_ns, done = -1, False
        model.upheaval_ns = self.world.book.now_ns
        for message in model.topic.messages.values():
            if message.stored_ns is None or message.stored_ns >= gate_ns:  # else it passed before the pause
                self._finish(model.row(message), done and message.stored and message.offered_ns > gate_ns)

    def _delete_topic(self, node: Node, topic: Topic, model: TopicModel) -> None:
        self.world.book.record("delete", topic.name)
        node.delete_topic(topic.name).now()
        self.world.book.drop_topic(model)

    # --- subscriptions --------------------------------------------------------------------------------------------

    def subscribe(self, node: Node, topic_name: str, name: str, settings: SubscriptionSettings) -> None:
        """Make a subscription."""
        book = self.world.book
        topic = node.topic(topic_name)
        rules = (settings.max_attempts, settings.ttl_ns, settings.traffic, settings.order, settings.key_run)
        book.record("subscribe", topic_name, name, *rules)
        model = book.make_subscription(book.topic(topic_name), name, settings)
        model.doubtful = True
        topic.create_subscription(name, settings).now()
        model.doubtful = False

    def _change(self, topic: Topic, model: SubscriptionModel, settings: SubscriptionSettings) -> None:
        book, before, paused_ns = self.world.book, model.settings, model.paused_ns
        book.adopt(model, settings)
        model.upheaval_ns = book.now_ns
        model.paused_ns = book.now_ns if settings.paused else None
        try:
            topic.update_subscription(model.name, settings).now()
        except Refusal:
            model.paused_ns = paused_ns
            book.adopt(model, before)
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

    def _reorder(self, topic: Topic, model: SubscriptionModel) -> None:
        order, run = some_order(self.random)
        self.world.book.record("reorder", topic.name, model.name, order, run)
        self._change(topic, model, msgspec.structs.replace(model.settings, order=order, key_run=run))

    def _seek_paused(self, topic: Topic, model: SubscriptionModel) -> None:
        self._pause(topic, model)
        self._seek(topic, model)
        self._resume(topic, model)

    def _delete(self, topic: Topic, model: SubscriptionModel) -> None:
        self.world.book.record("delete", topic.name, model.name)
        topic.delete_subscription(model.name).now()
        self.world.book.drop_subscription(model)

    def _empty(self, topic: Topic, model: SubscriptionModel) -> None:
        book, subscription = self.world.book, topic.subscriptions[model.name]
        book.record("empty", topic.name, model.name)
        model.upheaval_ns = book.now_ns
        gate_ns = model.topic.gate_ns
        known = gate_ns is not None or topic.record.gate is None  # else a crash left it open whether the pause held
        gate_ns = gate_ns if gate_ns is not None else book.now_ns
        for message in model.topic.messages.values():
            if message.offered_ns <= gate_ns:  # what a paused topic keeps back is not in the subscription yet
                surely = message.stored and message.stored_ns is not None and message.stored_ns <= gate_ns
                self._finish(model.row(message), known and surely)
        subscription.empty()

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

    def _seek(self, topic: Topic, model: SubscriptionModel) -> None:
        book, subscription = self.world.book, topic.subscriptions[model.name]
        shard = self.random.randrange(len(topic.shards))
        kept = topic.shards[shard]
        known = [place_of(id_)[1] for id_ in model.topic.ids if place_of(id_)[0] == shard]
        known = [offset for offset in known if kept.start <= offset <= kept.readable_end]
        offset = self.random.choice([kept.start, kept.readable_end, *known[-20:]])
        book.record("seek", topic.name, model.name, shard, offset)
        model.upheaval_ns = book.now_ns
        model.acked = model.filtered_from = None
        model.last_first.clear()
        for message in model.topic.messages.values():
            self._moved(model, model.row(message), shard, offset, kept.start, kept.readable_end)
        subscription.seek(shard, offset)

    def _moved(self, model: SubscriptionModel, row: Row, shard: int, offset: int, start: int, end: int) -> None:
        message = row.message
        if message.id is not None and place_of(message.id)[0] != shard:
            return
        if message.id is None and model.topic.shards > 1:
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
            node.catalog.set_mapping(mapping, force=True).now()
        except Refusal as refusal:
            book.record("refusal", str(refusal)[:60])
            book.remap(before)
