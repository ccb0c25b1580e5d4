"""Clients of queues: one request at a time, the next once it is answered; what is not answered may be asked again.

They know only what arrives at their end of the network, and keep receipts that went stale to try them.
"""

from __future__ import annotations

from random import Random

from tests.simulation.clients import DialectClient, Surroundings
from tests.simulation.extras import KEYS, NOTHING, TAGS, Extras
from tests.simulation.network import Link
from tests.simulation.queues import wire
from tests.simulation.queues.plan import QueuePlan
from tests.simulation.queues.wire import Ask, Draft, Reply
from tests.simulation.wire import Frame

#: So many receipts that were used, or may be, are kept to be used again.
STALE_MAX = 30


class QueueClient(DialectClient):
    """A client of one queue."""

    def __init__(self, world: Surroundings, random: Random, queue: QueuePlan) -> None:
        self.queue = queue
        #: What it waits for, and what it asked when it lost its connection.
        self.asked: Ask | None = None
        self.unheard: Ask | None = None
        super().__init__(world, random)

    def connected(self, link: Link) -> None:
        """Begin, with what was not answered."""
        asked, self.unheard = self.unheard, None
        if asked is not None and asked.again and self.world.busy and self.random.random() < 0.8:
            self._ask(link, asked)
        else:
            self._later(link)

    def on_frame(self, frame: Frame) -> None:
        """Hear of an answer, and go on."""
        assert isinstance(frame, Reply)
        asked, self.asked = self.asked, None
        if asked is not None and self.link is not None:
            self.heard(asked, frame)
            self._later(self.link)

    def on_lost(self) -> None:
        """Hear that the connection is gone."""
        self.unheard, self.asked = self.asked, None
        super().on_lost()

    def _later(self, link: Link) -> None:
        delay_ns = int(self.random.expovariate(1 / self.queue.gap_ns))
        self.world.scheduler.after(delay_ns, lambda: self._step(link))

    def _step(self, link: Link) -> None:
        if self.link is not link or self.asked is not None:
            return
        if self.random.random() < 0.01:
            self.leave()
            return
        self._ask(link, self.next())

    def _ask(self, link: Link, ask: Ask) -> None:
        self.asked = ask
        link.send(ask)

    def next(self) -> Ask:
        """Return what it asks next."""
        raise NotImplementedError

    def heard(self, ask: Ask, reply: Reply) -> None:
        """Take an answer."""


