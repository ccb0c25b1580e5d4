"""Leases by poll and answers by receipt, as the admin API does: holders that outlive the process."""

from __future__ import annotations

from random import Random

from penstock.clock import MILLISECOND
from penstock.columns import id_of
from penstock.delivery.journal import UNNAMED as HOLDER
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.node.node import Node
from tests.simulation.actor import Actor, Surroundings
from tests.simulation.handing import handed_out
from tests.simulation.model import Handed, Row, State, SubscriptionModel


class Session(Actor):
    """Leases by poll and answers by receipt, also for leases of a life before."""

    def __init__(self, world: Surroundings, random: Random, gap_ns: int) -> None:
        #: (subscription, id, attempts, version)
        self._receipts: list[tuple[SubscriptionModel, int, int, int]] = []
        #: (subscription, id, version) of all of them, whatever became of it.
        self._given: set[tuple[SubscriptionModel, int, int]] = set()
        #: Looks of this life that may find something yet.
        self._looks: list[tuple[Seat, SubscriptionModel]] = []
        self._looking: SubscriptionModel | None = None
        self._life = 0
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
        lease_ns = self.random.choice((100, 400, 1500)) * MILLISECOND
        holder = found.holder(HOLDER)
        if self._life != self.world.book.life:
            self._life, self._looks = self.world.book.life, []
        self._looking = model
        look = holder.look(self.random.choice((1, 3, 10)), lease_ns, lambda rows: self._leased(model, rows, lease_ns))
        self._looking = None
        self._looks = [*((other, of) for other, of in self._looks if not other.gone), (look, model)]
        if self.random.random() < 0.5:
            look.close()
        else:
            self.world.scheduler.at(
                self.world.scheduler.time_ns + int(self.random.random() * 300 * MILLISECOND),
                look.close,
                node.clock,  # type: ignore[arg-type]
            )

    def died(self) -> None:
        """Take it as open whether looks found something: the process died while it wrote, maybe of that."""
        looks = [model for look, model in self._looks if not look.gone] if self._life == self.world.book.life else []
        for model in (self._looking, *looks):
            if model is not None:
                model.hidden = True
        self._looking = None

    def _subscription(self, node: Node, model: SubscriptionModel) -> Subscription | None:
        topic = node.topics.get(model.topic.name)
        if topic is None or topic.record.number != model.topic.number or model.deleted:
            return None
        return topic.subscriptions.get(model.name)

    def _leased(self, model: SubscriptionModel, deliveries: list[Delivery], lease_ns: int) -> None:
        book = self.world.book
        book.looks += 1
        for delivery in deliveries:
            first = delivery.batch.first
            assert delivery.versions is not None
            for number, offset in enumerate(delivery.offsets()):
                attempts = delivery.attempts if isinstance(delivery.attempts, int) else int(delivery.attempts[number])
                id_, row = id_of(delivery.shard, offset), offset - first
                body, time_ns = delivery.batch.row_body(row), delivery.batch.row_time(row)
                book.record("lease", f"{id_:x}", attempts, body[:7].decode("latin-1"))
                handed = Handed(id_, attempts, time_ns, body, book.now_ns, lease_ns, look=book.looks)
                handed_out(book, model, handed, None)
                version = int(delivery.versions[number])
                if (model, id_, version) in self._given:
                    book.fail("a receipt is for one lease", f"{body[:6]!r} has version {version} of another lease")
                self._given.add((model, id_, version))
                self._receipts.append((model, id_, attempts, version))
                if id_ in model.topic.ids:
                    model.row(model.topic.ids[id_]).version = version

    def _answer(self, node: Node) -> None:
        book = self.world.book
        model, id_, attempts, version = self._receipts.pop(self.random.randrange(len(self._receipts)))
        found = self._subscription(node, model)
        row = model.rows.get(model.topic.ids[id_]) if id_ in model.topic.ids else None
        if found is None or row is None:
            return
        holder = found.holder(HOLDER)
        good = all(holder.current([(id_, version)]))
        mine = row.state is State.LEASED and row.session and row.version == version
        certain = mine and book.now_ns < row.expires_ns and not row.maybe and row.message.stored
        certain = certain and not model.may_be_revoked(row, book.now_ns)
        word = self.random.choice(("ack", "ack", "ack", "extend", "release"))
        book.record("answer by", "receipt", word, f"{id_:x}", attempts, bool(good))
        if certain and not good:
            book.fail("the holder may", f"the receipt of {row.message.name}, attempt {attempts}, is refused")
        if good and not mine and not row.maybe and not book.jumpy:
            book.fail("only the holder may", f"a stale receipt of {row.message.name}, attempt {attempts}, is good")
        if good:
            getattr(self, f"_{word}")(holder, model, row, id_, version)

    def _ack(self, holder: Seat, model: SubscriptionModel, row: Row, id_: int, version: int) -> None:
        # Before it happens: others may get rows in the same moment.
        row.finish(self.world.book.now_ns)
        if model.acked is not None:
            model.acked += 1
        self._must(not holder.ack([id_]), row)
        row.certain = not self.world.book.is_full  # not before: the process may have died in the middle of it

    def _extend(self, holder: Seat, model: SubscriptionModel, row: Row, id_: int, version: int) -> None:
        lease_ns = self.random.choice((200, 600)) * MILLISECOND
        now_ns = self.world.book.now_ns
        refused = holder.extend([id_], lease_ns)
        self._must(not refused, row)
        lease_max_ns = holder.subscription.settings.lease_max_ns
        row.expires_ns = min(now_ns + lease_ns, row.leased_ns + lease_max_ns)
        row.leased_ns = min(row.leased_ns, now_ns)
        self._receipts.append((model, id_, row.attempts, version))

    def _release(self, holder: Seat, model: SubscriptionModel, row: Row, id_: int, version: int) -> None:
        book, delay_ns = self.world.book, self.random.choice((0, 30, 300)) * MILLISECOND
        row.settle(book.written_ns, book.full_ns)
        row.release(book.now_ns, book.scheduler.wall_ns() + delay_ns if delay_ns else 0)
        model.revoke_behind(row, book.now_ns)
        self._must(not holder.release([id_], delay_ns), row)

    def _must(self, held: bool, row: Row) -> None:
        if not held:
            self.world.book.fail("the holder may", f"{row.message.name} is held by a session and refused")
