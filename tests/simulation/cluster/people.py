"""Those who use a cluster: they go to any node that says it has the topic, right or wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock.clock import MILLISECOND, SECOND
from penstock.delivery import receipts
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.errors import Refusal
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.topic import Topic
from penstock.peers.far import Target
from tests.simulation.cluster.book import Lease, Message
from tests.simulation.cluster.plan import QUEUE, WORK

if TYPE_CHECKING:
    from tests.simulation.cluster.member import Member
    from tests.simulation.cluster.world import ClusterWorld

KEYS = 4
#: A receive waits no longer than this.
WAIT_NS = SECOND
HOLDER = "sqs"


class Publisher:
    """Somebody with something to say, now and then."""

    def __init__(self, world: ClusterWorld, random: Random) -> None:
        self._world = world
        self._random = random
        self._count = 0

    def go_on(self) -> None:
        """Say something, and come back."""
        world, random = self._world, self._random
        if not world.is_busy:
            return
        world.scheduler.after(int(random.expovariate(1 / world.plan.publish_ns)), self.go_on)
        self.say(random.choice(list(world.plan.topics)), random)

    def say(self, name: str, random: Random) -> Message | None:
        """Publish to a topic, wherever somebody has it; return the first message, if there is one."""
        world = self._world
        found = world.find(name, random)
        if found is None or len(found[1].subscriptions) < len(world.plan.subscriptions):
            return None
        where: tuple[Member, Target] | None = found
        if random.random() < world.plan.astray:
            where = world.way(name, random)
        if where is None:
            return None
        member, topic = where
        messages = []
        for _ in range(random.randint(1, world.plan.rows_max)):
            self._count += 1
            key = b"k%d" % random.randrange(KEYS)
            messages.append(Message(b"m%05d" % self._count, name, key))
            world.book.published(messages[-1])
            world.under_way.setdefault(member, []).append(messages[-1])
        rows = Rows.of([each.body for each in messages], "test", {"key": [each.key for each in messages]})
        topic.publish(rows, self, partial(self._told, messages))
        return messages[0]

    def _told(self, messages: list[Message], receipt: Receipt | None, error: BaseException | None) -> None:
        ids: Sequence[int | None] = receipt.ids() if receipt is not None else [None] * len(messages)
        for message, id_ in zip(messages, ids, strict=True):
            self._world.book.told(message, id_, error)


class Worker:
    """A consumer on a connection, of one topic."""

    def __init__(self, world: ClusterWorld, topic: str, random: Random) -> None:
        self._world = world
        self._topic = topic
        self._random = random
        self._seat: Seat | None = None
        self._member: Member | None = None

    def go_on(self) -> None:
        """Have a seat somewhere; and come back."""
        world = self._world
        world.scheduler.after(50 * MILLISECOND + int(self._random.random() * 100 * MILLISECOND), self.go_on)
        if self._seat is not None and self._is_there(self._seat):
            if self._random.random() < 0.02 and self._member is not None and self._member.is_awake:
                seat, self._seat = self._seat, None
                seat.close()
            return
        self._seat = None
        found = world.find(self._topic, self._random)
        if found is None or WORK not in found[1].subscriptions:
            return
        self._member, topic = found
        try:
            seat = topic.attach(topic.subscription(WORK), partial(self._got, self._member))
        except Refusal:
            return
        seat.evict = partial(self._evicted, seat)
        self._seat = seat
        seat.set_credit(self._random.randint(1, 8))

    def _is_there(self, seat: Seat) -> bool:
        return self._member is not None and self._member.node is not None and not seat.gone

    def _evicted(self, seat: Seat) -> None:
        if self._seat is seat:  # else it sits elsewhere by now
            self._seat = None

    def _got(self, member: Member, deliveries: list[Delivery]) -> None:
        world = self._world
        for delivery in deliveries:
            for id_, attempts, row in delivery.each():
                message = world.book.delivered(self._topic, id_, delivery.batch.row_body(row))
                world.book.record("got", member.name, message.body.decode(), attempts)
                delay_ns = int(self._random.random() * 100 * MILLISECOND)
                world.scheduler.after(delay_ns, partial(self._answer, member, self._seat, id_))

    def _answer(self, member: Member, seat: Seat | None, id_: int) -> None:
        if seat is None or seat is not self._seat or not member.is_awake or not self._is_there(seat):
            return
        draw = self._random.random()
        if draw < 0.05:
            seat.release([id_])
        elif draw < 0.98:
            seat.ack([id_])


class Receivers:
    """Those who receive under a name, and delete, keep or give back what they got, anywhere."""

    def __init__(self, world: ClusterWorld, random: Random) -> None:
        self._world = world
        self._random = random
        #: When leases began: by node, its life, topic, id and version.
        self._began: dict[tuple[str, int, str, int, int], int] = {}

    def go_on(self) -> None:
        """Receive, and come back."""
        world, random = self._world, self._random
        world.scheduler.after(int(random.expovariate(1 / world.plan.look_ns)), self.go_on)
        name = random.choice(list(world.plan.topics))
        found = world.find(name, random)
        if found is None or QUEUE not in found[1].subscriptions:
            return
        member, topic = found
        subscription = topic.subscription(QUEUE)
        if subscription.dealer.on_hand is None:
            subscription.dealer.on_hand = partial(self._note, member, member.life, name)
        subscription.expire(topic.now())
        got = partial(self._got, member, member.life, name)
        look = subscription.holder(HOLDER).look(random.randint(1, 3), world.plan.lease_ns, got)

        def give_up() -> None:
            if not look.gone and member.node is topic.node and member.is_awake and not look.unheard:
                look.close()

        world.scheduler.after(int(random.random() * WAIT_NS), give_up)

    def _note(self, member: Member, life: int, topic: str, deliveries: list[Delivery]) -> None:
        now_ns = self._world.scheduler.time_ns
        for delivery in deliveries:
            for id_, version in zip(delivery.ids(), delivery.versions or (), strict=True):
                self._began[member.name, life, topic, id_, version] = now_ns

    def _got(self, member: Member, life: int, topic: str, deliveries: list[Delivery]) -> None:
        world = self._world
        for delivery in deliveries:
            assert delivery.versions is not None
            for (id_, _, row), version in zip(delivery.each(), delivery.versions, strict=True):
                began_ns = self._began[member.name, life, topic, id_, version]
                lease = Lease(id_, version, member.name, began_ns, began_ns + world.plan.lease_ns)
                body = delivery.batch.row_body(row)
                world.book.record("leased", member.name, body.decode(), version)
                message = world.book.leased(topic, body, lease)
                delay_ns = int(self._random.random() * 1.5 * world.plan.lease_ns)
                world.scheduler.after(delay_ns, partial(self._answer, message, lease))

    def _answer(self, message: Message, lease: Lease) -> None:
        """Do something with what was received, at any node that says it has the topic."""
        world, random = self._world, self._random
        found = world.find(message.topic, random)
        if found is None or QUEUE not in found[1].subscriptions:
            return
        member, topic = found
        subscription = topic.subscription(QUEUE)
        draw = random.random() if world.is_busy else 0.0
        act = self._delete if draw < 0.8 else self._extend if draw < 0.9 else self._release
        act(member, subscription, subscription.holder(HOLDER), message, lease)

    def _delete(self, member: Member, subscription: Subscription, seat: Seat, message: Message, lease: Lease) -> None:
        (outcome,) = receipts.finish(seat, [(lease.id, lease.version)])
        if outcome == "done":
            lease.ends_ns = min(lease.ends_ns, self._now())
            self._kept(member, subscription, "deleted", message, partial(self._deleted, message))

    def _deleted(self, message: Message) -> None:
        if message.deleted_ns is None:
            message.deleted_ns = self._now()

    def _extend(self, member: Member, subscription: Subscription, seat: Seat, message: Message, lease: Lease) -> None:
        ends_ns = self._now() + self._world.plan.lease_ns
        if receipts.extend(seat, [(lease.id, lease.version)], [self._world.plan.lease_ns]) == [True]:
            self._kept(member, subscription, "extended", message, partial(self._extended, lease, ends_ns))

    def _extended(self, lease: Lease, ends_ns: int) -> None:
        lease.ends_ns = max(lease.ends_ns, ends_ns)

    def _release(self, member: Member, subscription: Subscription, seat: Seat, message: Message, lease: Lease) -> None:
        if receipts.release(seat, [(lease.id, lease.version)], [0]) == [True]:
            lease.ends_ns = min(lease.ends_ns, self._now())
            self._kept(member, subscription, "released", message, _nothing)

    def _kept(
        self, member: Member, subscription: Subscription, what: str, message: Message, then: Callable[[], None]
    ) -> None:
        """Wait for the answer, as a dialect does."""

        def told(error: BaseException | None) -> None:
            self._world.book.record(what, member.name, message.body.decode(), error or "")
            if error is None:
                then()

        subscription.keeping.wait(told)

    def _now(self) -> int:
        return self._world.scheduler.time_ns


def rows_of(topic: Topic, wait: Callable[[Callable[[], bool]], None]) -> list[tuple[int, bytes]] | None:
    """Return everything that a topic's log holds, by id; None if it goes elsewhere meanwhile."""
    rows = []
    for shard in topic.shards:
        offset = shard.kept_from
        while offset < shard.readable_end:
            batch = shard.read(offset)
            if batch is None:
                came: list[bool] = []
                shard.fetch(offset, partial(came.append, True))
                wait(partial(bool, came))
                batch = shard.read(offset)
            if topic.is_leaving:
                return None
            if batch is None:
                break
            for row in range(max(offset - batch.first, 0), min(batch.count, shard.readable_end - batch.first)):
                rows.append(((shard.number << 48) + batch.first + row + 1, batch.row_body(row)))
            offset = batch.end
    return rows


def _nothing() -> None:
    return