class ReceiptClient(QueueClient):
    """Sends, receives, and answers for what it received by receipt."""

    ways: wire.Ways

    def __init__(self, world: Surroundings, random: Random, queue: QueuePlan) -> None:
        self.receipts: list[str] = []
        self.stale: list[str] = []
        super().__init__(world, random, queue)

    def next(self) -> Ask:
        """Answer for some messages, ask for some, or send some."""
        random, draw = self.random, self.random.random()
        if self.receipts and draw < 0.5:
            return self._answer()
        if self.stale and draw < 0.55:
            handles = [random.choice(self.stale)]
            if random.random() < 0.5:
                return self.ways.delete(self.queue.topic, handles, batch=False)
            return self.ways.change(self.queue.topic, handles, random.choice((0, 1)), batch=False)
        if draw < 0.75 or not self.world.busy:
            wait_s, hidden_s = random.choice((0, 0, 0, 1, 2)), random.choice((None, None, None, 0, 1, 2))
            return self.ways.receive(self.queue.topic, random.choice((1, 3, 10)), wait_s, hidden_s)
        return self._send()

    def heard(self, ask: Ask, reply: Reply) -> None:
        """Keep the receipts."""
        if ask.word in ("ReceiveMessage", "lease") and reply.status == 200:
            self.receipts += [got.receipt for got in self.ways.got(reply)]

    def _answer(self) -> Ask:
        random, queue = self.random, self.queue.topic
        batch = random.random() < 0.4
        random.shuffle(self.receipts)
        count = random.randint(1, min(10, len(self.receipts))) if batch else 1
        handles, self.receipts = self.receipts[:count], self.receipts[count:]
        self.stale = [*self.stale, *handles][-STALE_MAX:]
        if batch and random.random() < 0.2:
            handles = [*handles[:9], random.choice(self.stale)]
        draw = random.random()
        if draw < 0.7:
            return self.ways.delete(queue, handles, batch=batch)
        if draw < 0.9:
            seconds = random.choice((0, 0, 1, 2))
            if seconds:
                self.receipts += handles
            return self.ways.change(queue, handles, seconds, batch=batch)
        return self.ways.receive(queue, 1, 0, None)  # it says nothing about them, or later

    def _send(self) -> Ask:
        random, batch = self.random, self.random.random() < 0.3
        delay_s = 1 if not self.queue.is_fifo and random.random() < 0.05 else 0
        count = random.choice((1, 2, 5, 10)) if batch else 1
        return self.ways.send(self.queue.topic, [self._draft(delay_s) for _ in range(count)], batch=batch)

    def _draft(self, delay_s: int) -> Draft:
        random = self.random
        body = self.world.body().replace(b"\0", b"0").replace(b"\5", b"5")  # a message is text
        key = random.choice(KEYS) if self.queue.is_fifo or random.random() < 0.2 else ""
        tag = random.choice(TAGS) if random.random() < 0.1 else ""
        extras = Extras(tag, key.encode(), header=self.header(tag)) if key or tag else NOTHING
        return Draft(body, extras, delay_s, body[:6].decode() if self.queue.is_fifo else "")

    def header(self, tag: str) -> bytes | None:
        """Return the header that a message has by its tag."""
        return None


class SqsClient(ReceiptClient):
    """A client of SQS."""

    speech = "sqs"
    ways = wire.Sqs()

    def header(self, tag: str) -> bytes | None:
        """Return the header that a message has by its tag, which is an attribute."""
        return b'{"tag":{"type":"String","value":"%b"}}' % tag.encode() if tag else None


class V2Client(ReceiptClient):
    """A client of Dynamiq's second version."""

    speech = "dynamiq"
    ways = wire.V2()


class DynamiqClient(QueueClient):
    """Enqueues, receives and deletes by id, and has partitions grow and shrink."""

    speech = "dynamiq"

    def __init__(self, world: Surroundings, random: Random, queue: QueuePlan, seen: list[str]) -> None:
        self.ids: list[str] = []
        #: Ids that any client of the queue heard of.
        self.seen = seen
        super().__init__(world, random, queue)

    def next(self) -> Ask:
        """Delete some messages, ask for some, or send one."""
        random, queue, draw = self.random, self.queue.topic, self.random.random()
        if self.ids and draw < 0.4:
            many = random.random() < 0.5
            count = random.randint(1, len(self.ids)) if many else 1
            ids, self.ids = self.ids[:count], self.ids[count:]
            return wire.drop(queue, ids, many=many)
        if self.seen and draw < 0.44:  # also what nobody has, or somebody else
            return wire.drop(queue, random.sample(self.seen, min(2, len(self.seen))), many=random.random() < 0.7)
        if self.queue.restless and draw < 0.5:
            least = random.randint(1, 3)
            return wire.configure(queue, least, least + random.randint(0, 4), random.choice((0.0, 0.2, 60.0)))
        if draw < 0.7 or not self.world.busy:
            return wire.take(queue, random.choice((1, 3, 20)))
        return wire.enqueue(queue, self.world.body())

    def heard(self, ask: Ask, reply: Reply) -> None:
        """Keep the ids."""
        if ask.word == "take" and reply.status == 200:
            found = [entry["id"] for entry in reply.json]
            self.ids += [id_ for id_ in found if self.random.random() < 0.8]
            self.seen[:] = [*self.seen, *found][-50:]
        elif ask.word == "enqueue" and reply.status == 200 and reply.data:
            self.seen[:] = [*self.seen, reply.data.decode()][-50:]
