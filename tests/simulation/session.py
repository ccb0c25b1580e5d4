"""Leases by poll and answers by receipt, as the admin API does: holders that outlive the process."""

from __future__ import annotations

from random import Random

from penstock.clock import MILLISECOND
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.message import id_of
from penstock.node import Node
from penstock.topic import Topic
from tests.simulation.actor import Actor, Surroundings
from tests.simulation.handing import Handed, handed_out
from tests.simulation.model import Row, State, SubscriptionModel


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
                handed_out(book, model, Handed(id_, attempts, time_ns, body, book.now_ns, lease_ns), None)
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
        certain = certain and not model.may_be_revoked(row, book.now_ns)
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
        model.revoke_behind(row, book.now_ns)
        topic.wait(delay_ns)
        topic.pump(subscription)

    def _must(self, held: bool, row: Row) -> None:
        if not held:
            self.world.book.fail("the holder may", f"{row.message.name} is held by a session and refused")
