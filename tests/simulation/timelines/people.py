"""Those who use a timeline: a producer that may delete what is its own, and consumers that come, work and go.

They speak with the node's service as Flight would, over a way that takes its time, and is gone with the process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa

from penstock.callers import Caller
from penstock.client.timeline import wire
from penstock.client.wire import decoded, encoded
from penstock.clock import MILLISECOND, SECOND
from penstock.dialects.timeline.service import Service
from penstock.registry.answer import Answer
from tests.simulation.clock import WALL_START_NS, Call
from tests.simulation.timelines.book import Message
from tests.simulation.timelines.plan import DUE_MS_MAX, TICK_NS, TOPIC, Person

if TYPE_CHECKING:
    from tests.simulation.timelines.world import TimelineWorld

#: Messages that are created in one life of the node.
MESSAGES_MAX = 120
#: Somebody who was refused, or hung up on, tries again after so long.
AGAIN_NS = 300 * MILLISECOND


class Way:
    """One client's way to one life of the node, in both directions, each in order."""

    def __init__(self, world: TimelineWorld, random: Random, machine: str) -> None:
        service = world.service
        assert service is not None
        self.service: Service = service
        address = f"127.0.0.{1 + crc32(machine.encode()) % 250}:1"
        self.caller = Caller(service.node.gate, address, "flight.port")
        self.is_cut = False
        self._world = world
        self._random = random
        self._life = world.book.life
        self._clock = world.host.clock
        self._up_ns = self._down_ns = 0

    @property
    def is_open(self) -> bool:
        """Whether anything could come through."""
        return not self.is_cut and self._world.book.life == self._life and self._world.service is self.service

    def up(self, call: Callable[[], None]) -> None:
        """Let something arrive at the node."""
        self._up_ns = self._later(self._up_ns, lambda: self._clock.call_soon(self._guarded(call)))

    def down(self, call: Callable[[], None]) -> None:
        """Let something arrive at the client."""
        self._down_ns = self._later(self._down_ns, self._guarded(call))

    def _guarded(self, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: call() if self.is_open else None

    def _later(self, after_ns: int, call: Callable[[], None]) -> int:
        scheduler = self._world.host.scheduler
        at_ns = max(after_ns + 1, scheduler.time_ns + int(self._world.plan.latency_ns * self._random.uniform(0.2, 1)))
        scheduler.at(at_ns, self._guarded(call))
        return at_ns


class Producer:
    """One that creates messages, and now and then deletes one."""

    def __init__(self, world: TimelineWorld, random: Random) -> None:
        self._world = world
        self._random = random
        self._way: Way | None = None
        self._session = ""
        self._count = 0
        #: What nobody was told of, to be created again.
        self._again: list[Message] = []

    def go_on(self) -> None:
        """Create something, and go on."""
        world, random = self._world, self._random
        if world.is_busy:
            world.host.scheduler.after(int(random.expovariate(1 / world.plan.create_ns)), self.go_on)
        elif self._unclear():
            world.host.scheduler.after(200 * MILLISECOND, self.go_on)
        if self._way is None or not self._way.is_open:
            self._greet()
        elif self._session:
            self._work(self._way)

    def _unclear(self) -> list[Message]:
        return [each for each in self._world.book.messages.values() if each.state in ("unknown", "under way")]

    def _greet(self) -> None:
        self._session, self._way = "", None
        if self._world.service is None:
            return
        way = self._way = Way(self._world, self._random, "producer")
        asked = wire.ProducerHandshake(topic_id=TOPIC, producer_group_id="g", producer_id="p")

        def greet() -> None:
            way.service.act("producer-handshake", way.caller, encoded(asked)).then(told)

        def told(reply: Any, error: Exception | None) -> None:
            way.down(lambda: self._greeted(way, reply))

        way.up(greet)

    def _greeted(self, way: Way, reply: wire.Session) -> None:
        if self._way is way:
            self._session = reply.session_id
            if reply.error is not None:
                self._way = None

    def _work(self, way: Way) -> None:
        random, book = self._random, self._world.book
        unclear = [each for each in self._unclear() if each.state == "unknown"]
        if unclear and (random.random() < 0.3 or not self._world.is_busy):
            chosen = random.choice(unclear)
            chosen.is_repeated = True
            self._create(way, [chosen])
        elif not self._world.is_busy or self._count >= MESSAGES_MAX * (self._world.host.life + 1):
            return
        elif random.random() < self._world.plan.owner:
            there = [each for each in book.messages.values() if each.state == "stored" and each.deleted_ns is None]
            if there:
                self._world.change(way, self._session, "delete", random.choice(there), "", 0, 0)
        else:
            now_ms = self._world.true_ms()
            messages = []
            for _ in range(random.randint(1, self._world.plan.rows_max)):
                self._count += 1
                after_ms = random.choice((-500, 0, random.randrange(DUE_MS_MAX), random.randrange(DUE_MS_MAX)))
                messages.append(book.create(f"m{self._count}", now_ms + after_ms))
            self._create(way, messages)

    def _create(self, way: Way, messages: list[Message]) -> None:
        columns = [
            pa.array([each.id.encode() for each in messages], pa.binary()),
            pa.array([each.first_due_ms for each in messages], pa.uint64()),
            pa.array([b"b" * self._random.randrange(40) for _ in messages], pa.binary()),
        ]
        rows, session = pa.record_batch(columns, wire.CREATED), self._session

        def create() -> None:
            words = wire.CreateMessages(session_id=session)
            answer = self._world.asked(
                lambda: way.service.create_messages(way.caller, self, words, rows), "create-messages"
            )
            answer.then(partial(told))

        def told(reply: pa.RecordBatch | None, error: Exception | None) -> None:
            if not way.is_open:
                return
            if reply is None:
                self._world.book.record("refused", "create", messages[0].id, error)
                for message in messages:
                    if message.state == "under way":
                        message.state = "unknown"
                if "440" in str(getattr(error, "kind", "")):
                    self._way = None
                return
            for message, row in zip(messages, reply.to_pylist(), strict=True):
                self._world.book.created(message, row["kind"])

        way.up(create)
        self._world.host.scheduler.after(3 * SECOND, partial(self._give_up, way, messages))

    def _give_up(self, way: Way, messages: list[Message]) -> None:
        for message in messages:
            if message.state == "under way":
                message.state = "unknown"


class Exchange:
    """The node's end of a consumer's stream."""

    def __init__(self, consumer: Consumer, way: Way) -> None:
        self._consumer = consumer
        self._way = way
        self.talk: Any = None
        self.is_full = False
        self.unsent_bytes = 0
        self.is_hydrated = False
        self.is_over = False
        #: Whether the node had an answer to a ping: only then does it notice silence.
        self.has_ponged = False
        #: As much as it may still be pushed, by what the node was told last.
        self.room = 0

    def send(self, batch: pa.RecordBatch | None, metadata: bytes = b"") -> None:
        """Take what goes down."""
        book = self._consumer.world.book
        if batch is not None:
            rows = batch.to_pylist()
            self.room -= len(rows)
            times = [(row["timestamp_ms"], row["message_id"]) for row in rows]
            if times != sorted(times):
                book.fail("what comes together comes in order", f"{times} came to {self._consumer.person.name}")
            for row in rows:
                book.pushed(self._consumer.person.name, row, hydrates=not self.is_hydrated)
            self._way.down(lambda: self._consumer.got(self, rows))
        if metadata:
            words = decoded(metadata, wire.Down)
            self.is_hydrated = self.is_hydrated or words.hydrated
            self._way.down(lambda: self._consumer.heard(self, words))

    def end(self, why: str = "") -> None:
        """Hear that the node ends it."""
        self.is_over = True
        self._consumer.world.book.record("ended", self._consumer.person.name, why)
        self.talk.closed()
        self._way.down(lambda: self._consumer.hung_up(self))

    def needs(self, right: Any, topic: str) -> None:
        """Ask for a right."""
        self._way.caller.check(right, topic)


class Consumer:
    """One that comes, works and goes, under one name."""

    def __init__(self, world: TimelineWorld, person: Person, random: Random) -> None:
        self.world = world
        self.person = person
        self._random = random
        self._way: Way | None = None
        self._session = ""
        self.exchange: Exchange | None = None
        self.is_here = False
        self._held: dict[str, tuple[Message, int]] = {}
        self._ticker: Call | None = None

    # --- coming and going -----------------------------------------------------------------------------------------

    def come(self) -> None:
        """Greet, and open a stream."""
        self.is_here = True
        self._greet()

    def leave(self) -> None:
        """Go: with a word, by hanging up, or without anything that the node could notice but silence."""
        way, exchange = self._way, self.exchange
        how = self._random.choice(("unsubscribe", "hang up", "vanish"))
        self.world.book.record("leaves", self.person.name, how)
        self.world.book.disturb()
        self.is_here = False
        self._forget()
        if way is None or not way.is_open:
            return
        if how == "unsubscribe" and self._session:
            asked = encoded(wire.Unsubscribe(session_id=self._session))
            way.up(lambda: way.service.act("unsubscribe", way.caller, asked).then(_unheard))
        elif how == "hang up" and exchange is not None:
            way.up(lambda: self._close(exchange))
        else:
            way.is_cut = True
            self.world.vanished(exchange)

    def _close(self, exchange: Exchange) -> None:
        if not exchange.is_over:
            exchange.is_over = True
            exchange.talk.closed()

    def _forget(self) -> None:
        self._way = self.exchange = None
        self._session = ""
        self._held.clear()
        if self._ticker is not None:
            self._ticker.cancel()

    def _greet(self) -> None:
        """Try until it is in; what it held it will hear of."""
        if not self.is_here:
            return
        self.world.host.scheduler.after(int(AGAIN_NS * self._random.uniform(1, 2)), self._look_again)
        if self.world.service is None or (self._way is not None and self._way.is_open):
            return
        self._forget()
        way = self._way = Way(self.world, self._random, self.person.name)
        person = self.person
        asked = wire.ConsumerHandshake(
            topic_id=TOPIC, consumer_id=person.name, lease_timeout_ms=person.lease_ms, rack_id=person.rack
        )

        def greet() -> None:
            way.service.act("consumer-handshake", way.caller, encoded(asked)).then(told)

        def told(reply: Any, error: Exception | None) -> None:
            way.down(lambda: self._greeted(way, reply))

        way.up(greet)

    def _look_again(self) -> None:
        if self.is_here and (self._way is None or not self._way.is_open):
            self._greet()
        elif self.is_here:
            self.world.host.scheduler.after(AGAIN_NS, self._look_again)

    def _greeted(self, way: Way, reply: wire.Session) -> None:
        if self._way is not way:
            return
        if reply.error is not None:
            way.is_cut = True  # and it tries again
            return
        self._session = reply.session_id
        exchange = self.exchange = Exchange(self, way)

        def consume() -> None:
            self.world.book.record("joins", self.person.name)
            self.world.book.disturb()
            exchange.talk = way.service.reception.consume(way.caller, b"", exchange)

        way.up(consume)
        self._tick(exchange)

    def hung_up(self, exchange: Exchange) -> None:
        """Hear that the stream is over."""
        if self.exchange is exchange and self._way is not None:
            self._way.is_cut = True
            self._forget()

    # --- words ----------------------------------------------------------------------------------------------------

    def _tick(self, exchange: Exchange) -> None:
        if self.exchange is exchange:
            self._ticker = self.world.host.scheduler.after(TICK_NS, lambda: self._tick(exchange))
            self._say_status(exchange)

    def _say_status(self, exchange: Exchange) -> None:
        room = max(self.person.buffer - len(self._held), 0)
        status = wire.ConsumerStatus(
            session_id=self._session, max_buffer_size=self.person.buffer, available_buffer_size=room
        )
        self._say(exchange, wire.Up(status=status), room)

    def _say(self, exchange: Exchange, words: wire.Up, room: int | None = None) -> None:
        way = self._way
        if way is not None:

            def say() -> None:
                if not exchange.is_over:
                    if room is not None:
                        exchange.room = room
                    exchange.has_ponged = exchange.has_ponged or words.pong is not None
                    exchange.talk.received(None, encoded(words))

            way.up(say)

    def heard(self, exchange: Exchange, words: wire.Down) -> None:
        """Hear a word of the node."""
        if words.ping is not None and self.exchange is exchange:
            pong = wire.Pong(local_ts_ms=words.ping.local_ts_ms, partner_ts_ms=self.world.true_ms())
            self._say(exchange, wire.Up(pong=pong))

    # --- work -----------------------------------------------------------------------------------------------------

    def got(self, exchange: Exchange, rows: list[dict[str, Any]]) -> None:
        """Take leases, and work on each in its time."""
        if self.exchange is not exchange:
            return
        for row in rows:
            message = self.world.book.messages[row["message_id"].decode()]
            self._held[message.id] = (message, row["version"])
            ahead_ns = max(row["timestamp_ms"] * MILLISECOND - self.world.host.scheduler.wall_ns(), 0)
            work_ns = self._work_ns()
            ready = partial(self._done, exchange, message, row["version"])
            self.world.host.scheduler.after(min(ahead_ns, 2 * SECOND) + work_ns, ready)

    def _work_ns(self) -> int:
        """Return how long it works on a message; in the end, less than a lease."""
        work_ns = int(self._random.expovariate(1 / self.person.work_ns))
        return work_ns if self.world.is_busy else min(work_ns, self.person.lease_ms * MILLISECOND // 4)

    def _done(self, exchange: Exchange, message: Message, version: int) -> None:
        way, random = self._way, self._random
        if self.exchange is not exchange or way is None or self._held.get(message.id) != (message, version):
            return
        del self._held[message.id]
        is_odd = self.world.is_busy and random.random() < self.world.plan.odd
        how = random.choice(("extend-lease", "release", "nothing")) if is_odd else "delete"
        if how == "nothing":  # it is lost here, and comes again when its lease is over
            return
        after_ms = random.choice((6, 300, 2000)) if how == "release" else random.choice((50, 1000, 9000))
        then = partial(self._extended, exchange) if how == "extend-lease" else None
        self.world.change(way, self._session, how, message, self.person.name, version, after_ms, then)
        if random.random() < 0.5 or self.person.buffer <= 4:
            self._say_status(exchange)

    def _extended(self, exchange: Exchange, message: Message, reply: dict[str, Any]) -> None:
        if self.exchange is exchange and not reply["kind"]:
            self._held[message.id] = (message, reply["version"])
            self.world.host.scheduler.after(self._work_ns(), partial(self._done, exchange, message, reply["version"]))


def _unheard(_: object, __: Exception | None) -> None:
    return


def wall_of(time_ns: int) -> int:
    """Return what a clock that is right shows, in milliseconds."""
    return (time_ns + WALL_START_NS) // MILLISECOND


__all__ = ["Answer", "Consumer", "Exchange", "Producer", "Way", "wall_of"]
